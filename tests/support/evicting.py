"""What the fake executor's arithmetic gives for a sequence that evicts, computed the plain way."""

from headrace.engine.memory.block_table import GIVEN_BACK
from headrace.engine.memory.eviction import blocks_to_drop, num_kept
from headrace.engine.scheduler import eviction


def mass_on(kv: int, earlier_kv: int) -> int:
    """A stand-in for the attention that one position pays to another (or itself)."""
    return hash((kv, earlier_kv)) % 97


class EvictingHistory:
    """Keys and values of a growing sequence whose policy gives up blocks of the group without a window."""

    def __init__(self, request, windows, block_size):
        self.kvs: list[int] = []
        self._windows, self._size = windows, block_size
        self._policy = request.kv_policy
        self._num_prompt = request.num_prompt_tokens
        self._table: list[int] = []
        self._mass: list[int] = []

    def compute(self, token: int) -> None:
        position = len(self.kvs)
        if position % self._size == 0:
            self._table.append(0)
            self._mass.append(0)
        visible = tuple(self._visible(position, window) for window in self._windows)
        kv = hash((token, position, tuple(tuple(self.kvs[p] for p in seen) for seen in visible)))
        self.kvs.append(kv)
        if 0 in self._windows and position >= max(0, self._num_prompt - eviction.OBSERVED):
            for p in (*visible[self._windows.index(0)], position):
                self._mass[p // self._size] += mass_on(kv, self.kvs[p])
        self._weigh(position + 1)

    def _visible(self, position: int, window: int) -> list[int]:
        if window:
            return list(range(max(0, position - window + 1), position))
        return [p for p in range(position) if self._table[p // self._size] != GIVEN_BACK]

    def _weigh(self, end: int) -> None:
        is_point = end == self._num_prompt or (end > self._num_prompt and end % self._size == 0)
        if not is_point or 0 not in self._windows:
            return
        num_sinks = self._policy.num_sinks
        budget = num_kept(self._policy.window, num_sinks, self._size)
        dropped = blocks_to_drop(
            self._table, self._mass, end // self._size, -(-num_sinks // self._size), budget
        )
        for index in dropped:
            self._table[index] = GIVEN_BACK
