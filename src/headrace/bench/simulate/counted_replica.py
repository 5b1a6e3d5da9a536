"""A replica in fleet mode: the scheduler's rules over numbers, with runs of equal steps taken at once.

As in `engine/scheduler/planner.py` a step has one token of each decoding sequence, and prompts get what that leaves of
the token budget, in order. Until a prompt is done, an answer ends or a request comes, all steps are alike but for
their contexts, so their time is a sum with a closed form, and a *stretch* of them is one event.
"""

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import count
from math import ceil

from headrace.bench.simulate.profile import Profile

#: Blocks of prompts are looked up in the cache of one replica, least recently used out.
_Blocks = dict[int, None]


class Job:
    """One request on its way. Times are simulated seconds."""

    __slots__ = (
        "at", "blocks", "cached", "context", "counted", "entered", "first", "left", "num_tries",
        "output_tokens", "prompt_tokens", "remaining",
    )  # fmt: skip

    def __init__(
        self, at: float, prompt_tokens: int, output_tokens: int, blocks: tuple[int, ...]
    ) -> None:
        self.at = at
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.blocks = blocks
        self.cached = 0
        self.remaining = prompt_tokens
        """Prompt tokens to be computed; after a preemption those of the answer so far too."""
        self.left = output_tokens
        """Tokens of the answer that are to come."""
        self.context = 0
        """Tokens that are computed."""
        self.counted = 0
        """What its replica's `prefill_tokens` has of it."""
        self.first = -1.0
        """When its first token came."""
        self.entered = 0.0
        """When it came to a replica."""
        self.num_tries = 0


class CountedReplica:
    """Queue, slots, token budget, KV memory and prefix cache of one server, as numbers."""

    def __init__(self, name: int, profile: Profile, block_tokens: int, now: float) -> None:
        self.id = str(name)
        self._profile = profile
        self._step = profile.step
        self._block_tokens = block_tokens
        self._waiting: deque[Job] = deque()
        self._prefills: deque[Job] = deque()
        self._decodes: list[tuple[int, int, Job]] = []
        self._order = count()
        self._number = 0
        """Steps done."""
        self._context = 0
        """Tokens that decoding sequences hold."""
        self._held = 0
        """Tokens of KV memory that sequences hold."""
        self._cache: _Blocks = {}
        self._sent: _Blocks = {}
        self._cache_blocks = max(1, profile.kv_tokens // block_tokens)
        self._max_seqs = profile.max_num_seqs
        self._budget = profile.max_num_batched_tokens
        self._began = now
        """When the current stretch began."""
        self._length = 0
        """Steps of the current stretch; 0: it has nothing to do."""
        self._end = now
        self.num_requests = 0
        self.prefill_tokens = 0
        """Uncached prompt tokens of requests without a first token, as the gateway counts them."""
        self.decode_tokens = 0
        """Tokens of answers that may still come."""
        self.busy_seconds = 0.0
        self.since = now
        """When it began to serve."""
        self.is_draining = False
        self.is_dead = False

    # ---- what the gateway sees -----------------------------------------------------------------

    @property
    def next_event(self) -> float | None:
        """When the current stretch ends; None: nothing runs."""
        return self._end if self._length else None

    @property
    def num_running(self) -> int:
        """Sequences in the batch."""
        return len(self._prefills) + len(self._decodes)

    @property
    def num_waiting(self) -> int:
        """Requests without a slot."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of KV memory that sequences hold."""
        return self._held / self._profile.kv_tokens

    def busy_until(self, now: float) -> float:
        """Seconds spent computing so far."""
        return self.busy_seconds + (now - self._began if self._length else 0.0)

    # ---- events --------------------------------------------------------------------------------

    def add(self, job: Job, now: float) -> bool:
        """A request comes; whether `next_event` has changed."""
        job.entered = now
        self.num_requests += 1
        if job.blocks:
            job.counted = max(0, job.remaining - self.sent(job.blocks, job.prompt_tokens))
            self._touch(self._sent, job.blocks)
        else:
            job.counted = job.remaining
        self.prefill_tokens += job.counted
        self.decode_tokens += job.left
        self._waiting.append(job)
        if not self._length:
            self._began = self._end = now
            self._begin()
            return True
        # While a prompt takes the whole budget, or no slot is free, it waits however the steps are cut.
        if self._prefills or self._length == 1 or self.num_running >= self._max_seqs:
            return False
        return self._shorten(now)

    def hit(self, blocks: tuple[int, ...], prompt_tokens: int) -> int:
        """Tokens of a prompt that are cached here."""
        return min(_run_of(self._cache, blocks) * self._block_tokens, max(0, prompt_tokens - 1))

    def sent(self, blocks: tuple[int, ...], prompt_tokens: int) -> int:
        """Tokens of a prompt that it was sent before, computed or not: what the gateway takes for cached."""
        return min(_run_of(self._sent, blocks) * self._block_tokens, prompt_tokens)

    def advance(self) -> list[Job]:
        """The current stretch has ended: who has been answered with it. Begins the next one."""
        number = self._length
        self.busy_seconds += self._end - self._began
        self._run(number)
        ended = self._finish()
        self._began = self._end
        self._begin()
        return ended

    def lose_all(self) -> list[Job]:
        """It has ended: what it had to do, each to be gone on with elsewhere."""
        lost = [*self._waiting, *self._prefills]
        for finish, _, job in self._decodes:
            job.left = finish - self._number
            lost.append(job)
        for job in lost:
            done = job.output_tokens - job.left
            job.remaining, job.context = job.prompt_tokens + done, 0
        self._waiting.clear()
        self._prefills.clear()
        self._decodes.clear()
        self._length = self.num_requests = 0
        self.is_dead = True
        return lost

    # ---- one stretch ---------------------------------------------------------------------------

    def _begin(self) -> None:
        """Decide what the next steps do, and how many of them are alike."""
        if self._waiting or self._room() < len(self._decodes):
            self._admit()
        num_decodes = len(self._decodes)
        if self._prefills:
            # All steps but the last give the whole budget to the first prompt.
            left = max(1, self._budget - num_decodes)
            length = max(1, (self._prefills[0].remaining - 1) // left)
        elif num_decodes:
            length = self._decodes[0][0] - self._number
        else:
            self._length = 0
            return
        if num_decodes:
            first = self._decodes[0][0] - self._number
            length = max(1, min(length, first, self._room() // num_decodes))
        self._length = length
        self._end = self._began + self._seconds(length)

    def _shorten(self, now: float) -> bool:
        """Let the stretch end with the step that runs now."""
        seconds = (self._end - self._began) / self._length
        length = min(self._length, max(1, ceil((now - self._began) / seconds)))
        if length >= self._length:
            return False
        self._length = length
        self._end = max(now, self._began + self._seconds(length))
        return True

    def _seconds(self, length: int) -> float:
        """Of the next steps, all alike."""
        step, decodes = self._step, len(self._decodes)
        attended = length * self._context + decodes * length * (length + 1) // 2
        prefill = 0
        if self._prefills:
            left = prefill = self._chunk() * length
            for job in self._prefills:
                part = min(left, job.remaining)
                attended += part * job.context + part * (part + 1) // 2
                left -= part
                if not left:
                    break
        return (
            length * step.fixed
            + step.prefill_token * prefill
            + step.decode_row * decodes * length
            + step.attended_token * attended
        )

    def _chunk(self) -> int:
        """Prompt tokens of a step."""
        left = max(1, self._budget - len(self._decodes))
        if self._prefills[0].remaining >= left:
            return left
        return min(left, sum(job.remaining for job in self._prefills))

    def _run(self, length: int) -> None:
        """Move everybody on by so many steps."""
        new = len(self._decodes) * length
        tokens = self._chunk() * length if self._prefills else 0
        self._number += length
        self._context += new
        self._held += new
        self.decode_tokens -= new
        while tokens and self._prefills:
            job = self._prefills[0]
            part = min(tokens, job.remaining)
            job.remaining -= part
            job.context += part
            tokens -= part
            if job.blocks:
                self._touch(self._cache, job.blocks[: job.context // self._block_tokens])
            if job.remaining:
                break
            self._prefills.popleft()
            self._prompt_done(job)

    def _prompt_done(self, job: Job) -> None:
        """Its first token (or the next one, after a break) comes with the step that has just ended."""
        job.left -= 1
        self.decode_tokens -= 1
        if job.first < 0:
            job.first = self._end
        self.prefill_tokens -= job.counted
        job.counted = 0
        self._context += job.context
        self._held += 1
        heappush(self._decodes, (self._number + job.left, next(self._order), job))

    def _finish(self) -> list[Job]:
        ended = []
        while self._decodes and self._decodes[0][0] <= self._number:
            _, _, job = heappop(self._decodes)
            tokens = job.prompt_tokens + job.output_tokens
            self._context -= tokens - 1
            self._held -= tokens
            self.num_requests -= 1
            ended.append(job)
        return ended

    # ---- memory --------------------------------------------------------------------------------

    def _room(self) -> int:
        return self._profile.kv_tokens - self._held

    def _admit(self) -> None:
        """Those in front, while a slot, memory and a token of the budget are free."""
        profile = self._profile
        while self._decodes and self._room() < len(self._decodes):
            self._preempt()
        left = profile.max_num_batched_tokens - len(self._decodes)
        left -= sum(job.remaining for job in self._prefills)
        while self._waiting and left > 0 and self.num_running < profile.max_num_seqs:
            job = self._waiting[0]
            margin = profile.block_size if self.num_running else 0
            if job.remaining + margin > self._room():
                return
            self._waiting.popleft()
            self._held += job.remaining
            if job.first < 0:
                job.cached = job.context = self.hit(job.blocks, job.prompt_tokens)
                job.remaining -= job.cached
            left -= job.remaining
            self._prefills.append(job)

    def _preempt(self) -> None:
        """Memory is short: the sequence that came last gives its own back, and is computed again."""
        last = max(
            range(len(self._decodes)),
            key=lambda i: (self._decodes[i][2].entered, self._decodes[i][1]),
        )
        finish, _, job = self._decodes.pop(last)
        heapify(self._decodes)
        job.left = finish - self._number
        done = job.output_tokens - job.left
        self._context -= job.prompt_tokens + done - 1
        self._held -= job.prompt_tokens + done
        job.remaining, job.context = job.prompt_tokens + done, 0
        self._waiting.appendleft(job)

    def _touch(self, known: _Blocks, blocks: tuple[int, ...]) -> None:
        forget = known.pop
        for block in blocks:
            forget(block, None)
            known[block] = None
        while len(known) > self._cache_blocks:
            del known[next(iter(known))]


def _run_of(known: _Blocks, blocks: tuple[int, ...]) -> int:
    """How many of the first blocks are known."""
    for place, block in enumerate(blocks):
        if block not in known:
            return place
    return len(blocks)
