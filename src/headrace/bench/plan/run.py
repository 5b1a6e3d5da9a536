"""From a question to its plan."""

from msgspec.structs import replace

from headrace.bench.measure import parse_slo
from headrace.bench.plan.accelerators import machine_of
from headrace.bench.plan.answer import Plan, make_plan
from headrace.bench.plan.model_facts import read_model
from headrace.bench.plan.options import PlanOptions
from headrace.bench.simulate.profile import read_profile
from headrace.core.errors import ConfigError


def plan(model: str, options: PlanOptions) -> Plan:
    """Raises ConfigError for what is unknown or impossible."""
    slo = parse_slo(options.slo)
    if others := sorted(slo.keys() - {"ttft", "tpot"}):
        raise ConfigError(f"--slo of a plan takes ttft and tpot, not {others[0]}.")
    profile = None if options.profile is None else read_profile(options.profile)
    machine = machine_of(options)
    is_cpu = machine.name == "cpu"
    if options.kv_dtype == "auto":
        options = replace(options, kv_dtype="int16" if is_cpu else "f16")
    facts = read_model(model, options.weights, is_served_here=is_cpu)
    return make_plan(facts, machine, options, slo, profile)
