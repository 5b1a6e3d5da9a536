"""The engine in this process: whole answers, streams beside them, and steps that fail."""

import pytest
from tests.support.fake_clock import FakeClock
from tests.support.tiny_models import make_tiny_llama
from tests.support.tiny_tokenizers import sentencepiece_tokenizer

from headrace.core.errors import BadRequestError, InternalError
from headrace.core.events import FinishReason
from headrace.llm import LLM

FIXED = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def llm(model):
    with LLM(str(model), cache_packed=False, threads=1) as made:
        yield made


def text_of(deltas):
    return "".join(delta.text for delta in deltas)


def test_prompts_run_together_and_give_what_each_gives_alone(llm):
    prompts = ["one", "two words", [5, 6, 7]]
    together = llm.generate(prompts, max_tokens=6, **FIXED)
    alone = [llm.generate([prompt], max_tokens=6, **FIXED)[0] for prompt in prompts]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]
    assert [c.outputs[0].finish_reason for c in together] == [FinishReason.LENGTH] * 3
    with pytest.raises(BadRequestError, match="no parameter 'max_token'"):
        llm.generate("x", max_token=3)


def test_a_stream_goes_on_where_it_was_when_others_ran_in_between(llm):
    whole = llm.generate("a b", max_tokens=12, **FIXED)[0]
    stream = llm.stream("a b", max_tokens=12, **FIXED)
    other = llm.stream("c", max_tokens=3, **FIXED)
    deltas = [next(stream), next(other)]
    between = llm.generate("d e f", max_tokens=20, **FIXED)[0]
    assert len(between.token_ids) == 20
    assert deltas[0].text + text_of(stream) == whole.text
    assert deltas[1].text + text_of(other) == llm.generate("c", max_tokens=3, **FIXED)[0].text
    assert llm._boxes == {}


def test_a_stream_that_is_left_is_cancelled(llm):
    stream = llm.stream("a", max_tokens=500, **FIXED)
    next(stream)
    stream.close()
    llm.generate("b", max_tokens=1, **FIXED)
    assert llm._engine.stats().num_running == 0
    assert not llm._engine.has_work()


@pytest.mark.parametrize(
    ("error", "raised"),
    [(RuntimeError("broken"), InternalError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_failing_steps_leave_an_engine_that_works(llm, monkeypatch, error, raised):
    expected = llm.generate("a", max_tokens=4, **FIXED)[0].token_ids

    def fail(plan):
        raise error

    stream = llm.stream("s", max_tokens=50, **FIXED)
    next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(llm._engine._executor, "execute", fail)
        with pytest.raises(raised):
            llm.generate("a", max_tokens=4, **FIXED)
    with pytest.raises(InternalError, match=type(error).__name__):
        text_of(stream)
    assert llm.generate("a", max_tokens=4, **FIXED)[0].token_ids == expected


def test_a_batch_that_is_not_full_is_waited_for_asleep(tmp_path):
    clock = SleepingClock()
    path = make_tiny_llama(tmp_path)
    settings = {"batching": "static", "batch_window": 20.0, "cache_packed": False, "threads": 1}
    with LLM(str(path), clock=clock, **settings) as llm:
        assert llm.generate([[5, 6]], max_tokens=2, **FIXED)[0].token_ids
    assert sum(clock.slept) == pytest.approx(20.0, abs=0.1)
    assert len(clock.slept) <= 2


class SleepingClock(FakeClock):
    """Time passes in sleep only."""

    def __init__(self):
        super().__init__()
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        super().sleep(seconds)


def test_a_chat_s_answer_does_not_begin_with_the_space_that_encoding_adds(tmp_path):
    tokenizer = sentencepiece_tokenizer()
    path = make_tiny_llama(tmp_path, vocab_size=tokenizer.vocab_size)
    hello = tokenizer.id_of("▁hello")
    with LLM(str(path), cache_packed=False, threads=1) as llm:
        llm._preparer.tokenizer = tokenizer
        forced = {"logit_bias": {str(hello): 100}, "max_tokens": 1, **FIXED}
        (answer,) = llm.chat([{"role": "user", "content": "hello"}], **forced)
        assert (answer.token_ids, answer.text) == ((hello,), "hello")
        assert llm.generate("hello", **forced)[0].text == " hello"


def test_nothing_is_kept_of_blocks_that_nobody_asks_for(llm):
    for number in range(5):
        llm.generate([[number + 3] * 40], max_tokens=2, **FIXED)
    assert llm._engine.take_kv_events() == []


def test_texts_become_vectors_beside_streams(llm):
    texts = ["one", "two words", [5, 6, 7]]
    stream = llm.stream("a b c", max_tokens=4, **FIXED)
    next(stream)
    together = llm.embed(texts)
    assert [llm.embed([text])[0] for text in texts] == together
    assert sum(number * number for number in together[0]) == pytest.approx(1.0, abs=1e-5)
    assert len(text_of(stream)) > 0
    assert len(llm.embed("one", dimensions=8)[0]) == 8
    with pytest.raises(BadRequestError, match="dimensions"):
        llm.embed("one", dimensions=10_000)
    with pytest.raises(BadRequestError, match=r"input\[1\]"):
        llm.embed(["one", ""])


def test_a_prefix_goes_from_one_llm_to_another(tmp_path):
    model = make_tiny_llama(tmp_path / "model")
    prompt = [5 + number % 90 for number in range(40)]
    with LLM(str(model), cache_packed=False, threads=1) as one:
        first = one.generate([prompt], max_tokens=4, temperature=0)[0]
        blocks = one.export_kv(prompt)
    with LLM(str(model), cache_packed=False, threads=1, kv_tier_memory="1MiB") as other:
        other.import_kv(blocks)
        second = other.generate([prompt], max_tokens=4, temperature=0)[0]
    assert second.token_ids == first.token_ids
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)
