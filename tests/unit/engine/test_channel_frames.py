"""Frames survive any cut of the byte stream; bounds end the connection."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.channel import BlockingChannel, ChannelError, FrameReader, frame


@given(st.lists(st.binary(max_size=300), max_size=8), st.data())
def test_frames_are_whole_whatever_the_cuts(payloads, data):
    stream = b"".join(frame(p) for p in payloads)
    reader, got, place = FrameReader(), [], 0
    while place < len(stream):
        step = data.draw(st.integers(1, 97))
        got += reader.feed(stream[place : place + step])
        place += step
    assert got == payloads


def test_a_frame_longer_than_the_limit_is_refused_before_it_is_read():
    with pytest.raises(ChannelError, match="longer than the limit"):
        FrameReader(max_frame_bytes=10).feed((11).to_bytes(4, "little"))


def test_a_peer_that_does_not_read_is_given_up():
    ours, theirs = socket.socketpair()
    with theirs:
        channel = BlockingChannel(ours, max_outbox_bytes=1000)
        with pytest.raises(ChannelError, match="does not read"):
            channel.send(b"x" * 10_000_000)
        channel.close()


def test_what_waits_is_written_when_the_peer_reads():
    ours, theirs = socket.socketpair()
    with theirs:
        channel = BlockingChannel(ours)
        payload = b"y" * 3_000_000
        channel.send(payload)
        assert channel.has_outbox
        reader, got = FrameReader(), []
        while not got:
            got = reader.feed(theirs.recv(1 << 20))
            channel.flush()
        assert got == [payload]
        assert not channel.has_outbox
        channel.close()


def test_the_end_of_the_stream_is_none_and_a_gone_peer_an_error():
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(ours)
    assert channel.receive() == []
    theirs.sendall(frame(b"last"))
    theirs.close()
    assert channel.receive() == [b"last"]
    assert channel.receive() is None
    with pytest.raises(ChannelError, match="gone"):
        channel.send(b"z")
    channel.close()
