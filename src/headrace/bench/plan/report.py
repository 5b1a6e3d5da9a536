"""A plan for people and for machines."""

import msgspec

from headrace.bench.plan.answer import Plan
from headrace.config.units import format_size


def to_json(plan: Plan) -> str:
    """Indented JSON; bytes and seconds."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode() + "\n"


def table(plan: Plan, *, users: int, context: int, slo: str) -> str:
    """One line a figure."""
    rows = [
        ("model", f"{plan.model}, {plan.num_parameters / 1e9:.3f} billion parameters"),
        ("replica", f"{plan.machine} ({plan.source})"),
        ("weights", f"{format_size(plan.weight_bytes)}, {plan.weights}"),
        *_activations(plan),
        (
            "KV",
            f"{format_size(plan.kv_bytes_per_token)} a token, {format_size(plan.kv_bytes_per_sequence)} a request of {context} tokens",
        ),
        (
            "memory for KV",
            f"{format_size(plan.kv_bytes)}: {_number(plan.max_sequences, 'request')} at once",
        ),
        ("first token", f"{1000 * plan.ttft:.1f} ms for a prompt that runs alone"),
    ]
    if plan.batch:
        rows += [
            ("batch", f"{_number(plan.batch, 'request')}, limited by {plan.limited_by}"),
            ("token", f"{1000 * plan.tpot:.2f} ms at that batch"),
            ("output", f"{plan.tokens_per_second:.0f} tokens/s a replica"),
            (
                "replicas",
                f"{plan.replicas} for {_number(users, 'request')} at once ({_number(plan.accelerators, 'accelerator')})",
            ),
        ]
    else:
        rows.append(("replicas", f"none: {_why(plan, slo)}"))
    if plan.hourly_cost is not None:
        cost = f"{plan.hourly_cost:.2f} an hour"
        if plan.cost_per_million_tokens is not None:
            cost += f", {plan.cost_per_million_tokens:.2f} a million output tokens at full use"
        rows.append(("cost", cost))
    if len(plan.splits) > 1:
        words = [
            f"{s.tensor_parallel}" if s.is_allowed else f"not {s.tensor_parallel} ({s.reason})"
            for s in plan.splits
        ]
        rows.append(("tensor parallel", ", ".join(words)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name.ljust(width)}  {text}" for name, text in rows)


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _activations(plan: Plan) -> list[tuple[str, str]]:
    if plan.step_bytes is None:
        return []
    return [("activations", f"{format_size(plan.step_bytes)} at most, out of the rest")]


def _why(plan: Plan, slo: str) -> str:
    return {
        "memory": "weights and one request do not fit",
        "ttft": f"a prompt alone takes longer than the TTFT objective (--slo {slo})",
        "tpot": f"one request alone takes longer than the TPOT objective (--slo {slo})",
    }[plan.limited_by]
