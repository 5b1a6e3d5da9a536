"""What a request takes from which limits: plain values, and the sentence for a client that is refused."""

from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Final

from msgspec import Struct

from headrace.config.fleet.accounts import BudgetPeriod, Limits
from headrace.core.errors import BudgetExceededError, HeadraceError, RateLimitError
from headrace.fleet.gateway.accounts.account import Account
from headrace.fleet.gateway.accounts.money import amount, nano


class MeterKind(IntEnum):
    """How a meter counts."""

    REQUESTS = 1
    """A bucket, filled with `limit` a minute; a request takes 1."""
    TOKENS = 2
    """The same; a request takes what is expected of it, and what it did not use is put back."""
    PLACES = 3
    """At most `limit` at once."""
    MONEY = 4
    """At most `limit` in all, spent and set aside; in billionths."""


#: Seconds in which a bucket is filled.
MINUTE: Final = 60.0


class Meter(Struct, frozen=True, array_like=True):
    """One limit, and what one request takes of it."""

    id: str
    """Where it is counted; the same for all requests that share it."""
    kind: MeterKind
    limit: int
    amount: int
    owner: str
    """Words for it: key 'alice', tenant 'acme'."""
    resets_at: float | None = None
    """When its period ends, in seconds since the epoch."""


class Estimate(Struct, frozen=True, kw_only=True):
    """What a request may come to at most, before it begins."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0
    """Billionths; `money.highest_cost`."""

    @property
    def num_tokens(self) -> int:
        """Prompt and answer together."""
        return self.prompt_tokens + self.output_tokens


class Actual(Struct, frozen=True, kw_only=True):
    """What a request came to."""

    requests: int = 1
    """0 gives its place in requests a minute back: it was never served."""
    tokens: int = 0
    cost: int = 0

    def of(self, kind: MeterKind) -> int:
        """What it finally takes of a meter of this kind."""
        if kind is MeterKind.REQUESTS:
            return self.requests
        if kind is MeterKind.TOKENS:
            return self.tokens
        return self.cost if kind is MeterKind.MONEY else 0


NOTHING: Final = Actual(requests=0)


class Hold(Struct, frozen=True, array_like=True):
    """All that is set aside for one request."""

    id: str
    meters: tuple[Meter, ...]
    created: float
    """Seconds since the epoch."""


class Refusal(Struct, frozen=True, array_like=True):
    """The meter that had too little, and in how many seconds it may have enough; None: not by waiting."""

    meter: Meter
    retry_after: float | None


def meters_for(account: Account, estimate: Estimate, now: float) -> tuple[Meter, ...]:
    """Every limit of key and tenant that a request meets; `now` in seconds since the epoch."""
    return (
        *_of(f"k/{account.key}", f"key '{account.key}'", account.key_limits, estimate, now),
        *_of(
            f"t/{account.tenant}",
            f"tenant '{account.tenant}'",
            account.tenant_limits,
            estimate,
            now,
        ),
    )


def error_for(refusal: Refusal) -> HeadraceError:
    """What the client is told."""
    meter, retry_after = refusal.meter, refusal.retry_after
    if meter.kind is MeterKind.MONEY:
        # What is more than all of a budget fits into no later period either.
        fits = meter.amount <= meter.limit
        return BudgetExceededError(
            _of_budget(meter, fits), retry_after=retry_after if fits else None
        )
    what = {
        MeterKind.REQUESTS: f"{meter.limit} requests a minute",
        MeterKind.TOKENS: f"{meter.limit} tokens a minute",
    }.get(meter.kind, f"{meter.limit} requests at once")
    return RateLimitError(
        f"The {meter.owner} is limited to {what}.", retry_after=retry_after or 1.0
    )


def _of_budget(meter: Meter, fits: bool) -> str:
    """Which one, what is asked of it, and when it begins anew, if that helps."""
    per = "in all" if meter.resets_at is None else f"a {meter.id.rsplit('/', 2)[1]}"
    budget = f"The budget of {amount(meter.limit):g} {per} of {meter.owner}"
    cost = f"which may cost {amount(meter.amount):g}"
    if not fits:
        return f"{budget} can never cover this request, {cost}; send a smaller max_tokens, or a shorter prompt."
    refused = f"{budget} has not enough left for this request, {cost}"
    if meter.resets_at is None:
        return f"{refused}; it does not begin anew."
    end = datetime.fromtimestamp(meter.resets_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{refused}; it begins anew at {end}."


def period_of(per: BudgetPeriod, now: float) -> tuple[str, float | None]:
    """The period that `now` lies in: its name, and when it ends."""
    day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if per is BudgetPeriod.DAY:
        return day.strftime("day/%Y-%m-%d"), (day + timedelta(days=1)).timestamp()
    if per is BudgetPeriod.MONTH:
        next_month = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
        return day.strftime("month/%Y-%m"), next_month.timestamp()
    return "total", None


def _of(prefix: str, owner: str, limits: Limits, estimate: Estimate, now: float) -> list[Meter]:
    found = []
    if limits.concurrency is not None:
        found.append(Meter(f"{prefix}/places", MeterKind.PLACES, limits.concurrency, 1, owner))
    if limits.requests_per_minute is not None:
        found.append(
            Meter(f"{prefix}/requests", MeterKind.REQUESTS, limits.requests_per_minute, 1, owner)
        )
    if limits.tokens_per_minute is not None:
        tokens = estimate.num_tokens
        found.append(
            Meter(f"{prefix}/tokens", MeterKind.TOKENS, limits.tokens_per_minute, tokens, owner)
        )
    # What costs nothing is not stopped by a budget that is spent.
    for budget in limits.budgets if estimate.cost else ():
        period, end = period_of(budget.per, now)
        limit = nano(budget.amount)
        found.append(Meter(f"{prefix}/{period}", MeterKind.MONEY, limit, estimate.cost, owner, end))
    return found
