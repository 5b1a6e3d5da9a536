"""API keys: those of the fleet's file and those that were created, found by the SHA-256 of their text.

Keys are long and random, so one round of SHA-256 is enough, and how long a look-up of a digest takes tells nothing of
the key: nobody can choose what his guess hashes to.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from typing import Final

from headrace.config.fleet.accounts import AccountsConfig, KeyConfig, Limits, TenantConfig
from headrace.config.fleet.cache import CacheMode
from headrace.config.fleet.flow import FlowConfig
from headrace.core.clock import Clock
from headrace.core.errors import BadRequestError, ConfigError
from headrace.fleet.gateway.accounts.account import (
    ANONYMOUS,
    Account,
    CreatedKey,
    KeyInfo,
    NewKey,
    StoredKey,
)

#: What created keys begin with, so that scanners of repositories find them.
PREFIX: Final = "hr-"
MAX_STORED: Final = 100_000
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Directory:
    """Who a key belongs to. One event loop's."""

    def __init__(
        self,
        accounts: AccountsConfig,
        flow: FlowConfig,
        clock: Clock,
        *,
        is_loaded: bool = True,
    ) -> None:
        """`is_loaded`: there are no created keys to wait for; until they are there, nobody gets in without a key.

        Raises ConfigError for a key, tenant or class that contradicts others.
        """
        self._clock = clock
        self._is_loaded = is_loaded
        self._stored: dict[str, StoredKey] = {}
        self._by_digest: dict[str, StoredKey] = {}
        self.configure(accounts, flow)

    def configure(self, accounts: AccountsConfig, flow: FlowConfig) -> None:
        """Another fleet file. Raises ConfigError; then everything stays as it was."""
        classes = {kind.name for kind in flow.classes}
        tenants = {tenant.name: tenant for tenant in accounts.tenants}
        accounts.check_priorities(classes)
        configured: dict[str, KeyConfig] = {}
        for key in accounts.keys:
            digest = _digest_of(key)
            if digest in configured:
                raise ConfigError(f"The keys '{key.name}' and '{configured[digest].name}' are one.")
            configured[digest] = key
        self._config, self._flow, self._classes = accounts, flow, classes
        self._tenants, self._configured = tenants, configured
        self._names = {key.name for key in accounts.keys}
        self._anonymous = Account(
            key=ANONYMOUS,
            tenant=ANONYMOUS,
            priority=flow.usual_class,
            key_limits=accounts.anonymous,
        )

    def load(self, keys: Iterable[StoredKey]) -> None:
        """All keys that were created; replaces those that were known. What was revoked here stays so, though the store may
        not know it yet.
        """
        known = self._stored
        self._stored = {key.name: _still_revoked(key, known.get(key.name)) for key in keys}
        self._by_digest = {key.digest: key for key in self._stored.values()}
        self._is_loaded = True

    @property
    def is_open(self) -> bool:
        """Nobody needs a key: none was ever configured or created, and none is required."""
        is_closed = self._config.required or self._configured or self._stored
        return self._is_loaded and not is_closed

    def find(self, text: str) -> Account | None:
        """The account that a key stands for; None for one that is not good (any more)."""
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        configured = self._configured.get(digest)
        if configured is not None:
            return self._account(
                configured.name,
                configured.tenant or configured.name,
                configured.priority,
                configured.models,
                configured.limits,
                configured.cache,
            )
        stored = self._by_digest.get(digest)
        # A configured key of the same name has taken its place.
        if stored is None or stored.name in self._names or not self._is_good(stored):
            return None
        if not hmac.compare_digest(stored.digest, digest):
            return None
        return self._account(
            stored.name, stored.tenant, stored.priority, stored.models, stored.limits
        )

    def anonymous(self) -> Account:
        """Everybody, where nobody needs a key."""
        return self._anonymous

    def list(self) -> tuple[KeyInfo, ...]:
        """All keys by name, revoked and expired ones too."""
        configured = [
            KeyInfo(
                name=key.name,
                tenant=key.tenant or key.name,
                priority=self._priority(key.priority, key.tenant or key.name),
                models=key.models,
                limits=key.limits,
                is_configured=True,
            )
            for key in self._config.keys
        ]
        stored = [self.info(key) for key in self._stored.values()]
        return tuple(sorted([*configured, *stored], key=lambda info: info.name))

    def info(self, key: StoredKey) -> KeyInfo:
        """A created key, as it is shown."""
        return KeyInfo(
            name=key.name,
            tenant=key.tenant,
            priority=self._priority(key.priority, key.tenant),
            models=key.models,
            limits=key.limits,
            is_configured=False,
            created=key.created,
            expires=key.expires,
            revoked=key.revoked,
        )

    def create(self, wanted: NewKey) -> tuple[StoredKey, CreatedKey]:
        """A new key, to be stored and then loaded. Raises BadRequestError that names the field."""
        self._check(wanted)
        text = PREFIX + secrets.token_urlsafe(32)
        now = self._clock.wall()
        stored = StoredKey(
            name=wanted.name,
            digest=hashlib.sha256(text.encode()).hexdigest(),
            tenant=wanted.tenant or wanted.name,
            priority=wanted.priority,
            models=wanted.models,
            limits=wanted.limits,
            created=now,
            expires=None if wanted.expires_in is None else now + wanted.expires_in,
        )
        return stored, CreatedKey(key=text, info=self.info(stored))

    def stored(self, name: str) -> StoredKey | None:
        """A created key."""
        return self._stored.get(name)

    def is_configured(self, name: str) -> bool:
        """It stands in the fleet's file."""
        return name in self._names

    def put(self, key: StoredKey) -> None:
        """A created key is new, or changed."""
        before = self._stored.get(key.name)
        if before is not None:
            self._by_digest.pop(before.digest, None)
        self._stored[key.name] = key
        self._by_digest[key.digest] = key

    def _check(self, wanted: NewKey) -> None:
        for field in ("name", "tenant"):
            value = getattr(wanted, field)
            if (value or field == "name") and not _NAME.fullmatch(value):
                raise BadRequestError(
                    f"'{field}': letters, digits, dots, dashes and underscores, at most 64.",
                    param=field,
                )
        if wanted.name in self._names or wanted.name in self._stored or wanted.name == ANONYMOUS:
            raise BadRequestError(f"There is a key '{wanted.name}' already.", param="name")
        self._check_tenant(wanted)
        if wanted.priority and wanted.priority not in self._classes:
            known = ", ".join(sorted(self._classes))
            raise BadRequestError(f"'priority': one of {known}.", param="priority")
        if wanted.expires_in is not None and not 0 < wanted.expires_in < 1e10:
            raise BadRequestError("'expires_in': seconds, above 0.", param="expires_in")
        if len(self._stored) >= MAX_STORED:
            raise BadRequestError(f"There are {MAX_STORED} created keys already.")

    def _check_tenant(self, wanted: NewKey) -> None:
        """One that is in use already, or the key's own name: a slip would leave its tenant's limits behind."""
        tenant = wanted.tenant
        if not tenant or tenant == wanted.name or tenant in self._tenants:
            return
        configured = (key.tenant or key.name for key in self._config.keys)
        if tenant not in configured and all(tenant != k.tenant for k in self._stored.values()):
            known = ", ".join(sorted(self._tenants)[:20])
            raise BadRequestError(
                f"'tenant': there is no '{tenant}'; {f'one of {known}' if known else 'accounts.tenants is empty'}.",
                param="tenant",
            )

    def _is_good(self, key: StoredKey) -> bool:
        is_late = key.expires is not None and self._clock.wall() >= key.expires
        return key.revoked is None and not is_late

    def _account(
        self,
        name: str,
        tenant: str,
        priority: str,
        models: tuple[str, ...],
        limits: Limits,
        cache: CacheMode = CacheMode.AUTO,
    ) -> Account:
        known = self._tenants.get(tenant, TenantConfig(name=tenant))
        return Account(
            key=name,
            tenant=tenant,
            priority=self._priority(priority, tenant),
            weight=known.weight,
            models=models,
            cache=cache,
            key_limits=limits,
            tenant_limits=known.limits,
        )

    def _priority(self, own: str, tenant: str) -> str:
        """The first of the key's, its tenant's and the usual class that there (still) is."""
        known = self._tenants.get(tenant)
        for name in (own, known.priority if known is not None else ""):
            if name in self._classes:
                return name
        return self._flow.usual_class


def _still_revoked(key: StoredKey, known: StoredKey | None) -> StoredKey:
    is_same = known is not None and known.digest == key.digest
    return known if is_same and known is not None and known.revoked is not None else key


def _digest_of(key: KeyConfig) -> str:
    text = str(key.key)
    if text.startswith("sha256:"):
        return text.removeprefix("sha256:").lower()
    return hashlib.sha256(text.encode()).hexdigest()
