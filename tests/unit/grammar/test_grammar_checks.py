"""Grammars are tried out in processes that can be killed; their verdicts are remembered and bounded."""

import asyncio
import json

import pytest
from tests.support.grammars import byte_compiler, byte_vocabulary, lark, regex, schema

from headrace.core.clock import WorkClock
from headrace.core.errors import GrammarError, InternalError, OverloadedError
from headrace.grammar import check_process, checks
from headrace.grammar.check_process import find_fault
from headrace.grammar.checks import GrammarChecks

#: Compiles for longer than anybody has waited.
ENDLESS = schema(
    json.dumps({"type": "string", "allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(1, 40)]})
)


def pool(*, read=byte_vocabulary, processes=1, timeout=30.0, max_waiting=8):
    return GrammarChecks(read, processes=processes, timeout=timeout, max_waiting=max_waiting)


async def test_a_good_grammar_passes_and_a_bad_one_is_named():
    tried = pool()
    try:
        await tried.check(regex("a+"), "guided_regex")
        for _ in range(2):  # the second time it is remembered
            with pytest.raises(GrammarError, match=r"^'regex' cannot be used: ") as caught:
                await tried.check(regex("("), "regex")
            assert caught.value.param == "regex"
    finally:
        await tried.close()


async def test_one_that_takes_too_long_is_refused_and_others_go_on():
    tried = pool(processes=2, timeout=5.0)
    try:
        endless = asyncio.create_task(tried.check(ENDLESS, "response_format"))
        await tried.check(regex("a+"), "regex")
        with pytest.raises(GrammarError, match=r"'response_format' .* too complex"):
            await endless
        await tried.check(regex("b+"), "regex")
    finally:
        await tried.close()


async def test_a_process_that_dies_takes_one_grammar_with_it():
    tried = pool()
    try:
        await tried.check(regex("a"), "regex")
        dying = tried._idle[0]
        dying.kill()
        await dying.wait()
        with pytest.raises(GrammarError, match="too complex"):
            await tried.check(regex("b"), "regex")
        await tried.check(regex("c"), "regex")
    finally:
        await tried.close()


async def test_those_who_ask_the_same_share_a_check_and_more_are_refused():
    calls = []

    def read():
        calls.append(1)
        return byte_vocabulary()

    tried = pool(read=read, max_waiting=1)
    try:
        same = [asyncio.create_task(tried.check(regex("a"), "regex")) for _ in range(5)]
        other = asyncio.create_task(tried.check(regex("b"), "regex"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await tried.check(regex("c"), "regex")
        same[0].cancel()  # one of them leaves
        await asyncio.gather(*same[1:], other)
        assert len(calls) == 1
    finally:
        await tried.close()


async def test_closing_ends_what_runs():
    tried = pool()
    await tried.check(regex("x"), "regex")
    endless = asyncio.create_task(tried.check(ENDLESS, "regex"))
    await asyncio.sleep(0.01)
    await tried.close()
    with pytest.raises(asyncio.CancelledError):
        await endless
    with pytest.raises(OverloadedError):
        await tried.check(regex("b"), "regex")


async def test_verdicts_are_bounded(monkeypatch):
    monkeypatch.setattr(checks, "MAX_REMEMBERED", 2)
    tried = pool()
    try:
        for letter in "abcd":
            await tried.check(regex(letter), "regex")
        assert len(tried._verdicts) == 2
    finally:
        await tried.close()


async def test_a_process_that_does_not_start_is_our_fault(monkeypatch):
    monkeypatch.setattr(checks.sys, "executable", "/bin/false")
    tried = pool()
    with pytest.raises(InternalError):
        await tried.check(regex("a"), "regex")
    await tried.close()


@pytest.mark.parametrize(
    ("grammar", "fault"),
    [
        (regex("[a-z]{3}"), None),
        (schema('{"type": "object"}'), None),
        (lark('start: "" | "a"'), None),
        (regex("[^\\x00-\\U0010FFFF]"), "allows no answer"),
        (schema('{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'), "no answer"),
        (schema('{"type": "string", "pattern": "("}'), "regex parse error"),
    ],
)
def test_a_grammar_is_tried_out(grammar, fault):
    found = find_fault(byte_compiler(), grammar, WorkClock())
    assert (found is None) if fault is None else (fault in (found or ""))


def test_a_slow_token_is_a_fault(monkeypatch):
    monkeypatch.setattr(check_process, "MAX_TOKEN_SECONDS", -1.0)
    assert "too long" in str(find_fault(byte_compiler(), regex("a"), WorkClock()))
