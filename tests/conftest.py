"""Fixtures that every test may use, and the rule that CI skips nothing."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from tests.support.patience import PATIENCE, make_httpx_patient

from headrace.cli.local_server import LocalServer, local_server

# A commit's tests give the same answer whenever they are run: examples are drawn from a seed that each test's source gives.
# How long an example takes is a matter of what else the machine does.
# The explanation of a failure traces every line, which takes most of the time before Python 3.12.
settings.register_profile(
    "headrace",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[phase for phase in Phase if phase is not Phase.explain],
)
# `make search` looks on where nobody has looked yet.
settings.register_profile(
    "search",
    settings.get_profile("headrace"),
    derandomize=False,
    max_examples=1000,
    print_blob=True,
)
settings.load_profile("headrace")

make_httpx_patient()
# Tests start hundreds of processes: the first may keep what it compiled, or each compiles the whole package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

SHRINK_SECONDS = 420.0
"""More than the five minutes after which Hypothesis stops shrinking by itself."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Property tests may shrink what they found before they are stopped.

    The time limit of a test is an exception raised wherever the test is. Raised inside a strategy, while
    Hypothesis shrinks, it reads as "inconsistent data generation", and the failure that was found is lost.
    """
    seconds = max(SHRINK_SECONDS, config.getoption("timeout") or 0.0)
    for item in items:
        has_limit = item.get_closest_marker("timeout") or item.get_closest_marker("soak")
        if item.get_closest_marker("hypothesis") and not has_limit:
            item.add_marker(pytest.mark.timeout(seconds))


@pytest.fixture(scope="session")
def _server_process() -> Iterator[LocalServer]:
    with local_server(["smollm2-135m"], ready_timeout=PATIENCE) as running:
        yield running


@pytest.fixture
def server(_server_process: LocalServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """Base URL of a real `headrace serve` with SmolLM2-135M; its log is shown with a failed test."""
    first = len(_server_process.log)
    yield _server_process.url
    lines = list(_server_process.log)[first:]
    if lines:
        request.node.add_report_section("teardown", "headrace serve", "\n".join(lines))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """With CI_ALLOWS_NO_SKIPS a skipped test fails: CI has every program that tests need."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and "CI_ALLOWS_NO_SKIPS" in os.environ:
        report.outcome = "failed"
        report.longrepr = f"skipped, which is not allowed here: {report.longrepr[2]}"
    return report
