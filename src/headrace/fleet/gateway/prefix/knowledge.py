"""Everything that is known of replicas' caches, put together: indices, readers of events, tokens of prompts."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.config.fleet.routing import RoutingConfig, RoutingPolicy
from headrace.core.clock import Clock
from headrace.fleet.backends.values import Incoming
from headrace.fleet.gateway.prefix.blocks import Prompt
from headrace.fleet.gateway.prefix.events import EventReaders
from headrace.fleet.gateway.prefix.index import PrefixIndex
from headrace.fleet.gateway.prefix.tokenizing import Tokenizing
from headrace.fleet.gateway.prefix.trust import Standing
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica
from headrace.fleet.upstream.failure import UpstreamError
from headrace.observe.catalogue import (
    PREFIX_BLOCKS,
    PREFIX_EVENTS_LOST,
    PREFIX_EVENTS_MALFORMED,
    PREFIX_EVENTS_TRUSTED,
)
from headrace.observe.metrics import Metrics

#: Policies that ask what replicas have cached.
BY_PREFIX: Final = frozenset({RoutingPolicy.STICKY, RoutingPolicy.PREFIX_AWARE})
#: Bytes of an answer with tokens: a million of them.
_MAX_ANSWER: Final = 8 * 1024 * 1024


class Knowledge:
    """Lives as long as the gateway."""

    def __init__(self, config: RoutingConfig, registry: Registry, clock: Clock) -> None:
        self.index = PrefixIndex(config, clock)
        self._registry = registry
        self._readers = EventReaders(self.index.told, self.index.watch, self.index.unwatch, clock)
        self._tokenizing = Tokenizing(
            self._ask, clock, patience=config.tokenize_timeout, max_bytes=config.max_token_bytes
        )

    def apply(self, config: RoutingConfig) -> None:
        """The configuration was read again. Bounds of memory stay as they were."""
        self.index.config = config
        self.sync()

    def sync(self) -> None:
        """Replicas came or went: read the events of those that there are, forget the others."""
        replicas = list(self._registry)
        self.index.keep([replica.id for replica in replicas])
        is_used = self.index.config.policy in BY_PREFIX
        self._readers.sync([replica.spec for replica in replicas] if is_used else ())

    async def with_tokens(
        self, prompt: Prompt, body: Mapping[str, Any], salt: str, replicas: Sequence[Replica]
    ) -> Prompt:
        """The prompt with its tokens, if that helps to choose among these replicas; else as it was.

        `salt`: the `cache_salt` that is sent to replicas. Takes at most `tokenize_timeout`, and nothing where no replica
        publishes events.
        """
        replica_id = self.index.wants_tokens([replica.id for replica in replicas])
        if replica_id is None:
            return prompt
        found = await self._tokenizing.token_ids(body, prompt.model, replica_id)
        return self.index.with_tokens(prompt, found, salt)

    def write_gauges(self, metrics: Metrics) -> None:
        """Bring the metrics up to date; before they are read."""
        metrics.set(PREFIX_BLOCKS, (), self.index.num_blocks)
        for name, standing in self.index.standing().items():
            metrics.set(PREFIX_EVENTS_TRUSTED, (name,), float(standing is Standing.TRUSTED))
        for name, reader in self._readers.readers().items():
            metrics.set(PREFIX_EVENTS_LOST, (name,), reader.num_lost)
            metrics.set(PREFIX_EVENTS_MALFORMED, (name,), reader.num_malformed)

    async def close(self) -> None:
        """Stop reading events."""
        await self._readers.close()

    async def _ask(self, replica_id: str, body: bytes) -> bytes | None:
        replica = self._registry.get(replica_id)
        if replica is None:
            return None
        outgoing = replica.backend.outgoing(Incoming(path="/tokenize", body=body))
        try:
            response = await replica.pool.request(
                outgoing.method, outgoing.path, outgoing.headers, outgoing.body
            )
            try:
                answer = await response.read_all(_MAX_ANSWER)
                return answer if response.status == 200 else None
            finally:
                replica.pool.release(response)
        except UpstreamError:
            return None
