"""A gateway is killed while an alert fires: the next one tells nobody again, and tells the end."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
from tests.support.fake_replica import FakeReplica, Fault, replicas
from tests.support.gateway_process import GatewayProcess
from tests.support.in_process_gateway import until
from tests.support.listening import Listener, send_json
from tests.support.patience import PATIENCE

OPERATOR = {"authorization": "Bearer operator"}


async def alerts(gateway: GatewayProcess) -> Any:
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        return (await http.get(f"{gateway.url}/admin/alerts", headers=OPERATOR)).json()


async def ask(gateway: GatewayProcess) -> None:
    body = {"model": "fake", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        await http.post(f"{gateway.url}/v1/chat/completions", json=body)


def write(file: Path, replica: FakeReplica, hook: int, slos: list[dict[str, Any]]) -> Path:
    file.write_text(
        json.dumps(
            {
                "gateway": {"port": 0, "admin_keys": "operator"},
                "health": {"probe_timeout": 60},
                "replicas": [{"url": replica.url}],
                "slos": slos,
                "alerts": {
                    "period": 0.05,
                    "min_bad": 1,
                    "file": str(file.with_name("slos.json")),
                    "webhooks": [{"url": f"http://127.0.0.1:{hook}/"}],
                },
            }
        )
    )
    return file


async def test_it_neither_comes_twice_nor_is_forgotten(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = dict(
                line.split(": ", 1) for line in head.decode().lower().splitlines() if ": " in line
            )
            heard.extend(
                json.loads(await reader.readexactly(int(lines["content-length"])))["alerts"]
            )
            await send_json(writer, 200, {})

    hook = Listener(connected)
    await hook.start()
    slos = [{"name": "up", "measure": "availability"}]
    try:
        async with replicas(1) as (fake,):
            file = write(tmp_path / "fleet.yaml", fake, hook.port, slos)
            fake.always = Fault(status=500)
            with GatewayProcess(file) as first:
                await asyncio.to_thread(first.wait_ready)
                async with asyncio.timeout(PATIENCE):
                    while not heard:
                        await ask(first)
                kept = tmp_path / "slos.json"
                # Written when it was told, and again when the webhook had taken it.
                await until(
                    lambda: kept.exists() and not json.loads(kept.read_bytes())["alerts"]["untold"],
                    "it is on the disk",
                )
                first.process.kill()
            with GatewayProcess(file) as second:
                await asyncio.to_thread(second.wait_ready)
                (firing,) = (await alerts(second))["firing"]
                assert firing["slo"] == "up"
                await asyncio.sleep(0.3)  # several looks
                assert [alert["status"] for alert in heard] == ["firing"]
                write(file, fake, hook.port, [])
                os.kill(second.process.pid, signal.SIGHUP)
                await until(lambda: len(heard) == 2, "the webhook hears of the end")
    finally:
        await hook.kill()
    begun, over = heard
    assert (begun["status"], over["status"]) == ("firing", "resolved")
    assert begun["fingerprint"] == over["fingerprint"]
    assert begun["startsAt"] == over["startsAt"]
