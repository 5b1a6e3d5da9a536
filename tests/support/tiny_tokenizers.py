"""Small vocabularies with every kind of token, as GGUF metadata."""

from typing import Any, Final

from headrace.preprocess.gguf_tokenizer import TokenType, read_gguf_tokenizer
from headrace.preprocess.spelling import BYTE_ALPHABET
from headrace.preprocess.tokenizer import TextTokenizer

CHATML: Final = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)
_MERGED: Final = ("he", "ll", "hell", "hello", "Ġw", "or", "Ġwor", "ld", "Ġworld", "ĠĠ", "in", "ing", "ðŁ", "ðŁĺ", "ĊĊ")  # fmt: skip
_PIECES: Final = ("▁", "▁h", "he", "▁he", "ll", "llo", "▁hello", "▁w", "or", "▁wor", "ld", "▁world", "▁▁", "in", "ing", "é")  # fmt: skip


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """Byte-level BPE: three special tokens, 256 bytes, a few merges, one user-defined token."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *BYTE_ALPHABET, *_MERGED, "<tool>"]
    types = [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(tokens) - 4)
    metadata = {
        "general.name": "tiny",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in [*types, TokenType.USER_DEFINED]],
        "tokenizer.ggml.merges": [_split(token, tokens) for token in _MERGED],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }
    return {**metadata, **{key.replace("__", "."): value for key, value in changes.items()}}


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """SentencePiece BPE: marks, 256 byte tokens, pieces by falling score, single characters last."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    letters = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *_PIECES, *letters, "<turn>"]
    kinds = (
        [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
        + [TokenType.BYTE] * 256
        + [TokenType.NORMAL] * (len(tokens) - 260)
        + [TokenType.CONTROL]
    )
    metadata = {
        "general.name": "tiny",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(len(tokens) - 259)],
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return {**metadata, **{key.replace("__", "."): value for key, value in changes.items()}}


def byte_level_tokenizer(**changes: Any) -> TextTokenizer:
    return TextTokenizer(read_gguf_tokenizer(byte_level_metadata(**changes), "tiny"))


def sentencepiece_tokenizer(**changes: Any) -> TextTokenizer:
    return TextTokenizer(read_gguf_tokenizer(sentencepiece_metadata(**changes), "tiny"))


def _split(token: str, tokens: list[str]) -> str:
    """The first way to make a token of two others."""
    cuts = range(1, len(token))
    cut = next(cut for cut in reversed(cuts) if {token[:cut], token[cut:]} <= set(tokens))
    return f"{token[:cut]} {token[cut:]}"
