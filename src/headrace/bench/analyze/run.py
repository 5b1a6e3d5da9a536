"""`headrace analyze`: watched, probed, judged, told."""

from collections.abc import Callable

from headrace.bench.analyze.ask import Server
from headrace.bench.analyze.machine import measure_machine
from headrace.bench.analyze.metrics import kind_of, model_of, read_page, traffic_of
from headrace.bench.analyze.options import AnalyzeOptions
from headrace.bench.analyze.values import Analysis, Hardware, Observations, Probe
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, HeadraceError


def observe(
    url: str, options: AnalyzeOptions, clock: Clock, tell: Callable[[str], None]
) -> Observations:
    """Look and ask; `tell` hears what is being done. Raises ConfigError for a server that cannot be asked."""
    server = Server(url, options, clock)
    try:
        before = server.metrics()
        start = clock.monotonic()
        if before:
            tell(f"Watching its traffic for {options.seconds:g} s …")
            clock.sleep(options.seconds)
            after = server.metrics()
        else:
            after = before
        seconds = clock.monotonic() - start
        probe = Probe()
        if options.probe:
            tell("Asking a few requests …")
            probe = server.probe()
        return Observations(
            kind=kind_of(after),
            traffic=traffic_of(read_page(before), read_page(after), seconds),
            probe=probe,
            model=model_of(after),
            hardware=_hardware(options, clock, tell, is_here=server.is_here),
        )
    finally:
        server.close()


def _hardware(
    options: AnalyzeOptions, clock: Clock, tell: Callable[[str], None], *, is_here: bool
) -> Hardware:
    """What was said counts; of this machine the rest is measured."""
    memory = options.memory_bandwidth and options.memory_bandwidth * 1e9
    compute = options.compute and options.compute * 1e9
    if not is_here or (memory and compute):
        return Hardware(memory=memory, compute=compute, source="as given")
    tell("Measuring this machine …")
    try:
        found = measure_machine(clock)
    except (HeadraceError, ImportError) as error:
        if isinstance(error, ConfigError):
            raise
        return Hardware(memory=memory, compute=compute, source="as given")
    return Hardware(
        memory=memory or found.memory, compute=compute or found.compute, source=found.source
    )


def text_of(analysis: Analysis) -> str:
    """For a terminal."""
    total = sum(analysis.seconds.values())
    lines = [f"By {analysis.basis}.", ""]
    for part, seconds in analysis.seconds.items():
        share = seconds / total if total else 0.0
        lines.append(
            f"  {part:<13}{seconds * 1e3:>11.2f} ms  {share:>5.0%}  {'█' * round(share * 40)}"
        )
    lines += ["", *analysis.sentences]
    lines += [
        "",
        "What would help most:"
        if analysis.findings
        else "No change that is known here would save 2% or more.",
    ]
    for number, finding in enumerate(analysis.findings, 1):
        lines += [
            f"  {number}. {finding.change}: about {finding.gain:.0%} less time a request.",
            f"     {finding.because}",
        ]
    if analysis.unknown:
        lines += ["", "Not known:", *(f"  - {sentence}" for sentence in analysis.unknown)]
    return "\n".join(lines)
