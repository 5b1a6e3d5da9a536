"""Tokenizers on disk in the form that loads fastest.

Building one from GGUF metadata takes from a tenth of a second to several; reading it back takes a third
of that or less. A cached file belongs to one version of its sources: it is named by a digest of their
paths, sizes, modification times and inodes, and of the version of the form.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from headrace.preprocess.tokenizer_data import TokenizerData

#: Raised whenever the form or the reading of a source changes.
VERSION: Final = 1


def cache_path(folder: Path, sources: Iterable[Path]) -> Path:
    """Where the tokenizer of these files is cached. A source that does not exist counts as absent."""
    digest = hashlib.sha256(f"headrace tokenizer {VERSION}\n".encode())
    for path in sources:
        try:
            stat = path.stat()
        except OSError:
            digest.update(f"{path} absent\n".encode("utf-8", "surrogateescape"))
            continue
        identity = f"{path.absolute()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}\n"
        digest.update(identity.encode("utf-8", "surrogateescape"))
    return folder / f"{digest.hexdigest()[:32]}.tokenizer"


def read_cached(path: Path) -> TokenizerData | None:
    """The cached tokenizer; None where there is none that can be read."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=TokenizerData)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def write_cached(path: Path, data: TokenizerData) -> bool:
    """Write it so that no reader ever sees half of it. False where the disk does not let us."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError:
        return False
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.msgpack.encode(data))
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        return False
    return True
