"""Replicas: one server each, wherever it runs."""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from headrace.config.secret import Secret
from headrace.core.errors import ConfigError
from headrace.core.stats import ReplicaRole

_PRINTABLE = re.compile(r"[!-~]*")
#: It stands in paths of the admin API, and in headers.
_NAME = re.compile(r"[!-.0-~]{1,200}")
_HEADER = re.compile(r"([!-~]([ -~]*[!-~])?)?")


class Dialect(StrEnum):
    """Which server a replica is: how it is probed, what its numbers are called, and what it speaks."""

    HEADRACE = "headrace"
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    TGI = "tgi"
    TRTLLM = "trtllm"
    TRITON = "triton"
    OPENAI = "openai"
    """Any hosted API of OpenAI's shape; it has no health and load of its own."""
    ANTHROPIC = "anthropic"
    BEDROCK = "bedrock"
    VERTEX = "vertex"


class ReplicaApi(StrEnum):
    """Which of its APIs is used, where a dialect has two."""

    AUTO = "auto"
    """tgi: openai; vertex: native."""
    OPENAI = "openai"
    NATIVE = "native"


class Capability(StrEnum):
    """What a request may need beyond text in, text out."""

    TOOLS = "tools"
    VISION = "vision"
    STRUCTURED = "structured"
    """Answers forced into a schema."""
    EMBEDDINGS = "embeddings"
    SCORE = "score"


class Price(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Money per million tokens, in whatever currency budgets are written in."""

    input: Annotated[float, Meta(ge=0)] = 0.0
    cached_input: Annotated[float, Meta(ge=0)] | None = None
    """Default: the price of input."""
    output: Annotated[float, Meta(ge=0)] = 0.0


class ReplicaSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server as it is configured or discovered. The same `id` is the same replica."""

    url: str
    """http:// or https:// address, with or without /v1."""
    id: str = ""
    """Its name in logs, metrics and headers; default host:port."""
    dialect: Dialect = Dialect.HEADRACE
    """headrace, vllm, sglang, llamacpp, tgi, trtllm, triton, openai, anthropic, bedrock or vertex."""
    api: ReplicaApi = ReplicaApi.AUTO
    """auto, openai or native: for tgi and vertex, which have both."""
    region: str | None = None
    """Bedrock's region; default the one in its host name."""
    models: tuple[str, ...] = ()
    """Names it serves; none: asked of it by /v1/models, and again at each probe."""
    role: ReplicaRole = ReplicaRole.BOTH
    """both, prefill or decode."""
    version: str = ""
    """Any word for what is deployed; splits and rollbacks go by it."""
    labels: dict[str, str] = {}
    """Whatever else rules may select by."""
    capabilities: tuple[Capability, ...] = (
        Capability.TOOLS,
        Capability.STRUCTURED,
        Capability.EMBEDDINGS,
        Capability.SCORE,
    )
    """What it can do: tools, vision, structured, embeddings, score."""
    max_context: Annotated[int, Meta(ge=1)] | None = None
    """Tokens of prompt and answer together; default what it says of itself."""
    max_concurrency: Annotated[int, Meta(ge=1)] | None = None
    """Requests that it gets at once; default twice the batch that it says it can run, else 256."""
    weight: Annotated[float, Meta(gt=0)] = 1.0
    """Its capacity beside other replicas'."""
    price: Price = Price()
    api_key: Secret | None = None
    """Sent to it as a bearer token, or as its API has it. Bedrock: an API key, or
    `access key id:secret access key[:session token]`."""
    peer_token: Secret | None = None
    """headrace's --trusted-peer-token: for token ids, exact continuation and separate caches."""
    control_token: Secret | None = None
    """headrace's --control-token: for waking and parking replicas of pools."""
    kv_events: str | None = None
    """ZeroMQ endpoint of its KV events, such as tcp://10.0.0.7:5557; for exact prefix routing."""
    kv_events_replay: str | None = None
    """ZeroMQ endpoint that sends lost events again, where there is one."""

    def __post_init__(self) -> None:
        """Raises ConfigError for an address that cannot be called."""
        try:
            parts = urlsplit(self.url)
            _ = parts.port
        except ValueError:
            raise ConfigError(f"'{self.url}' is no URL.", place="url") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"The replica's url must be http:// or https://, not '{self.url}'.", place="url"
            )
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ConfigError(
                f"The replica's url '{parts.scheme}://{parts.hostname}…' may hold a host, a port and a path only; "
                "a key goes into api_key.",
                place="url",
            )
        if not _PRINTABLE.fullmatch(parts.path):
            raise ConfigError(
                f"The path of '{self.url}' must be ASCII without blanks.", place="url"
            )
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"The replica's id '{self.name[:200]}' must be ASCII without blanks and slashes, of 200 characters at most.",
                place="id" if self.id else "url",
            )
        for name, key in (
            ("api_key", self.api_key),
            ("peer_token", self.peer_token),
            ("control_token", self.control_token),
        ):
            if key is not None and not _HEADER.fullmatch(key):
                raise ConfigError(f"The {name} of {self.url} cannot stand in a header.", place=name)

    @property
    def name(self) -> str:
        """`id`, or host:port."""
        return self.id or urlsplit(self.url).netloc.rpartition("@")[2]


def check_names(specs: Iterable[ReplicaSpec]) -> None:
    """Raises ConfigError if two have one name."""
    seen: set[str] = set()
    for index, spec in enumerate(specs):
        if spec.name in seen:
            raise ConfigError(
                f"Two replicas are called '{spec.name}'; give one an id.",
                place=f"replicas[{index}]",
            )
        seen.add(spec.name)
