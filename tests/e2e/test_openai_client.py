"""The official client talks to a real server with a real model, and every token is right."""

import asyncio
import json
import time
from collections.abc import Iterator

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from tests.support.fake_clock import FakeClock
from tests.support.patience import PATIENCE

from headrace.modeling.weights.sources import resolve
from headrace.preprocess.templates import ChatTemplates
from headrace.preprocess.tokenizer import Tokenizer, load_tokenizer

MODEL = "smollm2-135m"
QUESTIONS = [
    "What is the capital of France?",
    "Name three fruits.",
    "Write one sentence about the sea.",
    "Count from one to five.",
    "What colour is the sky on a clear day?",
    "Who wrote Romeo and Juliet?",
    "Say hello in Spanish.",
    "What is two plus two?",
]


def ask(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


@pytest.fixture
def client(server: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(resolve(MODEL, progress=False), cache=None)


def streamed(client: OpenAI, **options) -> tuple[str, str, list]:
    """(text, finish reason, chunks) of a chat stream, whose order is checked."""
    with client.chat.completions.create(model=MODEL, stream=True, **options) as stream:
        chunks = list(stream)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert [c.finish_reason is not None for c in choices].index(True) == len(choices) - 1
    return "".join(c.delta.content or "" for c in choices), choices[-1].finish_reason, chunks


def test_a_stream_is_the_whole_answer(client: OpenAI) -> None:
    for question in QUESTIONS[:3]:
        options = {"messages": ask(question), "temperature": 0, "max_tokens": 40}
        whole = client.chat.completions.create(model=MODEL, **options)
        text, finish, chunks = streamed(client, **options, stream_options={"include_usage": True})
        assert text == whole.choices[0].message.content
        assert text
        assert finish == whole.choices[0].finish_reason
        assert len({chunk.id for chunk in chunks}) == 1
        assert chunks[-1].choices == []
        used, told = chunks[-1].usage, whole.usage
        assert used is not None
        assert told is not None
        assert (used.prompt_tokens, used.completion_tokens) == (
            told.prompt_tokens,
            told.completion_tokens,
        )
        assert all(chunk.usage is None for chunk in chunks[:-1])


def test_the_capital_of_france(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="The capital of France is", temperature=0, max_tokens=8
    )
    assert "Paris" in answer.choices[0].text


async def test_sixteen_clients_at_once_each_get_their_own_answer(server: str) -> None:
    """Half of them stream; alone or in company, greedy or drawn, each answer is the same."""
    async with AsyncOpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:

        async def answer(number: int, stream: bool) -> str:
            options = {
                "model": MODEL,
                "messages": ask(QUESTIONS[number % 8]),
                "max_tokens": 16 + number,
                "temperature": number % 2,
                "seed": number,
            }
            if not stream:
                whole = await client.chat.completions.create(**options)
                return whole.choices[0].message.content
            parts = []
            async for chunk in await client.chat.completions.create(**options, stream=True):
                parts.append(chunk.choices[0].delta.content or "")
            return "".join(parts)

        alone = [await answer(number, False) for number in range(16)]
        together = await asyncio.gather(*(answer(number, number % 3 == 0) for number in range(16)))
    assert together == alone
    assert len(set(alone)) >= 12


def test_prompts_as_text_and_as_token_ids(client: OpenAI, tokenizer: Tokenizer) -> None:
    texts = ["Once upon a time", "The largest ocean is", "def add(a, b):"]
    ids = [tokenizer.encode(text) for text in texts]
    options = {"model": MODEL, "max_tokens": 10, "temperature": 0}
    of_texts = client.completions.create(prompt=texts, **options)
    of_ids = client.completions.create(prompt=ids, **options)
    one_by_one = [client.completions.create(prompt=i, **options).choices[0].text for i in ids]
    assert [c.index for c in of_texts.choices] == [0, 1, 2]
    assert [c.text for c in of_texts.choices] == [c.text for c in of_ids.choices] == one_by_one
    assert of_texts.usage is not None
    assert of_texts.usage.prompt_tokens == sum(map(len, ids))
    assert of_texts.usage.completion_tokens == 30


def test_n_answers_are_different_and_reproducible(client: OpenAI) -> None:
    options = {"messages": ask(QUESTIONS[2]), "n": 4, "max_tokens": 12, "seed": 3, "temperature": 1}
    first, again = (client.chat.completions.create(model=MODEL, **options) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) == 4
    streams: dict[int, str] = dict.fromkeys(range(4), "")
    with client.chat.completions.create(model=MODEL, stream=True, **options) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                streams[choice.index] += choice.delta.content or ""
    assert [streams[index] for index in range(4)] == texts


def test_a_seed_decides(client: OpenAI) -> None:
    def draw(**options) -> str:
        answer = client.completions.create(
            model=MODEL, prompt="My favourite", max_tokens=12, temperature=1, **options
        )
        return answer.choices[0].text

    assert draw(seed=5) == draw(seed=5)
    assert len({draw(seed=seed) for seed in range(4)}) == 4
    assert len({draw() for _ in range(4)}) > 1


def test_chat_logprobs(client: OpenAI) -> None:
    options = {
        "messages": ask(QUESTIONS[0]), "temperature": 0, "max_tokens": 12,
        "logprobs": True, "top_logprobs": 3,
    }  # fmt: skip
    whole = client.chat.completions.create(model=MODEL, **options)
    assert whole.choices[0].logprobs is not None
    content = whole.choices[0].logprobs.content
    assert content is not None
    assert b"".join(bytes(t.bytes or ()) for t in content).decode() == (
        whole.choices[0].message.content
    )
    for token in content:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token  # greedy takes the best
        found = [best.logprob for best in token.top_logprobs]
        assert found == sorted(found, reverse=True)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == len(content) == 12
    _, _, chunks = streamed(client, **options)
    parts = [c.choices[0].logprobs.content for c in chunks if c.choices and c.choices[0].logprobs]
    assert [token for part in parts for token in part] == content


def test_completion_logprobs(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="Roses are", temperature=0, max_tokens=9, logprobs=2
    ).choices[0]
    assert answer.logprobs is not None
    tokens, offsets = answer.logprobs.tokens, answer.logprobs.text_offset
    assert len(tokens) == len(offsets) == len(answer.logprobs.token_logprobs) == 9
    assert "".join(tokens) == answer.text
    for token, offset in zip(tokens, offsets, strict=True):
        assert answer.text[offset:].startswith(token)
    for chosen, best in zip(tokens, answer.logprobs.top_logprobs, strict=True):
        assert len(best) == 2
        assert chosen in best


def test_stop_strings_never_leak(client: OpenAI) -> None:
    options = {"messages": ask(QUESTIONS[2]), "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(model=MODEL, **options).choices[0].message.content
    words = whole.split(" ")
    assert len(words) > 8
    for stop in (
        f"{words[4][-2:]} {words[5]}",  # across tokens
        whole[17:24],
        words[3],
    ):
        cut = whole[: whole.index(stop)]
        stopped = client.chat.completions.create(model=MODEL, stop=[stop, "\u2603"], **options)
        assert stopped.choices[0].message.content == cut
        assert stopped.choices[0].finish_reason == "stop"
        text, finish, _ = streamed(client, stop=stop, **options)
        assert (text, finish) == (cut, "stop")
    almost = [whole[20:26] + "~", whole[3:9] + "\u2603"]  # begin like the answer, but never come
    text, _, _ = streamed(client, stop=almost, **options)
    assert text == whole


def test_usage_counts_tokens(client: OpenAI, tokenizer: Tokenizer) -> None:
    messages = ask("Ünïcödé 漢字 😀 and   spaces")
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, max_completion_tokens=7, extra_body={"ignore_eos": True}
    )
    template = ChatTemplates(tokenizer, None, FakeClock()).find(with_tools=False)
    ids = tokenizer.encode(template.render(messages), add_special=False)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(ids)
    assert answer.usage.completion_tokens == 7
    assert answer.usage.total_tokens == len(ids) + 7
    assert answer.choices[0].finish_reason == "length"
    again = client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=1)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == (len(ids) - 1) // 16 * 16


def test_characters_stay_whole(client: OpenAI, tokenizer: Tokenizer) -> None:
    """Tokens that are single bytes of an emoji are joined before they leave."""
    pieces = tokenizer.encode("\U0001f9a6", add_special=False)
    assert len(pieces) > 1
    prompt = tokenizer.encode("otters: " + "\U0001f9a6" * 12, add_special=False)
    with client.completions.create(
        model=MODEL, prompt=prompt, temperature=0, max_tokens=12, stream=True
    ) as stream:
        texts = [chunk.choices[0].text for chunk in stream]
    assert not any("\ufffd" in text for text in texts[:-1])
    assert "\U0001f9a6" in "".join(texts)


def test_a_stream_ends_once_and_properly(server: str) -> None:
    body = {"messages": ask(QUESTIONS[7]), "stream": True, "max_tokens": 5, "temperature": 0}
    with httpx.stream(
        "POST", f"{server}/v1/chat/completions", json=body, timeout=PATIENCE
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line[6:]) for line in lines[:-1]]
    assert [event["choices"][0]["finish_reason"] for event in events].count(None) == len(events) - 1
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert {event["object"] for event in events} == {"chat.completion.chunk"}


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_a_request_without_a_model_gets_the_only_one(client: OpenAI) -> None:
    body = {"messages": ask("Hi"), "max_tokens": 2}
    answer = client.post("/chat/completions", body=body, cast_to=object)
    assert answer["model"] == MODEL


@pytest.mark.parametrize(
    ("change", "error", "param", "code"),
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature", None),
        ({"messages": []}, openai.BadRequestError, "messages", None),
        ({"messages": [{"role": "wizard", "content": "x"}]}, openai.BadRequestError, "role", None),
        ({"logit_bias": {"999999": 1}}, openai.BadRequestError, "999999", None),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens", None),
        ({"model": "gpt-4"}, openai.NotFoundError, None, "model_not_found"),
        (
            {"messages": ask("word " * 40_000)},
            openai.BadRequestError,
            "messages",
            "context_length_exceeded",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_faults_are_typed(client: OpenAI, change, error, param, code) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": ask("Hi"), **change})
    assert isinstance(caught.value, openai.APIStatusError)
    assert caught.value.body["message"].endswith(".")
    if param is not None:
        assert param in str(caught.value.body["param"])
    if code is not None:
        assert caught.value.code == code


def test_a_client_that_leaves_gives_its_blocks_back(client: OpenAI, server: str) -> None:
    with client.completions.create(
        model=MODEL, prompt="On and on", max_tokens=1000, stream=True,
        extra_body={"ignore_eos": True},
    ) as stream:  # fmt: skip
        next(iter(stream))
    while (load := httpx.get(f"{server}/load").json())["num_running"]:
        time.sleep(0.02)
    assert load["kv_blocks_used"] == 0
