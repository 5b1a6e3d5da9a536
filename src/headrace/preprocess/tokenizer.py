"""Text ↔ token ids.

Special tokens in the text of `encode` become the tokens they name, as Hugging Face's tokenizers and
llama.cpp's server have it: a raw prompt may contain them. In chat messages only those that the template
writes do; `preprocess.prepare` marks the others and `encode_marked` reads them as plain text.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Protocol

from headrace.config import env
from headrace.core.errors import BadRequestError, ModelLoadError
from headrace.grammar.vocabulary import Vocabulary, read_vocabulary
from headrace.preprocess.special_text import SpecialTokens
from headrace.preprocess.spelling import TokenBytes, spell
from headrace.preprocess.text_length import LengthBound, length_bound
from headrace.preprocess.token_search import TokenSearch
from headrace.preprocess.tokenizer_cache import cache_path, read_cached, write_cached
from headrace.preprocess.tokenizer_data import TokenizerData, TokenizerFacts, assemble

#: Files of a model directory that the tokenizer depends on.
_DIRECTORY_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "config.json",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates",
)

#: Characters of a text that is tokenised without asking whether it is too long: milliseconds.
_SHORT = 32_768
_SURROGATE = "The text holds a surrogate, which is not a character."


class Tokenizer(Protocol):
    """What the server needs of a tokenizer. Safe to use from several threads."""

    @property
    def facts(self) -> TokenizerFacts: ...

    @property
    def vocab_size(self) -> int:
        """One more than the largest id it can give."""
        ...

    @property
    def text_bytes(self) -> Mapping[int, bytes]:
        """Bytes of each token in the output; special tokens have none."""
        ...

    @property
    def all_bytes(self) -> Mapping[int, bytes]:
        """Bytes of each token; special tokens are spelt out."""
        ...

    @property
    def special_tokens(self) -> SpecialTokens: ...

    def is_longer(self, text: str, num_tokens: int) -> bool:
        """The text has more tokens than this for certain: told from its length alone. False: who knows."""
        ...

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids; `add_special` puts the model's own marks around them."""
        ...

    def encode_marked(self, text: str, mark: str, *, add_special: bool = True) -> list[int]:
        """As `encode`, but special tokens that hold `mark` are plain text, and marks are dropped."""
        ...

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of a whole sequence; bytes that are no UTF-8 become U+FFFD."""
        ...

    def id_of(self, token: str) -> int | None:
        """The id of a token, given as the vocabulary writes it."""
        ...

    def tokens_with(self, text: str) -> tuple[int, ...]:
        """Ids of the tokens whose bytes hold this text (not empty), special ones as they are written."""
        ...

    def vocabulary(self, size: int) -> Vocabulary:
        """What a grammar must know, of a model with logits for `size` tokens. Spells every token."""
        ...


class TextTokenizer:
    """The `Tokenizer` over the `tokenizers` library."""

    def __init__(self, data: TokenizerData) -> None:
        self._facts = data.facts
        self._core = assemble(data)
        self._size = max(
            self._core.get_vocab_size(with_added_tokens=True),
            1 + max((token.id for token in data.facts.added), default=-1),
        )
        self._special = {token.id: token.content for token in data.facts.added if token.special}
        self._swallow_left = {token.content for token in data.facts.added if token.lstrip}
        self._swallow_right = {token.content for token in data.facts.added if token.rstrip}
        self._text_bytes = TokenBytes(self._spell_text)
        self._all_bytes = TokenBytes(self._spell)

    @property
    def facts(self) -> TokenizerFacts:
        return self._facts

    @property
    def vocab_size(self) -> int:
        return self._size

    @property
    def text_bytes(self) -> Mapping[int, bytes]:
        return self._text_bytes

    @property
    def all_bytes(self) -> Mapping[int, bytes]:
        return self._all_bytes

    @cached_property
    def _bound(self) -> LengthBound:
        return length_bound(self._core, self._facts.spelling, self._facts.added)

    @cached_property
    def _search(self) -> TokenSearch:
        # Spelt without being remembered: the joined bytes take a tenth of the room.
        return TokenSearch(map(self._spell, range(self._size)))

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        return SpecialTokens(self._special.values())

    def is_longer(self, text: str, num_tokens: int) -> bool:
        # Few characters are soon tokenised, and most tokens stand for several.
        return len(text) > max(num_tokens, _SHORT) and self._bound.is_passed(text, num_tokens)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """See `Tokenizer.encode`. Raises BadRequestError for text that is not Unicode."""
        ids = self._encode(text)
        return [*self._facts.prefix_ids, *ids, *self._facts.suffix_ids] if add_special else ids

    def encode_marked(self, text: str, mark: str, *, add_special: bool = True) -> list[int]:
        ids: list[int] = []
        pieces = self._around_special(text)
        start = 0
        for place, piece in enumerate(pieces):
            if mark in piece:
                ids += self._encode("".join(pieces[start:place]))
                ids += self._encode_plain(self._trim(pieces, place).replace(mark, ""))
                start = place + 1
        ids += self._encode("".join(pieces[start:]))
        return [*self._facts.prefix_ids, *ids, *self._facts.suffix_ids] if add_special else ids

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        table = self._text_bytes if skip_special else self._all_bytes
        spelt = b"".join(map(table.__getitem__, token_ids))
        if self._facts.strips_space:
            spelt = spelt.removeprefix(b" ")
        return spelt.decode("utf-8", "replace")

    def id_of(self, token: str) -> int | None:
        return self._core.token_to_id(token)

    def tokens_with(self, text: str) -> tuple[int, ...]:
        try:
            return self._search.holding(text.encode())
        except UnicodeEncodeError as error:
            raise BadRequestError(_SURROGATE) from error

    def vocabulary(self, size: int) -> Vocabulary:
        return read_vocabulary(
            self._all_bytes,
            num_known=self._size,
            size=size,
            special_ids=self._special,
            end_ids=self._facts.eos_token_ids,
        )

    def _encode(self, text: str) -> list[int]:
        try:
            # `encode` holds the interpreter's lock for as long as it runs; the batch call lets it go.
            return self._core.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError as error:
            raise BadRequestError(_SURROGATE) from error

    def _encode_plain(self, text: str) -> list[int]:
        """Ids without looking for added tokens: normalise, cut into pieces, merge."""
        core = self._core
        if core.normalizer is not None:
            text = core.normalizer.normalize_str(text)
        pieces = [text]
        if core.pre_tokenizer is not None:
            pieces = [piece for piece, _ in core.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for piece in pieces for token in core.model.tokenize(piece)]

    def _around_special(self, text: str) -> list[str]:
        """The text cut before and behind every special token."""
        pieces: list[str] = []
        done = 0
        while found := self.special_tokens.find(text, done):
            start, end = found
            pieces += (text[done:start], text[start:end])
            done = end
        return [*pieces, text[done:]]

    def _trim(self, pieces: list[str], place: int) -> str:
        """A piece without the white space that the special tokens beside it swallow."""
        piece = pieces[place]
        if place > 0 and pieces[place - 1] in self._swallow_right:
            piece = piece.lstrip()
        if place + 1 < len(pieces) and pieces[place + 1] in self._swallow_left:
            piece = piece.rstrip()
        return piece

    def _spell(self, token_id: int) -> bytes:
        special = self._special.get(token_id)
        if special is not None:
            return special.encode()
        token = self._core.id_to_token(token_id) if 0 <= token_id < self._size else None
        return b"" if token is None else spell(token, self._facts.spelling)

    def _spell_text(self, token_id: int) -> bytes:
        return b"" if token_id in self._special else self._all_bytes[token_id]


def load_tokenizer(path: Path | str, *, cache: Path | None = None) -> TextTokenizer:
    """The tokenizer of a GGUF file or a Hugging Face directory.

    `cache` is the folder of fast-loading forms; None takes the one in the user's cache. A cache that
    cannot be read or written costs time and nothing else. Raises ModelLoadError.
    """
    # One text is one piece of work on one of our own threads; the library must not start its own.
    env.set_default("TOKENIZERS_PARALLELISM", "false")
    path = Path(path)
    folder = env.cache_home() / "tokenizers" if cache is None else cache
    place = cache_path(folder, _sources(path))
    cached = read_cached(place)
    if cached is not None:
        try:
            return TextTokenizer(cached)
        except ModelLoadError:
            place.unlink(missing_ok=True)
    data = read_tokenizer(path)
    tokenizer = TextTokenizer(data)
    write_cached(place, data)
    return tokenizer


def read_tokenizer(path: Path) -> TokenizerData:
    """The tokenizer as data, from its source. Readers are imported here: a cached start needs none."""
    if path.is_dir():
        from headrace.preprocess.directory_tokenizer import read_directory_tokenizer

        return read_directory_tokenizer(path)
    from headrace.modeling.weights.gguf import GGUFFile
    from headrace.preprocess.gguf_tokenizer import read_gguf_tokenizer

    return read_gguf_tokenizer(GGUFFile.open(path).metadata, str(path))


def _sources(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    # A template file may change inside its folder without the folder's time changing.
    return [path / name for name in _DIRECTORY_FILES] + sorted(
        (path / "additional_chat_templates").glob("*.jinja")
    )
