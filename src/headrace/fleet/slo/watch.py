"""Looks at the objectives again and again, and has alerts told: log, webhooks, metrics."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from headrace.config.fleet.slos import AlertsConfig, Objective, Severity
from headrace.core.clock import Clock
from headrace.fleet.slo.alerts import Alert, Alerts, AlertState
from headrace.fleet.slo.book import SloBook
from headrace.fleet.slo.keeper import Keeper
from headrace.fleet.slo.values import SloReport
from headrace.fleet.slo.webhooks import Sender
from headrace.observe.gateway_metrics import ALERTS_FIRING
from headrace.observe.metrics import Metrics

log = logging.getLogger("headrace.alerts")


class SloWatch:
    """The objectives of one gateway. On one event loop."""

    def __init__(
        self,
        objectives: Sequence[Objective],
        config: AlertsConfig,
        metrics: Metrics,
        clock: Clock,
        file: Path | None = None,
    ) -> None:
        """`file` keeps what was counted, and what fires, over a restart."""
        self.book = SloBook(objectives, config, clock.monotonic())
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._alerts = Alerts(config)
        self._senders = [Sender(webhook, metrics, clock) for webhook in config.webhooks]
        self._leaving: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._written: dict[str, tuple[Alert, ...]] = {}
        """What was on its way when the file was written last."""
        self._keeper = None if file is None else Keeper(file, self.book, self._alerts, clock)

    def start(self) -> None:
        """Look from now on; go on from what was counted before. What fired then fires on; what was on its way is sent."""
        if self._keeper is not None:
            untold = self._keeper.load()
            for alert in self.firing():
                self._metrics.set(ALERTS_FIRING, _labels(alert), 1.0)
            for sender in self._senders:
                sender.put(untold.get(sender.id, ()))
        self._task = asyncio.create_task(self._run(), name="objectives")

    async def close(self) -> None:
        """Look no more; what was to be told is told, if that is quick."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(sender.close() for sender in self._senders), *self._leaving)
        if self._task is not None:
            await self._save()  # at last, when it is known what was not taken

    def apply(self, objectives: Sequence[Objective], config: AlertsConfig) -> None:
        """Other objectives and rules, from now on."""
        self.book.configure(objectives, config, self._clock.monotonic())
        self._alerts.config = self._config = config
        before, self._senders = self._senders, []
        for webhook in config.webhooks:
            same = next((sender for sender in before if sender.webhook == webhook), None)
            if same is not None:
                before.remove(same)
            self._senders.append(same or Sender(webhook, self._metrics, self._clock))
        for sender in before:
            closing = asyncio.ensure_future(sender.close())
            self._leaving.add(closing)
            closing.add_done_callback(self._leaving.discard)

    def reports(self) -> list[SloReport]:
        """Every objective for every model that was asked for."""
        return self.book.reports(self._clock.monotonic())

    def firing(self) -> list[Alert]:
        """Critical ones first."""
        return self._alerts.firing()

    def past(self) -> list[Alert]:
        """Those that are over, the last one first."""
        return self._alerts.past()

    def look(self) -> list[Alert]:
        """Once; what was told."""
        told = self._alerts.update(self.reports(), self._clock.monotonic(), self._clock.wall())
        for alert in told:
            is_firing = alert.state is AlertState.FIRING
            level = logging.ERROR if alert.severity is Severity.CRITICAL else logging.WARNING
            fields = {"slo": alert.slo, "model": alert.model, "severity": str(alert.severity)}
            log.log(
                level if is_firing else logging.INFO,
                "Alert %s: %s", alert.state, alert.reason,
                extra={"fields": fields},
            )  # fmt: skip
            self._metrics.set(ALERTS_FIRING, _labels(alert), float(is_firing))
        for sender in self._senders:
            sender.put(told)
        return told

    def _untold(self) -> dict[str, tuple[Alert, ...]]:
        """What each webhook has not taken: it alone is told again after a restart, rather twice than never."""
        untold: dict[str, tuple[Alert, ...]] = {}
        for sender in self._senders:
            if sender.untold:  # two may have one address
                both = (*untold.get(sender.id, ()), *sender.untold)
                untold[sender.id] = tuple(dict.fromkeys(both))
        return untold

    async def _save(self) -> None:
        # Without objectives there is nothing to keep, unless something was kept before.
        if self._keeper is not None and (self.book.objectives or self._keeper.has_file):
            self._written = self._untold()
            await asyncio.to_thread(self._keeper.write, self._keeper.encode(self._written))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._config.period)
            try:
                told = self.look()
                is_due = self._keeper is not None and self._keeper.is_due
                # At once where alerts change: they must neither come twice nor be forgotten, however this process ends.
                if told or self._untold() != self._written or (is_due and self.book.objectives):
                    await self._save()
            except Exception:
                log.exception("The objectives could not be looked at")


def _labels(alert: Alert) -> tuple[str, str, str]:
    return alert.model, alert.slo, str(alert.severity)
