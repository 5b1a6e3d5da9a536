"""Sampling defaults that a model brings along (generation_config.json, or our catalogue)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct


class SamplingDefaults(Struct, frozen=True, kw_only=True):
    """What a request that says nothing gets; None leaves the API's own default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def read_sampling_defaults(path: Path | str, source: str = "") -> SamplingDefaults:
    """Those of a model directory, or of the short name that it came from; none for any other file.

    A value that no request could ask for is left out. `do_sample: false` does not make a model greedy:
    it is the default of a library that clients of an API never see.
    """
    path = Path(path)
    if not path.is_dir():
        # Here, not at the top: importing the sources is the engine's business, mostly.
        from headrace.modeling.weights.sources.catalog import recommended_sampling

        return _checked(recommended_sampling(source))
    # Here, not at the top: a cached start from a file needs no reader.
    from headrace.modeling.weights.json_files import read_optional_object

    return _checked(read_optional_object(path / "generation_config.json"))


def _checked(config: Mapping[str, Any]) -> SamplingDefaults:
    def number(name: str, low: float, high: float) -> float | None:
        value = config.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if low <= value <= high else None

    top_k = number("top_k", 0, 2**31 - 1)
    return SamplingDefaults(
        temperature=number("temperature", 0.0, 100.0),
        top_p=number("top_p", 1e-12, 1.0),
        top_k=None if top_k is None else int(top_k),
        min_p=number("min_p", 0.0, 1.0),
        repetition_penalty=number("repetition_penalty", 1e-6, 100.0),
    )
