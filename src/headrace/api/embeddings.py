"""`POST /v1/embeddings`, as OpenAI has it, with some of vLLM's extras."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from headrace.api.fields import TokenId

#: Texts of one request, as OpenAI bounds them.
MAX_TEXTS = 2048

TextList = Annotated[list[str], Meta(min_length=1, max_length=MAX_TEXTS)]


class TextFields(Struct, frozen=True, kw_only=True):
    """What requests about texts share."""

    model: str | None = None
    user: str | None = None
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    """Keep the first so many tokens of a text, marks included (vLLM); -1: as many as the model takes."""


class EmbeddingRequest(TextFields, frozen=True, kw_only=True):
    """One text, a list of them, the token ids of one, or a list of those."""

    input: str | list[str | TokenId | list[TokenId]]
    encoding_format: Literal["float", "base64"] | None = None
    """base64 is of float32 numbers, little endian."""
    dimensions: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    """Keep the first so many elements, and give what is left the length 1 again."""
    add_special_tokens: bool | None = None
    """Put the tokenizer's own marks around texts; default yes. Token ids are taken as they are."""
    normalize: bool | None = None
    """Give vectors the length 1; default as the server was told."""


class TextUsage(Struct, frozen=True, kw_only=True):
    """Tokens that ran through the model, marks included."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Struct, frozen=True, kw_only=True):
    """The vector of one text."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(Struct, frozen=True, kw_only=True):
    """All vectors, in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: TextUsage


class ScoreRequest(TextFields, frozen=True, kw_only=True):
    """`POST /v1/score`, as vLLM has it: how well texts belong together."""

    text_1: str | TextList
    text_2: str | TextList
    """As many as `text_1`, or one of the two is a single text, which goes with each of the others."""
    use_activation: bool | None = None
    """Of a cross-encoder: give probabilities (default), or with false the bare outputs of its head."""


class Score(Struct, frozen=True, kw_only=True):
    """Of one pair."""

    object: Literal["score"] = "score"
    index: int
    score: float


class ScoreList(Struct, frozen=True, kw_only=True):
    """All scores, in the order of the pairs."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: TextUsage


class RerankDocument(Struct, frozen=True, kw_only=True):
    """A document as an object."""

    text: str


class RerankRequest(TextFields, frozen=True, kw_only=True):
    """`POST /v1/rerank`, as Jina and Cohere have it."""

    query: str
    documents: Annotated[list[str | RerankDocument], Meta(min_length=1, max_length=MAX_TEXTS)]
    top_n: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    """Name the best so many only; default all."""
    return_documents: bool | None = None
    """Repeat the documents in the answer; default yes."""
    use_activation: bool | None = None
    """As in `/v1/score`."""

    def texts(self) -> list[str]:
        """The documents' texts."""
        return [d if isinstance(d, str) else d.text for d in self.documents]


class RerankResult(Struct, frozen=True, kw_only=True):
    """One document and how well it answers the query."""

    index: int
    """Its place in the request."""
    relevance_score: float
    document: RerankDocument | UnsetType = UNSET


class Reranked(Struct, frozen=True, kw_only=True):
    """Documents, the best first."""

    id: str
    model: str
    results: list[RerankResult]
    usage: TextUsage
