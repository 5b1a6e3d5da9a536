"""Alerts on their way to webhooks: signed, tried again, and never in anybody's way.

The body is that of Alertmanager's webhook, version 4, with one alert: whatever takes those takes these.
https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from headrace.config.fleet.gateway import TimeoutConfig
from headrace.config.fleet.slos import Webhook
from headrace.core.clock import Clock
from headrace.fleet.slo.alerts import Alert
from headrace.fleet.upstream.failure import UpstreamError
from headrace.fleet.upstream.pool import Pool, address_of
from headrace.observe.gateway_metrics import ALERT_MESSAGES
from headrace.observe.metrics import Metrics

#: Messages that wait for one webhook; the oldest give way.
MAX_WAITING: Final = 256
#: Seconds before the second try; doubled for each that follows, up to the second value.
_DELAYS: Final = (1.0, 60.0)
#: Seconds that what waits gets at the end.
_LAST_SECONDS: Final = 2.0
_MAX_ANSWER: Final = 64 * 1024
_NEVER: Final = "0001-01-01T00:00:00Z"

log = logging.getLogger("headrace.alerts")

_Key = tuple[str, str, str]


class Sender:
    """One webhook's messages, in order. Of one alert only the last message is sent: what it overtakes is old."""

    def __init__(self, webhook: Webhook, metrics: Metrics, clock: Clock) -> None:
        self.webhook = webhook
        self._metrics = metrics
        self._clock = clock
        times = TimeoutConfig(
            connect=webhook.timeout, first_token=webhook.timeout, between_tokens=webhook.timeout
        )
        self._pool = Pool(address_of(webhook.url), times, max_idle=1, max_buffer=_MAX_ANSWER)
        self._waiting: dict[_Key, Alert] = {}
        self._under_way: Alert | None = None
        #: All tries failed: they are left to the next gateway, unless there is something newer to say.
        self._failed: dict[_Key, Alert] = {}
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """Names the webhook on the disk, where its address, which may hold a secret, has no place."""
        return hashlib.sha256(self.webhook.url.encode()).hexdigest()[:32]

    @property
    def untold(self) -> tuple[Alert, ...]:
        """What it has not taken yet, in order; the newest `MAX_WAITING`."""
        first = () if self._under_way is None else (self._under_way,)
        return (*self._failed.values(), *first, *self._waiting.values())[-MAX_WAITING:]

    def put(self, alerts: Sequence[Alert]) -> None:
        """Send these; returns at once."""
        for alert in alerts:
            key = (alert.slo, alert.model, alert.severity)
            self._failed.pop(key, None)
            if self._waiting.pop(key, None) is not None:
                self._count("dropped")
            self._waiting[key] = alert
        while len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self._count("dropped")
        if not self._waiting:
            return
        self._idle.clear()
        self._news.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="alerts webhook")

    async def close(self) -> None:
        """What waits is tried for a moment more."""
        if self._task is not None:
            try:
                await asyncio.wait_for(self._idle.wait(), _LAST_SECONDS)
            except TimeoutError:
                for _ in self._waiting:
                    self._count("dropped")
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._pool.close()

    async def _run(self) -> None:
        while True:
            while self._waiting:
                key = next(iter(self._waiting))
                self._under_way = self._waiting.pop(key)
                await self._deliver(self._under_way, key)
                self._under_way = None
            self._idle.set()
            self._news.clear()
            await self._news.wait()

    async def _deliver(self, alert: Alert, key: _Key) -> None:
        delay, why = _DELAYS[0], ""
        for attempt in range(1, self.webhook.attempts + 1):
            try:
                why = await self._try(alert)
            except Exception as error:
                # Whatever a server at the other end answers, the next alert is told all the same.
                log.exception("A webhook's answer could not be read")
                why = type(error).__name__
            if not why:
                self._count("delivered")
                return
            log.warning("The webhook %s was not reached (try %d): %s", self._host, attempt, why)
            if key in self._waiting:
                self._count("dropped")
                return  # there is something newer to say
            if attempt < self.webhook.attempts:
                await asyncio.sleep(delay)
                delay = min(2 * delay, _DELAYS[1])
        self._count("failed")
        self._failed[key] = alert
        if len(self._failed) > MAX_WAITING:
            del self._failed[next(iter(self._failed))]
        log.error("The webhook %s was not told of %s: %s", self._host, alert.slo, why)

    async def _try(self, alert: Alert) -> str:
        """Why it failed; empty: it did not."""
        parts = urlsplit(self.webhook.url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        body = msgspec.json.encode(message(alert))
        try:
            async with asyncio.timeout(self.webhook.timeout):
                response = await self._pool.request("POST", path, self._headers(body), body)
                try:
                    await response.read_all(_MAX_ANSWER)
                finally:
                    self._pool.release(response)
        except TimeoutError:
            return f"no answer in {self.webhook.timeout:g} s"
        except UpstreamError as error:
            return error.detail
        return "" if 200 <= response.status < 300 else f"status {response.status}"

    def _headers(self, body: bytes) -> dict[str, str]:
        headers = {"content-type": "application/json", "user-agent": "headrace"}
        headers |= {name.lower(): str(value) for name, value in self.webhook.headers.items()}
        if self.webhook.secret is not None:
            stamp = str(int(self._clock.wall()))
            headers["x-headrace-timestamp"] = stamp
            headers["x-headrace-signature"] = signature(str(self.webhook.secret), stamp, body)
        return headers

    @property
    def _host(self) -> str:
        return urlsplit(self.webhook.url).netloc.rpartition("@")[2]  # the path may be a secret

    def _count(self, outcome: str) -> None:
        self._metrics.add(ALERT_MESSAGES, (outcome,))


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """`sha256=` and the HMAC of the timestamp, a dot and the body, in hexadecimal."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def message(alert: Alert) -> dict[str, Any]:
    """Alertmanager's body."""
    labels = {
        "alertname": "HeadraceSloBurn",
        "slo": alert.slo,
        "model": alert.model,
        "severity": str(alert.severity),
    }
    annotations = {"summary": alert.reason, "budget_left": f"{alert.budget_left:.4f}"}
    fingerprint = hashlib.sha256(msgspec.json.encode(list(labels.values()))).hexdigest()[:16]
    return {
        "version": "4",
        "groupKey": f'{{}}:{{slo="{alert.slo}", model="{alert.model}"}}',
        "truncatedAlerts": 0,
        "status": str(alert.state),
        "receiver": "headrace",
        "groupLabels": {"slo": alert.slo, "model": alert.model},
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": "",
        "alerts": [
            {
                "status": str(alert.state),
                "labels": labels,
                "annotations": annotations,
                "startsAt": _stamp(alert.began),
                "endsAt": _NEVER if alert.ended is None else _stamp(alert.ended),
                "generatorURL": "",
                "fingerprint": fingerprint,
            }
        ],
    }


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
