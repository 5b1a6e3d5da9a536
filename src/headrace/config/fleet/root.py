"""The whole of `fleet.yaml`."""

import re
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct

from headrace.config.fleet.accounts import ANONYMOUS_TENANT, AccountsConfig
from headrace.config.fleet.cache import CacheConfig
from headrace.config.fleet.drivers import DriversConfig
from headrace.config.fleet.flow import FlowConfig
from headrace.config.fleet.gateway import GatewayConfig
from headrace.config.fleet.health import HealthConfig
from headrace.config.fleet.models import ModelsConfig
from headrace.config.fleet.names import no_such
from headrace.config.fleet.pipelines import PipelinesConfig
from headrace.config.fleet.pools import PoolConfig
from headrace.config.fleet.replicas import ReplicaSpec, check_names
from headrace.config.fleet.routing import RoutingConfig
from headrace.config.fleet.scaling import AutoscalerConfig
from headrace.config.fleet.slos import (
    AlertsConfig,
    Objective,
    check_objective_classes,
    check_objectives,
)
from headrace.config.fleet.tools import ToolsConfig
from headrace.config.security import SecurityConfig
from headrace.config.tracing import TracingConfig
from headrace.core.errors import ConfigError

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")


class DiscoveryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where replicas beside those in this file are found."""

    file: str | None = None
    """A YAML file with a list of replicas, read again when it changes."""
    period: Annotated[float, Meta(gt=0, extra={"unit": "seconds"})] = 1.0
    """Seconds between two looks at all that there are."""


class FleetConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fleet: its gateway and its replicas."""

    name: str = ""
    """Lower-case letters, digits and dashes. A fleet of the same name is the same fleet: `headrace up` adopts its
    replicas. Default made of this file's path."""
    gateway: GatewayConfig = GatewayConfig()
    replicas: tuple[ReplicaSpec, ...] = ()
    pools: tuple[PoolConfig, ...] = ()
    """Replicas that `headrace up` starts and stops by itself."""
    drivers: DriversConfig = DriversConfig()
    autoscaler: AutoscalerConfig = AutoscalerConfig()
    discovery: DiscoveryConfig = DiscoveryConfig()
    routing: RoutingConfig = RoutingConfig()
    models: ModelsConfig = ModelsConfig()
    health: HealthConfig = HealthConfig()
    flow: FlowConfig = FlowConfig()
    security: SecurityConfig = SecurityConfig()
    """TLS, browsers and open metrics; keys of clients are under `accounts`."""
    cache: CacheConfig = CacheConfig()
    accounts: AccountsConfig = AccountsConfig()
    tools: ToolsConfig = ToolsConfig()
    pipelines: PipelinesConfig = PipelinesConfig()
    slos: tuple[Objective, ...] = ()
    """Objectives of service: see docs/guides/slos.md."""
    alerts: AlertsConfig = AlertsConfig()
    tracing: TracingConfig = TracingConfig()

    def __post_init__(self) -> None:
        """Raises ConfigError for keys in the wrong table, two replicas of one name, and unknown priorities."""
        check_names(self.replicas)
        if self.name and not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"The fleet's name '{self.name[:60]}' must be 1 to 40 lower-case letters, digits and dashes.",
                place="name",
            )
        check_objectives(self.slos)
        names = [pool.name for pool in self.pools]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ConfigError(f"Two pools have the name {name}.", place=f"pools[{index}].name")
        if strange := sorted(self.autoscaler.pools.keys() - set(names)):
            raise ConfigError(
                f"autoscaler.pools names '{strange[0][:60]}', and there is no such pool.",
                place=f"autoscaler.pools.{strange[0]}",
            )
        if self.security.api_keys is not None or self.security.api_key_file is not None:
            raise ConfigError(
                "Keys of a gateway's clients stand under accounts.keys.", place="security"
            )
        classes = {kind.name for kind in self.flow.classes}
        self.accounts.check_priorities(classes)
        check_objective_classes(self.slos, classes)
        for place, sentence in self.strange_grants():
            if self.accounts.tenants and not self.accounts.has_created_keys:
                raise ConfigError(sentence, place=place)

    def strange_grants(self) -> Iterator[tuple[str, str]]:
        """Grants of tools to tenants that nobody here is: the place, and a sentence."""
        known = self.accounts.tenant_names
        for index, grant in enumerate(self.tools.grants):
            for number, tenant in enumerate(grant.tenants):
                # Without any tenant here, all of them are made while the gateway runs.
                if known and tenant not in (*known, ANONYMOUS_TENANT):
                    place = f"tools.grants[{index}].tenants[{number}]"
                    yield place, no_such("tenant", tenant, known)
