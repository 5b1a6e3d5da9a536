"""The autoscaler's composition root.

`headrace gateway` and `headrace up` call `build_autoscaler` on their event loop where the file has pools, with drivers
made by `fleet/drivers/build.py`; they put `controller.discovery` to the gateway's sources, start it, and close it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from headrace.config.fleet.pools import DriverKind
from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import Clock
from headrace.fleet.autoscaler.controller import Controller, Kit
from headrace.fleet.autoscaler.decision_log import DecisionLog
from headrace.fleet.autoscaler.hands import Hands
from headrace.fleet.autoscaler.lease import FileLease, Lease
from headrace.fleet.autoscaler.meter import Meter
from headrace.fleet.autoscaler.places import Places
from headrace.fleet.autoscaler.planner import Planner
from headrace.fleet.autoscaler.sensors import Sensors
from headrace.fleet.autoscaler.warmth import HttpWarmth, Warmth
from headrace.fleet.drivers.protocol import Driver
from headrace.fleet.gateway.flow.admission import Admission
from headrace.fleet.gateway.flow.slot import Slot
from headrace.fleet.gateway.flow.values import Ticket
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica
from headrace.observe.metrics import Metrics

LOCK, MEMORY = "autoscaler.lock", "autoscaler.json"


class Surroundings(NamedTuple):
    """What of a gateway an autoscaler works with."""

    registry: Registry
    admission: Admission
    metrics: Metrics
    clock: Clock
    look_now: Callable[[Replica], None] = lambda _: None
    """Has a replica probed at once."""


def build_autoscaler(
    config: FleetConfig,
    drivers: Mapping[DriverKind, Driver],
    directory: Path,
    around: Surroundings,
    *,
    warmth: Warmth | None = None,
    lease: Lease | None = None,
) -> Controller:
    """`directory` is the fleet's own on this machine: its lock and its memory are there. Not started yet.

    Raises ConfigError for a directory that cannot be used.
    """
    registry, admission, metrics, clock, _ = around
    settings = config.autoscaler
    planner = Planner(config.pools, settings)
    sensors = Sensors(planner, registry, admission, metrics, clock)
    places = Places(drivers)
    entries = DecisionLog(settings.decisions)
    warm = warmth or HttpWarmth()
    hands = Hands(planner, places, registry, warm, entries, metrics, clock)
    hands.look_now = around.look_now
    kit = Kit(
        planner=planner,
        sensors=sensors,
        places=places,
        hands=hands,
        warmth=warm,
        registry=registry,
        lease=lease or FileLease(directory / LOCK),
        entries=entries,
        meter=Meter(metrics),
    )
    controller = Controller(kit, directory / MEMORY, clock)
    admission.watcher = _Watcher(controller)
    return controller


class _Watcher:
    """Implements FlowWatcher: counts go to the sensors, cold lanes wake the controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def arrived(self, ticket: Ticket) -> None:
        self._controller.sensors.arrived(ticket)

    def cold(self, lane: str) -> None:
        self._controller.cold(lane)

    def ended(self, slot: Slot) -> None:
        self._controller.sensors.ended(slot)
