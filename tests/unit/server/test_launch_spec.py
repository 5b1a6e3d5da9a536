"""What the server's settings mean for its engine."""

import pytest

from headrace.config.engine import EngineConfig, SchedulerConfig
from headrace.config.root import ServeConfig
from headrace.config.server import ServerConfig
from headrace.server.run import launch_spec


@pytest.mark.parametrize(
    ("wanted", "watchdog", "expected"),
    [(5.0, 60.0, 5.0), (5.0, 8.0, 2.0), (0.0, 60.0, 15.0), (30.0, 60.0, 15.0)],
)
def test_a_healthy_step_is_far_from_the_watchdogs_bound(wanted, watchdog, expected):
    config = ServeConfig(
        server=ServerConfig(watchdog_timeout=watchdog),
        engine=EngineConfig(scheduler=SchedulerConfig(max_step_time=wanted, max_num_seqs=7)),
    )
    scheduler = launch_spec(config, "build", {}).engine.scheduler
    assert (scheduler.max_step_time, scheduler.max_num_seqs) == (expected, 7)
