"""HTTP to a replica, over a raw server that sends whatever a test says."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from tests.support.in_process_gateway import until
from tests.support.listening import Listener
from tests.support.patience import PATIENCE

from headrace.config.fleet.gateway import TimeoutConfig
from headrace.fleet.upstream import pool as pool_module
from headrace.fleet.upstream.connection import MAX_HEADER_BYTES
from headrace.fleet.upstream.failure import FailureKind, UpstreamError
from headrace.fleet.upstream.pool import Pool, address_of

OK = b"HTTP/1.1 200 OK\r\n"
TIMEOUTS = TimeoutConfig(
    connect=PATIENCE, first_token=PATIENCE, between_tokens=PATIENCE, total=PATIENCE
)


class Script:
    """Sends the next answer to each request; None closes the connection at the end of it."""

    def __init__(
        self, *answers: tuple[bytes, ...], ends: bool = False, resets: bool = False
    ) -> None:
        self.answers = list(answers)
        self.ends = ends
        self.resets = resets
        self.requests: list[bytes] = []
        self.num_connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        while self.answers:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            for part in self.answers.pop(0):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.002)
            if self.resets:
                linger = struct.pack("ii", 1, 0)
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            if self.ends or self.resets:
                return
        await reader.read()


@contextlib.asynccontextmanager
async def scripted(script: Script, timeouts: TimeoutConfig = TIMEOUTS) -> AsyncIterator[Pool]:
    listener = Listener(script.serve)
    await listener.start()
    address = address_of(f"http://127.0.0.1:{listener.port}")
    pool = Pool(address, timeouts, max_idle=4, max_buffer=1000)
    try:
        yield pool
        pool.close()
        await until(lambda: listener.num_connections == 0, "every connection is closed")
    finally:
        await listener.kill()


async def ask(pool: Pool, method: str = "GET") -> tuple[int, bytes]:
    response = await pool.request(method, "/", {})
    try:
        return response.status, await response.read_all(100_000)
    finally:
        pool.release(response)


FRAMINGS = {
    "length": ((OK + b"content-length: 5\r\n\r\nhello",), b"hello", True),
    "in pieces": (
        (b"HTTP", b"/1.1 200", b" OK\r\ncontent-", b"length: 5\r\n\r", b"\nhel", b"lo"),
        b"hello",
        True,
    ),
    "chunked": (
        (OK + b"transfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n",),
        b"hello",
        True,
    ),
    "trailers": (
        (OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\ncontent-type: evil\r\n\r\n",),
        b"hello",
        True,
    ),
    "empty": ((OK + b"content-length: 0\r\n\r\n",), b"", True),
    "no content": ((b"HTTP/1.1 204 No Content\r\n\r\n",), b"", True),
    "interim": (
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\n"
            + OK
            + b"content-length: 2\r\n\r\nhi",
        ),
        b"hi",
        True,
    ),
    "not kept": ((OK + b"connection: close\r\ncontent-length: 2\r\n\r\nhi",), b"hi", False),
    "old": ((b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",), b"hi", False),
}


@pytest.mark.parametrize(("parts", "body", "is_kept"), FRAMINGS.values(), ids=FRAMINGS)
async def test_framing(parts, body, is_kept):
    script = Script(parts, parts)
    async with scripted(script) as pool:
        for _ in range(2):
            response = await pool.request("GET", "/", {})
            assert await response.read_all(1000) == body
            assert b"link" not in response.headers
            assert b"content-type" not in response.headers
            pool.release(response)
        assert script.num_connections == (1 if is_kept else 2)


async def test_a_body_without_length_ends_with_its_connection():
    async with scripted(Script((OK + b"\r\nhel", b"lo"), ends=True)) as pool:
        assert await ask(pool) == (200, b"hello")


async def test_a_body_without_length_that_is_reset_was_cut():
    async with scripted(Script((OK + b"\r\nhel", b"lo"), resets=True)) as pool:
        with pytest.raises(UpstreamError) as caught:
            await ask(pool)
        assert caught.value.kind is FailureKind.CUT


CUTS = {
    "at once": (),
    "in the head": (OK,),
    "before the body": (OK + b"content-length: 5\r\n\r\n",),
    "in the body": (OK + b"content-length: 5\r\n\r\nhel",),
    "in a chunk": (OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhel",),
    "between chunks": (OK + b"transfer-encoding: chunked\r\n\r\n3\r\nhel\r\n",),
}


@pytest.mark.parametrize("parts", CUTS.values(), ids=CUTS)
async def test_a_connection_that_ends_early(parts):
    async with scripted(Script(parts, ends=True)) as pool:
        with pytest.raises(UpstreamError) as caught:
            await ask(pool)
        assert caught.value.kind is FailureKind.CUT


GARBAGE = {
    "other protocol": b"SSH-2.0-OpenSSH\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "two lengths": OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "bad length": OK + b"content-length: -1\r\n\r\n",
    "bad chunk": OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    "upgrade": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nxyz",
    "long header": OK + b"x: " + b"y" * 2 * MAX_HEADER_BYTES + b"\r\n\r\n",
    "endless header": OK + b"x: " + b"y" * 2 * MAX_HEADER_BYTES,
    "endless status": b"HTTP/1.1 200 " + b"y" * 2 * MAX_HEADER_BYTES,
    "endless trailer": OK
    + b"transfer-encoding: chunked\r\n\r\n0\r\nx: "
    + b"y" * 2 * MAX_HEADER_BYTES,
}


@pytest.mark.parametrize("raw", GARBAGE.values(), ids=GARBAGE)
async def test_garbage(raw):
    async with scripted(
        Script(tuple(raw[i : i + 20_000] for i in range(0, len(raw), 20_000)))
    ) as pool:
        with pytest.raises(UpstreamError) as caught:
            await ask(pool)
        assert caught.value.kind is FailureKind.GARBAGE


@given(st.binary(max_size=300))
def test_any_bytes_are_an_answer_or_a_failure(raw):
    async def run() -> None:
        async with scripted(Script((raw,), ends=True)) as pool:
            with contextlib.suppress(UpstreamError):
                await ask(pool)

    asyncio.run(run())


@pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ((), FailureKind.FIRST_BYTE),
        ((OK + b"transfer-encoding: chunked\r\n\r\n",), FailureKind.FIRST_BYTE),
        ((OK + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n",), FailureKind.STALLED),
    ],
)
def test_what_stops_coming(parts, kind, loop):
    """The wait between bytes counts from the first one on, however long the first byte might have taken."""
    long = 0.2 if kind is FailureKind.FIRST_BYTE else PATIENCE
    timeouts = TimeoutConfig(connect=PATIENCE, first_token=long, between_tokens=0.2, total=PATIENCE)

    async def run() -> None:
        async with scripted(Script(parts), timeouts) as pool:
            with pytest.raises(UpstreamError) as caught:
                async with asyncio.timeout(PATIENCE):
                    await ask(pool)
            assert caught.value.kind is kind

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


async def test_a_second_answer_that_nobody_asked_for_is_not_taken_for_the_next():
    script = Script(
        (OK + b"content-length: 1\r\n\r\na" + OK + b"content-length: 1\r\n\r\nb",),
        (OK + b"content-length: 1\r\n\r\nc",),
    )
    async with scripted(script) as pool:
        assert await ask(pool) == (200, b"a")
        assert await ask(pool) == (200, b"c")
        assert script.num_connections == 2


async def test_a_kept_connection_that_was_closed_is_replaced_once():
    kept = (OK + b"content-length: 1\r\n\r\na",)
    script = Script(kept, kept, ends=True)
    async with scripted(script) as pool:
        assert await ask(pool) == (200, b"a")
        assert await ask(pool) == (200, b"a")
        assert script.num_connections == 2


async def test_old_idle_connections_are_not_used(monkeypatch):
    monkeypatch.setattr(pool_module, "MAX_IDLE_SECONDS", 0.0)
    kept = (OK + b"content-length: 1\r\n\r\na",)
    script = Script(kept, kept)
    async with scripted(script) as pool:
        await ask(pool)
        await ask(pool)
        assert script.num_connections == 2


async def test_nobody_there():
    pool = Pool(address_of("http://127.0.0.1:1"), TIMEOUTS, max_idle=1, max_buffer=1000)
    with pytest.raises(UpstreamError) as caught:
        await pool.request("GET", "/", {})
    assert caught.value.kind is FailureKind.CONNECT


async def test_a_host_that_is_no_name():
    pool = Pool(address_of(f"http://{'x' * 300}.invalid"), TIMEOUTS, max_idle=1, max_buffer=1000)
    with pytest.raises(UpstreamError) as caught:
        await pool.request("GET", "/", {})
    assert caught.value.kind is FailureKind.CONNECT


async def test_a_slow_reader_holds_the_replica_back():
    size = 4_000_000
    script = Script((OK + b"content-length: %d\r\n\r\n" % size + b"x" * size,))
    timeouts = TimeoutConfig(
        connect=PATIENCE, first_token=PATIENCE, between_tokens=1.0, total=PATIENCE
    )
    async with scripted(script, timeouts) as pool:
        response = await pool.request("GET", "/", {})
        await until(lambda: response.is_paused, "it is held back")
        held = response._size
        await asyncio.sleep(1.5)  # longer than bytes may stay away, were it the replica's fault
        assert response._size == held < size
        assert len(await response.read_all(size)) == size
        pool.release(response)


async def test_an_answer_that_nobody_reads_keeps_no_connection_that_hears_nothing():
    """All of it came at once, more than is held, so that reading was stopped; then its client left."""
    size = 2000
    whole = OK + b"content-length: %d\r\n\r\n" % size + b"x" * size
    async with scripted(Script((whole,), (whole,))) as pool:
        response = await pool.request("GET", "/", {})
        await until(lambda: response._ended, "all of it is there")
        assert response.is_paused
        pool.release(response)
        pool.release(await pool.request("GET", "/", {}))


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.003, 0.01])
async def test_who_is_cancelled_leaves_no_connection(seconds):
    for _ in range(10):
        script = Script((OK + b"content-length: 1\r\n\r\na",))
        async with scripted(script) as pool:
            task = asyncio.ensure_future(ask(pool))
            await asyncio.sleep(seconds)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("url", "address", "authority"),
    [
        ("http://a", ("a", 80, False), "a"),
        ("https://a/v1", ("a", 443, True), "a"),
        ("http://[::1]:8000", ("::1", 8000, False), "[::1]:8000"),
    ],
)
def test_addresses(url, address, authority):
    found = address_of(url)
    assert (tuple(found), found.authority) == (address, authority)
