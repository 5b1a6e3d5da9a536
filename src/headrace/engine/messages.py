"""What crosses the boundary between a server and its engine process: msgpack, never pickle.

server → engine    Configure (first, once)   Submit   Cancel   AdapterOrder   Drain   Park   Resume   Load   Unload   Stop
engine → server    Progress (while it loads)   Ready or Failed   State   AdapterAnswer   Update (every step)
"""

import msgspec
from msgspec import Struct

from headrace.config.engine import EngineConfig
from headrace.core.events import TokenEvent
from headrace.core.model_info import AdapterInfo, ModelInfo
from headrace.core.request import Request
from headrace.core.stats import EngineStats, ReplicaState, StepStats

#: The composition root that an engine process runs unless it is told otherwise.
DEFAULT_BUILD = "headrace.engine.build:build_engine"


class KVEventsConfig(Struct, frozen=True, kw_only=True):
    """Where and how an engine publishes stored and removed blocks."""

    endpoint: str
    topic: str = ""
    as_maps: bool = False
    """Each event as a map (vLLM since June 2026) instead of an array (all of its versions before)."""


class Configure(Struct, frozen=True, kw_only=True, tag="configure"):
    """The first message: what to build."""

    engine: EngineConfig | None
    """None: nothing yet; the process gets ready for a Load."""
    build: str = DEFAULT_BUILD
    """`module:function`; called with (EngineConfig, Clock, report, record_kv_events=bool)."""
    spawned: float = 0.0
    """`Clock.monotonic` when the parent started the process."""
    kv_events: KVEventsConfig | None = None
    log_level: str = "info"
    log_format: str = "text"


class Submit(Struct, frozen=True, tag="submit"):
    """Take a request in."""

    request: Request


class Cancel(Struct, frozen=True, tag="cancel"):
    """End a request, or one of its sequences."""

    request_id: str
    index: int | None = None


class AdapterOrder(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="adapter"):
    """Load a LoRA adapter, or unload one; each is answered with an AdapterAnswer."""

    job: int
    """Given back with the answer."""
    name: str
    path: str | None = None
    """Its directory; None: unload it."""
    in_place: bool = False
    """It may take the place of one of the same name."""


class Drain(Struct, frozen=True, tag="drain"):
    """Take no new requests; those that were taken go on to their ends."""


class Park(Struct, frozen=True, tag="park"):
    """Give back the memory of keys, values and scratch; weights stay mapped, and Resume is quick.

    What still runs ends with an error: Drain first, and wait, to let it finish.
    """


class Resume(Struct, frozen=True, tag="resume"):
    """Take requests again, after Drain or Park."""


class Load(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="load"):
    """Serve a model in the place of what is there, which is unloaded first, as by Unload.

    Answered with Ready and State, or with Failed and State (empty): then the process waits for another Load.
    """

    engine: EngineConfig


class Unload(Struct, frozen=True, tag="unload"):
    """Give back everything, weights too; the process stays and waits for Load. What still runs ends with an error."""


class Stop(Struct, frozen=True, tag="stop"):
    """End the process; whatever runs is dropped."""


class Progress(Struct, frozen=True, tag="progress"):
    """The engine begins a phase of loading."""

    phase: str
    seconds: float
    """Since the process was started."""


class Ready(Struct, frozen=True, tag="ready"):
    """The engine takes requests."""

    info: ModelInfo


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    """A model could not be loaded. When it was the first one, the process ends with `exit_code`."""

    phase: str
    kind: str
    """Class name of the exception."""
    message: str
    hint: str | None = None
    details: str = ""
    """The traceback, for the debug log."""
    exit_code: int = 1
    """2: the operator's configuration, 1: anything else."""


class State(Struct, frozen=True, tag="state"):
    """What the engine became by Configure without a model, or by an order, to every server."""

    state: ReplicaState


class AdapterAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="adapters"):
    """What became of an AdapterOrder, to every server."""

    job: int
    adapters: tuple[AdapterInfo, ...] | None = None
    """All that new requests may use from now on; None where nothing has changed."""
    error: str | None = None
    error_kind: str = ""
    """Class name of the exception."""
    param: str | None = None
    """The field that is wrong."""


class Update(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="update"):
    """All that one step made for one server: one message, so that a busy engine wakes it once a step."""

    events: list[TokenEvent] = []
    stats: EngineStats | None = None
    """Sent at most every few steps, and when the engine becomes idle."""
    steps: list[StepStats] = []
    """All steps since the last message that carried any."""


#: What changes the state of an engine.
Order = Drain | Park | Resume | Load | Unload
ToEngine = Configure | Submit | Cancel | AdapterOrder | Order | Stop
ToServer = Progress | Ready | Failed | State | AdapterAnswer | Update


class Codec:
    """Encoder and decoders of both directions, built once per process."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._to_engine = msgspec.msgpack.Decoder(ToEngine)
        self._to_server = msgspec.msgpack.Decoder(ToServer)

    def encode(self, message: ToEngine | ToServer) -> bytes:
        """The message as one frame's payload."""
        return self._encoder.encode(message)

    def to_engine(self, payload: bytes) -> ToEngine:
        """Raises msgspec.DecodeError (ValidationError for a wrong shape)."""
        message: ToEngine = self._to_engine.decode(payload)
        return message

    def to_server(self, payload: bytes) -> ToServer:
        """Raises msgspec.DecodeError (ValidationError for a wrong shape)."""
        message: ToServer = self._to_server.decode(payload)
        return message


#: Sequences that a request may have; a claim beyond it is not believed.
_MAX_N = 4096


def identity_of(payload: bytes) -> tuple[str | None, int]:
    """Id and number of sequences of a Submit that does not decode as one, so that its sender can be told."""
    try:
        request = msgspec.msgpack.decode(payload)["request"]
        request_id, n = request["request_id"], request.get("n", 1)
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return None, 0
    if not isinstance(request_id, str):
        return None, 0
    return request_id, n if isinstance(n, int) and 1 <= n <= _MAX_N else 1
