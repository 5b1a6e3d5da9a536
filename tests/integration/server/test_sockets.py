"""Chat completions over a WebSocket, against a real server process."""

import json

import httpx
import pytest
from tests.support.fake_server import FakeServer
from tests.support.patience import PATIENCE
from tests.support.processes import until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

PATH = "/v1/chat/completions/ws"
ASK = {"messages": [{"role": "user", "content": "hello"}], "seed": 1, "max_tokens": 6}
ENDLESS = ASK | {"max_tokens": 1900}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sockets")
    (folder / "keys").write_text("alice:sk-1\n")
    security = {"api_key_file": str(folder / "keys"), "cors_origins": ["https://good.example"]}
    engine = {"step": 0.005, "max_num_seqs": 16}
    limits = {"max_socket_requests": 4, "max_body_bytes": 200_000, "resume_window": 1 << 20}
    with FakeServer(folder, engine=engine, security=security, **limits) as running:
        yield running


def opened(server, **options):
    url = server.url.replace("http", "ws", 1) + PATH
    options.setdefault("additional_headers", {"authorization": "Bearer sk-1"})
    return connect(url, max_size=None, **options)


def say(socket, **message):
    socket.send(json.dumps(message))


def hear(socket, *names):
    """All messages by id, until each of these is done."""
    heard = {name: [] for name in names}
    while any(not items or "done" not in items[-1] for items in map(heard.get, names)):
        message = json.loads(socket.recv(PATIENCE))
        heard.setdefault(message.pop("id"), []).append(message)
    return heard


def running(server):
    load = httpx.get(f"{server.url}/load", headers={"x-api-key": "sk-1"}).json()
    return load["num_running"] + load["num_waiting"]


def until_idle(server):
    until(lambda: not running(server), "it is idle")


def test_chunks_are_those_of_the_event_stream(server):
    with opened(server) as socket:
        say(socket, id="a", request=ASK)
        *chunks, done = hear(socket, "a")["a"]
        say(socket, id="a", request=ASK | {"stream": False})
        whole, _ = hear(socket, "a")["a"]
    assert done == {"done": True}
    answer = httpx.post(
        f"{server.url}/v1/chat/completions",
        json=ASK | {"stream": True},
        headers={"x-api-key": "sk-1"},
    )
    events = [json.loads(i[6:]) for i in answer.text.split("\n") if i.startswith("data: {")]
    parts = [item["chunk"]["choices"] for item in chunks]
    assert "".join(p[0]["delta"].get("content") or "" for p in parts) == "".join(
        e["choices"][0]["delta"].get("content") or "" for e in events
    )
    assert [item["chunk"].keys() for item in chunks[:2]] == [e.keys() for e in events[:2]]
    text = whole["response"]["choices"][0]["message"]["content"]
    assert "".join(p[0]["delta"].get("content") or "" for p in parts) == text


def test_several_at_a_time_and_one_is_cancelled(server):
    with opened(server) as socket:
        say(socket, id="long", request=ENDLESS)
        say(socket, id="b", request=ASK)
        say(socket, id="long", request=ASK)
        heard = hear(socket, "b")
        errors = [m for m in heard["long"] if "error" in m]
        assert [(m["status"], m["error"]["param"]) for m in errors] == [(400, "id")]
        assert "done" not in heard["long"][-1]
        say(socket, id="long", cancel=True)
        *_, error, _ = hear(socket, "long")["long"]
        assert error["error"]["code"] == "request_cancelled"
        assert error["status"] == 499
        until_idle(server)
        say(socket, id="long", request=ASK)  # the id is free again
        assert "error" not in hear(socket, "long")["long"][0]
        say(socket, id="nobody", cancel=True)
        say(socket, id="first", request=ENDLESS)
        say(socket, id="first", cancel=True)  # before it has begun
        assert "error" in hear(socket, "first")["first"][-2]


def test_outstanding_requests_are_bounded(server):
    with opened(server) as socket:
        for n in range(5):
            say(socket, id=str(n), request=ENDLESS)
        error, _ = hear(socket, "4")["4"]
        assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
    until_idle(server)  # the socket was closed: its work is gone


@pytest.mark.parametrize(
    ("text", "name", "param"),
    [
        ("no json", None, None),
        ("[]", None, None),
        ("{}", None, "id"),
        ('{"id": 3}', None, "id"),
        ('{"id": ""}', None, "id"),
        ('{"id": "a"}', "a", "request"),
        ('{"id": "a", "request": 3}', "a", None),
        ('{"id": "a", "request": {}}', "a", "messages"),
        ('{"id": "a", "request": {"messages": [], "temperature": "hot"}}', "a", "temperature"),
        ("[" * 5000, None, None),
        (b"\xff\xfe", None, None),
    ],
)
def test_faults_are_told_and_the_socket_goes_on(server, text, name, param):
    with opened(server) as socket:
        socket.send(text)
        error = json.loads(socket.recv(PATIENCE))
        assert error["id"] == name
        assert error["status"] == 400
        assert error["error"]["message"]
        if param is not None and "messages" not in param and "temp" not in param:
            assert error["error"]["param"] == param
        if name is not None:
            assert json.loads(socket.recv(PATIENCE)) == {"id": name, "done": True}
        say(socket, id="a", request=ASK)
        assert "chunk" in hear(socket, "a")["a"][0]


def test_a_message_that_is_too_large_closes_the_socket(server):
    with opened(server) as socket:
        socket.send('{"id": "' + "x" * 300_000)
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(PATIENCE)
        assert caught.value.rcvd.code == 1009


def test_the_key_comes_in_a_header_or_as_a_protocol(server):
    with opened(
        server, additional_headers={}, subprotocols=["headrace.v1", "headrace.key.sk-1"]
    ) as socket:
        assert socket.subprotocol == "headrace.v1"
        say(socket, id="a", request=ASK)
        assert "chunk" in hear(socket, "a")["a"][0]
    with opened(server, additional_headers={"x-api-key": "sk-1"}):
        pass


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"additional_headers": {}}, 401),
        ({"additional_headers": {"authorization": "Bearer no"}}, 401),
        ({"additional_headers": {}, "subprotocols": ["headrace.v1", "headrace.key.no"]}, 401),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "https://good.example"}, 101),
    ],
)
def test_who_may_open_one(server, options, status):
    if status == 101:
        with opened(server, **options):
            return
    with pytest.raises(InvalidStatus) as caught:
        opened(server, **options)
    assert caught.value.response.status_code == status
    assert json.loads(caught.value.response.body)["error"]["message"]


def test_there_is_no_socket_elsewhere(server):
    url = server.url.replace("http", "ws", 1)
    with pytest.raises(InvalidStatus) as caught:
        connect(f"{url}/v1/models", additional_headers={"x-api-key": "sk-1"})
    assert caught.value.response.status_code == 404
    answer = httpx.get(server.url + PATH, headers={"x-api-key": "sk-1"})
    assert answer.status_code in (404, 405)


def test_a_client_that_reads_nothing_holds_back_its_own_answers_only(server):
    body = ASK | {"max_tokens": 1500, "logprobs": True, "top_logprobs": 5}
    with opened(server) as deaf, opened(server) as other:
        for n in range(4):
            say(deaf, id=str(n), request=body)
        say(other, id="a", request=ASK)
        assert hear(other, "a")["a"][-1] == {"done": True}
        heard = hear(deaf, *"0123")
        assert all(m[-2]["chunk"]["choices"][0]["finish_reason"] for m in heard.values())
    until_idle(server)
