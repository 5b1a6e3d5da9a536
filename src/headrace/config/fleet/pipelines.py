"""Pipelines: a few declared steps behind the name of a model."""

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta, Struct

from headrace.config.fleet.urls import check_url
from headrace.config.secret import Secret
from headrace.core.errors import ConfigError

Seconds = Annotated[float, Meta(gt=0, extra={"unit": "seconds"})]
Bytes = Annotated[int, Meta(ge=1, extra={"unit": "bytes"})]
StepName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,31}$")]
#: Names that templates have beside those of steps.
RESERVED = frozenset({"input", "messages"})


class LlmStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A chat completion by any model that the gateway serves. Its result: `text`, `finish_reason`."""

    model: str
    messages: tuple[dict[str, str], ...] = ()
    """Role and content, each content a template; none: the client's own messages."""
    parameters: dict[str, Any] = {}
    """Further fields of the request, such as temperature and max_tokens."""


class RetrieveStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts that are near to a query. Its result: `hits` (each `text` and `score`), and `text`, all of them."""

    store: str
    """A store of `vectors`."""
    query: str = "{{ input }}"
    """A template."""
    top: Annotated[int, Meta(ge=1, le=100)] = 4
    """Texts at most."""


class HttpStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to any HTTP server. Its result: `status`, `text`, and `json` where that can be read."""

    url: str
    body: str = ""
    """A template, sent by POST; none: GET."""
    headers: dict[str, Secret] = {}


class KserveStep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Inference by the KServe v2 protocol (Triton, MLServer, …). Its result: `outputs`, by name a list of numbers or texts."""

    url: str
    """Address of the server."""
    model: str
    inputs: tuple[dict[str, Any], ...]
    """name, datatype, shape, and data; texts inside are templates, and one that is nothing but `{{ … }}` gives its value as it
    is, so that a list stays a list."""
    headers: dict[str, Secret] = {}


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step: exactly one of llm, retrieve, http, kserve and parallel."""

    name: StepName
    """What templates call its result."""
    when: str = ""
    """A template; where it gives nothing, false, none or 0, the step is left out, and its result is none."""
    timeout: Seconds = 60.0
    """Seconds that it may take; the last step of a pipeline has what is left of the pipeline's."""
    llm: LlmStep | None = None
    retrieve: RetrieveStep | None = None
    http: HttpStep | None = None
    kserve: KserveStep | None = None
    parallel: tuple["Step", ...] = ()
    """Steps that run at once; none of them sees the others' results."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        kinds = (self.llm, self.retrieve, self.http, self.kserve, self.parallel or None)
        if sum(kind is not None for kind in kinds) != 1:
            raise ConfigError(
                f"The step '{self.name}' needs one of llm, retrieve, http, kserve and parallel."
            )
        if self.name in RESERVED:
            raise ConfigError(f"A step may not be called '{self.name}'.")
        asked = self.http or self.kserve
        if asked is not None:
            kind = "http" if self.http is not None else "kserve"
            check_url(f"the step '{self.name}'", asked.url, place=f"{kind}.url")

    def walk(self) -> Iterator["Step"]:
        """It, and those inside of it."""
        yield self
        for step in self.parallel:
            yield from step.walk()


class Pipeline(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Steps in order. The last one must be an llm: what it says is the answer, and it is streamed."""

    name: str
    """The model that clients ask for."""
    steps: Annotated[tuple[Step, ...], Meta(min_length=1, max_length=32)]
    timeout: Seconds = 900.0
    """Seconds for all steps together, the answer of the last one included."""
    max_text: Bytes = 1024 * 1024
    """Bytes of any text that a template gives or a server brings."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        names = [step.name for outer in self.steps for step in outer.walk()]
        if len(set(names)) < len(names):
            raise ConfigError(f"The pipeline '{self.name}' has two steps of one name.")
        if self.steps[-1].llm is None or self.steps[-1].when:
            raise ConfigError(
                f"The last step of the pipeline '{self.name}' must be an llm without a condition."
            )

    def models(self) -> Iterator[str]:
        """Those that its steps ask."""
        for outer in self.steps:
            yield from (step.llm.model for step in outer.walk() if step.llm is not None)


class VectorStore(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where texts are found by meaning: a file of our own (sqlite-vec), or an endpoint."""

    name: str
    path: str | None = None
    """A file that `headrace vectors` fills."""
    embeddings: str = ""
    """Model behind /v1/embeddings of this gateway, the one that the file was filled with."""
    url: str | None = None
    """Or an endpoint: POST with `{"query": …, "top": …}`, answered by `{"hits": [{"text": …, "score": …}]}`."""
    headers: dict[str, Secret] = {}

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if (self.path is None) == (self.url is None):
            raise ConfigError(f"The store '{self.name}' needs a path or a url, and one of them.")
        if self.path is not None and not self.embeddings:
            raise ConfigError(f"The store '{self.name}' needs the model of its embeddings.")
        if self.url is not None:
            check_url(f"the store '{self.name}'", self.url)


class PipelinesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All pipelines, and the stores that they look into."""

    items: tuple[Pipeline, ...] = ()
    vectors: tuple[VectorStore, ...] = ()

    def __post_init__(self) -> None:
        """Raises ConfigError for unknown stores, names that are there twice, and pipelines that lead to themselves."""
        stores = {store.name for store in self.vectors}
        by_name = {pipeline.name: pipeline for pipeline in self.items}
        if len(stores) < len(self.vectors) or len(by_name) < len(self.items):
            raise ConfigError("Two pipelines or two stores have the same name.")
        for pipeline in self.items:
            for step in (step for outer in pipeline.steps for step in outer.walk()):
                if step.retrieve is not None and step.retrieve.store not in stores:
                    raise ConfigError(f"There is no store '{step.retrieve.store}'.")
            _check_ends(by_name, pipeline.name, ())


def _check_ends(pipelines: dict[str, Pipeline], name: str, path: tuple[str, ...]) -> None:
    if name in path:
        raise ConfigError(f"The pipelines go round: {' -> '.join((*path, name))}.")
    if name in pipelines:
        for model in pipelines[name].models():
            _check_ends(pipelines, model, (*path, name))
