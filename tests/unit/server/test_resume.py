"""A stream that was cut goes on for whoever started it, event by event, within its bounds."""

import asyncio
import json
import re

import pytest
from tests.support.in_process import InProcess
from tests.support.patience import PATIENCE

ALICE, BOB = "sk-a", "sk-b"
TOKENS = 30
BODY = {"prompt": "hi", "max_tokens": TOKENS, "ignore_eos": True, "stream": True, "seed": 1}
EVENT = re.compile(r"id: (\S+)/(\d+)\n(?:: .*\n)?data: (.*)\n\n")


class Connection:
    """One request at the application, whose client can leave."""

    def __init__(self, app, method, path, body=None, key=ALICE, **headers):
        self.sent = []
        self.status = None
        self._left = asyncio.Event()
        self._news = asyncio.Event()
        pairs = {"x-api-key": key, "content-type": "application/json", **headers}
        self._body = json.dumps(body).encode() if body else b""
        scope = {
            "type": "http", "method": method, "path": path, "query_string": b"", "root_path": "",
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in pairs.items()],
        }  # fmt: skip
        self.task = asyncio.create_task(app.app(scope, self._receive, self._send))

    async def _receive(self):
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif not self._left.is_set():
            self.sent.append(message["body"])
        self._news.set()
        await asyncio.sleep(0)

    @property
    def text(self):
        return b"".join(self.sent).decode()

    @property
    def events(self):
        """(stream, number, data) of each event; there is nothing else."""
        found = EVENT.findall(self.text)
        assert "".join(f"id: {s}/{n}\ndata: {d}\n\n" for s, n, d in found) == self.text
        return found

    async def until(self, count):
        """Wait for that many events."""
        while len(self.events) < count:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), PATIENCE)
        return self

    async def leave(self):
        self._left.set()
        await asyncio.wait_for(self.task, PATIENCE)
        return self

    async def end(self):
        await asyncio.wait_for(self.task, PATIENCE)
        return self


def serving(folder, **server):
    given = {"resume_window": 1 << 20, "security": {"api_keys": f"{ALICE},{BOB}"}, **server}
    return InProcess(folder, **given)


def start(app, **headers):
    return Connection(app, "POST", "/v1/completions", BODY, **headers)


def back(app, last, key=ALICE):
    """A client that comes back with the id of the last event it has."""
    stream = last.partition("/")[0]
    return Connection(app, "GET", f"/v1/streams/{stream}", key=key, last_event_id=last)


async def idle(app):
    async with asyncio.timeout(PATIENCE):
        while app.engine.num_open or app.replica.admission.num_open:  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0.001)


async def running(app):
    async with asyncio.timeout(PATIENCE):
        while not app.engine.num_open:  # noqa: ASYNC110  it tells nobody
            await asyncio.sleep(0.001)


async def test_whatever_the_cut_the_parts_are_the_whole(tmp_path):
    async with serving(tmp_path) as app:
        whole = [(n, _text(d)) for _, n, d in (await start(app).end()).events]
        assert [int(n) for n, _ in whole] == list(range(1, len(whole) + 1))
        assert whole[-1][1] == "[DONE]"
        assert len(whole) == TOKENS + 1
        for cut in (1, 7, len(whole) - 1):
            first = await (await start(app).until(cut)).leave()
            stream, number, _ = first.events[cut - 1]  # it has seen no more than that
            rest = await back(app, f"{stream}/{number}").end()
            assert rest.status == 200
            parts = [(n, _text(d)) for _, n, d in first.events[:cut] + rest.events]
            assert parts == whole


def _text(data):
    return data if data == "[DONE]" else json.loads(data)["choices"][0]["text"]


async def test_the_request_goes_on_while_nobody_reads_and_may_be_sent_again(tmp_path):
    async with serving(tmp_path) as app:
        first = await (await start(app).until(2)).leave()
        await idle(app)  # it ran to its end without a reader
        stream = first.events[0][0]
        again = await start(app, last_event_id=f"{stream}/2").end()
        assert [int(n) for _, n, _ in again.events] == list(range(3, TOKENS + 2))
        assert app.replica.streams.num_kept == 1  # no second request was made
        from_the_start = await Connection(app, "GET", f"/v1/streams/{stream}").end()
        assert len(from_the_start.events) == TOKENS + 1
        bare = await Connection(app, "GET", f"/v1/streams/{stream}", last_event_id="5").end()
        assert bare.events[0][1] == "6"
        nothing = await back(app, f"{stream}/{TOKENS + 1}").end()
        assert (nothing.status, nothing.text) == (204, "")


async def test_only_the_same_key_finds_it(tmp_path):
    async with serving(tmp_path) as app:
        stream = (await start(app).end()).events[0][0]
        for event in (f"{stream}/1", stream, "none/1"):
            other = await back(app, event, key=BOB).end()
            assert other.status == 404
            assert "no such stream" in other.text
        assert (await back(app, f"{stream}/1").end()).status == 200


@pytest.mark.parametrize("last", ["99", "-1", "x", "9" * 30, "other/1"])
async def test_ids_that_cannot_be_are_refused(tmp_path, last):
    async with serving(tmp_path) as app:
        stream = (await start(app).end()).events[0][0]
        answer = await Connection(app, "GET", f"/v1/streams/{stream}", last_event_id=last).end()
        assert answer.status == 400
        assert "Last-Event-ID" in answer.text


async def test_nobody_comes_back_and_the_request_ends(tmp_path):
    async with serving(tmp_path, resume_linger=0.02) as app:
        app.engine.is_held = True
        first = start(app)
        await running(app)
        app.engine.is_held = False
        await first.until(1)
        app.engine.is_held = True
        await first.leave()
        assert app.replica.streams.num_kept == 1
        await idle(app)
        assert app.replica.streams.num_kept == 0
        assert (await back(app, first.events[0][0] + "/1").end()).status == 404


async def test_one_that_left_before_its_first_event_has_nothing_to_come_back_with(tmp_path):
    async with serving(tmp_path) as app:
        app.engine.is_held = True
        first = start(app)
        await running(app)
        await first.leave()
        await idle(app)
        assert app.replica.streams.num_kept == 0


async def test_what_was_read_is_forgotten_beyond_the_window(tmp_path):
    async with serving(tmp_path, resume_window=1000) as app:
        first = await start(app).end()
        stream = first.events[0][0]
        assert len(first.events) == TOKENS + 1
        late = await back(app, f"{stream}/1").end()
        assert late.status == 404
        assert "no longer kept" in late.text
        recent = await back(app, f"{stream}/{TOKENS}").end()
        assert [d for _, _, d in recent.events] == ["[DONE]"]


async def test_a_request_ends_when_unseen_events_do_not_fit(tmp_path):
    async with serving(tmp_path, resume_window=1000) as app:
        first = await (await start(app).until(1)).leave()
        await idle(app)
        assert app.replica.streams.num_kept == 0
        assert len(first.events) < TOKENS


async def test_a_second_reader_takes_over_from_the_first(tmp_path):
    async with serving(tmp_path) as app:
        first = await start(app).until(3)
        app.engine.is_held = True
        second = back(app, f"{first.events[0][0]}/1")
        await first.end()
        app.engine.is_held = False
        await second.end()
        assert second.events[-1][2] == "[DONE]"
        assert second.events[0][1] == "2"


async def test_an_error_before_the_first_event_is_a_status_still(tmp_path):
    async with serving(tmp_path) as app:
        app.engine.submit = _refuse
        answer = await start(app).end()
        assert answer.status == 503
        assert app.replica.streams.num_kept == 0


def _refuse(*_):
    from headrace.core.errors import UnavailableError

    raise UnavailableError("Not now.")


async def test_beyond_their_number_and_where_it_is_off_streams_have_no_ids(tmp_path):
    async with serving(tmp_path / "a", max_resumable_streams=1) as app:
        assert (await start(app).end()).events
        assert "id: " not in (await start(app).end()).text
    async with serving(tmp_path / "b", resume_window=0) as app:
        assert "id: " not in (await start(app, last_event_id="x/1").end()).text
        assert (await Connection(app, "GET", "/v1/streams/x").end()).status == 404
