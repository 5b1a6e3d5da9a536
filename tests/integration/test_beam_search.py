"""Beam search gives what transformers gives: the same answers, in the same order, for every setting."""

import warnings

import pytest
from tests.support.hf_families import CASES, random_sequences, save_model
from tests.support.real_engine import RealEngine

from headrace.core.beams import BeamSearch, EarlyStopping
from headrace.core.events import FinishReason
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams

#: Enough of the 256 tokens that most searches meet ends.
ENDS = (2, 17, 40, 77, 101, 130, 171, 230)
WIDTHS = (1, 2, 3, 5, 8)
PENALTIES = (1.0, 0.0, 0.6, 2.0, -1.0)
EARLY = {
    EarlyStopping.FULL: True,
    EarlyStopping.HEURISTIC: False,
    EarlyStopping.NEVER: "never",
}
LENGTHS = (27, 9, 1, 18, 33)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A transformers model and an engine on its files, keys and values in float32 as there."""
    path = tmp_path_factory.mktemp("llama")
    model = save_model(next(case for case in CASES if case.name == "llama"), path)
    with RealEngine(path, kv_dtype="f32") as engine:
        yield model, engine


def truth(model, prompt, search, n, max_tokens, ends, min_tokens=0):
    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ids = torch.tensor([prompt])
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=search.width,
            num_return_sequences=n,
            do_sample=False,
            max_new_tokens=max_tokens,
            min_new_tokens=min_tokens or None,
            length_penalty=search.length_penalty,
            early_stopping=EARLY[search.early_stopping],
            eos_token_id=list(ends) or None,
            pad_token_id=0,
        )
    answers = []
    for row in found.tolist():
        answer = row[len(prompt) :]
        end = next((i for i, token in enumerate(answer) if token in ends), max_tokens - 1)
        answers.append(answer[: end + 1])
    return answers


def request(name, prompt, search, n, max_tokens, ends, min_tokens=0, logprobs=None):
    return Request(
        request_id=name,
        prompt=(TokenSegment(list(prompt)),),
        params=SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens, logprobs=logprobs),
        eos_token_ids=ends,
        n=n,
        beams=search,
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_answers_are_those_of_transformers(served, width):
    model, engine = served
    requests, wanted = [], {}
    for i, penalty in enumerate(PENALTIES):
        for early in EarlyStopping:
            search = BeamSearch(width=width, length_penalty=penalty, early_stopping=early)
            prompt = random_sequences(LENGTHS, seed=i)[i].tolist()
            ends = () if (i, early) == (1, EarlyStopping.NEVER) else ENDS
            least = 3 if i == 2 else 0
            n = 1 + i % width
            name = f"{width}/{penalty}/{early}"
            requests.append(request(name, prompt, search, n, 14, ends, least))
            wanted[name] = truth(model, prompt, search, n, 14, ends, least)
    said = engine.run(requests)
    reasons = set()
    for asked in requests:
        found = [said[asked.request_id, index].token_ids for index in range(asked.n)]
        assert found == wanted[asked.request_id], asked.request_id
        reasons.update(said[asked.request_id, index].finish for index in range(asked.n))
    assert FinishReason.STOP in reasons


def test_log_probabilities_belong_to_the_answer(served):
    """Each is what the same tokens, drawn as a prompt's continuation one by one, get."""
    _, engine = served
    prompt = random_sequences((12,))[0].tolist()
    search = BeamSearch(width=4)
    said = engine.run([request("with", prompt, search, 2, 8, (), logprobs=3)])
    for index in range(2):
        answer = said["with", index]
        assert len(answer.logprobs) == len(answer.token_ids) == 8
        for place, entry in enumerate(answer.logprobs):
            assert entry.token_id == answer.token_ids[place]
            assert len(entry.top) == 3
            before = prompt + answer.token_ids[:place]
            name = f"{index}-{place}"
            alone = engine.run([request(name, before, None, 1, 1, (), logprobs=20)])[name, 0]
            top = dict(alone.logprobs[0].top)
            assert entry.logprob == top[entry.token_id]
            assert entry.top == alone.logprobs[0].top[:3]
