"""`headrace vectors FILE.db TEXT …`: fill a store of texts that pipelines look into."""

import http.client
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from headrace.cli.flags import Parser
from headrace.config import env
from headrace.core.errors import ConfigError, UnavailableError

#: Texts that are embedded by one request.
BATCH = 32
_TIMEOUT = 300.0


def main(argv: Sequence[str]) -> int:
    """Embed the paragraphs of text files and keep them."""
    arguments = make_parser().parse(argv)
    # Only this command needs the extra.
    from headrace.fleet.gateway.pipelines.vectors import VectorFile

    if arguments["chars"] < 1:
        raise ConfigError("--chars must be at least 1.")
    path = Path(arguments["store"]).expanduser()
    was_there = path.exists()
    key = arguments.get("api_key") or env.get("OPENAI_API_KEY")
    store = VectorFile(path, is_new=True)
    texts = _paragraphs(
        [Path(name).expanduser() for name in arguments["files"]], arguments["chars"]
    )
    count = 0
    try:
        while batch := list(itertools.islice(texts, BATCH)):
            vectors = embed(arguments["url"], arguments["model"], batch, key)
            count += store.add(zip(batch, vectors, strict=True))
    finally:
        store.close()
        if not was_there and path.exists() and not path.stat().st_size:
            path.unlink()  # of a try that came to nothing, nothing stays
    print(f"{arguments['store']}: {count} texts more")
    return 0


def make_parser() -> Parser:
    """The parser of `headrace vectors`."""
    parser = Parser("headrace vectors", "Fill a store of texts for pipelines.", "FILE.db TEXT …")
    parser.add_argument("store", metavar="FILE.db", help="the store; it is made if it is not there")
    parser.add_argument("files", metavar="TEXT", nargs="+", help="text files, cut at empty lines")
    parser.add_argument(
        "--url", default="http://127.0.0.1:8080", help="gateway or server that embeds"
    )
    parser.add_argument("--model", required=True, help="model of the embeddings")
    parser.add_argument(
        "--chars", type=int, default=1200, help="longest text; longer paragraphs are cut"
    )
    parser.add_argument("--api-key", metavar="KEY", help="default $OPENAI_API_KEY")
    return parser


def embed(url: str, model: str, texts: Sequence[str], key: str | None = None) -> list[list[float]]:
    """Vectors of texts, by /v1/embeddings. Raises UnavailableError or ConfigError."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    if not parts.hostname:
        raise ConfigError(f"'{url}' is not a URL.")
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    connection = kind(parts.hostname, parts.port, timeout=_TIMEOUT)
    try:
        body = msgspec.json.encode({"model": model, "input": list(texts)})
        path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/embeddings"
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        answer = msgspec.json.decode(response.read())
        if response.status != 200:
            hint = " Give one with --api-key or OPENAI_API_KEY." if response.status == 401 else ""
            raise ConfigError(f"{url} refuses: {answer['error']['message']}{hint}")
        return [item["embedding"] for item in answer["data"]]
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"{url} cannot be reached: {error}.") from None
    except (msgspec.DecodeError, KeyError, TypeError):
        raise UnavailableError(f"{url} does not embed texts.") from None
    finally:
        connection.close()


def _paragraphs(files: Sequence[Path], max_chars: int) -> Iterator[str]:
    """Texts between empty lines, in order. Raises ConfigError for a file that cannot be read."""
    for file in files:
        try:
            content = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None
        for block in content.split("\n\n"):
            text = " ".join(block.split())
            for start in range(0, len(text), max_chars):
                yield text[start : start + max_chars]
