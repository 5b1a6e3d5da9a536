"""Money in whole billionths of a unit of whatever currency prices are written in: sums are exact."""

from collections.abc import Iterable
from math import ceil
from typing import Final

from headrace.config.fleet.replicas import Price

#: Parts of one unit.
NANO: Final = 1_000_000_000
#: Prices are per million tokens.
_PER_TOKEN: Final = NANO / 1_000_000


def nano(amount: float) -> int:
    """An amount as people write it."""
    return round(amount * NANO)


def amount(nanos: int) -> float:
    """For people."""
    return nanos / NANO


def cost(price: Price, *, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
    """What a request cost at a replica: uncached prompt, cached prompt, answer. Rounded up to a billionth."""
    cached = min(cached_tokens, prompt_tokens)
    of_cached = price.input if price.cached_input is None else price.cached_input
    total = (
        (prompt_tokens - cached) * price.input + cached * of_cached + output_tokens * price.output
    )
    # Without the small deduction 0.1 * 30 would be rounded up for its last bit.
    return ceil(total * _PER_TOKEN - 1e-6)


def saved_by_prefix(price: Price, cached_tokens: int) -> int:
    """What the cached part of a prompt would have cost more."""
    return cost(price, prompt_tokens=cached_tokens, cached_tokens=0, output_tokens=0) - cost(
        price, prompt_tokens=cached_tokens, cached_tokens=cached_tokens, output_tokens=0
    )


def lowest_cost(prices: Iterable[Price], *, prompt_tokens: int, output_tokens: int) -> int:
    """What a request would cost at the cheapest of these replicas; 0 without a replica."""
    return min(
        (
            cost(price, prompt_tokens=prompt_tokens, cached_tokens=0, output_tokens=output_tokens)
            for price in prices
        ),
        default=0,
    )


def highest_cost(prices: Iterable[Price], *, prompt_tokens: int, output_tokens: int) -> int:
    """What a request may cost at most at any of these replicas, nothing of it cached; 0 without a replica."""
    return max(
        (
            cost(price, prompt_tokens=prompt_tokens, cached_tokens=0, output_tokens=output_tokens)
            for price in prices
        ),
        default=0,
    )
