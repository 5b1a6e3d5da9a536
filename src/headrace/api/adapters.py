"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as vLLM has them."""

from typing import Annotated, Any

from msgspec import Meta, Struct

#: A name is a model's name; a path is one of a file system.
MAX_NAME_CHARS = 256
MAX_PATH_CHARS = 4096

AdapterName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]


class LoadAdapterRequest(Struct, frozen=True, kw_only=True):
    """An adapter and where it lies."""

    lora_name: AdapterName
    lora_path: Annotated[str, Meta(min_length=1, max_length=MAX_PATH_CHARS)]
    """A directory below the server's `--lora-root`: absolute, or relative to it."""
    load_inplace: bool | None = None
    """Take the place of an adapter of the same name."""
    model: AdapterName | None = None
    """The model that it is for; needed where several may have adapters."""
    is_3d_lora_weight: bool | None = None
    """Of models with experts, which are not served here: refused."""


class UnloadAdapterRequest(Struct, frozen=True, kw_only=True):
    """Which adapter is to go."""

    lora_name: AdapterName
    model: AdapterName | None = None
    """The model that it is for; default the one that has an adapter of this name."""
    lora_int_id: Any = None
    """vLLM's number for it, which nothing is known by here."""
