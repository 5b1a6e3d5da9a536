"""What is to be done to instances, as values."""

from msgspec import Struct

from headrace.config.fleet.pools import PoolConfig


class Start(Struct, frozen=True, kw_only=True, tag=True):
    """One more."""

    pool: PoolConfig
    """With what it is started: after a rollback, not what the configuration says."""
    prestarted: bool = False


class Wake(Struct, frozen=True, kw_only=True, tag=True):
    """A warm one is to serve."""

    instance_id: str


class Drain(Struct, frozen=True, kw_only=True, tag=True):
    """It gets nothing new."""

    instance_id: str
    reason: str = ""


class Undrain(Struct, frozen=True, kw_only=True, tag=True):
    """It takes part again."""

    instance_id: str


class Park(Struct, frozen=True, kw_only=True, tag=True):
    """It has drained; it gives its memory back and stays."""

    instance_id: str


class Stop(Struct, frozen=True, kw_only=True, tag=True):
    """It is to end, and to be killed after `grace` seconds."""

    instance_id: str
    grace: float
    reason: str = ""


Action = Start | Wake | Drain | Undrain | Park | Stop
