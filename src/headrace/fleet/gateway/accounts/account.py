"""Who calls: the values behind an API key."""

from fnmatch import fnmatchcase

from msgspec import Struct

from headrace.config.fleet.accounts import ANONYMOUS_TENANT, Limits
from headrace.config.fleet.cache import CacheMode
from headrace.core.errors import PermissionDeniedError

ANONYMOUS = ANONYMOUS_TENANT


class Account(Struct, frozen=True, kw_only=True):
    """What a key stands for. Nothing of it comes from what a client sends beside its key."""

    key: str
    """Name of the key."""
    tenant: str
    priority: str
    """Name of a class."""
    weight: float = 1.0
    models: tuple[str, ...] = ()
    cache: CacheMode = CacheMode.AUTO
    """What its requests want of the response cache."""
    key_limits: Limits = Limits()
    tenant_limits: Limits = Limits()

    def may_use(self, model: str) -> bool:
        """The key is good for this model."""
        return not self.models or any(fnmatchcase(model, pattern) for pattern in self.models)

    def check_model(self, model: str) -> None:
        """Raises PermissionDeniedError."""
        if not self.may_use(model):
            raise PermissionDeniedError(f"The key '{self.key}' may not use the model '{model}'.")


class StoredKey(Struct, frozen=True, kw_only=True):
    """A key that was created while the gateway ran, as it is kept."""

    name: str
    digest: str
    """SHA-256 of its text, in hexadecimal."""
    tenant: str
    priority: str = ""
    models: tuple[str, ...] = ()
    limits: Limits = Limits()
    created: float = 0.0
    """Seconds since the epoch, as the other two."""
    expires: float | None = None
    revoked: float | None = None


class KeyInfo(Struct, frozen=True, kw_only=True):
    """A key as it is shown: everything but its text."""

    name: str
    tenant: str
    priority: str
    models: tuple[str, ...]
    limits: Limits
    is_configured: bool
    """It stands in the fleet's file, and is changed there."""
    created: float | None = None
    expires: float | None = None
    revoked: float | None = None


class NewKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator asks for."""

    name: str
    tenant: str = ""
    """Default: a tenant of the key's own name."""
    priority: str = ""
    models: tuple[str, ...] = ()
    limits: Limits = Limits()
    expires_in: float | None = None
    """Seconds; None: never."""


class CreatedKey(Struct, frozen=True, kw_only=True):
    """A new key. Its text is shown this once, and kept nowhere."""

    key: str
    info: KeyInfo
