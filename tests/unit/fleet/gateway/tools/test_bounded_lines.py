"""Lines of a program that may write whatever it likes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.fleet.gateway.tools import mcp_stdio
from headrace.fleet.gateway.tools.bounded_lines import (
    KEPT,
    MAX_FACTOR,
    BoundedLines,
    EndlessLineError,
    LongLine,
)

BOUND = 1000


async def read(pieces, *, bound=BOUND):
    """All lines, and what the reader held at most."""
    reader = asyncio.StreamReader(limit=bound)
    lines, found, most = BoundedLines(reader, bound), [], 0

    async def write():
        nonlocal most
        for piece in pieces:
            # As the pipe does: a reader that is behind stops it.
            while len(reader._buffer) > 2 * bound:  # noqa: ASYNC110
                await asyncio.sleep(0)
            reader.feed_data(piece)
            most = max(most, len(reader._buffer))
            await asyncio.sleep(0)
        reader.feed_eof()

    writing = asyncio.ensure_future(write())
    try:
        while (line := await lines.next()) is not None:
            found.append(line)
    finally:
        writing.cancel()
    return found, most


@given(st.lists(st.integers(0, 5 * BOUND), max_size=6), st.integers(1, 700))
def test_every_cut_gives_the_same_lines(lengths, size):
    texts = [b"%d" % number * length for number, length in enumerate(lengths, 1)]
    data = b"".join(text + b"\n" for text in texts) + b"not ended"
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    found, _ = asyncio.run(read(pieces))
    assert len(found) == len(texts)
    for line, text in zip(found, texts, strict=True):
        if isinstance(line, LongLine):
            assert len(text) >= BOUND
            assert text.startswith(line.head)
            assert (text + b"\n").endswith(line.tail)
            assert len(line.head) <= KEPT
            assert len(line.tail) == KEPT
        else:
            assert line == text + b"\n"
            assert len(text) <= BOUND


async def test_an_endless_line_costs_no_more_than_a_long_one():
    def endless():
        while True:
            yield b"x" * 500

    with pytest.raises(EndlessLineError):
        await read(endless())


async def test_what_is_held_of_a_long_line_is_bounded():
    num_pieces = (MAX_FACTOR - 2) * BOUND // 500
    found, most = await read([b"x" * 500] * num_pieces + [b"\n", b"next\n"])
    assert isinstance(found[0], LongLine)
    assert found[1] == b"next\n"
    assert most <= 3 * BOUND


@pytest.mark.parametrize(
    ("head", "tail", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"content":[', b'"}]}}\n', 7),
        (b'{"id":8,"jsonrpc":"2.0","result":', b"]}}\n", 8),
        (b'{"result":{"content":[', b']},"jsonrpc":"2.0","id":9}\n', 9),
        (b'{"result":{"content":[', b']},"id": 10, "jsonrpc": "2.0"}\r\n', 10),
        # Within a text or a table of the result it is nobody's id.
        (b'{"result":{"text":"', b'\\"id\\":5}"}}\n', None),
        (b'{"result":{"a":"', b'","id":5}}\n', None),
        (b'{"result":{"id":5,"a":"', b'"}}\n', None),
        (b"x" * 256, b"x" * 256, None),
    ],
)
def test_whose_answer_was_left_out(head, tail, expected):
    line = mcp_stdio._in_its_place(LongLine(head, tail), BOUND)
    assert (mcp_stdio._read(line).message.id if line else None) == expected
