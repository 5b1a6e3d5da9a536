"""From a question to its plan."""

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
    return make_plan(read_model(model, options.weights), machine_of(options), options, slo, profile)
