"""Bodies take their share of the budget before they are read, and give it back however they end."""

import pytest

from headrace.config.server import ServerConfig
from headrace.core.errors import ConfigError, OverloadedError
from headrace.web.bodies import BodyBudget, read_body


def scope(length=None):
    return {"headers": [] if length is None else [(b"content-length", str(length).encode())]}


def receiver(*parts, ends=True):
    messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if ends:
        messages[-1]["more_body"] = False
    messages.append({"type": "http.disconnect"})

    async def receive():
        return messages.pop(0)

    return receive


async def test_an_announced_body_is_covered_before_it_comes():
    refusals = []
    budget = BodyBudget(100, refusals.append)
    with budget.reserve(scope(80)) as reservation:
        assert budget.num_bytes == 80
        with pytest.raises(OverloadedError, match="80 bytes"):
            budget.reserve(scope(21))
        with budget.reserve(scope(20)):
            assert budget.num_bytes == 100
        assert await read_body(receiver(b"x" * 50, b"y" * 30), reservation) == b"x" * 50 + b"y" * 30
        assert budget.num_bytes == 80
    assert (budget.num_bytes, refusals) == (0, ["bodies"])


async def test_one_without_a_length_is_covered_as_it_comes():
    budget = BodyBudget(100)
    with budget.reserve(scope()) as reservation:
        assert await read_body(receiver(b"x" * 60, b"y" * 40), reservation) == b"x" * 60 + b"y" * 40
        assert budget.num_bytes == 100
    with pytest.raises(OverloadedError), budget.reserve(scope()) as reservation:
        await read_body(receiver(b"x" * 60, b"y" * 41), reservation)
    assert budget.num_bytes == 0


async def test_a_client_that_leaves_gives_its_share_back():
    budget = BodyBudget(100)
    with budget.reserve(scope(90)) as reservation:
        assert await read_body(receiver(b"x", ends=False), reservation) is None
    assert budget.num_bytes == 0


def test_a_budget_below_the_largest_body_is_refused():
    with pytest.raises(ConfigError, match=r"max_body_bytes .* max_buffered_bytes"):
        ServerConfig(max_body_bytes=5000, max_buffered_bytes=4000)
