"""`headrace serve [MODEL ...]`: models behind the OpenAI API."""

import sys
from collections.abc import Sequence
from typing import Any

from headrace.cli.flags import Parser, add_config, add_file, config_values
from headrace.config.hosting import StartAs
from headrace.config.load import Loaded, load
from headrace.config.root import ServeConfig
from headrace.core.errors import ConfigError

#: What a server waits for that starts as this.
_WAYS_ON = {StartAs.EMPTY: "POST /control/load", StartAs.PARKED: "POST /control/unpark"}


def main(argv: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    loaded = load_config(make_parser(argv).parse(argv))
    for path in ("server.security.api_keys", "server.security.ssl_keyfile_password"):
        if loaded.origins[path].startswith("flag"):
            name = path.rpartition(".")[2]
            print(
                f"headrace: warning: every user of this machine sees --{name.replace('_', '-')}; "
                f"use HEADRACE_{name.upper()} instead.",
                file=sys.stderr,
            )
    config = loaded.config
    way = _WAYS_ON.get(config.hosting.start)
    if way and not config.models and config.server.security.control_token is None:
        raise ConfigError(
            f"A server that starts {config.hosting.start} waits for {way}, which needs a token: set HEADRACE_CONTROL_TOKEN."
        )
    # Imported now, so that help and a wrong flag do not wait for it.
    from headrace.server.run import run_server

    return run_server(config)


def load_config(arguments: dict[str, Any]) -> Loaded[ServeConfig]:
    """The configuration that parsed arguments ask for, with its origins."""
    values = config_values(ServeConfig, arguments)
    models = arguments.get("model_argument", [])
    if models:
        flag = values.get("engine.model.model", models[0])
        if [flag] != models[:1]:
            raise ConfigError(f"Two models are named: '{models[0]}' and --model '{flag}'.")
        values["engine.model.model"] = models[0]
        # Those of a file do not count beside what was typed.
        values["models"] = [{"model": model} for model in models] if len(models) > 1 else []
    if arguments.get("no_model"):
        if models:
            raise ConfigError(f"--no-model and the model '{models[0]}' exclude each other.")
        values["hosting.start"] = StartAs.EMPTY.value
    loaded = load(ServeConfig, file=arguments.get("config_file"), flags=values)
    for warning in loaded.warnings:
        print(f"headrace: warning: {warning}", file=sys.stderr)
    return loaded


def make_parser(
    argv: Sequence[str],
    prog: str = "headrace serve",
    summary: str = "Serve models over HTTP with the OpenAI API.",
) -> Parser:
    """The parser of the serving flags."""
    parser = Parser(prog, summary, "[MODEL ...]")
    parser.add_argument(
        "model_argument",
        metavar="MODEL",
        nargs="*",
        help="the model, as with --model; several are loaded when they are asked for",
    )
    parser.add_argument(
        "--no-model",
        action="store_true",
        help="wait for a model by POST /control/load: the same as --start empty",
    )
    add_file(parser)
    add_config(parser, ServeConfig, argv, has_variables=True)
    return parser
