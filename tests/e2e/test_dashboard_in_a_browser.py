"""The dashboard in Chromium, over a gateway with fake replicas: what a reader sees and does."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from tests.support.browser import CHROMIUM, Browser, Page, chromium
from tests.support.fake_replica import Fault, replicas
from tests.support.in_process_gateway import quick, spec_of
from tests.support.patience import PATIENCE
from tests.support.served_gateway import served

from headrace.config.fleet.health import HealthConfig
from headrace.config.fleet.replicas import Price, ReplicaSpec
from headrace.config.fleet.root import FleetConfig
from headrace.config.fleet.slos import AlertsConfig, Measure, Objective
from headrace.config.secret import Secret
from headrace.core.stats import ReplicaRole
from headrace.fleet.dashboard.feeds import AlertView, DecisionView, PoolView
from headrace.fleet.gateway.run import Gateway

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)"),
    pytest.mark.timeout(240),
]
KEY = "an-operator"
LIVE = "document.querySelector('#link').dataset.state === 'live'"
UP = Objective(name="up", measure=Measure.AVAILABILITY, target=0.99)
EVIL = '<img src=x onerror="window.stolen=1"><script>window.stolen=1</script>'


def config_of(specs: Sequence[ReplicaSpec], **fields: Any) -> FleetConfig:
    made = quick(specs, health=HealthConfig(probe_period=0.5, probe_timeout=20.0), **fields)
    gateway = replace(made.gateway, admin_keys=Secret(KEY))
    return replace(made, gateway=gateway)


@asynccontextmanager
async def dashboard(
    config: FleetConfig, *, signs_in: bool = True
) -> AsyncIterator[tuple[Gateway, str, Page, Browser]]:
    """A gateway, its address, and its dashboard in a tab; nothing in the tab may have gone wrong."""
    async with served(config) as (gateway, url), chromium() as browser:
        page = await browser.page()
        await page.looks(1280, 860)
        await page.open(f"{url}/dashboard")
        if signs_in:
            await page.fill("#operator", KEY)
            await page.press("Enter")
            await page.until(LIVE, "it is live")
        yield gateway, url, page, browser
        assert page.complaints == []


async def ask(url: str, **fields: Any) -> httpx.Response:
    body = {
        "messages": [{"role": "user", "content": "a private question"}],
        "model": "fake",
        **fields,
    }
    headers = fields.pop("headers", None) or {}
    body.pop("headers", None)
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)


async def view(page: Page, name: str) -> None:
    await page.eval(f"location.hash = '{name}'")
    await page.until(f"document.querySelector('.nav [aria-current]').hash === '#{name}'")


async def test_an_operator_signs_in_looks_around_and_signs_out() -> None:
    async with replicas(2) as fakes:
        specs = [
            spec_of(fake, id=f"replica-{n}", price=Price(input=1.0, output=2.0))
            for n, fake in enumerate(fakes)
        ]
        async with dashboard(config_of(specs), signs_in=False) as (_, url, page, _b):
            await page.fill("#operator", "wrong")
            await page.press("Enter")
            await page.until(
                "document.querySelector('[role=alert]')?.innerText.includes('not good')"
            )
            page.complaints.clear()  # Chromium tells of the 401
            await page.fill("#operator", KEY)
            await page.press("Enter")
            await page.until(LIVE, "it is live")
            await page.until(
                "document.querySelector('[data-stat=replicas] dd').innerText === '2 / 2'"
            )

            fakes[0].faults.append(Fault(status=500))
            fakes[1].faults.append(Fault(status=500))
            for n in range(4):
                await ask(
                    url, stream=n % 2 == 0, max_tokens=8, headers={"x-request-id": f"asked-{n}"}
                )
            await page.until(
                "document.querySelectorAll('.chart path.c1[d^=M]').length >= 4", "lines are drawn"
            )

            await view(page, "fleet")
            await page.until("document.querySelectorAll('.tile').length === 2")
            fakes[1].is_draining = True
            await page.until(
                "document.querySelector('[data-replica=replica-1] .pill').innerText === 'draining'"
            )
            await page.click("[data-replica=replica-1] .tile")
            assert specs[1].url in await page.text("dialog[open]")
            await page.press("Escape")
            await page.until("!document.querySelector('dialog[open]')")

            await view(page, "requests")
            await page.until("document.querySelectorAll('.requests tbody tr').length === 4")
            await page.click(".requests tbody tr:last-child button")
            inside = await page.text("dialog[open]")
            assert "asked-0" in inside
            assert "round_robin" in inside
            assert "private question" not in await page.eval("document.documentElement.innerHTML")
            await page.press("Escape")

            await view(page, "cost")
            await page.until("document.querySelector('[data-stat=spent] dd').innerText > '0'")
            await view(page, "queue")
            await page.until("document.body.innerText.includes('anonymous')")

            await page.click("#forget")
            await page.until("document.querySelector('#operator')?.value === ''")
            assert await page.eval("sessionStorage.length") == 0
            assert KEY not in await page.eval("document.documentElement.innerHTML")


async def test_what_scales_and_what_is_wrong_is_told_with_reasons(tmp_path: Path) -> None:
    alerts = AlertsConfig(file=str(tmp_path / "slos.json"))
    async with (
        replicas(1) as fakes,
        dashboard(config_of([spec_of(fakes[0])], slos=(UP,), alerts=alerts)) as (
            gateway,
            url,
            page,
            _b,
        ),
    ):
        await ask(url, max_tokens=2)
        await view(page, "alerts")
        await page.until("document.body.innerText.includes('100.00%')", "the objective is kept")
        assert "99% answered" in await page.text("main")
        for name, words in (
            ("scaling", "No decision yet"),
            ("alerts", "No alert"),
            ("cost", "No price"),
        ):
            await view(page, name)
            await page.until(f"document.body.innerText.includes('{words}')")
        decision = DecisionView(
            pool="chat", at=1e9, current=2, desired=3, policy="tokens_per_second",
            reason="1,840 tokens a second come in.", limited_by="step",
        )  # fmt: skip
        pool = PoolView(
            name="chat",
            model="fake",
            driver="local",
            min_replicas=0,
            max_replicas=4,
            ready=2,
            desired=3,
        )
        alert = AlertView(
            name="fast", model="fake", severity="critical", is_firing=True, since=1e9,
            summary="9 % were too slow.", budget_left=0.3,
        )  # fmt: skip
        gateway.dashboard.feeds = gateway.dashboard.feeds._replace(
            pools=lambda: (pool,), decisions=lambda: (decision,), alerts=lambda: (alert,)
        )
        await page.until("document.querySelector('.nav .count:not([hidden])')?.innerText === '1'")
        await view(page, "alerts")
        await page.until("document.body.innerText.includes('9 % were too slow.')")
        await view(page, "scaling")
        text = await page.until(
            "document.body.innerText.includes('Held back by step') && document.body.innerText"
        )
        assert "2 → 3" in text
        assert "1,840 tokens a second come in." in text


async def test_a_chat_in_the_playground() -> None:
    async with replicas(1, gap=0.01) as fakes:
        config = config_of([spec_of(fakes[0], id="one")])
        async with dashboard(config, signs_in=False) as (
            _,
            _url,
            page,
            _b,
        ):
            await view(page, "playground")  # needs no operator
            await page.until("document.querySelector('.settings select').value === 'fake'")
            await page.fill(".compose textarea", "Hello")
            await page.press("Enter")
            await page.until(
                "document.querySelector('.said.assistant .facts')?.innerText.includes('one; ')"
            )
            facts = await page.text(".said.assistant .facts")
            assert "first token" in facts
            assert "512 tokens" in facts
            assert (await page.text(".said.assistant .text")).strip().startswith("w0é w75é w150é")
            assert [message["content"] for message in fakes[0].seen[-1].body["messages"]] == [
                "Hello"
            ]

            fakes[0].gap = 0.2
            await page.fill(".compose textarea", "Once more")
            await page.click(".compose button")
            await page.until("document.querySelectorAll('.said.assistant').length === 2")
            await page.until(
                "[...document.querySelectorAll('.said.assistant .text')].at(-1).innerText !== ''"
            )
            await page.press("Escape")
            await page.until("document.body.innerText.includes('Stopped.')")
            assert await page.text(".compose button") == "Send"

            fakes[0].faults.append(Fault(status=400))
            await page.fill(".compose textarea", "And a bad one")
            await page.press("Enter")
            await page.until(
                "document.querySelectorAll('.said.assistant .fault')[2]?.innerText.includes('fault 400')"
            )
            page.complaints.clear()  # Chromium tells of the 400


async def test_nothing_from_clients_becomes_markup() -> None:
    async with replicas(1, model=EVIL) as fakes:
        spec = spec_of(fakes[0], id="one", labels={"place": EVIL})
        async with dashboard(config_of([spec])) as (gateway, url, page, _):
            answer = await ask(url, model=EVIL, max_tokens=4, headers={"x-request-id": "<b>id</b>"})
            assert answer.status_code == 200
            assert answer.headers["x-request-id"] != "<b>id</b>"
            watch = gateway.dashboard._watch
            (finished,) = watch.requests._kept
            evil = replace(
                finished,
                row=replace(finished.row, request_id=EVIL, tenant=EVIL, key=EVIL),
                trip=replace(
                    finished.trip,
                    error=EVIL,
                    tries=(replace(finished.trip.tries[0], reason=EVIL, replica=EVIL),),
                ),
            )
            watch.finished(evil)
            for name in ("overview", "fleet", "queue", "cost", "requests", "playground"):
                await view(page, name)
                if name not in ("overview", "cost"):
                    await page.until(
                        f"document.querySelector('main').innerText.includes({json.dumps(EVIL[:30])})"
                        " || document.querySelector('option')?.value.includes('<img')"
                    )
            await view(page, "requests")
            await page.click(".requests tbody tr:first-child button")
            assert EVIL in await page.eval("document.querySelector('dialog[open]').textContent")
            assert await page.count("main img, main script") == 0
            assert await page.eval("window.stolen") is None
            with pytest.raises(AssertionError, match="TrustedHTML"):
                await page.eval("document.body.innerHTML = '<i>x</i>'")
            page.complaints.clear()  # of the line above


async def test_a_hundred_replicas_change_in_place() -> None:
    async with replicas(4) as fakes:
        specs = [
            spec_of(fakes[n % 4], id=f"replica-{n:03d}", role=ReplicaRole.BOTH) for n in range(100)
        ]
        async with dashboard(config_of(specs)) as (_, url, page, _b):
            await view(page, "fleet")
            await page.until("document.querySelectorAll('.tile').length === 100")
            await page.eval(
                """(() => {
                  window.first = [...document.querySelectorAll('.tile')];
                  window.seen = { long: [], made: 0, frames: [] };
                  new PerformanceObserver((list) => list.getEntries().forEach((e) => seen.long.push(e.duration)))
                    .observe({ type: 'longtask' });
                  new MutationObserver((list) => list.forEach((m) => m.addedNodes.forEach((n) => {
                    if (n.nodeType === 1) seen.made++;
                  }))).observe(document.querySelector('.tiles'), { childList: true, subtree: true });
                  let last = performance.now();
                  const frame = (now) => { seen.frames.push(now - last); last = now; requestAnimationFrame(frame); };
                  requestAnimationFrame(frame);
                })()"""
            )
            for fake in fakes:
                fake.kv_usage = 0.77
            await asyncio.gather(*(ask(url, max_tokens=20, stream=True) for _ in range(20)))
            await page.until(
                "[...document.querySelectorAll('.tile')].every((t) => t.innerText.includes('77%'))"
                " || [...document.querySelectorAll('.tile')].every((t) => t.textContent.includes('77%'))",
                "every tile shows the new number",
            )
            same = "[...document.querySelectorAll('.tile')].every((tile, n) => tile === window.first[n])"
            assert await page.eval(same), "tiles were made again"
            seen = await page.eval("window.seen")
            assert seen["made"] == 0, "elements were made for a change of numbers"
            print(f"long tasks {seen['long']}, slowest frame {max(seen['frames']):.0f} ms")
            await page.fill("input[type=search]", "replica-01")
            await page.until("document.querySelectorAll('.tile').length === 10")


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1280, False)])
async def test_every_view_fits_its_window_and_is_read_by_keyboard(width: int, dark: bool) -> None:
    async with replicas(2) as fakes:
        config = config_of([spec_of(fake) for fake in fakes])
        async with dashboard(config) as (_, url, page, _b):
            await page.looks(width, 844, dark=dark)
            await ask(url, max_tokens=3, stream=True)
            for name in (
                "overview",
                "fleet",
                "queue",
                "scaling",
                "alerts",
                "cost",
                "requests",
                "playground",
            ):
                await view(page, name)
                await page.until("document.querySelector('main h1') !== null")
                wide = await page.eval("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{name} is {wide} pixels too wide"
                unnamed = await page.eval(_UNNAMED)
                assert unnamed == [], f"{name} has controls without a name"
            await view(page, "overview")
            await page.until(
                "document.querySelector('.chart svg').ariaLabel?.includes('p95') || true"
            )
            await page.eval("document.querySelector('.chart svg').focus()")
            await page.press("ArrowLeft")
            await page.until(
                "/\\d\\d:\\d\\d:\\d\\d/.test(document.querySelector('.chart .at').innerText)"
            )


#: Controls that a screen reader could not name.
_UNNAMED = """[...document.querySelectorAll('main :is(button, input, select, textarea, svg[tabindex]), nav a')]
  .filter((e) => !(e.innerText?.trim() || e.getAttribute('aria-label') || e.labels?.length)).map((e) => e.outerHTML)"""


async def test_a_gateway_that_goes_and_comes_back_is_found_again() -> None:
    async with replicas(1) as fakes:
        config = config_of([spec_of(fakes[0], id="one")])
        async with dashboard(config) as (gateway, url, page, _):
            await ask(url, max_tokens=2)
            await view(page, "requests")
            await page.until("document.querySelectorAll('.requests tbody tr').length === 1")
            # Another life, as after a new start: what was shown belongs to the one before.
            gateway.dashboard._life = "another"
            gateway.dashboard.watch(gateway.parts)
            await page.until("document.body.innerText.includes('No request yet')")
            gateway._http.should_exit = True
            await page.until("document.querySelector('#link').dataset.state === 'lost'")
            assert "Trying again" in await page.text("#link")
            page.complaints.clear()  # Chromium tells of the refused connection
