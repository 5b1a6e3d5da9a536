"""The one place that the gateway asks: how much of a prompt does each replica probably have?

Of replicas whose KV events have proved right, that is what they told, and what they were sent within the last seconds and
cannot have told yet. Of all others, it is what they were sent.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from msgspec import structs

from headrace.config.fleet.routing import RoutingConfig
from headrace.core.clock import Clock, SystemClock
from headrace.fleet.gateway.prefix.approximate import ApproximateIndex
from headrace.fleet.gateway.prefix.blocks import Prompt, read_prompt
from headrace.fleet.gateway.prefix.exact import ExactIndex
from headrace.fleet.gateway.prefix.token_chain import TokenIds, TokenPrompt
from headrace.fleet.gateway.prefix.trust import Standing, Trust

#: Seconds after which what was sent is either told by events, or not cached.
_FRESH: Final = 3.0
_FRESH_BLOCKS: Final = 4_096
#: Tokens a block, until a replica has told its own.
_USUAL_BLOCK: Final = 32
_CHANGES: Final = {
    Standing.TRUSTED: "KV events of %s are right, and routing goes by them",
    Standing.FAILED: "KV events of %s do not tell what it was sent; its cache is guessed instead",
}

log = logging.getLogger("headrace.fleet")


class PrefixIndex:
    """Lives as long as the gateway; replicas are known by id. Not for several threads."""

    def __init__(self, config: RoutingConfig, clock: Clock = SystemClock()) -> None:  # noqa: B008
        self.config = config
        """May be replaced: how prompts are cut. Bounds of the indices stay as they were."""
        self._clock = clock
        self._sent = ApproximateIndex(config.max_index_blocks)
        self._fresh = ApproximateIndex(min(_FRESH_BLOCKS, config.max_index_blocks))
        self._aged = clock.monotonic()
        self.told = ExactIndex(config.max_told_blocks)
        """Fed by `EventReaders`."""
        self._trust: dict[str, Trust] = {}
        self._known: set[str] = set()
        self._turn = 0

    @property
    def num_blocks(self) -> int:
        """Blocks held, in all indices."""
        return self._sent.num_blocks + self._fresh.num_blocks + self.told.num_blocks

    @property
    def is_told(self) -> bool:
        """Some replica publishes its KV events."""
        return bool(self._trust)

    # -- one request ------------------------------------------------------------------------------

    def read(self, body: Mapping[str, Any], *, model: str, salt: str, num_tokens: int) -> Prompt:
        """The prompt of a decoded body. `salt` separates what tenants have cached; empty: all share."""
        return read_prompt(
            body,
            model=model,
            salt=salt,
            num_tokens=num_tokens,
            block_chars=self.config.block_chars,
            max_blocks=self.config.max_prefix_blocks,
        )

    def wants_tokens(self, replica_ids: Iterable[str]) -> str | None:
        """A replica, of these, that should be asked for the prompt's tokens; None: they are not needed. They take turns."""
        if not self._trust:
            return None
        self._check()
        now = self._clock.monotonic()
        able = []
        for replica_id in replica_ids:
            trust = self._trust.get(replica_id)
            if trust is not None and (trust.standing is Standing.TRUSTED or trust.wants(now)):
                able.append(replica_id)
        if not able:
            return None
        self._turn += 1
        return able[self._turn % len(able)]

    def with_tokens(self, prompt: Prompt, token_ids: TokenIds | None, salt: str) -> Prompt:
        """The prompt with its tokens. `salt`: the `cache_salt` in the body that replicas are sent; empty: none."""
        if token_ids is None:
            return prompt
        # A token is seldom less than a character.
        compared = self.config.max_prefix_blocks * self.config.block_chars
        tokens = TokenPrompt(token_ids, salt=salt, max_tokens=compared)
        return structs.replace(prompt, token_ids=tokens, num_tokens=len(token_ids))

    def cached(self, prompt: Prompt) -> dict[str, int]:
        """By replica: tokens of the prompt that it probably has cached. Those with none are left out."""
        sent = self._sent.cached(prompt)
        if prompt.token_ids is None or not self._trust:
            return {name: prompt.tokens(count) for name, count in sent.items()}
        self._check()
        fresh = self._fresh.cached(prompt)
        found = {}
        for name in sent.keys() | self._trust.keys():
            trust = self._trust.get(name)
            if trust is not None and trust.standing is Standing.TRUSTED:
                told = self.told.cached(name, prompt.token_ids, prompt.model)
                tokens = max(told, prompt.tokens(fresh.get(name, 0)))
            else:
                tokens = prompt.tokens(sent.get(name, 0))
            if tokens:
                found[name] = tokens
        return found

    def note_sent(self, prompt: Prompt, replica_id: str) -> None:
        """The replica is being sent this prompt; call it when the request goes out, not when it is answered."""
        self._known.add(replica_id)
        self._sent.insert(replica_id, prompt)
        if replica_id in self._trust:
            self._age()
            self._fresh.insert(replica_id, prompt)

    def note_answered(self, prompt: Prompt, replica_id: str) -> None:
        """The first token came: the prompt is computed. Lets events be checked."""
        trust = self._trust.get(replica_id)
        tokens = prompt.token_ids
        if trust is None or tokens is None:
            return
        self._check()
        # A prompt's last block is often left out (its last token is computed anew), so there must be two.
        if len(tokens.token_ids) > 2 * (self.told.block_size(replica_id) or _USUAL_BLOCK):
            trust.note_answered(tokens, prompt.model, self._clock.monotonic())

    # -- replicas ---------------------------------------------------------------------------------

    def watch(self, replica_id: str) -> None:
        """It publishes KV events."""
        self._trust.setdefault(replica_id, Trust())

    def unwatch(self, replica_id: str) -> None:
        """It does so no more."""
        self._trust.pop(replica_id, None)
        self.told.forget(replica_id)
        self._fresh.forget(replica_id)

    def standing(self) -> dict[str, Standing]:
        """Of the replicas that publish KV events: whether those are believed."""
        self._check()
        return {name: trust.standing for name, trust in self._trust.items()}

    def restarted(self, replica_id: str) -> None:
        """Its cache is empty."""
        self._sent.forget(replica_id)
        self._fresh.forget(replica_id)
        self.told.purge(replica_id)

    def forget(self, replica_id: str) -> None:
        """It has gone."""
        self._known.discard(replica_id)
        self._sent.forget(replica_id)
        self._fresh.forget(replica_id)

    def keep(self, replica_ids: Collection[str]) -> None:
        """Forget all others."""
        for replica_id in self._known.difference(replica_ids):
            self.forget(replica_id)

    # -- as time goes by --------------------------------------------------------------------------

    def _age(self) -> None:
        now = self._clock.monotonic()
        if now - self._aged >= _FRESH:
            self._fresh.age()
            if now - self._aged >= 2 * _FRESH:
                self._fresh.age()
            self._aged = now

    def _check(self) -> None:
        self._age()
        now = self._clock.monotonic()
        for name, trust in self._trust.items():
            due = trust.due(now)
            if due is None:
                continue
            before = trust.standing
            trust.note_checked(self.told.cached(name, *due) > 0, now)
            if trust.standing is not before:
                level = logging.INFO if trust.standing is Standing.TRUSTED else logging.WARNING
                log.log(level, _CHANGES[trust.standing], name)
