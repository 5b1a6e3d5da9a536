"""Why an engine process ended: its own account, or what its exit status says."""

from headrace.core.errors import ConfigError, HeadraceError, InternalError
from headrace.engine.messages import Failed


class ExecutorBrokenError(InternalError):
    """No step of the engine succeeds, whatever is in it: the process is of no more use."""


class EngineStartError(HeadraceError):
    """The engine process could not start; carries the process's own account of it."""

    def __init__(self, failed: Failed) -> None:
        where = sentence(f"Starting the engine failed in phase '{failed.phase}': {failed.message}")
        super().__init__(f"{where} {failed.hint}" if failed.hint else where)
        self.failed = failed


class EngineConfigError(EngineStartError, ConfigError):
    """As EngineStartError, for what the operator can mend: the command line exits with 2."""


def start_error(failed: Failed) -> EngineStartError:
    """The exception that stands for a failed start."""
    return EngineConfigError(failed) if failed.exit_code == 2 else EngineStartError(failed)


def sentence(text: str) -> str:
    """With a final period: others' messages often have none, and ours follow them."""
    text = text.rstrip()
    return text if text.endswith((".", "!", "?")) else f"{text}."


def account(failed: Failed | None, phase: str, status: int | None) -> Failed:
    """What the process said before it ended in `phase`, or what its exit status says."""
    if failed is not None:
        return failed
    return Failed(
        phase=phase,
        kind="EngineDeadError",
        message=cause(None, status),
        hint="It may have run out of memory." if status == -9 else None,
    )


def cause(failed: Failed | None, status: int | None) -> str:
    """The same in one sentence."""
    if failed is not None:
        return sentence(f"The engine failed in phase '{failed.phase}': {failed.message}")
    if status is not None and status < 0:
        return f"The engine process was ended by signal {-status}."
    return f"The engine process ended with exit code {status}."
