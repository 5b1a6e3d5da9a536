"""What Redis would not take in one round of settlements, told in a line or two: there may be a hundred thousand."""

import logging

log = logging.getLogger("headrace.fleet")


class Round:
    """Counts until it is told."""

    def __init__(self) -> None:
        self._num_rejected = 0
        self._num_given_up = 0
        self._reason = ""

    def reject(self, reason: str) -> None:
        """Redis answered a settlement with an error, or could not do all of it."""
        self._num_rejected += 1
        self._reason = self._reason or reason

    def give_up(self) -> None:
        """One is tried no more: its lease ends."""
        self._num_given_up += 1

    def tell(self) -> None:
        """Into the log, and begin anew."""
        if self._num_rejected:
            log.error(
                "Redis did not take %d settlements as they are: %s",
                self._num_rejected,
                self._reason,
            )
        if self._num_given_up:
            log.error("%d settlements are given up; their leases end.", self._num_given_up)
        self._num_rejected = self._num_given_up = 0
        self._reason = ""
