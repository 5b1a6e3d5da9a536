"""Load of several tenants on a gateway: each keeps so many streams open, and times its first tokens."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
from tests.support.queue_simulation import percentile


@dataclass
class TenantTimes:
    """Seconds to the first event with text, by tenant, and statuses of what was not answered."""

    ttft: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    refused: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def p95(self, *without: str) -> float:
        """Over all requests of all tenants but these."""
        return percentile(
            [
                value
                for name, values in self.ttft.items()
                if name not in without
                for value in values
            ],
            0.95,
        )


async def tenant_load(
    url: str,
    keys: Mapping[str, str],
    *,
    streams: Mapping[str, int],
    seconds: float,
    model: str,
    max_tokens: int = 16,
    prompt: str = "Say something short.",
) -> TenantTimes:
    """Run for `seconds`: each tenant of `keys` (name → key) keeps `streams[name]` requests going, one after another.

    For the issue's check: 16 tenants with `n` streams each that keep every place busy, then the same with `20 * n` for one
    of them; `after.p95(flooder) <= 1.3 * before.p95(flooder)`.
    """
    times, end = TenantTimes(), time.monotonic() + seconds
    total = sum(streams.values())
    limits = httpx.Limits(max_connections=total, max_keepalive_connections=total)
    async with httpx.AsyncClient(base_url=url, timeout=120.0, limits=limits) as client:

        async def one(tenant: str, number: int) -> None:
            while time.monotonic() < end:
                body = {
                    "model": model,
                    "messages": [{"role": "user", "content": f"{prompt} {tenant} {number}"}],
                    "max_tokens": max_tokens,
                    "stream": True,
                }
                await _ask(client, tenant, keys[tenant], body, times)

        await asyncio.gather(
            *(one(name, number) for name, count in streams.items() for number in range(count))
        )
    return times


async def _ask(
    client: httpx.AsyncClient, tenant: str, key: str, body: dict, times: TenantTimes
) -> None:
    started, first = time.monotonic(), None
    headers = {"authorization": f"Bearer {key}"}
    async with client.stream(
        "POST", "/v1/chat/completions", json=body, headers=headers
    ) as response:
        if response.status_code != 200:
            times.refused[tenant].append(response.status_code)
            # A well-behaved client waits; a second is enough for a test.
            await asyncio.sleep(min(1.0, float(response.headers.get("retry-after", "1"))))
            return
        async for line in response.aiter_lines():
            if first is None and _has_text(line):
                first = time.monotonic() - started
    if first is not None:
        times.ttft[tenant].append(first)


def _has_text(line: str) -> bool:
    if not line.startswith("data: {"):
        return False
    choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
    return bool(choices[0].get("delta", {}).get("content"))
