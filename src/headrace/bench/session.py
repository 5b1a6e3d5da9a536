"""A whole measurement: find the model, run each load, hand back the report."""

import asyncio
import http.client
import ssl
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from headrace.bench.client import Outcome, Target, parse_url, send
from headrace.bench.drive import Send, closed_loop, open_loop
from headrace.bench.measure import Summary, parse_slo, summarize
from headrace.bench.options import BenchOptions
from headrace.bench.report import Report, make_report
from headrace.bench.trace import TraceRow, read_trace
from headrace.bench.workload import Item, Run, make_items, plan_runs
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, reason_of

_QUESTION_TIMEOUT = 10.0
"""Seconds for each of the few questions asked before the load."""


def measure(
    options: BenchOptions, clock: Clock, *, on_run: Callable[[Summary], None] = lambda _: None
) -> Report:
    """Run the load that the options describe; `on_run` sees each run's figures as it ends.

    Raises ConfigError for wrong options and for a server that cannot be asked for its models.
    """
    target = parse_url(options.url, options.api_key)
    slo = parse_slo(options.slo)
    trace = read_trace(Path(options.trace), options.num_requests) if options.trace else []
    model = options.model or first_model(target, options.url)
    seed = options.seed if options.seed is not None else int(clock.wall())
    send_item = _sender(options, target, model, clock)
    summaries = []
    for run in plan_runs(options, trace):
        started = clock.monotonic()
        outcomes = _run(_load(run, options, trace, seed, send_item, clock))
        summaries.append(summarize(run.label, outcomes, clock.monotonic() - started, slo))
        on_run(summaries[-1])
    return make_report(
        options,
        summaries,
        model=model,
        seed=seed,
        server=_about(target),
        wall_time=clock.wall(),
    )


def _run(load: Coroutine[Any, Any, list[Outcome]]) -> list[Outcome]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load)


def _load(
    run: Run,
    options: BenchOptions,
    trace: Sequence[TraceRow],
    seed: int,
    send_item: Send,
    clock: Clock,
) -> Coroutine[Any, Any, list[Outcome]]:
    items = make_items(run, options, trace, seed)
    if run.concurrency is not None:
        return closed_loop(items, run.concurrency, send_item, clock)
    return open_loop(items, options.max_in_flight, send_item, clock)


def _sender(options: BenchOptions, target: Target, model: str, clock: Clock) -> Send:
    path = "/v1/chat/completions" if options.chat else "/v1/completions"
    fixed: dict[str, Any] = {
        "model": model,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if options.ignore_eos:
        fixed["ignore_eos"] = True

    async def send_item(item: Item, due: float) -> Outcome:
        prompt = (
            {"messages": [{"role": "user", "content": item.prompt}]}
            if options.chat
            else {"prompt": item.prompt}
        )
        body = msgspec.json.encode(fixed | prompt | {"max_tokens": item.max_tokens})
        request = target.request("POST", path, body)
        return await send(target, request, due=due, time_limit=options.timeout, clock=clock)

    return send_item


def first_model(target: Target, url: str) -> str:
    """The first model that a server lists. Raises ConfigError."""
    try:
        answer = ask(target, "/v1/models")
        if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
            hint = "" if target.api_key else " OPENAI_API_KEY and --api-key give one."
            raise ConfigError(f"{url} refused: {answer['error'].get('message')}{hint}")
        return str(answer["data"][0]["id"])
    except (OSError, http.client.HTTPException) as error:
        raise ConfigError(f"No server answers at {url}: {reason_of(error)}.") from None
    except (KeyError, IndexError, TypeError, msgspec.DecodeError):
        raise ConfigError(f"{url} lists no models; name one with --model.") from None


def _about(target: Target) -> dict[str, Any]:
    """What `/version` says, where a server has it."""
    try:
        answer = ask(target, "/version")
    except (OSError, http.client.HTTPException, msgspec.DecodeError):
        return {}
    return answer if isinstance(answer, dict) else {}


def ask(target: Target, path: str) -> Any:
    """The decoded body of a GET. Raises OSError, HTTPException or DecodeError."""
    connection = (
        http.client.HTTPSConnection(
            target.host,
            target.port,
            timeout=_QUESTION_TIMEOUT,
            context=ssl.create_default_context(),
        )
        if target.is_tls
        else http.client.HTTPConnection(target.host, target.port, timeout=_QUESTION_TIMEOUT)
    )
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    try:
        connection.request("GET", target.prefix + path, headers=headers)
        return msgspec.json.decode(connection.getresponse().read())
    finally:
        connection.close()
