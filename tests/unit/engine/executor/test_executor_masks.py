"""Grammars bound the draws of their sequences, drafts included; other rows are free."""

import numpy as np
import pytest
from tests.support.grammars import SIZE, byte_compiler, regex

from headrace.core.sampling import SamplingParams
from headrace.core.step import OutputKind, PlanRow, SequenceStart, StepPlan
from headrace.engine.executor.inputs import InputBuilder
from headrace.engine.executor.matching import Matchers
from headrace.engine.executor.sampler import Sampler
from headrace.engine.executor.slots import SlotTable
from headrace.kernels.cpu.backend import CpuBackend
from headrace.kernels.reference.backend import ReferenceBackend

pytest.importorskip("llguidance")

#: The largest id is the likeliest.
LOGITS = np.arange(SIZE, dtype=np.float32)
LIKELIEST = SIZE - 1


class Drawing:
    """Sequences by slot, each behind a prompt of two tokens, and what their rows draw."""

    def __init__(self, backend, *grammars):
        self.table = SlotTable(4, 16, (1,))
        self.matchers = Matchers(byte_compiler())
        self.sampler = Sampler(backend, self.table, self.matchers)
        for slot, grammar in enumerate(grammars):
            start = SequenceStart(
                slot, SamplingParams(temperature=0.0), (), [0, 1], 2, 0, grammar=grammar
            )
            self.table.start(start)
            self.matchers.start(start)

    def __call__(self, *rows):
        plan = StepPlan(step_id=1, rows=rows)
        _, outputs = InputBuilder(self.table, max_tokens=32).build(plan)
        return self.sampler.run(plan, outputs, np.tile(LOGITS, (outputs.count, 1)))


def row(slot, text="", *, start=1, token=1):
    """A row behind `token`, with a draft of `text`."""
    drafts = list(text.encode())
    ids = [token, *drafts]
    return PlanRow(slot, start, len(ids), ids, OutputKind.SAMPLE, len(drafts), start - 1)


def text(result):
    return bytes(result.token_ids).decode()


@pytest.fixture(params=["reference", "cpu"])
def backend(request):
    return ReferenceBackend() if request.param == "reference" else CpuBackend("generic", 1)


def test_each_row_draws_what_its_grammar_allows(backend):
    draw = Drawing(backend, regex("[ab]x"), None, regex("[c-e]x"))
    first, free, third = draw(row(0), row(1), row(2))
    assert (text(first), free.token_ids, text(third)) == ("b", (LIKELIEST,), "e")


def test_each_draft_is_judged_under_the_mask_of_its_position(backend):
    draw = Drawing(backend, regex("a[bc]d"), regex("a[bc]d"), regex("a[bc]d"), None)
    kept, other, illegal, free = draw(row(0, "ac"), row(1, "ab"), row(2, "az"), row(3, "ac"))
    assert (text(kept), kept.is_complete) == ("acd", True)
    assert (text(other), other.is_complete) == ("ac", False)
    assert (text(illegal), illegal.is_complete) == ("ac", False)
    assert free.token_ids == (LIKELIEST,)


def test_after_drafts_the_grammar_stands_behind_the_accepted_tokens(backend):
    draw = Drawing(backend, regex("a[bc]d"))
    assert text(*draw(row(0, "abd"))) == "ac"
    (last,) = draw(row(0, start=3, token=ord("c")))
    assert (text(last), last.is_complete) == ("d", True)
