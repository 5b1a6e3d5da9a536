"""Preparers of tiny models, and what they are given."""

import msgspec
from tests.support.fake_clock import FakeClock
from tests.support.tiny_tokenizers import byte_level_tokenizer

from headrace.api.chat import ChatRequest
from headrace.api.completions import CompletionRequest
from headrace.config.server import ServerConfig
from headrace.core.model_info import ModelInfo
from headrace.preprocess.prepare import Arrival, Preparer

ARRIVAL = Arrival(request_id="r", time=1000.0)
TRUSTED = Arrival(request_id="r", time=1000.0, is_trusted=True)


def model_info(**changes):
    facts = {
        "names": ("tiny",), "source": "tiny", "path": "/tiny", "family": "llama", "digest": "00",
        "vocab_size": 275, "max_context": 64, "block_size": 16, "num_blocks": 9,
    }  # fmt: skip
    return ModelInfo(**{**facts, **changes})


def preparer(tokenizer=None, *, info=None, config=None, **options):
    return Preparer(
        tokenizer or byte_level_tokenizer(),
        info or model_info(),
        config or ServerConfig(default_max_tokens=8),
        FakeClock(),
        draw_seed=lambda: 77,
        **options,
    )


def chat(*contents, **fields):
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)]
    return msgspec.convert({"messages": messages, **fields}, ChatRequest)


def completion(prompt, **fields):
    return msgspec.convert({"prompt": prompt, **fields}, CompletionRequest)


def ids_of(request):
    return request.prompt[0].token_ids
