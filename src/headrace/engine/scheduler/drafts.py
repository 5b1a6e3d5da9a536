"""The seam for speculation: who guesses the next tokens."""

from collections.abc import Sequence
from typing import Protocol

#: Most guesses in one row. Executors size their arenas by it.
MAX_DRAFTS = 8


class DraftSource(Protocol):
    """Proposes tokens that the model then verifies in one row. Guesses change speed, never output.

    With a draft source a sequence is planned only when all its tokens are known, so it does not take
    part in overlap (several plans in flight).
    """

    def propose(
        self, request_id: str, index: int, token_ids: Sequence[int], max_tokens: int
    ) -> Sequence[int]:
        """At most `max_tokens` guesses for what follows `token_ids` (read only); none is fine."""
        ...

    def ended(self, request_id: str, index: int) -> None:
        """The sequence is over; forget what was kept for it."""
        ...
