"""headrace: an LLM serving stack. `headrace.LLM` runs a model in this process."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "__version__"]


def __getattr__(name: str) -> Any:
    # `LLM` is looked up on first use, so that importing a leaf never loads the tree.
    if name == "LLM":
        import importlib

        return importlib.import_module("headrace.llm").LLM
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
