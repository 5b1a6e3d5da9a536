"""`headrace COMMAND …`: a table of commands, each imported when it is called.

Exit status: 0 done, 1 failed, 2 the command line or configuration is wrong, 130 interrupted.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from headrace import __version__
from headrace.core.errors import ConfigError, HeadraceError


class Command(NamedTuple):
    """A sub-command: where it lives and what it is for."""

    target: str
    """module:function; the function takes the arguments and returns the exit status."""
    summary: str


COMMANDS = {
    "serve": Command("headrace.cli.serve:main", "Serve a model over HTTP with the OpenAI API."),
    "chat": Command("headrace.cli.chat:main", "Talk to a model in the terminal."),
    "models": Command("headrace.cli.models:main", "List, fetch and remove models."),
    "doctor": Command("headrace.cli.doctor:main", "Show what was detected and what was chosen."),
    "gateway": Command("headrace.cli.gateway:main", "One address in front of many replicas."),
    "up": Command("headrace.cli.up:main", "A gateway, and replicas as they are needed."),
    "down": Command("headrace.cli.up:down_main", "Stop what `headrace up` has started."),
    "fleet": Command("headrace.cli.fleet:main", "Show and change a gateway's replicas."),
    "timeline": Command("headrace.cli.timeline:main", "Fetch a server's last steps for Perfetto."),
    "export": Command(
        "headrace.cli.export:main", "Rule files for Prometheus and boards for Grafana."
    ),
    "vectors": Command("headrace.cli.vectors:main", "Fill a store of texts for pipelines."),
    "bench": Command("headrace.cli.bench:main", "Load any OpenAI-compatible server and measure."),
    "plan": Command("headrace.cli.plan:main", "Say what a model needs: memory, replicas, money."),
    "analyze": Command(
        "headrace.cli.analyze:main", "Say what bounds a server, and what would help."
    ),
    "simulate": Command(
        "headrace.cli.simulate:main", "Play a load against a fleet on a fake clock."
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Errors that headrace raises on purpose are one sentence on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_debug = "--debug" in arguments
    if is_debug:
        arguments.remove("--debug")
    try:
        return _dispatch(arguments)
    except HeadraceError as error:
        if is_debug:
            raise
        print(f"headrace: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except BrokenPipeError:
        # The reader of our output (head, less) has gone; that is its right.
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        return 130


def _dispatch(arguments: Sequence[str]) -> int:
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if name in ("-V", "--version", "version"):
        print(f"headrace {__version__}")
        return 0
    command = COMMANDS.get(name)
    if command is None:
        raise ConfigError(f"Unknown command '{name}'; the commands are {', '.join(COMMANDS)}.")
    return _resolve(command.target)(rest)


def _resolve(target: str) -> Callable[[Sequence[str]], int]:
    module, _, function = target.partition(":")
    resolved: Callable[[Sequence[str]], int] = getattr(import_module(module), function)
    return resolved


def _usage() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(
        f"  {name.ljust(width)}  {command.summary}" for name, command in COMMANDS.items()
    )
    return (
        f"usage: headrace COMMAND [options]\n\n{commands}\n\n"
        "  --version  Show the version.\n"
        "  --debug    Show where an error came from.\n\n"
        "`headrace COMMAND --help` lists a command's options."
    )


if __name__ == "__main__":
    sys.exit(main())
