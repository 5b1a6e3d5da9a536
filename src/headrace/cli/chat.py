"""`headrace chat`: a conversation in the terminal, streamed.

Talks to a running server, or with `--model` starts one for as long as the chat lasts. When standard
input is a pipe, each line is a question and only the answers are printed.
"""

import secrets
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from headrace.cli.chat_client import ChatClient
from headrace.cli.flags import Parser, add_config, config_values
from headrace.config import env
from headrace.config.load import load
from headrace.config.secret import Secret
from headrace.core.errors import ConfigError, HeadraceError, UnavailableError

DEFAULT_URL = "http://127.0.0.1:8000"
READY_SECONDS = 300.0
"""How long a model may take to load."""

_NOT_OURS = (
    "HEADRACE_API_KEY_FILE",
    "HEADRACE_SSL_CERTFILE",
    "HEADRACE_SSL_KEYFILE",
    "HEADRACE_SSL_KEYFILE_PASSWORD",
    "HEADRACE_SSL_CA_CERTS",
)

HELP = """\
/reset          forget the conversation
/system TEXT    set the system message (nothing: remove it) and forget the conversation
/exit, /quit    end; so does Ctrl-D
Ctrl-C          stop the answer; what was said of it is kept"""


class ChatOptions(Struct, frozen=True, kw_only=True):
    """Whom to talk to, and how."""

    url: str | None = None
    """Base URL of any OpenAI-compatible server (default http://127.0.0.1:8000)."""
    model: str | None = None
    """With --url, the name to ask for; without, a model to serve for this chat."""
    api_key: Secret | None = None
    """Key sent as a bearer token; default the variable OPENAI_API_KEY."""
    system: str | None = None
    """System message."""
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Longest answer; default the server's."""
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    """Randomness of the answers; default the server's."""
    seed: Annotated[int, Meta(ge=0)] | None = None
    """The same seed and conversation give the same answer."""


class Conversation:
    """The messages so far."""

    def __init__(self, system: str | None) -> None:
        self.messages: list[dict[str, str]] = []
        self.reset(system)

    def reset(self, system: str | None) -> None:
        """Start anew under a system message."""
        self.system = system
        self.messages = [{"role": "system", "content": system}] if system else []

    def add(self, role: str, content: str) -> None:
        """Append one message."""
        self.messages.append({"role": role, "content": content})


def main(argv: Sequence[str]) -> int:
    """Chat until the end of the input. 1 if a piped question failed."""
    parser = make_parser(argv)
    flags = config_values(ChatOptions, parser.parse(argv))
    options = load(ChatOptions, environment={}, flags=flags).config
    if options.model is None or options.url is not None:
        return _chat(options.url or DEFAULT_URL, options.model, options)
    from headrace.cli.local_server import local_server
    from headrace.modeling.weights.sources import resolve

    resolve(options.model)  # here, so that its progress bar is seen
    # A key that nobody else knows; whatever the operator has set for servers of theirs is not for this one.
    key = secrets.token_hex(24)
    own = dict.fromkeys(_NOT_OURS, "") | {"HEADRACE_API_KEYS": key}
    with local_server([options.model], ready_timeout=READY_SECONDS, environment=own) as server:
        return _chat(server.url, None, msgspec.structs.replace(options, api_key=Secret(key)))


def make_parser(argv: Sequence[str]) -> Parser:
    """The parser of `headrace chat`."""
    parser = Parser("headrace chat", "Talk to a model in the terminal.")
    add_config(parser, ChatOptions, argv)
    return parser


def _chat(url: str, model: str | None, options: ChatOptions) -> int:
    client = ChatClient(url, options.api_key or env.get("OPENAI_API_KEY"))
    asked = {"model": model or _first_model(client)} | {
        name: value
        for name in ("max_tokens", "temperature", "seed")
        if (value := getattr(options, name)) is not None
    }
    conversation = Conversation(options.system)
    if sys.stdin.isatty():
        return _interactive(client, conversation, asked)
    return _piped(client, conversation, asked)


def _first_model(client: ChatClient) -> str:
    try:
        names = client.models()
    except UnavailableError as error:
        raise ConfigError(
            f"{error} Start one with `headrace serve`, or say `headrace chat --model smollm2-135m`."
        ) from None
    if not names:
        raise ConfigError(f"{client.url} serves no model.")
    return names[0]


def _interactive(client: ChatClient, conversation: Conversation, asked: dict[str, Any]) -> int:
    import readline  # noqa: F401 -- gives input() editing and history

    print(f"{asked['model']} at {client.url} · /help lists commands")
    while True:
        try:
            line = input("> ").strip()
        except KeyboardInterrupt:
            print("\n/exit or Ctrl-D ends the chat.")
            continue
        except EOFError:
            print()
            return 0
        if line in ("/exit", "/quit"):
            return 0
        try:
            _take(line, client, conversation, asked)
        except HeadraceError as error:
            print(f"{error}", file=sys.stderr)


def _piped(client: ChatClient, conversation: Conversation, asked: dict[str, Any]) -> int:
    for line in sys.stdin:
        if line.strip() in ("/exit", "/quit"):
            break
        _take(line.strip(), client, conversation, asked)
    return 0


def _take(line: str, client: ChatClient, conversation: Conversation, asked: dict[str, Any]) -> None:
    """Do what one line says: a command, or a question."""
    command, _, rest = line.partition(" ")
    if not line:
        return
    if command == "/help":
        print(HELP)
    elif command == "/reset":
        conversation.reset(conversation.system)
    elif command == "/system":
        conversation.reset(rest.strip() or None)
    elif command.startswith("/") and "/" not in command[1:] and command[1:].isalpha():
        raise ConfigError(f"Unknown command {command}; /help lists them.")
    else:
        _ask(line, client, conversation, asked)


def _ask(
    question: str, client: ChatClient, conversation: Conversation, asked: dict[str, Any]
) -> None:
    conversation.add("user", question)
    pieces: list[str] = []
    try:
        with closing(client.stream(conversation.messages, **asked)) as stream:
            for piece in stream:
                pieces.append(piece)
                sys.stdout.write(piece)
                sys.stdout.flush()
    except KeyboardInterrupt:
        # Closing the stream has cancelled the request; in a pipe there is no one to go on with.
        if not sys.stdin.isatty():
            raise
    finally:
        sys.stdout.write("\n")
        if pieces:
            conversation.add("assistant", "".join(pieces))
        else:
            # A question without an answer would put two user messages in a row.
            conversation.messages.pop()
