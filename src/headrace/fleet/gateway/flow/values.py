"""What flow control decides over: a request that wants in, and how much of anything waits."""

from msgspec import Struct, structs

from headrace.config.fleet.flow import QueueBounds


class Ticket(Struct, frozen=True, kw_only=True):
    """A request as far as its place in the queue goes. All of it comes from the key and the gateway."""

    lane: str
    """Requests of one lane wait for the same replicas: the name of the model."""
    tenant: str
    priority: str
    """Name of a configured class."""
    prompt_tokens: int = 0
    """Estimated."""
    output_tokens: int = 0
    """Its bound, or what is expected of it if that is less."""
    num_bytes: int = 0
    """Of its body, which is held while it waits."""
    max_wait: float | None = None
    """Seconds that this request waits at most, whatever its class says."""
    cold_wait: float | None = None
    """Seconds that it waits at most for a model without a ready replica; None: as long as others."""
    can_move: bool = False
    """Another model takes it where this one is busy: it waits no longer than its class promises a first token in."""
    ttft: float | None = None
    """Seconds in which it is wanted to begin, where its client says so; None: as its class promises. Orders its tenant's own
    requests under `edf`, and nothing else."""
    weight: float = 1.0
    """Its tenant's share beside other tenants'."""

    def within(self, tokens: int) -> "Ticket":
        """The same, but of no more tokens than these: what clients claim bounds nobody but themselves."""
        if self.num_tokens <= tokens:
            return self
        prompt = min(self.prompt_tokens, tokens)
        return structs.replace(self, prompt_tokens=prompt, output_tokens=tokens - prompt)

    @property
    def num_tokens(self) -> int:
        """Prompt and answer together."""
        return self.prompt_tokens + self.output_tokens


class Waiter:
    """A ticket in a queue. Compared by identity."""

    __slots__ = ("arrived", "due", "is_queued", "number", "ticket")

    def __init__(self, ticket: Ticket, *, number: int, arrived: float, due: float) -> None:
        self.ticket = ticket
        self.number = number
        """Counts up in order of arrival."""
        self.arrived = arrived
        self.due = due
        """When its first token is promised; both on the monotonic clock."""
        self.is_queued = False


class Load:
    """Requests, tokens and bytes that wait somewhere."""

    __slots__ = ("num_bytes", "num_requests", "num_tokens")

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_tokens = 0
        self.num_bytes = 0

    def add(self, ticket: Ticket) -> None:
        """One more."""
        self.num_requests += 1
        self.num_tokens += ticket.num_tokens
        self.num_bytes += ticket.num_bytes

    def remove(self, ticket: Ticket) -> None:
        """One less."""
        self.num_requests -= 1
        self.num_tokens -= ticket.num_tokens
        self.num_bytes -= ticket.num_bytes

    def has_room(self, bounds: QueueBounds, ticket: Ticket) -> bool:
        """`ticket` fits too. A ticket that is too large by itself fits where nothing else waits."""
        if self.num_requests + 1 > bounds.requests:
            return False
        is_first = self.num_requests == 0
        return is_first or (
            self.num_tokens + ticket.num_tokens <= bounds.tokens
            and self.num_bytes + ticket.num_bytes <= bounds.bytes
        )

    def fullness(self, bounds: QueueBounds) -> float:
        """The largest share of any bound that is used."""
        return max(
            self.num_requests / max(1, bounds.requests),
            self.num_tokens / max(1, bounds.tokens),
            self.num_bytes / max(1, bounds.bytes),
        )

    @property
    def is_empty(self) -> bool:
        """All three counts are zero."""
        return not (self.num_requests or self.num_tokens or self.num_bytes)
