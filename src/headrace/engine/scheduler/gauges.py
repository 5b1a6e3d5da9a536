"""What an engine tells of itself: gauges now, and totals."""

from headrace.core.stats import EngineStats
from headrace.engine.memory.ledger import KVLedger
from headrace.engine.scheduler.roster import Roster
from headrace.engine.scheduler.totals import Totals


def measure(
    roster: Roster, totals: Totals, ledger: KVLedger, now: float, wake_at: float | None
) -> EngineStats:
    """All numbers. O(sequences)."""
    usage = ledger.usage()
    waiting = list(roster.queue)
    return EngineStats(
        started=totals.started,
        steps=totals.steps,
        num_running=len(roster.running),
        num_waiting=roster.num_waiting,
        waiting_tokens=sum(len(s.tokens) for s in waiting) + roster.num_held,
        # Prompt to compute and output to make: all positions up to the last token, which never runs.
        running_tokens=sum(s.group.max_total - s.num_computed - 1 for s in roster.running),
        oldest_wait=max((now - s.waiting_since for s in waiting), default=0.0),
        waits_until=wake_at or 0.0,
        blocks_total=usage.total,
        blocks_free=usage.free,
        blocks_cached=usage.cached,
        blocks_held=usage.held,
        block_size=ledger.block_size,
        prompt_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
        generated_tokens=totals.generated_tokens,
        preemptions=totals.preemptions,
        finished=dict(totals.finished),
        integrity_failures=totals.integrity_failures,
        step_seconds=totals.step_seconds,
    )
