"""Load and replicas over time, as an SVG that stands alone: light and dark by the reader's preference."""

from collections.abc import Callable, Sequence
from html import escape

from headrace.bench.simulate.report import Report
from headrace.bench.simulate.tally import Moment

_WIDTH, _HEIGHT, _LEFT, _TOP = 900, 150, 60, 44
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #444 } .title { font-size: 14px; fill: #222 }
.axis { stroke: #bbb; fill: none } .load { stroke: #2563a8 } .paid { stroke: #b4561b } .good { stroke: #2f7d4f }
path { fill: none; stroke-width: 1.5 } .page { fill: #fff }
@media (prefers-color-scheme: dark) { text { fill: #bbb } .title { fill: #eee } .page { fill: #161616 } .axis { stroke: #555 } }
"""


def draw(report: Report) -> str:
    """Three panels: requests a second, replicas paid for, share of requests within the objectives."""
    moments = [m for m in report.moments if m.at < report.options["load"]["duration"]]
    interval = moments[1].at - moments[0].at if len(moments) > 1 else 1.0
    panels: tuple[tuple[str, str, Callable[[Moment], float]], ...] = (
        ("load", "requests/s", lambda m: m.num_arrived / interval),
        ("paid", "replicas", lambda m: m.replica_seconds / interval),
        (
            "good",
            "% within objectives",
            lambda m: 100 * m.num_good / m.num_arrived if m.num_arrived else 100.0,
        ),
    )
    title = (
        f"{report.profile.model}: {report.num_requests} requests, {100 * report.attainment:.2f} % within"
        f" {report.options['slo']}, {report.replica_hours:.1f} replica-hours"
    )
    height = _TOP + len(panels) * (_HEIGHT + 30)
    body = [f'<text class="title" x="{_LEFT}" y="22">{escape(title)}</text>']
    for place, (name, label, value) in enumerate(panels):
        top = _TOP + place * (_HEIGHT + 30)
        body += _panel(name, label, [value(m) for m in moments], top, moments[-1].at + interval)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {height}">'
        f"<style>{_STYLE}</style>"
        f'<rect class="page" width="100%" height="100%"/>{"".join(body)}</svg>\n'
    )


def _panel(name: str, label: str, values: Sequence[float], top: int, seconds: float) -> list[str]:
    highest = max(values, default=0.0) or 1.0
    across = _WIDTH / max(1, len(values))
    points = " ".join(
        f"{_LEFT + (i + 0.5) * across:.1f},{top + _HEIGHT * (1 - value / highest):.1f}"
        for i, value in enumerate(values)
    )
    return [
        f'<path class="axis" d="M{_LEFT},{top} v{_HEIGHT} h{_WIDTH}"/>',
        f'<text x="{_LEFT}" y="{top - 6}">{escape(label)}</text>',
        f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{highest:.4g}</text>',
        f'<text x="{_LEFT - 6}" y="{top + _HEIGHT}" text-anchor="end">0</text>',
        f'<text x="{_LEFT + _WIDTH}" y="{top + _HEIGHT + 16}" text-anchor="end">{seconds / 3600:.3g} h</text>',
        f'<path class="{name}" d="M{points}"/>' if points else "",
    ]
