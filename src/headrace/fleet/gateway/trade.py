"""What orders share: the parts of a gateway that every request passes."""

from typing import NamedTuple

from headrace.config.fleet.root import FleetConfig
from headrace.core.clock import Clock
from headrace.fleet.gateway.accounts.accounts import Accounts
from headrace.fleet.gateway.accounts.ledger import Ledger
from headrace.fleet.gateway.dispatch import Dispatcher
from headrace.fleet.gateway.flow.admission import Admission
from headrace.fleet.gateway.models.canary import Canaries
from headrace.fleet.gateway.request_meter import RequestMeter
from headrace.fleet.gateway.responses.homes import Homes
from headrace.fleet.gateway.shadow import Shadows
from headrace.fleet.registry import Registry


class Trade(NamedTuple):
    """One gateway's; another one after each reload."""

    config: FleetConfig
    registry: Registry
    dispatcher: Dispatcher
    admission: Admission
    accounts: Accounts
    ledger: Ledger
    canaries: Canaries
    homes: Homes
    requests: RequestMeter
    shadows: Shadows
    clock: Clock
