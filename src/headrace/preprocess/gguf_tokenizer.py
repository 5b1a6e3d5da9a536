"""GGUF metadata (`tokenizer.*`) → `TokenizerData`."""

import json
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from headrace.core.errors import ModelLoadError, UnsupportedModelError
from headrace.preprocess.pretokenizers import find_pre_tokenizer, specify
from headrace.preprocess.sentencepiece import merges_from_scores
from headrace.preprocess.tokenizer_data import (
    AddedToken,
    Spelling,
    TokenizerData,
    TokenizerFacts,
    pack_merges,
)

#: Tokens that end an answer, known by their text: chat models end a turn with them, and files name
#: only one end-of-sequence id.
END_OF_ANSWER: Final = frozenset(
    {
        "</s>",
        "<eos>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<｜end▁of▁sentence｜>",
    }
)
#: Of Phi-3's special tokens, those that leave the white space behind them alone.
_PHI3_PLAIN: Final = frozenset({"<unk>", "<s>", "<|endoftext|>"})
#: Ids of SentencePiece's own marks, where the file does not say.
_SENTENCEPIECE_IDS: Final = {"unknown": 0, "bos": 1, "eos": 2}


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def read_gguf_tokenizer(metadata: Mapping[str, Any], source: str) -> TokenizerData:
    """Raises UnsupportedModelError for a tokenizer that we do not know, ModelLoadError for a bad one."""
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        return _Reader(metadata, source).byte_level()
    if model == "llama":
        return _Reader(metadata, source).sentencepiece()
    if model == "bert":
        return _Reader(metadata, source).word_piece()
    if model is None:
        raise ModelLoadError(f"{source} holds no tokenizer (no 'tokenizer.ggml.model').")
    raise UnsupportedModelError(
        f"The tokenizer '{model}' is not known; supported are gpt2 (byte-level BPE), "
        "llama (SentencePiece) and bert (WordPiece)."
    )


class _Reader:
    """The metadata with its vocabulary, checked once."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self.metadata = metadata
        self.source = source
        self.defaults: Mapping[str, int] = {}
        self.tokens = _unique(self._list("tokens", str))
        types = self._list("token_type", int, required=False)
        self.types = types or [TokenType.NORMAL] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            raise ModelLoadError(f"{source} has token types for another number of tokens.")

    def byte_level(self) -> TokenizerData:
        name = self.metadata.get("tokenizer.ggml.pre") or "default"
        rule = find_pre_tokenizer(str(name))
        spec = specify(rule)
        spec["decoder"] = {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        }
        options = {"ignore_merges": rule.ignores_merges}
        facts = self._facts(Spelling.BYTE_LEVEL, adds_bos=rule.adds_bos, strips_space=False)
        return self._data(facts, spec, options, self._written_merges())

    def sentencepiece(self) -> TokenizerData:
        self.defaults = _SENTENCEPIECE_IDS
        adds_space = self._flag("add_space_prefix", default=True)
        replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        prepend = [{"type": "Prepend", "prepend": "▁"}] if adds_space else []
        strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if adds_space else []
        spec = {
            "normalizer": {"type": "Sequence", "normalizers": [*prepend, replace]},
            "pre_tokenizer": None,
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    *strip,
                ],
            },
        }
        scores = self._list("scores", (int, float))
        if len(scores) != len(self.tokens):
            raise ModelLoadError(f"{self.source} has scores for another number of tokens.")
        # Text must never merge into a control token: only the tokenizer's own marks are.
        unmade = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE)
        excluded = [number for number, kind in enumerate(self.types) if kind in unmade]
        merges = merges_from_scores(self.tokens, scores, excluded)
        unknown = self._token(self._id("unknown"))
        options = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
        facts = self._facts(Spelling.BYTE_FALLBACK, adds_bos=True, strips_space=adds_space)
        return self._data(facts, spec, options, merges)

    def word_piece(self) -> TokenizerData:
        """BERT's, which the converter has written with U+2581 before words instead of ## before their rests."""
        tokens = [_as_word_piece(token) for token in self.tokens]
        ids = {token: number for number, token in enumerate(tokens)}
        missing = [name for name in ("[CLS]", "[SEP]", "[UNK]") if name not in ids]
        if missing or len(ids) != len(tokens):
            what = f"no token {missing[0]}" if missing else "a token twice"
            raise ModelLoadError(f"{self.source} has a WordPiece vocabulary with {what}.")
        words = (token for token in tokens if not _is_mark(token))
        is_cased = any(
            character.isascii() and character.isupper() for w in words for character in w
        )
        spec = {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
                "strip_accents": None,
                "lowercase": not is_cased,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {
                "type": "WordPiece",
                "unk_token": "[UNK]",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": ids,
            },
        }
        marks = [name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if name in ids]
        facts = TokenizerFacts(
            source=self.source,
            spelling=Spelling.WORD_PIECE,
            added=tuple(AddedToken(ids[name], name, special=True) for name in marks),
            prefix_ids=(ids["[CLS]"],),
            suffix_ids=(ids["[SEP]"],),
            unk_token="[UNK]",
            pad_token="[PAD]" if "[PAD]" in ids else None,
            strips_space=True,
        )
        return TokenizerData(facts=facts, spec=json.dumps(spec, ensure_ascii=False).encode())

    def _data(
        self,
        facts: TokenizerFacts,
        spec: dict[str, Any],
        options: dict[str, Any],
        merges: list[tuple[int, int]],
    ) -> TokenizerData:
        model = {"type": "BPE", "vocab": {}, "merges": [], **options}
        shell = {"version": "1.0", "added_tokens": [], **spec, "model": model}
        # The empty shell cannot name an unknown token; `assemble` gives it to the real model.
        return TokenizerData(
            facts=facts,
            spec=json.dumps(shell, ensure_ascii=False).encode(),
            tokens=self.tokens,
            merges=pack_merges(merges),
        )

    def _facts(self, spelling: Spelling, *, adds_bos: bool, strips_space: bool) -> TokenizerFacts:
        ids = {name: self._id(name) for name in ("bos", "eos", "unknown", "padding")}
        bos, eos = ids["bos"], ids["eos"]
        with_bos = self._flag("add_bos_token", default=adds_bos) and bos is not None
        with_eos = self._flag("add_eos_token", default=False) and eos is not None
        return TokenizerFacts(
            source=self.source,
            spelling=spelling,
            added=self._added(),
            prefix_ids=(bos,) if with_bos and bos is not None else (),
            suffix_ids=(eos,) if with_eos and eos is not None else (),
            bos_token=self._token(bos),
            eos_token=self._token(eos),
            unk_token=self._token(ids["unknown"]),
            pad_token=self._token(ids["padding"]),
            eos_token_ids=self._ends(),
            strips_space=strips_space,
            chat_templates=self._templates(),
        )

    def _added(self) -> tuple[AddedToken, ...]:
        name = str(self.metadata.get("general.name", "")).lower()
        is_phi3 = "phi-3" in name or "phi3" in name
        special = (TokenType.CONTROL, TokenType.UNKNOWN)
        return tuple(
            AddedToken(
                number,
                self.tokens[number],
                kind in special,
                rstrip=is_phi3 and kind in special and self.tokens[number] not in _PHI3_PLAIN,
            )
            for number, kind in enumerate(self.types)
            if kind in special or kind == TokenType.USER_DEFINED
        )

    def _ends(self) -> tuple[int, ...]:
        named = {self._id(name) for name in ("eos", "eot", "eom")}
        known = {
            number
            for number, kind in enumerate(self.types)
            if kind == TokenType.CONTROL and self.tokens[number] in END_OF_ANSWER
        }
        return tuple(sorted(number for number in named | known if number is not None))

    def _templates(self) -> dict[str, str]:
        prefix = "tokenizer.chat_template"
        templates = {
            key.removeprefix(prefix).removeprefix(".") or "default": str(self.metadata[key])
            for key in self.metadata
            if key == prefix or key.startswith(f"{prefix}.")
        }
        return dict(sorted(templates.items()))

    def _written_merges(self) -> list[tuple[int, int]]:
        """Merges as the file lists them, less those that cannot apply: a part or the whole is no token."""
        ids = {token: number for number, token in enumerate(self.tokens)}
        merges = []
        for merge in self._list("merges", str):
            # A part may begin with a space, in vocabularies that are not byte-level.
            cut = merge.find(" ", 1)
            left, right = ids.get(merge[:cut]), ids.get(merge[cut + 1 :])
            whole = merge[:cut] + merge[cut + 1 :]
            if cut > 0 and left is not None and right is not None and whole in ids:
                merges.append((left, right))
        return merges

    def _list(self, name: str, kind: Any, *, required: bool = True) -> list[Any]:
        key = f"tokenizer.ggml.{name}"
        value = self.metadata.get(key)
        if value is None and not required:
            return []
        if not isinstance(value, list) or not value or not isinstance(value[0], kind):
            raise ModelLoadError(f"{self.source} has no usable '{key}'.")
        return value

    def _flag(self, name: str, *, default: bool) -> bool:
        value = self.metadata.get(f"tokenizer.ggml.{name}")
        return default if value is None else bool(value)

    def _id(self, name: str) -> int | None:
        default = self.defaults.get(name)
        value = self.metadata.get(f"tokenizer.ggml.{name}_token_id", default)
        # Converters write -1 or 2**32 - 1 for "none".
        return value if isinstance(value, int) and 0 <= value < len(self.tokens) else None

    def _token(self, number: int | None) -> str | None:
        return None if number is None else self.tokens[number]


def _is_mark(token: str) -> bool:
    return token.startswith("[") and token.endswith("]")


def _as_word_piece(token: str) -> str:
    if _is_mark(token):
        return token
    return token[1:] if token.startswith("▁") else f"##{token}"


def _unique(tokens: list[str]) -> list[str]:
    """Tokens are names. One that is empty or there twice gets a name that no text holds."""
    seen: set[str] = set()
    names = []
    for number, token in enumerate(tokens):
        name = token if token and token not in seen else f"\uffff{number}\uffff"
        seen.add(name)
        names.append(name)
    return names
