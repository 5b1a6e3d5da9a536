"""What a small model says at temperature 1 fulfils its schema, whenever it comes to an end."""

import json

import jsonschema
import pytest
from tests.support.real_engine import RealEngine
from tests.support.schema_suite import all_schemas

from headrace.core.events import FinishReason
from headrace.core.grammar import Grammar, GrammarKind
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.modeling.weights.sources import resolve
from headrace.preprocess.tokenizer import load_tokenizer

SCHEMAS = all_schemas()
PROMPT = (
    "<|im_start|>user\nWrite a short example of a JSON document that fulfils this schema:\n{}<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def request(number, tokenizer):
    text = json.dumps(SCHEMAS[number], ensure_ascii=False)
    return Request(
        request_id=str(number),
        prompt=(TokenSegment(tokenizer.encode(PROMPT.format(text), add_special=False)),),
        params=SamplingParams(temperature=1.0, max_tokens=512, seed=number),
        eos_token_ids=tokenizer.facts.eos_token_ids,
        grammar=Grammar(GrammarKind.JSON_SCHEMA, text),
    )


def share_completed(numbers):
    """Every complete answer is valid; how many are complete."""
    model = resolve("smollm2-135m", progress=False)
    tokenizer = load_tokenizer(model)
    with RealEngine(model, threads=2, max_num_seqs=32) as engine:
        said = engine.run([request(number, tokenizer) for number in numbers])
    num_complete = 0
    for number in numbers:
        answer = said[str(number), 0]
        if answer.finish is FinishReason.STOP:
            num_complete += 1
            document = json.loads(tokenizer.decode(answer.token_ids))
            checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
            jsonschema.validate(document, SCHEMAS[number], format_checker=checker)
    return num_complete / len(numbers)


def test_the_suite_is_large_and_varied():
    assert len(SCHEMAS) >= 200
    assert len({json.dumps(schema, sort_keys=True) for schema in SCHEMAS}) == len(SCHEMAS)


def test_some_answers_fulfil_their_schemas():
    assert share_completed(range(0, len(SCHEMAS), 20)) >= 0.8


@pytest.mark.soak
def test_all_answers_fulfil_their_schemas():
    assert share_completed(range(len(SCHEMAS))) >= 0.8
