"""Order in a stream of numbered messages: what is next, what was lost, who started anew."""

from enum import StrEnum


class Order(StrEnum):
    """What a message's number says."""

    NEXT = "next"
    GAP = "gap"
    """Messages before it were lost."""
    RESTART = "restart"
    """The numbers began anew: the publisher did."""


class Sequence:
    """Numbers of one publisher."""

    def __init__(self) -> None:
        self.last = -1
        """Number of the last message; -1: there was none."""

    def take(self, number: int) -> Order:
        """A message arrived."""
        order = Order.GAP
        if number <= self.last:
            order = Order.RESTART
        elif number == self.last + 1:
            order = Order.NEXT
        self.last = number
        return order
