import asyncio
import json

import pytest
from starlette.routing import Router
from tests.support.accounts_of import TWO_CLASSES, accounts_config, flow_config, key
from tests.support.fake_clock import FakeClock
from tests.support.patience import PATIENCE

from headrace.cli import fleet_accounts
from headrace.cli.main import main
from headrace.config.fleet.root import FleetConfig
from headrace.config.secret import Secret
from headrace.config.security import SecurityConfig
from headrace.core.errors import HeadraceError
from headrace.fleet.gateway.accounts.build import Books
from headrace.fleet.gateway.accounts.ledger import UsageRow
from headrace.fleet.gateway.accounts.money import nano
from headrace.fleet.gateway.admin.accounts import AccountsAdmin
from headrace.fleet.gateway.admin.door import Door
from headrace.observe.metrics import Metrics
from headrace.web.keys import KeyRing
from headrace.web.middleware import Problems


class Desk:
    """The admin API over books in a directory, called as ASGI."""

    def __init__(self, path, **accounts) -> None:
        clock = FakeClock()
        tables = {"directory": str(path), "keys": [key("a", tenant="acme")], **accounts}
        config = FleetConfig(accounts=accounts_config(**tables), flow=flow_config(**TWO_CLASSES))
        self.books = Books(config, clock, Metrics())
        ring = KeyRing(SecurityConfig(api_keys=Secret("operator")), clock)
        self._router = Router(
            AccountsAdmin(self.books, Door(ring)).endpoints(), redirect_slashes=False
        )
        self._app = Problems(self._routed, lambda _: lambda answer: answer.body)

    async def _routed(self, scope, receive, send) -> None:
        scope["app"] = self._routed
        await self._router(scope, receive, send)

    async def raw(self, method, path, body=b"", *, admin_key="operator") -> tuple[int, bytes]:
        path, _, query = path.partition("?")
        sent: list = []

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {admin_key}".encode())]
        headers += [(b"content-length", str(len(body)).encode())]
        scope = {
            "type": "http", "method": method, "path": f"/admin{path}", "headers": headers,
            "query_string": query.encode(), "headrace.request_id": "r", "root_path": "",
        }  # fmt: skip
        await self._app(scope, receive, send)
        return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:])

    async def call(self, method, path, body=None, **options):
        data = b"" if body is None else json.dumps(body).encode()
        status, answer = await self.raw(method, path, data, **options)
        return status, json.loads(answer)

    def record(self, number: int, **fields) -> None:
        row = {"time": FakeClock().wall(), "key": "a", "tenant": "acme", "model": "m", **fields}
        self.books.ledger.record(UsageRow(request_id=f"r{number}", **row))

    def write(self) -> None:
        self.books.ledger.flush()
        assert self.books._journal.flush()


@pytest.fixture
async def desk(tmp_path):
    made = Desk(tmp_path)
    await made.books.start()
    yield made
    await made.books.close()


async def test_nothing_is_told_without_an_operator_s_key(desk) -> None:
    for method, path in (
        ("GET", "/keys"), ("POST", "/keys"), ("DELETE", "/keys/a"), ("GET", "/usage"), ("GET", "/usage/rows"),
    ):  # fmt: skip
        assert (await desk.call(method, path, admin_key="secret-a"))[0] == 401


async def test_a_key_s_life(desk) -> None:
    wanted = {"name": "new", "tenant": "acme", "priority": "batch", "limits": {"concurrency": 3}}
    status, created = await desk.call("POST", "/keys", wanted)
    assert status == 201
    assert created["info"]["limits"]["concurrency"] == 3
    status, listed = await desk.call("GET", "/keys")
    assert [(k["name"], k["is_configured"]) for k in listed["keys"]] == [
        ("a", True),
        ("new", False),
    ]
    assert created["key"] not in json.dumps(listed)
    assert (await desk.call("DELETE", "/keys/new"))[1]["revoked"] is not None
    assert (await desk.call("DELETE", "/keys/nobody"))[0] == 404
    assert (await desk.call("DELETE", "/keys/a"))[0] == 400


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"name": "a"}', "name"),
        (b'{"name": "b", "priority": "gold"}', "priority"),
        (b'{"name": "b", "limits": {"budgets": [{"amount": 1}, {"amount": 2}]}}', "limits"),
        (b"[]", None),
        (b"\x00", None),
    ],
)
async def test_a_bad_key_is_a_400_that_names_the_field(desk, body, param) -> None:
    status, answer = await desk.raw("POST", "/keys", body)
    assert (status, json.loads(answer)["error"]["param"]) == (400, param)


async def test_without_a_directory_there_are_no_created_keys_and_no_ledger(tmp_path) -> None:
    desk = Desk(tmp_path, directory=None)
    await desk.books.start()
    status, answer = await desk.call("POST", "/keys", {"name": "new"})
    assert status == 400
    assert "accounts.directory" in answer["error"]["message"]
    assert (await desk.call("GET", "/usage"))[0] == 404
    assert (await desk.call("GET", "/usage/rows"))[0] == 404
    await desk.books.close()


async def test_usage_is_summed_and_exported(desk) -> None:
    for number in range(3):
        desk.record(number, cost=nano(0.5), prompt_tokens=10)
    desk.write()
    status, found = await desk.call("GET", "/usage?by=tenant,day&since=2023-11-01")
    assert status == 200
    (row,) = found["usage"]
    assert (row["group"], row["cost"]) == ({"tenant": "acme", "day": "2023-11-14"}, 1.5)
    status, lines = await desk.raw("GET", "/usage/rows?key=a")
    assert [json.loads(line)["request_id"] for line in lines.splitlines()] == ["r0", "r1", "r2"]
    status, text = await desk.raw("GET", "/usage/rows?format=csv&until=2020-01-01")
    assert (status, len(text.splitlines())) == (200, 1)


@pytest.mark.parametrize(
    ("path", "param"),
    [("/usage?by=x", "by"), ("/usage?tenat=acme", "tenat"), ("/usage/rows?format=xls", "format")],
)
async def test_a_slip_in_a_question_is_a_400(desk, path, param) -> None:
    status, answer = await desk.call("GET", path)
    assert (status, answer["error"]["param"]) == (400, param)


class Direct:
    """Stands for the client of the command line, without a socket."""

    def __init__(self, desk: Desk, loop: asyncio.AbstractEventLoop) -> None:
        self._desk, self._loop = desk, loop

    def call(self, method, path, body=None):
        return self._answer(self._desk.call(method, path, body))

    def pieces(self, path):
        yield self._answer(self._desk.raw("GET", path))

    def _answer(self, asked):
        status, answer = asyncio.run_coroutine_threadsafe(asked, self._loop).result(PATIENCE)
        if status >= 400:
            raise HeadraceError(answer["error"]["message"])
        return answer


async def test_the_command_line_makes_keys_and_reads_the_ledger(
    desk, monkeypatch, capsysbinary
) -> None:
    client = Direct(desk, asyncio.get_running_loop())
    monkeypatch.setattr(fleet_accounts, "admin_client", lambda _: client)

    async def run(*argv: str) -> tuple[int, str, str]:
        status = await asyncio.to_thread(main, ["fleet", *argv])
        shown = capsysbinary.readouterr()
        return status, shown.out.decode(), shown.err.decode()

    status, out, _ = await run(
        "keys", "create", "new", "--tenant", "acme", "--models", "small", "qwen*", "--concurrency", "4",
        "--budget-day", "2.5", "--budget-total", "100", "--expires-in", "24h",
    )  # fmt: skip
    assert status == 0
    account = desk.books.accounts._directory.find(out.strip())
    assert account is not None
    assert (account.tenant, account.models) == ("acme", ("small", "qwen*"))
    assert account.key_limits.concurrency == 4
    assert [(b.per, b.amount) for b in account.key_limits.budgets] == [
        ("day", 2.5),
        ("total", 100.0),
    ]
    status, out, _ = await run("keys")
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["a", "acme", "interactive", "all", "configured"],
        ["new", "acme", "interactive", "small,qwen*", "created"],
    ]
    assert (await run("keys", "revoke", "new"))[1] == "Key new is good no more.\n"
    assert (await run("keys", "revoke", "nobody"))[0] == 1
    assert (await run("keys", "create"))[0] == 2
    assert (await run("keys", "create", "x", "--expires-in", "soon"))[0] == 2

    desk.record(1, cost=nano(0.25))
    desk.write()
    status, out, _ = await run("usage", "--by", "key", "--tenant", "acme")
    assert [line.split()[:3] for line in out.splitlines()] == [
        ["key", "requests", "errors"],
        ["a", "1", "0"],
    ]
    status, out, _ = await run("usage", "--by", "key", "--json")
    assert json.loads(out)["usage"][0]["cost"] == 0.25
    status, out, _ = await run("usage", "--export", "csv")
    assert len(out.splitlines()) == 2
    assert (await run("usage", "--by", "nothing"))[0] == 1
