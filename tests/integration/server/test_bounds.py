"""Clients that send slowly, read slowly, or come in crowds: each has its bound. Raw sockets."""

import json
import socket
import time
from contextlib import ExitStack

import httpx
import pytest
from tests.support.fake_server import FakeServer
from tests.support.patience import PATIENCE
from tests.support.processes import until

from headrace.web.protocol import SPARE_CONNECTIONS

BODY = {"prompt": "a", "max_tokens": 2}


class Connection:
    """One socket."""

    def __init__(self, server, *, receive_buffer=None):
        host, port = server.url.removeprefix("http://").split(":")
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect((host, int(port)))

    def begin(self, length, body=b"", path="/v1/completions"):
        """A POST whose headers announce `length` bytes, and the first of them."""
        self.socket.sendall(
            b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (path.encode(), length, body)
        )
        return self

    def post(self, **changes):
        body = json.dumps(BODY | changes).encode()
        return self.begin(len(body), body)

    def get(self, path):
        self.socket.sendall(b"GET %s HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode())
        return self

    def answer(self):
        """Status, headers and body of the next response."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        while len(body) < int(headers["content-length"]):
            body += self._more()
        return int(lines[0].split()[1]), headers, json.loads(body)

    def rest(self):
        """Everything up to the end of the connection."""
        data = b""
        while part := self.socket.recv(65536):
            data += part
        return data

    def _more(self):
        part = self.socket.recv(65536)
        assert part, "the connection ended"
        return part

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.socket.close()


def rejected(server, reason):
    name = f'headrace_requests_rejected_total{{reason="{reason}"}}'
    metrics = httpx.get(f"{server.url}/metrics").text
    return next((float(x.split()[-1]) for x in metrics.splitlines() if x.startswith(name)), 0.0)


def test_bodies_share_a_budget_that_is_taken_before_they_are_read(tmp_path):
    with (
        FakeServer(tmp_path, max_body_bytes=60_000, max_buffered_bytes=100_000) as server,
        Connection(server) as first,
        Connection(server) as second,
        Connection(server) as chunked,
    ):
        first.begin(60_000, b"{")
        until(lambda: _refused(server, 60_000))
        status, headers, body = second.begin(60_000).answer()  # not one byte of it has come
        assert (status, body["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(headers["retry-after"]) >= 1
        chunked.socket.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(6):
            chunked.socket.sendall(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        assert chunked.answer()[0] == 429
        assert rejected(server, "bodies") >= 2
        assert _status_of_new(server) == 200  # a small one has room
        first.socket.close()
        until(lambda: not _refused(server, 60_000))


def _refused(server, length):
    """Whether a body of this length is refused for its length (else it is waited for)."""
    with Connection(server) as connection:
        connection.begin(length)
        connection.socket.settimeout(0.3)
        try:
            return connection.answer()[0] == 429
        except TimeoutError:
            return False


READ_TIMEOUT = 1.5
"""Seconds: whoever sends something at once must do so within them, on a busy machine too."""


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    """With `last`, the file without which no answer ends."""
    folder = tmp_path_factory.mktemp("impatient")
    last = folder / "last"
    engine = {"last": str(last)}
    with FakeServer(folder, engine=engine, read_timeout=READ_TIMEOUT) as server:
        server.last = last
        yield server


def test_a_request_that_does_not_arrive_is_408(impatient):
    beginnings = [
        b"POST /v1/comp",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{",
    ]
    with ExitStack() as stack:
        late = []
        for sent in beginnings:
            late.append(stack.enter_context(Connection(impatient)))
            late[-1].socket.sendall(sent)
        for connection in late:
            status, headers, body = connection.answer()
            assert (status, headers["connection"]) == (408, "close")
            assert body["error"]["code"] == "request_timeout"
            assert connection.rest() == b""


def test_a_slow_trickle_is_not_enough(impatient):
    with Connection(impatient) as connection:
        connection.begin(1000)

        def trickle():
            connection.socket.sendall(b" ")
            time.sleep(0.05)

        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            until(trickle)


def test_a_connection_on_which_nothing_comes_is_closed(impatient):
    with Connection(impatient) as silent, Connection(impatient) as empty:
        empty.socket.sendall(b"\r\n")
        assert silent.rest() == empty.rest() == b""


def test_kept_connections_and_long_answers_have_all_the_time(impatient):
    impatient.last.touch()
    with Connection(impatient) as connection:
        for _ in range(2):
            assert connection.post().answer()[0] == 200
            time.sleep(READ_TIMEOUT + 0.2)
        impatient.last.unlink()
        # The next request begins while this answer is under way, and its rest comes late.
        connection.post(max_tokens=600)
        connection.socket.sendall(b"GET /livez HT")
        time.sleep(READ_TIMEOUT + 0.2)
        connection.socket.sendall(b"TP/1.1\r\nhost: x\r\n\r\n")
        impatient.last.touch()
        assert connection.answer()[0] == 200
        assert connection.answer()[2]["status"] == "ok"


def test_a_client_that_stops_reading_loses_its_place(tmp_path):
    engine = {"step": 0.002, "max_num_seqs": 8}
    with (
        FakeServer(tmp_path, engine=engine, stall_timeout=0.5) as server,
        Connection(server, receive_buffer=4096) as connection,
    ):
        # 2 kB a token: what the kernel takes is full long before the answer's end.
        connection.post(max_tokens=1900, n=4, logprobs=20, stream=True)
        cut = 'requests_finished_total{model="fake",reason="cancelled"} 4'
        until(lambda: cut in httpx.get(f"{server.url}/metrics").text, "it is cut off")
        assert httpx.get(f"{server.url}/load").json()["num_running"] == 0


def test_connections_beyond_the_bound_are_503_and_probes_still_answer(tmp_path):
    with FakeServer(tmp_path, max_connections=2) as server, ExitStack() as stack:
        idle = [stack.enter_context(Connection(server)) for _ in range(2)]
        assert [c.post().answer()[0] for c in idle] == [200, 200]
        surplus = stack.enter_context(Connection(server))
        status, headers, body = surplus.post().answer()
        assert (status, headers["connection"]) == (503, "close")
        assert int(headers["retry-after"]) >= 1
        assert "2 connections" in body["error"]["message"]
        assert surplus.rest() == b""
        probe = stack.enter_context(Connection(server))
        for path in ("/readyz", "/livez", "/load"):
            assert probe.get(path).answer()[0] == 200
        assert rejected(server, "connections") == 1
        idle[0].socket.close()
        idle[1].socket.close()
        # Once there is room, a connection that was one too many is as good as any.
        until(lambda: _status_of_new(server) == 200)
        assert probe.post().answer()[0] == 200


def _status_of_new(server):
    with Connection(server) as connection:
        return connection.post().answer()[0]


def test_a_flood_of_connections_is_closed_at_the_door(tmp_path):
    with FakeServer(tmp_path, max_connections=1) as server, ExitStack() as stack:
        crowd = [stack.enter_context(Connection(server)) for _ in range(SPARE_CONNECTIONS + 5)]
        status, headers, _ = crowd[-1].answer()  # nothing was sent
        assert (status, headers["connection"]) == (503, "close")
        assert crowd[0].post().answer()[0] == 200


def test_too_many_headers_are_refused(tmp_path):
    with FakeServer(tmp_path, max_headers=20, max_header_bytes=4096) as server:
        fine = httpx.get(f"{server.url}/livez", headers={f"x-{n}": "y" for n in range(10)})
        many = httpx.get(f"{server.url}/livez", headers={f"x-{n}": "y" for n in range(30)})
        long = httpx.get(f"{server.url}/livez", headers={"x": "y" * 5000})
    assert fine.status_code == 200
    assert (many.status_code, long.status_code) == (431, 431)
    assert "20 headers (max_headers)" in many.json()["error"]["message"]
    assert "4096 bytes (max_header_bytes)" in long.json()["error"]["message"]
