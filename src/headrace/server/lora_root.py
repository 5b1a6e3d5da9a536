"""The one directory below which adapters may be loaded by request."""

from pathlib import Path

from headrace.core.errors import (
    BadRequestError,
    ConfigError,
    NotFoundError,
    PermissionDeniedError,
)
from headrace.modeling.adapters.files import CONFIG, WEIGHTS


class LoraRoot:
    """Blocks on the file system: ask it on a thread."""

    def __init__(self, directory: str) -> None:
        """Raises ConfigError where there is no such directory."""
        try:
            self._root = Path(directory).expanduser().resolve(strict=True)
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"--lora-root: {directory} cannot be read: {error}.") from None
        if not self._root.is_dir():
            raise ConfigError(f"--lora-root: {directory} is no directory.")

    def find(self, given: str) -> Path:
        """The directory that a request names, with no link left in its path.

        Raises PermissionDeniedError for what lies, or leads, outside; it says nothing of what is there.
        """
        if not given.isprintable():
            raise BadRequestError(
                "'lora_path' holds characters that no path of ours has.", param="lora_path"
            )
        found = self._inside(self._root / given)
        if not _is_directory(found):
            raise NotFoundError(f"There is no directory '{given}' below --lora-root.")
        for name in (CONFIG, WEIGHTS):
            self._inside(found / name)
        return found

    def _inside(self, path: Path) -> Path:
        try:
            found = path.resolve()
        except (OSError, RuntimeError):  # a circle of links
            found = Path("/")
        if not found.is_relative_to(self._root):
            raise PermissionDeniedError("Adapters are only loaded from below --lora-root.")
        return found


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long
        return False
