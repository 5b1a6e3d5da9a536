"""Texts that become vectors or scores → requests of the engine, checked and tokenised. Computation only."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from headrace.api.embeddings import MAX_TEXTS, EmbeddingRequest, TextFields
from headrace.core.errors import BadRequestError
from headrace.core.model_info import Task
from headrace.core.pooling import PoolingParams, PoolKind
from headrace.core.request import Request, TokenSegment
from headrace.core.sampling import SamplingParams
from headrace.preprocess.params import check_token_ids
from headrace.preprocess.prepare import LAST_PRIORITY, Arrival, Preparer


class Pair(Struct, frozen=True):
    """Two texts that are to be compared, and how they are called in messages."""

    first: str
    second: str
    names: tuple[str, str]


class ComparedTexts(Struct, frozen=True):
    """Requests whose results make the scores of some pairs."""

    requests: tuple[Request, ...]
    places: tuple[tuple[int, int], ...]
    """Of each pair: the requests that have its two vectors; the same twice: one that has its score."""


def embedding_requests(
    preparer: Preparer, wire: EmbeddingRequest, arrival: Arrival
) -> tuple[Request, ...]:
    """One request a text, in order. Raises BadRequestError that names the field."""
    info = preparer.info
    dimensions = wire.dimensions or 0
    if dimensions > info.embedding_size:
        raise BadRequestError(
            f"'dimensions': must be at most {info.embedding_size}, the size of this model's vectors, not "
            f"{dimensions}.",
            param="dimensions",
        )
    normalizes = info.normalizes if wire.normalize is None else wire.normalize
    pooling = PoolingParams(info.pooling, normalizes, dimensions)
    with_marks = wire.add_special_tokens is not False
    requests = []
    for place, (name, item) in enumerate(_inputs(wire)):
        if isinstance(item, str):
            ids = _text_ids(preparer, item, name, wire, with_marks=with_marks)
        else:
            check_token_ids(name, item, info.vocab_size)
            ids = _fitted(preparer, item, name, wire, num_last=0)
        requests.append(_request(preparer, wire, arrival, place, ids, pooling))
    return tuple(requests)


def compared(
    preparer: Preparer,
    pairs: Sequence[Pair],
    wire: TextFields,
    arrival: Arrival,
    *,
    activates: bool,
) -> ComparedTexts:
    """Pairs for a model with a classification head, or the different texts of all pairs for their vectors.

    Raises BadRequestError that names the field.
    """
    if Task.SCORE in preparer.info.tasks:
        requests = []
        for place, pair in enumerate(pairs):
            ids, second = _pair_ids(preparer, pair, wire)
            pooling = PoolingParams(PoolKind.SCORES, activates, 0, second)
            requests.append(_request(preparer, wire, arrival, place, ids, pooling))
        return ComparedTexts(tuple(requests), tuple((i, i) for i in range(len(pairs))))
    named: dict[str, str] = {}
    for pair in pairs:
        for text, name in zip((pair.first, pair.second), pair.names, strict=True):
            named.setdefault(text, name)
    pooling = PoolingParams(preparer.info.pooling)
    places = {text: place for place, text in enumerate(named)}
    vectors = tuple(
        _request(
            preparer,
            wire,
            arrival,
            places[text],
            _text_ids(preparer, text, name, wire, with_marks=True),
            pooling,
        )
        for text, name in named.items()
    )
    return ComparedTexts(vectors, tuple((places[p.first], places[p.second]) for p in pairs))


def _inputs(wire: EmbeddingRequest) -> Iterable[tuple[str, str | list[int]]]:
    """Each text or list of ids with its name."""
    given = wire.input
    if isinstance(given, str):
        return [("input", given)]
    ids = [item for item in given if isinstance(item, int)]
    if given and len(ids) == len(given):
        return [("input", ids)]
    if ids:
        raise BadRequestError(
            "'input' must be a text, a list of texts, a list of token ids, or a list of such lists; this "
            "one mixes them.",
            param="input",
        )
    items = [item for item in given if not isinstance(item, int)]
    if not 1 <= len(items) <= MAX_TEXTS:
        raise BadRequestError(
            f"'input' must have 1 to {MAX_TEXTS} texts, not {len(items)}.", param="input"
        )
    return [(f"input[{place}]", item) for place, item in enumerate(items)]


def _text_ids(
    preparer: Preparer, text: str, name: str, wire: TextFields, *, with_marks: bool
) -> list[int]:
    """A text's token ids between the tokenizer's marks."""
    ids = _encoded(preparer, text, name, wire)
    suffix: tuple[int, ...] = ()
    if with_marks:
        suffix = preparer.tokenizer.facts.suffix_ids
        ids = [*preparer.with_prefix(ids), *suffix]
    return _fitted(preparer, ids, name, wire, num_last=len(suffix))


def _pair_ids(preparer: Preparer, pair: Pair, wire: TextFields) -> tuple[list[int], int]:
    """BERT's form of a pair, [CLS] first [SEP] second [SEP], and where the second text begins."""
    facts = preparer.tokenizer.facts
    first = _encoded(preparer, pair.first, pair.names[0], wire)
    head = [*facts.prefix_ids, *first, *facts.suffix_ids]
    second = [*_encoded(preparer, pair.second, pair.names[1], wire), *facts.suffix_ids]
    limit = preparer.info.max_text_tokens
    if len(head) >= limit:
        raise _too_long(pair.names[0], len(head), limit)
    ids = _fitted(preparer, head + second, pair.names[1], wire, num_last=len(facts.suffix_ids))
    return ids, len(head)


def _encoded(preparer: Preparer, text: str, name: str, wire: TextFields) -> list[int]:
    """Without marks. A text that is too long for certain is not cut into tokens first."""
    if not text:
        raise BadRequestError(f"'{name}' is empty.", param=name)
    limit = preparer.info.max_text_tokens
    if wire.truncate_prompt_tokens is None and preparer.tokenizer.is_longer(text, limit):
        raise _too_long(name, limit + 1, limit)
    return preparer.tokenizer.encode(text, add_special=False)


def _fitted(
    preparer: Preparer, ids: list[int], name: str, wire: TextFields, *, num_last: int
) -> list[int]:
    """Ids that the model takes, cut if that was asked for; the last `num_last` are marks, which stay."""
    info = preparer.info
    if not ids:
        raise BadRequestError(f"'{name}' is empty.", param=name)
    if max(ids) >= info.vocab_size:
        raise BadRequestError(
            f"'{name}' holds the token {max(ids)}, but the model has {info.vocab_size}.", param=name
        )
    wanted, limit = wire.truncate_prompt_tokens, info.max_text_tokens
    if wanted is not None:
        keep = limit if wanted == -1 else min(wanted, limit)
        if keep <= num_last:
            raise BadRequestError(
                f"'truncate_prompt_tokens': must be -1 or more than {num_last}, not {wanted}.",
                param="truncate_prompt_tokens",
            )
        if len(ids) > keep:
            return ids[: keep - num_last] + ids[len(ids) - num_last :]
    if len(ids) > limit:
        raise _too_long(name, len(ids), limit)
    return ids


def _too_long(name: str, num_tokens: int, limit: int) -> BadRequestError:
    return BadRequestError(
        f"This model takes texts of up to {limit} tokens, but '{name}' has at least {num_tokens}; shorten "
        "it, or give 'truncate_prompt_tokens'.",
        param=name,
        code="context_length_exceeded",
    )


def _request(
    preparer: Preparer,
    wire: TextFields,
    arrival: Arrival,
    place: int,
    ids: list[int],
    pooling: PoolingParams,
) -> Request:
    return Request(
        request_id=f"{arrival.request_id}-{place}",
        prompt=(TokenSegment(ids),),
        params=SamplingParams(),
        adapter=preparer.adapter_of(wire.model),
        priority=LAST_PRIORITY if arrival.is_background else wire.priority or 0,
        pooling=pooling,
        arrival_time=arrival.time,
        deadline=arrival.time + preparer.request_timeout,
        max_queue_time=preparer.max_queue_time,
    )
