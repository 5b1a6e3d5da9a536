"""Exit codes of those processes that are our own children. Adopted ones are another's, and nobody tells us theirs."""

import os
import signal


class Children:
    """Pids to be waited for, so that none stays a zombie while its starter lives."""

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._ended: dict[int, int] = {}

    def add(self, pid: int) -> None:
        """It was just started: what an earlier process of that pid ended with is forgotten."""
        self._ended.pop(pid, None)
        self._running.add(pid)

    def reap(self) -> None:
        """Note which have ended. Does not wait."""
        for pid in tuple(self._running):
            try:
                found, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                self._running.discard(pid)  # somebody else has waited for it
                continue
            if found:
                self._running.discard(pid)
                self._ended[pid] = os.waitstatus_to_exitcode(status)

    def ending_of(self, pid: int) -> str:
        """How it ended, in words."""
        code = self._ended.get(pid)
        if code is None:
            return "it ended"
        if code >= 0:
            return f"it ended with exit code {code}"
        try:
            return f"it was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was ended by signal {-code}"

    def forget(self, pid: int) -> None:
        """Nobody will ask how it ended."""
        self._ended.pop(pid, None)
