"""What a request may come to, before it is made, and what it came to."""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from headrace.config.fleet.replicas import Price
from headrace.config.fleet.root import FleetConfig
from headrace.fleet.gateway.accounts.meters import Estimate
from headrace.fleet.gateway.accounts.money import cost, highest_cost, saved_by_prefix
from headrace.fleet.gateway.call import Call
from headrace.fleet.gateway.endpoints import Kind
from headrace.fleet.gateway.models.values import Route
from headrace.fleet.gateway.progress import Progress
from headrace.fleet.registry import Registry
from headrace.fleet.replica import Replica


class Bill(NamedTuple):
    """What a request came to."""

    replica: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0
    """Billionths."""
    saved: int = 0
    """Billionths that it would have cost more without a prefix cache."""


def prices_of(route: Route, registry: Registry, config: FleetConfig) -> list[Price]:
    """Of the replicas that serve a model of the route. Where none is known to, of all that may turn out to: those that have
    not told what they serve, and those of pools, which may be started.
    """
    models = {target.model for target in route.targets}
    known = [replica.spec.price for replica in registry if models.intersection(replica.models)]
    silent = (replica.spec.price for replica in registry if not replica.models)
    return known or [*silent, *(pool.price for pool in config.pools)]


def estimate(call: Call, prices: Sequence[Price]) -> Estimate:
    """What it may come to at most, at the dearest replica that may get it."""
    if call.endpoint.kind is Kind.TEXT:
        return Estimate()
    prompt, output = call.prompt_tokens, call.output_tokens
    nanos = highest_cost(prices, prompt_tokens=prompt, output_tokens=output)
    # Whoever will serve it is not there yet: a billionth asks whether anything is left of the budgets, and has them charged.
    return Estimate(prompt_tokens=prompt, output_tokens=output, cost=nanos if prices else 1)


def bill_of(call: Call, replica: Replica, progress: Progress, chars_per_token: float) -> Bill:
    """What it has come to so far, as its replica says; what that does not say is reckoned from what was sent."""
    if call.endpoint.kind is Kind.TEXT:  # costs a replica next to nothing
        return Bill(replica.id)
    usage = progress.usage
    if usage is not None and (usage.prompt_tokens or usage.output_tokens):
        prompt, cached, output = usage.prompt_tokens, usage.cached_tokens, usage.output_tokens
    else:
        prompt, cached = call.prompt_tokens, 0
        output = _output_of(call, progress, chars_per_token)
    price = replica.spec.price
    nanos = cost(price, prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)
    return Bill(replica.id, prompt, cached, output, nanos, saved_by_prefix(price, cached))


def bill_of_prompt(call: Call, prices: Sequence[Price]) -> Bill:
    """Of a client that left before its answer began: for it a replica has computed at least the prompt."""
    if call.endpoint.kind is Kind.TEXT:
        return Bill()
    prompt = call.prompt_tokens
    nanos = highest_cost(prices, prompt_tokens=prompt, output_tokens=0)
    return Bill(prompt_tokens=prompt, cost=nanos)


def _output_of(call: Call, progress: Progress, chars_per_token: float) -> int:
    if call.is_background:  # made later, and told to nobody: its bound is what is known
        return call.output_tokens
    if progress.num_tokens or not call.endpoint.makes_text:
        return progress.num_tokens
    return min(call.output_tokens, ceil(progress.num_bytes / chars_per_token))
