"""The one place that the gateway asks: how much of a prompt does each replica probably have?"""

from collections.abc import Collection, Mapping
from typing import Any

from headrace.config.fleet.routing import RoutingConfig
from headrace.fleet.gateway.prefix.approximate import ApproximateIndex
from headrace.fleet.gateway.prefix.blocks import Prompt, read_prompt


class PrefixIndex:
    """Lives as long as the gateway; replicas are known by id. Not for several threads."""

    def __init__(self, config: RoutingConfig) -> None:
        self._config = config
        self._sent = ApproximateIndex(config.max_index_blocks)
        self._known: set[str] = set()

    @property
    def num_blocks(self) -> int:
        """Blocks held, of all replicas."""
        return self._sent.num_blocks

    def read(self, body: Mapping[str, Any], *, model: str, salt: str, num_tokens: int) -> Prompt:
        """The prompt of a decoded body. `salt` separates what tenants have cached; empty: all share."""
        return read_prompt(
            body,
            model=model,
            salt=salt,
            num_tokens=num_tokens,
            block_chars=self._config.block_chars,
            max_blocks=self._config.max_prefix_blocks,
        )

    def cached(self, prompt: Prompt) -> dict[str, int]:
        """By replica: tokens of the prompt that it probably has cached. Those with none are left out."""
        return {
            replica_id: prompt.tokens(num_blocks)
            for replica_id, num_blocks in self._sent.cached(prompt).items()
        }

    def note_sent(self, prompt: Prompt, replica_id: str) -> None:
        """The replica is being sent this prompt; call it when the request goes out, not when it is answered."""
        self._known.add(replica_id)
        self._sent.insert(replica_id, prompt)

    def forget(self, replica_id: str) -> None:
        """It has gone or started anew."""
        self._known.discard(replica_id)
        self._sent.forget(replica_id)

    def keep(self, replica_ids: Collection[str]) -> None:
        """Forget all others."""
        for replica_id in self._known.difference(replica_ids):
            self.forget(replica_id)
