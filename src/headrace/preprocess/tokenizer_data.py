"""A tokenizer as data: what every source is turned into, and what the cache keeps.

The form is compact because it is on the way to the first token: token strings once, merges as pairs of
token ids. `assemble` builds the `tokenizers` object from it about twice as fast as from tokenizer.json.
"""

import json
from array import array
from enum import StrEnum
from typing import Any

import tokenizers
from msgspec import Struct

from headrace.core.errors import ModelLoadError


class Spelling(StrEnum):
    """How the tokens of a vocabulary stand for bytes."""

    BYTE_LEVEL = "byte_level"
    """Each character is one byte, in the alphabet of GPT-2."""
    BYTE_FALLBACK = "byte_fallback"
    """Text with U+2581 for the space; `<0x0A>` is the byte 10 (SentencePiece)."""
    WORD_PIECE = "word_piece"
    """A word, or with `##` in front the rest of one; white space is lost (BERT)."""


class AddedToken(Struct, frozen=True, array_like=True):
    """A token that is found in the text before anything else is."""

    id: int
    content: str
    special: bool
    """It steers the model and is no text: left out of the output."""
    lstrip: bool = False
    rstrip: bool = False
    """Swallows white space on that side."""
    normalized: bool = False
    single_word: bool = False


class TokenizerFacts(Struct, frozen=True, kw_only=True):
    """What the rest of the server must know of a tokenizer."""

    source: str
    """File or directory it was read from."""
    spelling: Spelling
    added: tuple[AddedToken, ...] = ()
    prefix_ids: tuple[int, ...] = ()
    """Put in front of a prompt (a beginning-of-sequence token, where the model wants one)."""
    suffix_ids: tuple[int, ...] = ()
    bos_token: str | None = None
    eos_token: str | None = None
    unk_token: str | None = None
    pad_token: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Every id that ends an answer: end of sequence, end of turn, end of message."""
    strips_space: bool = False
    """Encoding adds a space in front of a text, so decoding a whole text drops one."""
    chat_templates: dict[str, str] = {}
    """By name; `default` is the one that is used when no other is asked for."""


class TokenizerData(Struct, frozen=True, kw_only=True):
    """A whole tokenizer."""

    facts: TokenizerFacts
    spec: bytes
    """tokenizer.json; without added tokens, and with an empty vocabulary where `tokens` has it."""
    tokens: list[str] = []
    """The vocabulary of a BPE model, by id."""
    merges: bytes = b""
    """Pairs of token ids (uint32, little endian), the first merge first."""


def pack_merges(pairs: list[tuple[int, int]]) -> bytes:
    """Merges as bytes, for `TokenizerData.merges`."""
    flat = array("I")
    for pair in pairs:
        flat.extend(pair)
    return flat.tobytes()


def assemble(data: TokenizerData) -> tokenizers.Tokenizer:
    """The `tokenizers` object. Raises ModelLoadError where the library refuses the data."""
    try:
        return _assemble(data)
    # The library raises bare Exception for whatever its Rust side refuses.
    except Exception as error:
        raise ModelLoadError(
            f"The tokenizer of {data.facts.source} cannot be used: {error}"
        ) from error


def _assemble(data: TokenizerData) -> tokenizers.Tokenizer:
    shell = tokenizers.Tokenizer.from_buffer(data.spec)
    if data.tokens:
        core = tokenizers.Tokenizer(_bpe(data, json.loads(data.spec)["model"]))
        for part in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
            value = getattr(shell, part)
            if value is not None:
                setattr(core, part, value)
    else:
        core = shell
    core.no_padding()
    core.no_truncation()
    _add_tokens(core, data.facts.added)
    return core


def _bpe(data: TokenizerData, options: dict[str, Any]) -> tokenizers.models.BPE:
    tokens = data.tokens
    flat = array("I", data.merges)
    names = map(tokens.__getitem__, flat)
    texts = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix")
    flags = ("fuse_unk", "byte_fallback", "ignore_merges")
    return tokenizers.models.BPE(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=list(zip(names, names, strict=True)),
        **{name: options[name] for name in texts if options.get(name)},
        **{name: bool(options.get(name)) for name in flags},
    )


def _add_tokens(core: tokenizers.Tokenizer, added: tuple[AddedToken, ...]) -> None:
    """In the order of their ids: the library numbers those that are new to the vocabulary itself."""
    run: list[tokenizers.AddedToken] = []
    kind = False
    for token in sorted(added, key=lambda token: token.id):
        if run and token.special is not kind:
            _add_run(core, run, kind)
            run = []
        kind = token.special
        run.append(
            tokenizers.AddedToken(
                token.content,
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=token.normalized,
                special=token.special,
            )
        )
    _add_run(core, run, kind)
    for token in added:
        if core.token_to_id(token.content) != token.id:
            raise ModelLoadError(f"the added token {token.content[:80]!r} has no id of its own")


def _add_run(core: tokenizers.Tokenizer, run: list[tokenizers.AddedToken], special: bool) -> None:
    if run and special:
        core.add_special_tokens(run)
    elif run:
        core.add_tokens(run)
