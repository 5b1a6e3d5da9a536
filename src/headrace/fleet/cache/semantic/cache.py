"""The semantic cache: what was asked before in other words, and whether that can be relied on.

Mode on: a question that was not answered exactly is looked for by meaning. Mode shadow: nothing is ever told; after a real
answer has come, what would have been told is compared with it, and the verdict is counted.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from headrace.config.fleet.cache import SemanticConfig, SemanticMode
from headrace.core.clock import Clock
from headrace.fleet.cache.answers import Answer
from headrace.fleet.cache.keys import Question
from headrace.fleet.cache.semantic.agreement import agree
from headrace.fleet.cache.semantic.conversation import Asked, asked
from headrace.fleet.cache.semantic.embeddings import Embedder, EmbeddingError
from headrace.fleet.cache.semantic.guards import differs
from headrace.fleet.cache.semantic.index import Near, Vector, VectorIndex
from headrace.fleet.cache.store import StoreError
from headrace.observe import cache_metrics as names
from headrace.observe.metrics import Metrics

log = logging.getLogger("headrace.cache")

#: Vectors that are remembered between a question and its answer.
_MAX_VECTORS: Final = 1024

Find = Callable[[bytes], Awaitable[Answer | None]]
"""The answer under a key; None when it is gone. Raises StoreError."""


class SemanticCache:
    """Beside an exact cache, which holds the answers; this one knows only their questions."""

    def __init__(
        self,
        config: SemanticConfig,
        embedder: Embedder,
        find: Find,
        clock: Clock,
        metrics: Metrics,
        *,
        namespace: str = "",
        model_label: Callable[[str], str] = str,
    ) -> None:
        """`model_label` is a model's name in metrics."""
        self._config = config
        self._embedder = embedder
        self._find = find
        self._clock = clock
        self._metrics = metrics
        self._namespace = namespace
        self._label = model_label
        self._vectors: OrderedDict[str, Vector] = OrderedDict()
        self.index = VectorIndex(max_entries=config.max_entries, max_scan=config.max_scan)

    @property
    def answers(self) -> bool:
        """It may answer requests."""
        return self._config.mode is SemanticMode.ON

    async def seek(self, question: Question) -> tuple[Answer, float] | None:
        """An answer to the same question in other words, and how similar those are. Never raises, and takes no longer
        than its embedding may.
        """
        taken = self._taken(question)
        if taken is None:
            return None
        vector = await self._vector(taken.text)
        if vector is None:
            return None
        near = self._match(question, taken, vector)
        answer = await self._answer_of(near) if near is not None else None
        if near is None or answer is None:
            return None
        self.index.touch(near.key)
        self._count("hit")
        return answer, near.similarity

    async def learn(self, question: Question, answer: Answer) -> None:
        """An answer was made and kept. In shadow mode it is the measure of what would have been told."""
        taken = self._taken(question)
        if taken is None:
            return
        vector = await self._vector(taken.text)
        if vector is None:
            return
        if self._config.mode is SemanticMode.SHADOW and self._is_sampled(question):
            await self._measure(question, taken, vector, answer)
        self.index.add(question.key, taken.context, taken.text, vector)
        self._metrics.set(names.SEMANTIC_ENTRIES, (), len(self.index))

    def close(self) -> None:
        """Its endpoint is not asked any more."""
        self._embedder.close()

    async def _measure(
        self, question: Question, taken: Asked, vector: Vector, real: Answer
    ) -> None:
        near = self._match(question, taken, vector)
        if near is None:
            return
        cached = await self._answer_of(near)
        if cached is None:
            return
        # Answers may be long: not on the event loop.
        is_right = await asyncio.to_thread(agree, cached, real, self._config.agreement)
        labels = (self._label(question.model), "right" if is_right else "wrong")
        self._metrics.add(names.SEMANTIC_SHADOW, labels)
        self._metrics.histogram(names.SEMANTIC_SIMILARITY, labels).observe(near.similarity)

    async def _answer_of(self, near: Near) -> Answer | None:
        """None where it is gone, and then the question is forgotten; and while the store is away."""
        try:
            answer = await self._find(near.key)
        except StoreError:
            return None
        if answer is None:
            self.index.remove(near.key)
        return answer

    def _match(self, question: Question, taken: Asked, vector: Vector) -> Near | None:
        """The most similar one that no guard keeps apart."""
        guard = ""
        for near in self.index.near(taken.context, vector, self._config.threshold):
            if near.key == question.key:
                continue
            guard = differs(taken.text, near.text, max_new_words=self._config.max_new_words) or ""
            if not guard:
                return near
        if guard:
            self._metrics.add(names.SEMANTIC_GUARDED, (guard,))
        self._count("guarded" if guard else "none")
        return None

    def _taken(self, question: Question) -> Asked | None:
        return asked(question, self._config.max_question_chars, self._namespace)

    async def _vector(self, text: str) -> Vector | None:
        found = self._vectors.pop(text, None)
        if found is not None:
            return found
        started = self._clock.monotonic()
        try:
            found = await self._embedder.vector(text)
        except EmbeddingError as error:
            log.debug("%s", error)
            self._count("failed")
            return None
        self._metrics.histogram(names.SEMANTIC_TIME, ()).observe(self._clock.monotonic() - started)
        self._vectors[text] = found
        if len(self._vectors) > _MAX_VECTORS:
            self._vectors.popitem(last=False)
        return found

    def _is_sampled(self, question: Question) -> bool:
        # By the key, so that it is the same on every gateway.
        return int.from_bytes(question.key[:4], "big") < self._config.shadow_share * 2**32

    def _count(self, result: str) -> None:
        self._metrics.add(names.SEMANTIC_LOOKUPS, (result,))
