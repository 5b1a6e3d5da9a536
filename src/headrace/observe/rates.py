"""Rates over the last seconds, from totals that only grow."""

from collections import deque


class Rate:
    """Growth of a total per second, over a sliding window. Totals may start again at 0 (a restart)."""

    def __init__(self, window: float, resolution: float | None = None) -> None:
        self._window = window
        self._resolution = window / 40 if resolution is None else resolution
        self._points: deque[tuple[float, float]] = deque()

    def record(self, now: float, total: float) -> None:
        """Note a total. Points closer than the resolution replace each other."""
        points = self._points
        if points and total < points[-1][1]:
            points.clear()
        if len(points) > 1 and now - points[-2][0] < self._resolution:
            points[-1] = (now, total)
            return
        points.append((now, total))
        self._trim(now)

    def growth(self, now: float) -> float:
        """How much the total grew within the window."""
        self._trim(now)
        return self._points[-1][1] - self._points[0][1] if self._points else 0.0

    def per_second(self, now: float) -> float:
        """Growth over the window's length, or over the time since the first point if that is less."""
        grown = self.growth(now)
        if not self._points or grown <= 0.0:
            return 0.0
        span = min(self._window, now - self._points[0][0])
        return grown / max(span, self._resolution)

    def _trim(self, now: float) -> None:
        # One point from before the window stays: growth within it is measured from there.
        points = self._points
        while len(points) > 1 and points[1][0] <= now - self._window:
            points.popleft()
        if len(points) == 1 and points[0][0] <= now - self._window:
            points[0] = (now - self._window, points[0][1])
