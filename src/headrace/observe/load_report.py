"""What `/load` answers, out of what each model does."""

from collections.abc import Sequence

from headrace.core.stats import LoadReport, ModelLoad, ReplicaRole, ReplicaState


def load_report(
    loads: Sequence[ModelLoad],
    *,
    state: ReplicaState,
    role: ReplicaRole,
    models: tuple[str, ...],
    uptime: float,
    version: str,
) -> LoadReport:
    """Sums over all models; shares are those of all their blocks, or tokens, together."""
    blocks, used = sum(m.kv_blocks_total for m in loads), sum(m.kv_blocks_used for m in loads)
    return LoadReport(
        state=state,
        role=role,
        models=models,
        num_running=sum(m.num_running for m in loads),
        num_waiting=sum(m.num_waiting for m in loads),
        max_num_seqs=sum(m.max_num_seqs for m in loads),
        outstanding_tokens=sum(m.outstanding_tokens for m in loads),
        queued_tokens=sum(m.queued_tokens for m in loads),
        oldest_wait_seconds=max((m.oldest_wait_seconds for m in loads), default=0.0),
        kv_blocks_total=blocks,
        kv_blocks_used=used,
        kv_usage=min(1.0, used / blocks) if blocks else 0.0,
        prefix_hit_rate=_hit_rate(loads),
        prefill_tokens_per_second=sum(m.prefill_tokens_per_second for m in loads),
        decode_tokens_per_second=sum(m.decode_tokens_per_second for m in loads),
        uptime_seconds=uptime,
        version=version,
        busy=max((m.busy for m in loads), default=0.0),
        model_loads=tuple(loads),
    )


def _hit_rate(loads: Sequence[ModelLoad]) -> float:
    """Of the models that have computed prompts lately, each by how much; of one, its own."""
    if len(loads) == 1:
        return loads[0].prefix_hit_rate
    total = sum(m.prefill_tokens_per_second for m in loads)
    if not total:
        return 0.0
    return sum(m.prefix_hit_rate * m.prefill_tokens_per_second for m in loads) / total
