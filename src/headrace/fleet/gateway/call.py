"""A client's request as the gateway sees it: the body read once, and what decisions go by."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from headrace.api.depth import check_depth
from headrace.core.errors import BadRequestError
from headrace.fleet.gateway.endpoints import Endpoint
from headrace.fleet.gateway.limit import Limit
from headrace.observe.tracing.tracer import Trace

MAX_DEPTH = 100
_PEERS_ONLY = ("prior_output_ids",)
#: Headers by which a client tells in how many milliseconds it wants the first token; of several the first counts.
TTFT_HEADERS = ("x-slo-ttft-ms", "x-llm-d-slo-ttft-ms")
#: Fields that bound the output, in the order in which they count.
_BOUNDS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")


class Call(Struct, frozen=True, kw_only=True, eq=False):
    """One request."""

    endpoint: Endpoint
    request_id: str
    arrival: float
    """`Clock.monotonic`."""
    raw: bytes
    body: dict[str, Any]
    """What `raw` says."""
    headers: Mapping[str, str]
    """The client's, by lower-case name."""
    model: str
    """As the client named it; empty: it named none."""
    prompt_tokens: int
    """Estimated from its bytes, or counted where it came as ids."""
    output_tokens: int
    """Its bound on the output of all its choices."""
    ttft: float | None = None
    """Seconds in which its client wants the first token; None: it does not say. Counts among its tenant's own requests."""
    trace: Trace | None = None
    """Where its spans go; None: it is not traced."""
    limit: Limit | None = None
    """Of what it is a part of."""

    @property
    def is_stream(self) -> bool:
        """The answer is wanted as events."""
        return self.endpoint.makes_text and self.body.get("stream") is True

    @property
    def bound(self) -> int:
        """Tokens that one choice may have; 0: the client set no bound."""
        return next(filter(None, (_count(self.body.get(name)) for name in _BOUNDS)), 0)

    def output_within(self, context: int | None) -> int:
        """`output_tokens`, where no choice can have more than a model's context; None: that is not known."""
        if context is None or self.output_tokens <= context:
            return self.output_tokens
        return min(self.output_tokens, context * _num_choices(self.body))

    @property
    def previous_response(self) -> str:
        """The stored response that it goes on from; empty: it goes on from none."""
        given = self.body.get("previous_response_id")
        return given if isinstance(given, str) and self.endpoint.goes_on else ""

    @property
    def is_background(self) -> bool:
        """It is answered before it is made."""
        return self.endpoint.goes_on and self.body.get("background") is True

    @property
    def wants_usage(self) -> bool:
        """A stream's client asked for a last event with the usage."""
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    @property
    def is_single(self) -> bool:
        """It has one prompt and one choice, so that one sequence of tokens is the whole answer."""
        prompt = self.body.get("prompt")
        many = (
            isinstance(prompt, list)
            and len(prompt) > 1
            and not all(isinstance(item, int) for item in prompt)
        )
        return not many and all(
            self.body.get(name) in (None, 1, False) for name in ("n", "best_of", "use_beam_search")
        )

    @property
    def num_choices(self) -> int:
        """Choices that a stream has when it is complete."""
        prompt = self.body.get("prompt")
        is_many = isinstance(prompt, list) and not all(isinstance(item, int) for item in prompt)
        num_prompts = len(prompt) if is_many and isinstance(prompt, list) else 1
        return max(1, _count(self.body.get("n")) * num_prompts, num_prompts)


class Terms(NamedTuple):
    """What is reckoned with where a request does not say it."""

    chars_per_token: float
    default_max_tokens: int


def read_call(
    endpoint: Endpoint,
    raw: bytes,
    headers: Mapping[str, str],
    *,
    request_id: str,
    arrival: float,
    terms: Terms,
    trace: Trace | None = None,
) -> Call:
    """Read a body. Raises BadRequestError for what is no JSON object, or names a model that is no text."""
    check_depth(raw, MAX_DEPTH)
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(
            f"The body is not valid JSON: {error}.", code="invalid_json"
        ) from None
    if not isinstance(body, dict):
        raise BadRequestError("The body must be a JSON object.", code="invalid_json")
    if any(name in body for name in _PEERS_ONLY):
        # Replicas trust the gateway with them; clients are not the gateway.
        body = {name: value for name, value in body.items() if name not in _PEERS_ONLY}
        raw = msgspec.json.encode(body)
    return made_call(
        endpoint,
        raw,
        body,
        headers,
        request_id=request_id,
        arrival=arrival,
        terms=terms,
        trace=trace,
    )


def made_call(
    endpoint: Endpoint,
    raw: bytes,
    body: dict[str, Any],
    headers: Mapping[str, str],
    *,
    request_id: str,
    arrival: float,
    terms: Terms,
    trace: Trace | None = None,
) -> Call:
    """Of a body that was read already: `raw` says the same. Raises BadRequestError as `read_call`."""
    model = body.get("model", "")
    if model is None:
        model = ""
    if not isinstance(model, str):
        raise BadRequestError("'model': expected a string.", param="model")
    if not isinstance(body.get("stream") or False, bool):
        raise BadRequestError("'stream': expected true or false.", param="stream")
    return Call(
        endpoint=endpoint,
        request_id=request_id,
        arrival=arrival,
        raw=raw,
        body=body,
        headers=headers,
        model=model,
        prompt_tokens=_prompt_tokens(raw, body, terms.chars_per_token),
        output_tokens=_output_tokens(body, terms.default_max_tokens) if endpoint.makes_text else 0,
        ttft=_ttft(headers),
        trace=trace,
    )


def patched(call: Call, changes: Mapping[str, Any]) -> bytes:
    """The body with these fields set. New fields are put at its end, and nothing else is touched."""
    if not changes:
        return call.raw
    if any(name in call.body for name in changes) or not call.body:
        return msgspec.json.encode({**call.body, **changes})
    return call.raw.rstrip()[:-1] + b"," + msgspec.json.encode(changes)[1:]


def _ttft(headers: Mapping[str, str]) -> float | None:
    """Raises BadRequestError for a time that is none."""
    for name in TTFT_HEADERS:
        if (text := headers.get(name)) is not None:
            if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 7 and int(text)):
                raise BadRequestError(
                    f"'{name}': expected milliseconds, a whole number from 1 to 9999999.",
                    param=name,
                )
            return int(text) / 1000
    return None


def _prompt_tokens(raw: bytes, body: dict[str, Any], chars_per_token: float) -> int:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    return max(1, int(len(raw) / chars_per_token))


def _output_tokens(body: dict[str, Any], default: int) -> int:
    """Of all its prompts and choices, those that are made and not shown too. Servers differ in which bound counts."""
    bound = max(_count(body.get(name)) for name in _BOUNDS) or default
    return bound * _num_choices(body)


def _num_choices(body: dict[str, Any]) -> int:
    """Of all prompts together."""
    choices = max(_count(body.get(name)) for name in ("n", "best_of")) or 1
    prompt = body.get("prompt")
    is_many = isinstance(prompt, list) and not all(isinstance(item, int) for item in prompt)
    return choices * (len(prompt) if is_many and isinstance(prompt, list) else 1)


def _count(value: object) -> int:
    """A number of tokens or answers; 0 for what is none."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 1 << 24
    return value if is_count and isinstance(value, int) else 0
