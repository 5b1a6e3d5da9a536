"""What a fleet is called, and where on this machine it is noted what there is of it."""

import hashlib
import re
from pathlib import Path

from headrace.config import env
from headrace.config.fleet.drivers import DriversConfig
from headrace.config.fleet.root import FleetConfig


def fleet_name(config: FleetConfig, file: Path) -> str:
    """What the fleet is called: its own name, or one made of its file's path, so that no two fleets share replicas."""
    if config.name:
        return config.name
    path = file.resolve()
    stem = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:24].strip("-") or "fleet"
    return f"{stem}-{hashlib.sha256(bytes(path)).hexdigest()[:8]}"


def state_directory(fleet_name: str, config: DriversConfig) -> Path:
    """Where it is noted what runs of this fleet on this machine."""
    if config.local.directory is not None:
        return Path(config.local.directory).expanduser() / fleet_name
    return env.state_home() / "fleets" / fleet_name
