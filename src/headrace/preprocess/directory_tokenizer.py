"""A Hugging Face model directory → `TokenizerData`.

Files: tokenizer.json (the tokenizer), tokenizer_config.json and special_tokens_map.json (names of the
special tokens, chat template), generation_config.json and config.json (ids that end an answer),
chat_template.jinja, chat_template.json, additional_chat_templates/NAME.jinja.
"""

from pathlib import Path
from typing import Any, Final

import msgspec
import tokenizers

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.modeling.weights.json_files import (
    read_json_object,
    read_optional_object,
    read_text,
)
from headrace.preprocess.tokenizer_data import (
    AddedToken,
    Spelling,
    TokenizerData,
    TokenizerFacts,
    pack_merges,
)

_SPECIAL_NAMES: Final = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_directory_tokenizer(directory: Path) -> TokenizerData:
    """Raises ModelLoadError for a missing or broken file, UnsupportedModelError for an unknown kind."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelLoadError(
            f"{directory} has no tokenizer.json; save the model with a fast tokenizer to get one."
        )
    spec = read_json_object(path)
    config = read_optional_object(directory / "tokenizer_config.json")
    try:
        # Lengths are ours to bound: many embedding models come with a tokenizer that cuts and fills up.
        spec["truncation"] = spec["padding"] = None
        # A bare Exception is what the library raises for anything it cannot read.
        core = tokenizers.Tokenizer.from_buffer(msgspec.json.encode(spec))
    except Exception as error:
        raise ModelLoadError(f"{path} cannot be used: {error}") from error
    facts = _facts(directory, spec, config, core)
    compact = _compact(spec, facts)
    return compact or TokenizerData(facts=facts, spec=msgspec.json.encode(spec))


def _facts(
    directory: Path, spec: dict[str, Any], config: dict[str, Any], core: tokenizers.Tokenizer
) -> TokenizerFacts:
    names = {**read_optional_object(directory / "special_tokens_map.json"), **config}
    special = {name: _content(names.get(name)) for name in _SPECIAL_NAMES}
    ids = {name: core.token_to_id(text) if text else None for name, text in special.items()}
    spelling, strips_space = _spelling(spec.get("decoder"))
    prefix, suffix = _marks(core)
    return TokenizerFacts(
        source=str(directory),
        spelling=spelling,
        added=_added(spec, config),
        prefix_ids=_override(config.get("add_bos_token"), ids["bos_token"], prefix),
        suffix_ids=_override(config.get("add_eos_token"), ids["eos_token"], suffix),
        **special,
        eos_token_ids=_ends(directory, ids["eos_token"]),
        strips_space=strips_space,
        chat_templates=_templates(directory, config),
    )


def _content(value: Any) -> str | None:
    """A special token is written as its text or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _marks(core: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts around a text."""
    bare = core.encode("a", add_special_tokens=False).ids
    full = core.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return (), ()


def _override(flag: Any, number: int | None, found: tuple[int, ...]) -> tuple[int, ...]:
    """`add_bos_token` and `add_eos_token`, where given, win over the post-processor."""
    if not isinstance(flag, bool):
        return found
    return (number,) if flag and number is not None else ()


def _added(spec: dict[str, Any], config: dict[str, Any]) -> tuple[AddedToken, ...]:
    listed = {int(entry["id"]): entry for entry in spec.get("added_tokens") or ()}
    for number, entry in (config.get("added_tokens_decoder") or {}).items():
        listed.setdefault(int(number), entry)
    return tuple(
        AddedToken(
            number,
            entry["content"],
            bool(entry.get("special")),
            bool(entry.get("lstrip")),
            bool(entry.get("rstrip")),
            bool(entry.get("normalized")),
            bool(entry.get("single_word")),
        )
        for number, entry in sorted(listed.items())
    )


def _spelling(decoder: Any) -> tuple[Spelling, bool]:
    """How tokens spell bytes, and whether decoding drops a leading space."""
    parts = _parts(decoder)
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        return Spelling.BYTE_LEVEL, False
    if kinds == {"WordPiece"}:
        return Spelling.WORD_PIECE, True
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        strips = any(
            (part.get("type") == "Strip" and part.get("start", 0) > 0)
            or (part.get("type") == "Metaspace" and part.get("prepend_scheme") != "never")
            for part in parts
        )
        return Spelling.BYTE_FALLBACK, strips
    raise UnsupportedModelError(
        f"The tokenizer's decoder {', '.join(sorted(map(str, kinds))) or 'none'} is not known; "
        "supported are ByteLevel, ByteFallback, Metaspace and WordPiece."
    )


def _parts(decoder: Any) -> list[dict[str, Any]]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") == "Sequence":
        return [part for inner in decoder.get("decoders", ()) for part in _parts(inner)]
    return [decoder]


def _ends(directory: Path, eos: int | None) -> tuple[int, ...]:
    ends = set() if eos is None else {eos}
    for name in ("generation_config.json", "config.json"):
        value = read_optional_object(directory / name).get("eos_token_id")
        ends.update(
            number
            for number in (value if isinstance(value, list) else [value])
            if isinstance(number, int) and number >= 0
        )
    return tuple(sorted(ends))


def _templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """Later sources win: the configuration, chat_template.json, then the files that hold only a template."""
    found: dict[str, str] = {}
    for value in (
        config.get("chat_template"),
        read_optional_object(directory / "chat_template.json").get("chat_template"),
    ):
        if isinstance(value, str):
            found["default"] = value
        for entry in value if isinstance(value, list) else ():
            match entry:
                case {"name": str(name), "template": str(text)}:
                    found[name] = text
    files = {"default": directory / "chat_template.jinja"}
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        files[path.stem] = path
    for name, path in files.items():
        if path.is_file():
            found[name] = read_text(path)
    return found


def _compact(spec: dict[str, Any], facts: TokenizerFacts) -> TokenizerData | None:
    """The small form; None where the model is not a BPE whose ids are 0, 1, 2, …"""
    model = spec.get("model") or {}
    vocab = model.get("vocab")
    if model.get("type") != "BPE" or not isinstance(vocab, dict) or model.get("dropout"):
        return None
    tokens = sorted(vocab, key=vocab.__getitem__)
    if [vocab[token] for token in tokens] != list(range(len(tokens))):
        return None
    merges = _merge_ids(model.get("merges") or [], vocab)
    if merges is None:
        return None
    options = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
    shell_model = {**options, "vocab": {}, "merges": []}
    shell = {**spec, "added_tokens": [], "post_processor": None, "model": shell_model}
    return TokenizerData(
        facts=facts,
        spec=msgspec.json.encode(shell),
        tokens=tokens,
        merges=pack_merges(merges),
    )


def _merge_ids(merges: list[Any], vocab: dict[str, int]) -> list[tuple[int, int]] | None:
    pairs = []
    for merge in merges:
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        if left not in vocab or right not in vocab:
            return None
        pairs.append((vocab[left], vocab[right]))
    return pairs
