"""One simulation from its options to its report."""

from headrace.bench.simulate.arrivals import arrivals, block_tokens
from headrace.bench.simulate.counted_fleet import CountedFleet
from headrace.bench.simulate.options import Mode, SimulateOptions
from headrace.bench.simulate.profile import Profile, read_profile
from headrace.bench.simulate.report import Report, make_report
from headrace.bench.simulate.scaling import Autoscaler, first_size, hourly_cost, plan_of
from headrace.bench.simulate.tally import Tally, read_slo


def simulate(options: SimulateOptions, profile: Profile | None = None) -> Report:
    """Run it; the same options give the same report. Raises ConfigError for options that make no sense."""
    profile = profile or read_profile(options.place.profile)
    tally = Tally(read_slo(options.slo), options.load.duration)
    plan = plan_of(options)
    autoscaler = None if plan is None else Autoscaler(plan)
    rows = arrivals(options.load, options.seed, profile.room)
    if options.mode is Mode.DETAILED:
        from headrace.bench.simulate.detailed import run_detailed

        run_detailed(options, profile, rows, tally, autoscaler)
    else:
        fleet = CountedFleet(options, profile, block_tokens(options.load), tally)
        fleet.autoscaler = autoscaler
        fleet.start_ready(first_size(options, plan))
        fleet.run(rows, options.load.duration)
    decisions = () if autoscaler is None else tuple(autoscaler.decisions)
    return make_report(options, profile, tally, decisions, hourly_cost(options, plan))
