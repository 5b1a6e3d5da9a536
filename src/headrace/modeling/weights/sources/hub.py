"""Models of the Hugging Face hub, through `huggingface_hub` and its own cache.

That library honours HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE, locks, resumes and renames into
place; so nothing is copied into our cache.
"""

import re
from pathlib import Path
from typing import Any, Final

from headrace.core.errors import DownloadError
from headrace.modeling.weights.sources.files import (
    UNWANTED,
    WANTED,
    is_model_directory,
)

_SOURCE: Final = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?(:(?P<file>[^:]+))?", re.ASCII
)


def fetch_from_hub(source: str, *, progress: bool) -> Path:
    """`org/name[@revision][:file.gguf]` as a local path. Raises DownloadError."""
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise DownloadError(f"'hf:{source}' is not of the form hf:org/name[@revision][:file.gguf].")
    try:
        import huggingface_hub
        import huggingface_hub.utils as hub_utils
    except ImportError as error:
        raise DownloadError("hf: needs huggingface_hub: pip install huggingface_hub.") from error
    repo, revision, file = match["repo"], match["revision"], match["file"]
    bars: Any = hub_utils
    was_quiet = bars.are_progress_bars_disabled()
    if not progress:
        bars.disable_progress_bars()
    try:
        if file is not None:
            return _fetch_file(huggingface_hub, repo, file, revision)
        return _fetch_directory(huggingface_hub, repo, revision)
    except DownloadError:
        raise
    except Exception as error:  # its many kinds (HTTP, offline, validation, OS) all mean the same
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        reason = reason.removeprefix("Got: ")  # what the hub's library writes before a cause
        raise DownloadError(f"hf:{source} could not be fetched: {reason}") from error
    finally:
        if not progress and not was_quiet:
            bars.enable_progress_bars()


def _fetch_file(hub: Any, repo: str, file: str, revision: str | None) -> Path:
    """One GGUF file, or all parts of a split one."""
    from headrace.modeling.weights.sources.parts import part_names

    paths = [Path(hub.hf_hub_download(repo, name, revision=revision)) for name in part_names(file)]
    return paths[0]


def _fetch_directory(hub: Any, repo: str, revision: str | None) -> Path:
    path = Path(
        hub.snapshot_download(
            repo,
            revision=revision,
            allow_patterns=[*WANTED, "additional_chat_templates/*.jinja"],
            ignore_patterns=list(UNWANTED),
        )
    )
    if not is_model_directory(entry.name for entry in path.iterdir()):
        raise DownloadError(
            f"hf:{repo} holds no config.json with safetensors files. If it holds GGUF files, "
            f"give one: hf:{repo}:FILE.gguf."
        )
    return path
