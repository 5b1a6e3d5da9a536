"""Small files of state that outlive a crash: whole as they were, or whole as they are."""

import os
from contextlib import suppress
from pathlib import Path


def write_durably(path: Path, data: bytes) -> None:
    """Put `data` in the place of what is there, on the disk. Blocks; raises OSError, and then nothing has changed."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with draft.open("wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise
