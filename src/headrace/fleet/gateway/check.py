"""`headrace gateway --check`: everything that a start would trip over, looked at without starting or making anything."""

import os
from pathlib import Path

from headrace.config.fleet.read import read_replicas
from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.fleet.gateway.doubts import doubts
from headrace.fleet.gateway.pipelines.runner import Pipelines
from headrace.fleet.gateway.run import check_parts
from headrace.fleet.gateway.tools.toolbox import Toolbox
from headrace.observe.metrics import Metrics


def check_all(config: FleetConfig) -> list[str]:
    """Doubts. Raises ConfigError for the first thing that cannot be used: keys, tools, templates, files, directories."""
    check_parts(config)
    Toolbox.check(config.tools)
    pipelines = Pipelines(config.pipelines, Metrics(), SystemClock())
    pipelines.close()
    if config.accounts.directory is not None:
        _check_directory("accounts.directory", Path(config.accounts.directory).expanduser())
    if config.cache.enabled and config.cache.path is not None and not config.cache.redis:
        _check_file("cache.path", Path(config.cache.path).expanduser())
    return [*pipelines.doubts, *check_replicas(config)]


def check_replicas(config: FleetConfig) -> list[str]:
    """Doubts about the fleet with all replicas that are known. Raises ConfigError for those of `discovery.file`."""
    found = list(config.replicas)
    if config.discovery.file is not None:
        for spec in read_replicas(Path(config.discovery.file).expanduser()):
            check_parts(FleetConfig(replicas=(spec,)))
            found.append(spec)
    return doubts(config, found)


def _check_directory(setting: str, path: Path) -> None:
    """It can be written to, or made."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise ConfigError(f"{setting} {path} cannot be used: {place} is no directory.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"{setting} {path} cannot be used: {place} may not be written to.")


def _check_file(setting: str, path: Path) -> None:
    if path.is_dir():
        raise ConfigError(f"{setting} {path} cannot be used: it is a directory.")
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        raise ConfigError(f"{setting} {path} cannot be used: it may not be read and written.")
    _check_directory(setting, path.parent)
