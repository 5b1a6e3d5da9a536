"""A fleet that gets slow: objectives see it, an alert is raised while budget is left, and its webhook hears of it."""

import asyncio
import contextlib
import json
from pathlib import Path

from msgspec.structs import replace
from tests.support.fake_replica import Fault, replicas
from tests.support.in_process_gateway import gateway_over, quick, spec_of, until
from tests.support.listening import Listener, send_json
from tests.support.patience import PATIENCE

from headrace.config.fleet.slos import AlertsConfig, Measure, Objective, Webhook
from headrace.config.secret import Secret
from headrace.fleet.slo.webhooks import signature
from headrace.observe import gateway_metrics as table
from headrace.observe.prometheus import expose

QUICK = Objective(name="quick", measure=Measure.TTFT, threshold=0.2, target=0.95, window=3600.0)
FLOWING = Objective(name="flowing", measure=Measure.ITL, threshold=5.0, window=3600.0)
UP = Objective(name="up", measure=Measure.AVAILABILITY, window=3600.0)


class Hook:
    """Takes alerts; its first answers are these statuses."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.heard: list[tuple[dict[str, str], bytes]] = []
        self._listener = Listener(self._connected)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.port}/hook?token=t0ken"

    @property
    def states(self) -> list[str]:
        return [json.loads(body)["status"] for _, body in self.heard]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            headers = {
                k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)
            }
            body = await reader.readexactly(int(headers["content-length"]))
            status = self._statuses.pop(0) if self._statuses else 200
            if status == 200:
                self.heard.append((headers, body))
            await send_json(writer, status, {})


@contextlib.asynccontextmanager
async def hook(*statuses: int):
    made = Hook(*statuses)
    await made._listener.start()
    try:
        yield made
    finally:
        await made._listener.kill()


async def test_an_alert_is_raised_before_the_budget_is_spent_and_ends_when_it_is_quick_again(
    tmp_path: Path,
):
    async with hook(500) as told, replicas(1) as fakes:
        alerts = AlertsConfig(
            period=0.02, resolve_after=0.1, min_bad=3, file=str(tmp_path / "slos.json"),
            webhooks=(Webhook(url=told.url, secret=Secret("s3cret"), headers={"x-team": Secret("llm")}),),
        )  # fmt: skip
        config = quick([spec_of(fakes[0])], slos=(QUICK, FLOWING, UP), alerts=alerts)
        async with gateway_over(fakes, config) as gateway:
            watch = gateway.gateway.parts.slos
            for _ in range(3):
                await gateway.ask(max_tokens=3, stream=True)
            assert watch.firing() == []
            fakes[0].always = Fault(delay=0.3)
            async with asyncio.timeout(PATIENCE):
                while not watch.firing():
                    await asyncio.gather(
                        *(gateway.ask(max_tokens=2, stream=True) for _ in range(6))
                    )
            (alert,) = watch.firing()
            assert (alert.slo, alert.model, alert.severity) == ("quick", "fake", "critical")
            assert alert.budget_left > 0.5
            by_name = {report.slo: report for report in watch.reports()}
            assert by_name["quick"].bad > 0
            assert by_name["up"].attainment == 1.0
            assert by_name["flowing"].attainment == 1.0
            await until(lambda: len(told.heard) == 1, "the webhook was told, at the second try")
            assert 'headrace_alerts_firing{model="fake",slo="quick",severity="critical"} 1' in (
                expose(gateway.gateway.parts.metrics)
            )
            fakes[0].always = None
            watch._alerts.config = AlertsConfig(resolve_after=0.0)
            watch.book.configure((UP,), AlertsConfig(), 0.0)
            await until(lambda: len(told.heard) >= 2, "the webhook was told that it is over")
        assert told.states[0] == "firing"
        assert told.states[-1] == "resolved"
        headers, body = told.heard[0]
        assert headers["x-headrace-signature"] == signature(
            "s3cret", headers["x-headrace-timestamp"], body
        )
        assert headers["x-team"] == "llm"
        message = json.loads(body)
        assert message["alerts"][0]["labels"]["slo"] == "quick"
        assert message["alerts"][0]["endsAt"].startswith("0001")
        delivered = gateway.gateway.parts.metrics.value(table.ALERT_MESSAGES, ("delivered",))
        assert delivered == len(told.heard)


async def test_a_webhook_that_is_gone_holds_nobody_up(tmp_path: Path):
    async with replicas(1) as fakes:
        webhook = Webhook(url="http://127.0.0.1:1/", timeout=0.2, attempts=1)
        file = str(tmp_path / "slos.json")
        alerts = AlertsConfig(period=0.02, min_bad=1, webhooks=(webhook,), file=file)
        config = quick([spec_of(fakes[0])], slos=(UP,), alerts=alerts)
        async with gateway_over(fakes, config) as gateway:
            fakes[0].always = Fault(status=500)
            async with asyncio.timeout(PATIENCE):
                while not gateway.gateway.parts.slos.firing():
                    await gateway.ask(max_tokens=1)
            metrics = gateway.gateway.parts.metrics
            await until(lambda: metrics.value(table.ALERT_MESSAGES, ("failed",)) >= 1, "it gave up")
            fakes[0].always = None


async def test_the_admin_api_tells_of_objectives_and_alerts(tmp_path: Path):
    async with replicas(1) as fakes:
        alerts = AlertsConfig(file=str(tmp_path / "slos.json"))
        config = quick([spec_of(fakes[0])], slos=(UP,), alerts=alerts)
        config = replace(config, gateway=replace(config.gateway, admin_keys=Secret("boss")))
        async with gateway_over(fakes, config) as gateway:
            await gateway.ask(max_tokens=2)
            keys = {"authorization": "Bearer boss"}
            answer = await gateway.call("/admin/slos", method="GET", headers=keys).end()
            (report,) = answer.json["slos"]
            assert (report["slo"], report["model"], report["good"]) == ("up", "fake", 1)
            answer = await gateway.call("/admin/alerts", method="GET", headers=keys).end()
            assert answer.json == {"firing": [], "past": []}
            answer = await gateway.call("/admin/alerts", method="GET").end()
            assert answer.status == 401


async def test_a_gateway_that_is_started_again_goes_on_with_its_budgets(tmp_path: Path):
    async with replicas(1) as fakes:
        alerts = AlertsConfig(file=str(tmp_path / "slos.json"))
        config = quick([spec_of(fakes[0])], slos=(UP,), alerts=alerts)
        for counted in (1, 2):
            async with gateway_over(fakes, config) as gateway:
                await gateway.ask(max_tokens=1)
                (report,) = gateway.gateway.parts.slos.reports()
                assert report.good == counted
