"""What a replica has to do for us, counted by leases: taken before a request is sent, given back on every path."""

from types import TracebackType
from typing import Self


class Load:
    """Sums over the open leases of one replica."""

    __slots__ = ("decode_tokens", "num_requests", "prefill_tokens")

    def __init__(self) -> None:
        self.num_requests = 0
        self.prefill_tokens = 0
        """Uncached prompt tokens of requests whose first token has not come."""
        self.decode_tokens = 0
        """Output tokens that may still come."""

    @property
    def is_idle(self) -> bool:
        """Nothing is leased."""
        return not (self.num_requests or self.prefill_tokens or self.decode_tokens)


class Lease:
    """One request's share of a replica's load. A context manager; closing it twice does nothing."""

    __slots__ = ("_decode_tokens", "_is_open", "_load", "_prefill_tokens")

    def __init__(self, load: Load, *, prefill_tokens: int, decode_tokens: int) -> None:
        self._load = load
        self._prefill_tokens = prefill_tokens
        self._decode_tokens = decode_tokens
        self._is_open = True
        load.num_requests += 1
        load.prefill_tokens += prefill_tokens
        load.decode_tokens += decode_tokens

    def note_first_token(self) -> None:
        """The prompt has been computed."""
        self._load.prefill_tokens -= self._prefill_tokens
        self._prefill_tokens = 0

    def note_tokens(self, count: int) -> None:
        """So many output tokens have come; what was not reckoned with changes nothing."""
        done = min(count, self._decode_tokens)
        self._load.decode_tokens -= done
        self._decode_tokens -= done

    def close(self) -> None:
        """The replica is rid of it."""
        if self._is_open:
            self._is_open = False
            self.note_first_token()
            self.note_tokens(self._decode_tokens)
            self._load.num_requests -= 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
