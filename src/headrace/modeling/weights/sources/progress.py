"""Progress of a download on stderr: a bar on a terminal, plain lines elsewhere, or nothing."""

import sys
from types import TracebackType
from typing import Any, Final, Protocol

#: Without a terminal, one line each time this share of the whole has arrived.
LINE_SHARE: Final = 0.25


class Progress(Protocol):
    """Told how far a download is. Use it as a context."""

    def __enter__(self) -> "Progress": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def set(self, done: int, total: int | None = None) -> None:
        """`done` bytes of `total`, when that is known."""
        ...


class Silent:
    """Says nothing."""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set(self, done: int, total: int | None = None) -> None:
        pass


class Lines:
    """For logs: a line at the start, at each quarter, and at the end."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._done = 0
        self._next_share = LINE_SHARE

    def __enter__(self) -> "Lines":
        self._print(f"Fetching {self._label}")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        outcome = "Fetched" if kind is None else "Failed to fetch"
        size = f" ({self._done / 1e6:.1f} MB)" if self._done else ""
        self._print(f"{outcome} {self._label}{size}")

    def set(self, done: int, total: int | None = None) -> None:
        self._done = done
        if total and done / total >= self._next_share:
            self._print(f"Fetching {self._label}: {done / total:.0%} of {total / 1e6:.1f} MB")
            self._next_share = (done / total // LINE_SHARE + 1) * LINE_SHARE

    def _print(self, line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


class Bar:
    """A tqdm bar."""

    def __init__(self, label: str) -> None:
        # Here, not at the top: most starts fetch nothing.
        from tqdm import tqdm

        self._bar: Any = tqdm(
            desc=label, unit="B", unit_scale=True, unit_divisor=1000, leave=True, file=sys.stderr
        )

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def set(self, done: int, total: int | None = None) -> None:
        if total is not None and self._bar.total != total:
            self._bar.total = total
            self._bar.refresh()
        self._bar.update(done - self._bar.n)


def report(label: str, *, is_wanted: bool) -> Progress:
    """The progress for this process's stderr."""
    if not is_wanted:
        return Silent()
    return Bar(label) if sys.stderr.isatty() else Lines(label)
