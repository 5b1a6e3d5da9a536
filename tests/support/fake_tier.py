"""The tier below a fake executor's cache: loads take as long as a test says, and fail when it says so."""

from collections.abc import Callable

from headrace.core.step import BlockLanding, BlockTransfer


class FakeTier:
    """Contents of blocks, one integer per position, by group and hash.

    `delay` says how often the engine looks before a load is over; `fails` whether it is bad then.
    """

    def __init__(
        self,
        delay: Callable[[BlockTransfer], int] = lambda load: 0,
        fails: Callable[[BlockTransfer], bool] = lambda load: False,
    ) -> None:
        self.delay = delay
        self.fails = fails
        self.blocks: dict[tuple[int, bytes], list[int]] = {}
        self.num_loads = 0
        self._begun: dict[tuple[int, int], tuple[BlockTransfer, int]] = {}

    def holds(self, group: int, key: bytes) -> bool:
        return (group, key) in self.blocks

    def is_loading(self, group: int, block: int) -> bool:
        return (group, block) in self._begun

    def begin(self, load: BlockTransfer) -> None:
        """Once: a load that is not over is not begun again."""
        if self.is_loading(load.group, load.block):
            assert self._begun[load.group, load.block][0] == load
            return
        self.num_loads += 1
        self._begun[load.group, load.block] = (load, self.delay(load))

    def store(self, store: BlockTransfer, values: list[int]) -> None:
        assert self.blocks.setdefault((store.group, store.key), values) == values

    def take_landed(self, write: Callable[[BlockTransfer, list[int]], None]) -> list[BlockLanding]:
        """Loads that are over; `write` puts a good one's content into its block."""
        landed: list[BlockLanding] = []
        for place, (load, delay) in list(self._begun.items()):
            self._begun[place] = (load, delay - 1)
            if delay > 0:
                continue
            del self._begun[place]
            values = None if self.fails(load) else self.blocks.get((load.group, load.key))
            if values is None:
                self.blocks.pop((load.group, load.key), None)
            else:
                write(load, values)
            landed.append(BlockLanding(load.group, load.block, load.key, values is not None))
        return landed
