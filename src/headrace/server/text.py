"""Loads what turns text into tokens and back, beside the engine's own start."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from headrace.config.engine import ModelConfig
from headrace.config.server import ServerConfig
from headrace.core.clock import Clock
from headrace.core.model_info import ModelInfo
from headrace.preprocess.load import ModelText, load_text
from headrace.preprocess.prepare import Preparer


class TextFront:
    """The tokenizer and the template of one model; loaded once, on a thread."""

    def __init__(self, model: ModelConfig, server: ServerConfig, clock: Clock) -> None:
        self._model = model
        self._server = server
        self._clock = clock
        self._early: asyncio.Task[None] | None = None
        self._path: Path | None = None
        self._text: ModelText | None = None
        self.seconds = 0.0
        """How long loading took."""

    @property
    def is_loaded(self) -> bool:
        """`preparer` may be called."""
        return self._text is not None

    def begin_load(self) -> None:
        """The model's files are here: start to read them. Does nothing the second time."""
        if self._early is None and not self.is_loaded:
            source = self._model.model
            self._early = asyncio.create_task(self._load(lambda: _locate(source)))
            # What goes wrong here goes wrong again in `load`, which reports it.
            self._early.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def load(self, info: ModelInfo) -> None:
        """Wait for the load that was begun, or do it. Raises ConfigError."""
        if self._early is not None:
            await asyncio.wait([self._early])
        if self._path != Path(info.path):
            await self._load(lambda: Path(info.path))

    def preparer(self, info: ModelInfo) -> Preparer:
        """For an engine with these facts."""
        assert self._text is not None
        return self._text.preparer(info, self._server, self._clock)

    async def _load(self, find: Callable[[], Path]) -> None:
        started = self._clock.monotonic()
        await asyncio.to_thread(self._read, find)
        self.seconds = self._clock.monotonic() - started

    def _read(self, find: Callable[[], Path]) -> None:
        path = find()
        text = load_text(path, source=self._model.model, chat_template=self._model.chat_template)
        self._path, self._text = path, text


def _locate(source: str) -> Path:
    """Where the engine, which has fetched it by now, reads the model from."""
    # Imported on this thread: the event loop answers its first probes meanwhile.
    from headrace.modeling.weights.sources import resolve

    return resolve(source, progress=False)
