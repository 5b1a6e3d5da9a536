"""What a replica costs in time: a line through measured steps, and the bounds of the server that was measured."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from headrace.core.errors import ConfigError

SCHEMA = 1
#: Tokens that fit into the KV memory of a server whose settings are the defaults.
_DEFAULT_KV = 32_768

Coefficient = Annotated[float, Meta(ge=0)]


class StepTime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of one step = fixed + per token of prompts + per decoding sequence + per position that is attended to."""

    fixed: Coefficient
    prefill_token: Coefficient
    decode_row: Coefficient
    attended_token: Coefficient = 0.0
    """One query looking at one key: a prompt of n tokens has n (n + 1) / 2 of them, a decode row its context."""

    def seconds(self, prefill_tokens: int, decode_rows: int, attended_tokens: int) -> float:
        """Of one step."""
        return (
            self.fixed
            + self.prefill_token * prefill_tokens
            + self.decode_row * decode_rows
            + self.attended_token * attended_tokens
        )


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of replica: a model on a machine, as it was served when it was measured."""

    schema: Annotated[int, Meta(ge=1, le=SCHEMA)] = SCHEMA
    model: str
    machine: str = ""
    source: str = ""
    """How the figures came about."""
    step: StepTime
    request_seconds: Coefficient = 0.0
    """From a client to the engine and back, beside all steps; part of every first token."""
    residual: Annotated[float, Meta(ge=0)] | None = None
    """Root of the mean squared relative error of the fit; None: not fitted."""
    max_num_seqs: Annotated[int, Meta(ge=1, le=4096)] = 64
    max_num_batched_tokens: Annotated[int, Meta(ge=1)] = 512
    max_context: Annotated[int, Meta(ge=2)] = 8192
    """Tokens of prompt and answer together."""
    block_size: Annotated[int, Meta(ge=1)] = 16
    kv_tokens: Annotated[int, Meta(ge=32)] = _DEFAULT_KV
    """Tokens that the KV memory holds."""
    boot_seconds: Coefficient = 1.0
    """From the order to the first request that it serves."""
    wake_seconds: Coefficient = 0.2
    """The same of one that was parked."""

    @property
    def kv_blocks(self) -> int:
        """Whole blocks that fit."""
        return self.kv_tokens // self.block_size

    @property
    def room(self) -> int:
        """Tokens that one request may have, prompt and answer."""
        return min(self.max_context, self.kv_blocks * self.block_size)


def built_in() -> tuple[str, ...]:
    """Names of the profiles that come with headrace."""
    folder = files("headrace.bench.simulate") / "profiles"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".json")))


def read_profile(name: str) -> Profile:
    """A built-in profile by its name, or a file. Raises ConfigError."""
    if name in built_in():
        data = (files("headrace.bench.simulate") / "profiles" / f"{name}.json").read_bytes()
        return _decode(data, name)
    path = Path(name).expanduser()
    try:
        return _decode(path.read_bytes(), name)
    except OSError as error:
        raise ConfigError(
            f"The profile {name} cannot be read ({error.strerror}); built in are {', '.join(built_in())}."
        ) from None


def write_profile(profile: Profile, target: str) -> None:
    """Raises ConfigError if the file cannot be written."""
    text = msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n"
    try:
        Path(target).expanduser().write_bytes(text)
    except OSError as error:
        raise ConfigError(f"The profile {target} cannot be written: {error.strerror}.") from None


def _decode(data: bytes, name: str) -> Profile:
    try:
        profile = msgspec.json.decode(data, type=Profile)
    except msgspec.DecodeError as error:
        raise ConfigError(f"The profile {name} is not usable: {error}.") from None
    if profile.step.fixed + profile.step.decode_row <= 0 or profile.step.prefill_token <= 0:
        raise ConfigError(f"The profile {name} has steps that take no time.")
    if profile.room < 2 or profile.kv_blocks < 2:
        raise ConfigError(f"The profile {name} has no room for a request.")
    return profile
