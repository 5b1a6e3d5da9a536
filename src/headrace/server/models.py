"""The models of a server, from their configuration: engines, lives, and the shelf where there are several."""

import asyncio
import importlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct, structs

from headrace.config.engine import EngineConfig, MemoryConfig
from headrace.config.hosting import HostedModel, StartAs
from headrace.config.root import ServeConfig
from headrace.config.units import parse_size
from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError
from headrace.engine.client import EngineClient
from headrace.engine.launch import EngineProcess, LaunchSpec, launch
from headrace.kernels.topology import available_memory
from headrace.observe import catalogue
from headrace.server.lora_root import LoraRoot
from headrace.server.model_life import ModelLife
from headrace.server.replica import Replica
from headrace.server.served_model import ServedModel
from headrace.server.shelf import Shelf, Spare

#: Share of the memory that is free at the start, for `models_memory = auto`.
AUTO_SHARE = 0.75
_WEIGHTS = (".gguf", ".safetensors")


class ModelStart(Struct, frozen=True, kw_only=True):
    """A model and what was done for it before the event loop was there."""

    hosted: HostedModel
    spec: LaunchSpec
    lora_root: LoraRoot | None = None
    process: EngineProcess | None = None
    """Its engine, if it was launched already."""


class Models:
    """Makes what serves them, opens them, and knows nothing of requests."""

    def __init__(
        self, replica: Replica, config: ServeConfig, starts: Sequence[ModelStart], clock: Clock
    ) -> None:
        self._replica = replica
        self._config = config
        self._clock = clock
        self._launched: dict[str, EngineProcess] = {}
        is_shelf = bool(config.models)
        for start in starts:
            key = start.hosted.engine.model.model
            key = key if key not in replica.models else start.hosted.names[0]
            life = self._add(key, start, names=start.hosted.names if is_shelf else ())
            if start.process is not None:
                self._launched[key] = start.process
            if is_shelf:
                replica.shelf = replica.shelf or self._shelf(start.spec)
                guess = partial(needed_bytes, life.config)
                replica.shelf.add(key, life, is_kept=start.hosted.keep, guess=guess)

    async def open(self) -> None:
        """Until what is to be there at the start is there. Raises HeadraceError."""
        if self._replica.shelf is not None:
            await self._replica.shelf.open(self._launched)
            return
        ((key, life),) = self._replica.lives.items()
        start = self._config.hosting.start
        await life.begin(self._launched.get(key), is_empty=start is StartAs.EMPTY)
        if start is StartAs.EMPTY:
            await asyncio.gather(life.become_ready(), asyncio.to_thread(warm_up))
            return
        await life.become_ready()
        if start is StartAs.PARKED:
            await life.park(0.0)

    def note_start(self, seconds: float) -> None:
        """The server is ready, so many seconds after it was executed."""
        for model in self._replica.models.values():
            if model.info is not None:
                labels = (model.name, "ready")
                self._replica.metrics.set(catalogue.START_PHASES, labels, seconds)

    def _add(self, key: str, start: ModelStart, names: tuple[str, ...]) -> ModelLife:
        client = EngineClient(
            partial(_launch, start.spec, self._clock),
            self._clock,
            watchdog_timeout=self._config.server.watchdog_timeout,
        )
        model = ServedModel(
            client,
            self._replica.metrics,
            self._clock,
            lora_root=start.lora_root,
            names=names,
            timeline_steps=self._config.server.timeline_steps,
        )
        engine = start.spec.engine or start.hosted.engine
        life = ModelLife(model, engine, self._config.server, self._clock, bind=self._replica.bind)
        self._replica.models[key] = model
        self._replica.lives[key] = life
        return life

    def _shelf(self, spec: LaunchSpec) -> Shelf:
        hosting = self._config.hosting
        wanted = hosting.models_memory
        room = int(AUTO_SHARE * available_memory()) if wanted == "auto" else parse_size(wanted)
        spare: Callable[[], EngineProcess] = partial(_launch, spec, self._clock, None)
        return Shelf(
            self._clock,
            self._replica.metrics,
            max_bytes=room,
            timeout=hosting.model_load_timeout,
            spare=Spare(spare if hosting.spare_engine else None),
            on_change=self._replica.count_places,
        )


def needed_bytes(config: EngineConfig) -> int:
    """What a model may need before it has been loaded: the size of its files, which are fetched if they are not here.

    Blocks. 0 for a model that cannot be found: its engine will say why.
    """
    from headrace.modeling.weights.sources import resolve

    try:
        path = resolve(config.model.model, progress=False)
    except HeadraceError:
        return 0
    files = [path] if path.is_file() else [f for f in Path(path).iterdir() if f.suffix in _WEIGHTS]
    return sum(file.stat().st_size for file in files) + _kv_bytes(config.memory)


def warm_up() -> None:
    """Import what preparing requests for a model will need. Blocks."""
    for name in ("headrace.preprocess.load", "headrace.modeling.weights.sources", "tokenizers"):
        importlib.import_module(name)


def _kv_bytes(memory: MemoryConfig) -> int:
    return 0 if memory.kv_memory == "auto" else parse_size(memory.kv_memory)


def _launch(spec: LaunchSpec, clock: Clock, engine: EngineConfig | None) -> EngineProcess:
    return launch(structs.replace(spec, engine=engine), clock)
