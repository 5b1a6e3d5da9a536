"""The head of an answer leaves with what follows it, and never later than the loop's next turn."""

import asyncio

import pytest

from headrace.web.joined import MAX_JOINED, JoinedWrites


class Transport:
    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.pieces.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def test_the_first_two_pieces_are_one_write() -> None:
    transport = Transport()
    joined = JoinedWrites(transport, asyncio.get_running_loop())
    joined.write(b"head,")
    assert transport.pieces == []
    joined.write(b"body,")
    joined.write(b"more")
    await asyncio.sleep(0)
    assert transport.pieces == [b"head,body,", b"more"]


async def test_a_head_alone_leaves_when_the_loop_turns() -> None:
    transport = Transport()
    joined = JoinedWrites(transport, asyncio.get_running_loop())
    joined.write(b"head")
    await asyncio.sleep(0)
    assert transport.pieces == [b"head"]
    joined.write(b"body")
    assert transport.pieces == [b"head", b"body"]


async def test_a_large_body_is_not_copied() -> None:
    transport = Transport()
    joined = JoinedWrites(transport, asyncio.get_running_loop())
    body = b"x" * (MAX_JOINED + 1)
    joined.write(b"head")
    joined.write(body)
    assert transport.pieces == [b"head", body]
    assert transport.pieces[1] is body


@pytest.mark.parametrize("closes", ["answer", "connection"])
async def test_closing(closes: str) -> None:
    transport = Transport()
    joined = JoinedWrites(transport, asyncio.get_running_loop())
    joined.write(b"head")
    (joined if closes == "answer" else transport).close()
    await asyncio.sleep(0)
    assert joined.is_closing()
    assert transport.pieces == ([b"head"] if closes == "answer" else [])
