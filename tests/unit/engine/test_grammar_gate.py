"""Requests wait at the gate for their grammar, in order, and leave it on every path."""

import threading

from tests.support.engine_run import make_request
from tests.support.grammars import regex

import headrace.engine.grammar_gate as module
from headrace.core.errors import GrammarError
from headrace.core.events import FinishReason, TokenEvent
from headrace.engine.grammar_gate import GrammarGate


class SlowCompiler:
    """Compiles when told to."""

    def __init__(self):
        self.may_go = threading.Event()
        self.done = threading.Event()
        self.known = {}

    def find(self, grammar):
        return self.known.get(grammar)

    def compile(self, grammar):
        self.may_go.wait()
        try:
            if grammar.text == "(":
                raise GrammarError("bad")
            if grammar.text == "!":
                raise RuntimeError("worse")
            return self.known.setdefault(grammar, object())
        finally:
            if grammar.text == "last":
                self.done.set()


def waiting(name, text, **options):
    request = make_request(name, [1, 2], **options)
    return type(request)(
        **{f: getattr(request, f) for f in request.__struct_fields__ if f != "grammar"},
        grammar=regex(text),
    )


def passed(gate, compiler, now=0.0):
    """All that passes once the compiler has done its work."""
    compiler.may_go.set()
    compiler.done.wait()
    found = []
    while gate:
        found += gate.take(now)
    return found


def test_free_requests_and_known_grammars_pass_at_once():
    compiler = SlowCompiler()
    gate = GrammarGate(compiler)
    compiler.known[regex("a")] = object()
    assert gate.enter(make_request("r", [1]), 0.0)
    assert gate.enter(waiting("s", "a"), 0.0)
    assert not gate
    gate.close()


def test_others_wait_and_come_out_in_order_with_their_faults():
    compiler = SlowCompiler()
    gate = GrammarGate(compiler)
    for name, text in (("r", "a"), ("s", "("), ("t", "!"), ("u", "last")):
        assert not gate.enter(waiting(name, text), 0.0)
    assert len(gate) == 4
    assert gate.take(0.0) == []
    results = passed(gate, compiler)
    assert [p.request.request_id for p in results] == ["r", "s", "t", "u"]
    assert [p.finish for p in results] == [None, FinishReason.ERROR, FinishReason.ERROR, None]
    assert [str(p.error) for p in results[1:3]] == ["bad", "A grammar failed: RuntimeError."]
    gate.close()


def test_deadlines_cancellations_and_patience_end_the_wait():
    compiler = SlowCompiler()
    gate = GrammarGate(compiler)
    gate.enter(waiting("late", "a", deadline=5.0), 0.0)
    gate.enter(waiting("gone", "b"), 0.0)
    gate.enter(waiting("part", "last", n=3), 0.0)
    assert gate.cancel("gone", None)
    assert gate.cancel("part", 1)
    assert not gate.cancel("nobody", None)
    ended = {p.request.request_id: p.finish for p in gate.take(5.0)}
    assert ended == {"late": FinishReason.TIMEOUT, "gone": FinishReason.CANCELLED}
    too_long = gate.take(module.MAX_SECONDS)
    assert [p.finish for p in too_long] == [FinishReason.ERROR]
    assert isinstance(too_long[0].error, GrammarError)
    gate.enter(waiting("part", "last", n=3), 0.0)
    gate.cancel("part", 1)
    assert [p.cancelled for p in passed(gate, compiler)] == [(1,)]
    gate.close()


def test_grammars_are_held_until_the_last_sequence_ends():
    compiler = SlowCompiler()
    gate = GrammarGate(compiler)
    compiler.known[regex("a")] = object()
    gate.enter(waiting("r", "a", n=2), 0.0)
    gate.watch([TokenEvent("r", 0, (1,)), TokenEvent("r", 0, finish=FinishReason.STOP)])
    assert "r" in gate._held
    gate.watch([TokenEvent("x", 0, finish=FinishReason.STOP)])
    gate.watch([TokenEvent("r", 1, finish=FinishReason.STOP)])
    assert not gate._held
    gate.close()


def test_clearing_gives_back_who_waited():
    compiler = SlowCompiler()
    gate = GrammarGate(compiler)
    gate.enter(waiting("r", "a"), 0.0)
    assert [r.request_id for r in gate.clear()] == ["r"]
    assert not gate
    compiler.may_go.set()
    gate.close()
