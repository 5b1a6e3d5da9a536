"""The loop in this process, over socket pairs: several servers, garbage, failing steps, rest."""

import socket
import threading
import weakref

import msgspec
import pytest
from tests.support.fake_engine import POISON_STEP, FakeEngine, FakeOptions
from tests.support.patience import PATIENCE

from headrace.config.engine import EngineConfig, ModelConfig
from headrace.core.clock import SystemClock
from headrace.core.events import FinishReason
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.core.stats import ReplicaState
from headrace.engine.channel import BlockingChannel, FrameReader, frame
from headrace.engine.failure import ExecutorBrokenError
from headrace.engine.lifecycle import Lifecycle
from headrace.engine.loop import EngineLoop, StepsFailedError
from headrace.engine.messages import (
    Cancel,
    Codec,
    Drain,
    Load,
    Park,
    Resume,
    State,
    Stop,
    Submit,
    Unload,
    Update,
)

CONFIG = EngineConfig()


class Server:
    """The other end of a connection."""

    def __init__(self, sock):
        self.socket = sock
        self.socket.settimeout(PATIENCE)
        self._reader, self._codec, self._frames = FrameReader(), Codec(), []

    def send(self, *messages):
        """In one piece, so that they are taken in together."""
        self.socket.sendall(b"".join(frame(self._codec.encode(m)) for m in messages))

    def next(self) -> Update | State:
        while not self._frames:
            data = self.socket.recv(65536)
            assert data, "the loop closed the connection"
            self._frames += self._reader.feed(data)
        return self._codec.to_server(self._frames.pop(0))

    def events_of(self, request_id):
        """All events of a request up to its end."""
        events = []
        while not (events and events[-1].finish):
            message = self.next()
            if isinstance(message, Update):
                events += [e for e in message.events if e.request_id == request_id]
        return events

    def state(self):
        """The next state that the engine says."""
        while not isinstance(message := self.next(), State):
            pass
        return message.state


class Loop:
    """An EngineLoop on a thread."""

    def __init__(self, engine=None, listener=None):
        ours, theirs = socket.socketpair()
        engines = [engine] if engine else []
        self.asked = []
        """The configurations that were asked for."""

        def build(config):
            self.asked.append(config)
            return engines.pop() if engines else FakeEngine(FakeOptions(), SystemClock())

        self.life = Lifecycle(build)
        self.life.load(CONFIG)
        self.error = None
        self._loop = EngineLoop(
            self.life, BlockingChannel(theirs), SystemClock(), listener=listener
        )
        self._thread = threading.Thread(target=self._run)
        self.parent = Server(ours)

    def _run(self):
        try:
            self._loop.run()
        except StepsFailedError as error:
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self.parent.socket.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def request(request_id, *, ids=(1, 2), max_tokens=3):
    return Request(
        request_id=request_id,
        prompt=(TokenSegment(list(ids)),),
        params=SamplingParams(max_tokens=max_tokens),
    )


def test_two_servers_share_an_engine_and_see_only_their_own(tmp_path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "engine"))
    listener.listen()
    with listener, Loop(listener=listener) as loop:
        second = socket.socket(socket.AF_UNIX)
        second.connect(str(tmp_path / "engine"))
        other = Server(second)
        loop.parent.send(Submit(request("a", max_tokens=50)))
        other.send(Submit(request("b")))
        other.send(Cancel("a"))  # not its own: ignored
        assert [e.finish for e in other.events_of("b")][-1] is FinishReason.LENGTH
        assert len(loop.parent.events_of("a")) == 50
        other.send(Submit(request("c", max_tokens=10**6)))
        other.next()
        second.close()
        loop.parent.send(Submit(request("d")))
        loop.parent.events_of("d")
        while (stats := loop.parent.next().stats) is None or stats.num_running:
            pass
        assert stats.finished == {"length": 3, "cancelled": 1}


def test_garbage_ends_neither_the_loop_nor_other_requests():
    with Loop() as loop:
        loop.parent.socket.sendall(frame(b"\xc1 not msgpack"))
        wrong = {"type": "submit", "request": {"request_id": "x", "prompt": 7}}
        loop.parent.socket.sendall(frame(msgspec.msgpack.encode(wrong)))
        assert loop.parent.events_of("x")[-1].error.startswith("The engine cannot read it")
        loop.parent.send(Submit(request("y")))
        assert loop.parent.events_of("y")[-1].finish is FinishReason.LENGTH


@pytest.mark.parametrize(("n", "ends"), [(3, 3), ("many", 1), (10**9, 1)])
def test_every_sequence_of_an_unreadable_request_gets_its_end(n, ends):
    with Loop() as loop:
        wrong = {"type": "submit", "request": {"request_id": "x", "prompt": 7, "n": n}}
        loop.parent.socket.sendall(frame(msgspec.msgpack.encode(wrong)))
        events = loop.parent.next().events
        assert [(e.request_id, e.index, e.finish) for e in events] == [
            ("x", index, FinishReason.ERROR) for index in range(ends)
        ]


def test_a_broken_frame_from_the_parent_ends_the_loop():
    with Loop() as loop:
        loop.parent.socket.sendall(b"\xff\xff\xff\xff")
        assert loop.parent.socket.recv(1) == b""


def test_it_gives_up_after_several_failed_steps_in_a_row():
    loop = Loop()
    with loop:
        for number in range(5):
            loop.parent.send(Submit(request(f"p{number}", ids=[POISON_STEP])))
            assert loop.parent.events_of(f"p{number}")[-1].error.endswith("RuntimeError.")
    assert str(loop.error) == "It failed 5 times in a row."


def test_it_gives_up_at_once_when_the_executor_is_broken():
    engine = FakeEngine(FakeOptions(), SystemClock())

    def step():
        raise ExecutorBrokenError("16 sequences failed one after another.")

    engine.step = step
    loop = Loop(engine)
    with loop:
        loop.parent.send(Submit(request("a")))
        assert loop.parent.events_of("a")[-1].error_kind == "InternalError"
    assert str(loop.error).startswith("16 sequences failed")


def test_while_it_waits_on_purpose_it_sleeps_and_says_so():
    engine = FakeEngine(FakeOptions(hold=2.0), SystemClock())
    turns, step = [], engine.step
    engine.step = lambda: turns.append(0) or step()
    with Loop(engine) as loop:
        loop.parent.send(Submit(request("a")))
        first = loop.parent.next()
        assert first.stats.waits_until == engine.wake_at()
        assert len(loop.parent.events_of("a")) == 3
    assert len(turns) < 12  # polled every 2 ms it would be 1,000


def test_a_good_step_between_failed_ones_starts_the_count_again():
    with Loop() as loop:
        for number in range(8):
            loop.parent.send(Submit(request(f"p{number}", ids=[POISON_STEP])))
            loop.parent.events_of(f"p{number}")
            loop.parent.send(Submit(request(f"g{number}")))
            assert loop.parent.events_of(f"g{number}")[-1].finish is FinishReason.LENGTH
    assert loop.error is None


def test_books_are_checked_at_rest_and_failures_counted():
    engine = FakeEngine(FakeOptions(), SystemClock())
    engine.check_integrity = lambda: ["one block too many"]
    with Loop(engine) as loop:
        loop.parent.send(Submit(request("a")))
        while (stats := loop.parent.next().stats) is None or not stats.integrity_failures:
            pass
        assert stats.integrity_failures == 1


@pytest.mark.parametrize("end", ["stop", "close"])
def test_it_ends_with_a_stop_or_with_the_parent(end):
    with Loop() as loop:
        if end == "stop":
            loop.parent.send(Stop())
        else:
            loop.parent.socket.close()
        loop._thread.join(PATIENCE)
        assert not loop._thread.is_alive()


def test_a_draining_engine_ends_what_runs_and_takes_nothing_new():
    with Loop() as loop:
        loop.parent.send(Submit(request("a", max_tokens=100)), Drain(), Submit(request("b")))
        assert loop.parent.state() is ReplicaState.DRAINING
        (refused,) = loop.parent.events_of("b")
        assert (refused.error, refused.error_kind) == (
            "The engine is draining.",
            "UnavailableError",
        )
        assert loop.parent.events_of("a")[-1].finish is FinishReason.LENGTH


def test_a_parked_engine_keeps_its_weights_and_an_unloaded_one_is_gone():
    loop = Loop()
    with loop:
        engine = weakref.ref(loop.life.engine)
        loop.parent.send(Submit(request("a", max_tokens=100_000)))
        loop.parent.send(Park())
        assert "parked" in loop.parent.events_of("a")[-1].error
        assert loop.parent.state() is ReplicaState.PARKED
        assert engine().num_parked == 1
        loop.parent.send(Submit(request("b")))
        assert loop.parent.events_of("b")[-1].error == "The engine is parked."
        loop.parent.send(Resume())
        assert loop.parent.state() is ReplicaState.READY
        loop.parent.send(Submit(request("c")))
        assert loop.parent.events_of("c")[-1].finish is FinishReason.LENGTH
        loop.parent.send(Submit(request("d", max_tokens=100_000)))
        loop.parent.send(Unload())
        assert loop.parent.events_of("d")[-1].error == "The engine was unloaded."
        assert loop.parent.state() is ReplicaState.EMPTY
        assert engine() is None
        loop.parent.send(Resume(), Park(), Drain())
        assert [loop.parent.state() for _ in range(3)] == [ReplicaState.EMPTY] * 3
        wanted = EngineConfig(model=ModelConfig(model="another"))
        loop.parent.send(Load(engine=wanted))
        assert loop.parent.state() is ReplicaState.READY
        loop.parent.send(Submit(request("e")))
        assert loop.parent.events_of("e")[-1].finish is FinishReason.LENGTH
    assert loop.asked == [CONFIG, wanted]


def test_only_the_parent_may_change_the_state(tmp_path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "engine"))
    listener.listen()
    with listener, Loop(listener=listener) as loop:
        second = socket.socket(socket.AF_UNIX)
        second.connect(str(tmp_path / "engine"))
        other = Server(second)
        for message in (Drain(), Park(), Resume(), Load(engine=CONFIG), Unload(), Stop()):
            other.send(message)
        other.send(Submit(request("a")))
        assert other.events_of("a")[-1].finish is FinishReason.LENGTH
        loop.parent.send(Drain())
        assert other.state() is ReplicaState.DRAINING
        second.close()
    assert loop.asked == [CONFIG]
