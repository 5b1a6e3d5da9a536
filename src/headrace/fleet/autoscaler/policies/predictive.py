"""The forecast as a floor: replicas for the most that is likely to come before one started now would be ready.

The reactive loop may exceed it, and nothing may fall below it: a forecast that is too low costs nothing, one that is too
high some replica-hours (Dynamo's planner and SageServe, arXiv 2502.14617, combine the two loops in this way).
"""

from headrace.fleet.autoscaler.forecast import Forecast
from headrace.fleet.autoscaler.need import Need, Scene
from headrace.fleet.autoscaler.policies import tokens_per_second


def need(scene: Scene) -> Need | None:
    """What there is now; `floor` is for what comes."""
    return tokens_per_second.need(scene)


def floor(scene: Scene, forecast: Forecast, cold_start: float) -> Need | None:
    """For the time until a replica started now would be ready, `cold_start` in seconds. None: nothing to go by."""
    settings = scene.config.forecast
    lead = max(settings.min_lead, cold_start)
    traffic = forecast.within(scene.wall, lead)
    if traffic is None:
        return None
    work = traffic.tokens_per_second(scene.config.tokens.prompt_weight) * settings.safety
    return tokens_per_second.by_rate(scene, work, f"are forecast within {lead:.0f} s")
