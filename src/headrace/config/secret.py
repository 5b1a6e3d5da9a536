"""Text that must not be shown."""


class Secret(str):
    """A string whose `repr` is masked, so that a printed or logged config does not give it away.

    `str(secret)` and comparisons work on the real text.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"
