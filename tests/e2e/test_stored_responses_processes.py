"""Responses kept by real replica processes outlive a gateway that is killed: the next one finds who keeps them."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.gateway_process import GatewayProcess
from tests.support.patience import PATIENCE
from tests.support.processes import ServeProcess, until
from tests.support.tiny_models import make_tiny_llama

TOKEN = "between machines"
ALICE, BOB = {"authorization": "Bearer sk-alice"}, {"authorization": "Bearer sk-bob"}
FLEET = """
gateway: {port: 0, retries: {patience: 20s}}
routing: {policy: round_robin}
health: {probe_timeout: 60s}
accounts:
  keys: [{name: alice, key: sk-alice}, {name: bob, key: sk-bob}]
replicas:
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServeProcess]]:
    model = make_tiny_llama(tmp_path_factory.mktemp("tiny"))
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                ServeProcess(
                    str(model), "--port", "0", "--threads", "1", "--trusted-peer-token", TOKEN,
                    "--served-model-name", "tiny",
                )
            )
            for _ in range(2)
        ]  # fmt: skip
        yield [replica.wait_ready() for replica in started]


@pytest.fixture
def fleet(pair: list[ServeProcess], tmp_path: Path) -> Path:
    lines = [
        f"  - {{id: replica-{number}, url: '{replica.url}', peer_token: '{TOKEN}', models: [tiny]}}"
        for number, replica in enumerate(pair)
    ]
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET + "\n".join(lines))
    return file


def ask(running: GatewayProcess, text: Any, headers: dict[str, str] = ALICE, **more: Any) -> Any:
    body = {
        "model": "tiny", "input": text, "max_output_tokens": 8, "temperature": 0, **more,
    }  # fmt: skip
    return httpx.post(f"{running.url}/v1/responses", json=body, headers=headers, timeout=PATIENCE)


def not_away(answer: httpx.Response) -> httpx.Response | None:
    """None while a replica that may keep it cannot be asked yet, which is said to pass."""
    return None if answer.status_code == 503 else answer


def home_of(answer: httpx.Response) -> str:
    return answer.headers["x-headrace-route"].partition(";")[0]


def text_of(answer: httpx.Response) -> str:
    return "".join(
        part["text"]
        for item in answer.json()["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def test_a_conversation_goes_on_at_its_replica_after_the_gateway_was_killed(pair, fleet):
    homes: dict[str, str] = {}
    with GatewayProcess(fleet) as running:
        running.wait_ready()
        first = ask(running, "First question")
        assert first.status_code == 200, first.text
        while len(set(homes.values())) < 2:
            answer = ask(running, "First question")
            homes[answer.json()["id"]] = home_of(answer)
            assert len(homes) < 8, homes
        running.process.send_signal(signal.SIGKILL)
    with GatewayProcess(fleet) as running:
        running.wait_ready()
        # At once: replicas may not have been looked at yet.
        for name, home in homes.items():
            went_on = until(
                lambda name=name: not_away(
                    ask(running, "And the second?", previous_response_id=name)
                ),
                "its replica can be asked",
            )
            assert went_on.status_code == 200, went_on.text
            assert home_of(went_on) == home
            assert went_on.json()["previous_response_id"] == name
            # As if the whole conversation had been sent.
            turns = [
                {"role": "user", "content": "First question"},
                {"role": "assistant", "content": text_of(first)},
                {"role": "user", "content": "And the second?"},
            ]
            whole = ask(running, turns)
            assert text_of(went_on) == text_of(whole)
            used, told = went_on.json()["usage"], whole.json()["usage"]
            assert used["input_tokens"] == told["input_tokens"]
            third = ask(running, "Third", previous_response_id=went_on.json()["id"], stream=True)
            assert home_of(third) == home
            assert "event: response.incomplete" in third.text
            url = f"{running.url}/v1/responses/{name}"
            assert httpx.get(url, headers=ALICE).json()["id"] == name
            assert httpx.get(url, headers=BOB).status_code == 404
            stolen = ask(running, "x", BOB, previous_response_id=name)
            assert stolen.status_code == 400, stolen.text
            assert stolen.json()["error"]["code"] == "previous_response_not_found"
