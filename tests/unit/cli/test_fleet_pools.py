"""Pools, sizes and decisions on the command line."""

from typing import Any

import pytest

from headrace.cli import fleet_pools
from headrace.cli.fleet import main
from headrace.core.errors import ConfigError

INSTANCE = {
    "id": "chat-1", "phase": "ready", "seconds": 12.4, "version": "", "revision": "abc", "url": None,
    "num_requests": 3, "reason": "",
}  # fmt: skip
POOL: dict[str, Any] = {
    "name": "chat", "model": "m", "min_replicas": 0, "max_replicas": 4, "is_crash_loop": True,
    "num_failures": 3, "instances": [INSTANCE, {**INSTANCE, "id": "chat-2", "phase": "starting"}],
    "decision": {"desired": 2, "policy": "queue", "reason": "9 requests wait", "limited_by": "step"},
    "rollout": {"old": "a", "new": "b", "is_back": True, "reason": "3 failed", "num_failed": 3},
}  # fmt: skip
ENTRY = {
    "number": 1, "at": 0.0, "kind": "decision", "pool": "chat", "text": "9 requests wait",
    "current": 1, "desired": 2, "policy": "queue", "limited_by": "step",
}  # fmt: skip


class Gateway:
    """Answers what a test wants, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.answers: dict[str, Any] = {
            "/pools": {"is_active": False, "is_advisory": True, "pools": [POOL]},
            "/pools/chat/scale": {"message": "done"},
            "/decisions?count=5&pool=chat": {"decisions": [ENTRY]},
        }

    def call(self, method: str, path: str, body: Any = None) -> Any:
        self.asked.append((method, path, body))
        return self.answers[path]


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Gateway:
    made = Gateway()
    monkeypatch.setattr(fleet_pools, "admin_client", lambda _: made)
    return made


def test_pools(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pools"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:6] == ["pool", "model", "ready", "pending", "warm", "wanted"]
    assert lines[1].split()[:7] == ["chat", "m", "1", "1", "0", "2", "0-4"]
    assert lines[1].endswith("9 requests wait (step)")
    assert lines[2:] == [
        "Another gateway's autoscaler acts for this fleet.",
        "Advisory mode: nothing is started or stopped.",
        "chat: 3 replicas in a row have failed.",
        "chat: the rollout a -> b was given up: 3 failed.",
    ]


def test_a_size_that_was_set_says_so_and_how_it_is_given_back(
    gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = [
        {**POOL, "override": 1, "is_crash_loop": False, "rollout": None},
        {**POOL, "override": None},
    ]
    gateway.answers["/pools"] = {"is_active": True, "is_advisory": False, "pools": pools}
    assert main(["pools"]) == 0
    assert capsys.readouterr().out.splitlines()[3] == (
        "chat: set to 1 replica by an operator, until `headrace fleet scale chat auto` or the end of the fleet."
    )


def test_instances(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pools", "chat"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "chat-1", "chat", "ready", "12", "s", "abc", "3",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="no pool 'none'; there are: chat"):
        main(["pools", "none"])
    with pytest.raises(ConfigError, match=r"no pool 'caht'; did you mean chat\?"):
        main(["pools", "caht"])


@pytest.mark.parametrize(("word", "replicas"), [("3", 3), ("0", 0), ("auto", None)])
def test_scale(
    gateway: Gateway, word: str, replicas: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scale", "chat", word]) == 0
    assert gateway.asked == [("POST", "/pools/chat/scale", {"replicas": replicas})]
    assert capsys.readouterr().out == "done\n"


@pytest.mark.parametrize("word", ["many", "-1", "1.5", "²", "99999999"])
def test_sizes_that_are_none(gateway: Gateway, word: str) -> None:
    with pytest.raises(ConfigError):
        main(["scale", "chat", word])
    assert gateway.asked == []


def test_decisions(gateway: Gateway, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["decisions", "--count", "5", "--pool", "chat"]) == 0
    line = capsys.readouterr().out.strip()
    assert line.endswith("chat  1 -> 2  queue: 9 requests wait, limited by step")


def test_other_entries() -> None:
    action = {"at": 0.0, "kind": "action", "pool": "p", "instance": "p-1", "text": "is started"}
    assert fleet_pools.decision_line(action).endswith("p  p-1 is started")
    fault = {"at": 0.0, "kind": "fault", "pool": "p", "text": "There is no room."}
    assert fleet_pools.decision_line(fault).endswith("p  ! There is no room.")
