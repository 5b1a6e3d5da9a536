"""Bodies → chains of hashes: what begins alike matches, what does not does not."""

from typing import Any

import pytest

from headrace.fleet.gateway.prefix.blocks import Prompt, prompt_text, read_prompt


def read(body: dict[str, Any], **settings: Any) -> Prompt:
    return read_prompt(body, **{"model": "m", "block_chars": 16, "num_tokens": 100} | settings)


def common(left: Prompt, right: Prompt) -> int:
    pairs = zip(left.hashes, right.hashes, strict=False)
    return next(
        (n for n, (a, b) in enumerate(pairs) if a != b), min(map(len, (left.hashes, right.hashes)))
    )


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"messages": messages, **more}


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    first = read(chat("hello there " * 10))
    longer = read(chat("hello there " * 10, "well, hello", "go on " * 50))
    assert len(first.hashes) > 5
    assert longer.hashes[: len(first.hashes)] == first.hashes
    assert len(longer.hashes) > len(first.hashes)


def test_a_change_at_the_start_changes_every_hash() -> None:
    assert common(read(chat("a" + "x" * 100)), read(chat("b" + "x" * 100))) == 0


def test_a_change_in_the_middle_leaves_what_is_before_it() -> None:
    left, right = read({"prompt": "x" * 64 + "a" * 64}), read({"prompt": "x" * 64 + "b" * 64})
    assert common(left, right) == 4


@pytest.mark.parametrize("other", [{"model": "n"}, {"salt": "tenant"}])
def test_models_and_tenants_share_nothing(other: dict[str, str]) -> None:
    body = chat("hello there " * 10)
    assert not set(read(body).hashes) & set(read(body, **other).hashes)


def test_the_border_of_model_and_salt_counts() -> None:
    body = chat("hello there " * 10)
    left, right = read(body, model="ab", salt="c"), read(body, model="a", salt="bc")
    assert left.hashes != right.hashes


def test_tools_come_first() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "d" * 100}}]
    assert common(read(chat("one", tools=tools)), read(chat("two", tools=tools))) > 5
    assert common(read(chat("x" * 90, tools=tools)), read(chat("x" * 90))) == 0


def test_parts_of_text_are_text() -> None:
    parts = [{"type": "text", "text": "hello " * 20}]
    left = read({"messages": [{"role": "user", "content": parts}]})
    right = read(chat("hello " * 20))
    assert common(left, right) >= 7


def test_images_are_told_apart_without_being_text() -> None:
    def with_image(data: str) -> dict[str, Any]:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}
        return {
            "messages": [{"role": "user", "content": [image, {"type": "text", "text": "x" * 64}]}]
        }

    left, right = read(with_image("A" * 10_000)), read(with_image("B" * 10_000))
    assert left.num_chars < 200
    assert common(left, right) <= 1


def test_token_ids_are_a_prompt() -> None:
    left, right = read({"prompt": list(range(50))}), read({"prompt": list(range(100))})
    assert len(left.hashes) > 5
    assert common(left, right) == len(left.hashes)


def test_the_first_of_several_prompts_counts() -> None:
    assert read({"prompt": ["x" * 64, "y" * 64]}).hashes == read({"prompt": "x" * 64}).hashes


@pytest.mark.parametrize(
    "body",
    [
        {"input": "x" * 64},
        {"instructions": "x" * 64, "input": [{"role": "user", "content": "hi"}]},
        {"system": [{"type": "text", "text": "x" * 64}], "messages": []},
        {"system": "x" * 64},
        {"prompt": "x" * 64},
    ],
)
def test_every_endpoint_has_a_prompt(body: dict[str, Any]) -> None:
    assert len(read(body).hashes) >= 4


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": None},
        {"messages": 7},
        {"messages": [None, 3, "x", {"role": {}, "content": {"a": [1, {}]}}]},
        {"messages": [{"content": [[["deep"]], None, {"text": 5}]}]},
        {"prompt": {"a": 1}},
        {"prompt": [1, "two", None]},
        {"prompt": [[], []]},
        {"prompt": "\ud800" * 40},
        {"tools": {"not": "a list"}},
        {"prompt": [True] * 40},
    ],
)
def test_garbage_is_hashed_too(body: dict[str, Any]) -> None:
    read(body)
    assert isinstance("".join(prompt_text(body)), str)


def test_only_so_many_blocks_are_made() -> None:
    prompt = read({"prompt": "x" * 1_000_000}, max_blocks=10)
    assert len(prompt.hashes) == 10
    assert prompt.num_chars == 1_000_000


def test_tokens_of_blocks_are_their_share_of_the_prompt() -> None:
    prompt = read({"prompt": "x" * 160}, num_tokens=40)
    assert len(prompt.hashes) == 10
    assert [prompt.tokens(n) for n in (0, 5, 10, 11)] == [0, 20, 40, 40]
    assert read({}, num_tokens=0).tokens(3) == 0
