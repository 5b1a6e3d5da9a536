"""`allowed_token_ids` and `bad_words` against what they say, for any history and any drafts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.sampling import SamplingParams
from headrace.core.step import OutputKind, PlanRow, SequenceStart, StepPlan
from headrace.engine.executor.slots import SlotTable
from headrace.engine.executor.token_bounds import TokenBounds

VOCAB = 70
tokens = st.integers(0, 5)
words = st.lists(tokens, min_size=1, max_size=4).map(tuple)
allowed = st.lists(st.integers(0, VOCAB + 5), min_size=1, max_size=8, unique=True).map(tuple)


@st.composite
def rows(draw):
    return {
        "prompt": draw(st.lists(tokens, max_size=6)),
        "output": draw(st.lists(tokens, max_size=8)),
        "drafts": draw(st.lists(tokens, max_size=3)),
        "allowed": draw(st.one_of(st.just(()), allowed)),
        "bad": draw(st.lists(words, max_size=4).map(tuple)),
        "kind": draw(st.sampled_from([OutputKind.SAMPLE, OutputKind.SAMPLE, OutputKind.NONE])),
    }


def may_follow(row, drafts):
    """The tokens that this row's request wants behind its output and these drafts."""
    output = (*row["output"], *drafts)
    return {
        token
        for token in range(VOCAB)
        if (not row["allowed"] or token in row["allowed"])
        and not any(
            (*output, token)[-len(word) :] == word and len(word) <= len(output) + 1
            for word in row["bad"]
        )
    }


@given(st.lists(rows(), min_size=1, max_size=4), st.integers(0, 2**32), st.booleans())
def test_masks_leave_what_the_requests_want(given_rows, seed, has_grammar):
    table = SlotTable(len(given_rows), 64, ())
    bounds = TokenBounds(table)
    plan_rows = []
    for slot, row in enumerate(given_rows):
        known = [*row["prompt"], *row["output"]]
        params = SamplingParams(allowed_token_ids=row["allowed"], bad_words=row["bad"])
        start = SequenceStart(slot, params, (), known, len(row["prompt"]), 0)
        table.start(start)
        bounds.start(start)
        drafts = row["drafts"] if row["kind"] is OutputKind.SAMPLE else []
        table.history[slot, len(known) : len(known) + len(drafts)] = drafts
        plan_rows.append(
            PlanRow(
                slot, max(0, len(known) - 1), min(1, len(known)) + len(drafts), [], row["kind"],
                num_draft=len(drafts),
            )
        )  # fmt: skip
    plan = StepPlan(step_id=0, rows=tuple(plan_rows))
    draws = [
        (row, row["drafts"][:count])
        for row in given_rows
        if row["kind"] is OutputKind.SAMPLE
        for count in range(len(row["drafts"]) + 1)
    ]
    grammar = None
    if has_grammar:
        rng = np.random.default_rng(seed)
        grammar = rng.integers(0, 2**32, (len(draws), -(-VOCAB // 32)), np.uint32)
    found = bounds.bound(plan, grammar, len(draws), VOCAB)
    for place, (row, drafts) in enumerate(draws):
        wanted = may_follow(row, drafts)
        if grammar is not None:
            bits = np.unpackbits(grammar[place].view(np.uint8), bitorder="little")
            wanted &= {*np.flatnonzero(bits).tolist()}
        if found is None:
            assert grammar is None
            assert wanted == set(range(VOCAB))
            continue
        bits = np.unpackbits(found[place].view(np.uint8), bitorder="little")[:VOCAB]
        assert {*np.flatnonzero(bits).tolist()} == wanted
