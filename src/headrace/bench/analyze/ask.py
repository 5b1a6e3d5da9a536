"""Questions to a server: its metrics, the time of a round trip and of tokenising, and a few requests."""

import http.client
import ipaddress
import ssl
from statistics import median
from typing import Any, Final

import msgspec

from headrace.bench.analyze.options import AnalyzeOptions
from headrace.bench.analyze.values import Probe
from headrace.bench.client import Target, parse_url
from headrace.bench.measure import Summary
from headrace.bench.options import BenchOptions
from headrace.bench.session import measure
from headrace.core.clock import Clock
from headrace.core.errors import ConfigError, HeadraceError, reason_of

_TIMEOUT: Final = 60.0
_MAX_BYTES: Final = 64 * 1024 * 1024
_SHORT_WORDS: Final = 8
_OUTPUT: Final = 24
_TOKENISED_WORDS: Final = 4000
_ERRORS: Final = (OSError, http.client.HTTPException)


class Server:
    """One server, asked over a connection that stays open."""

    def __init__(self, url: str, options: AnalyzeOptions, clock: Clock) -> None:
        """Raises ConfigError for what is no URL."""
        self._url = url
        self._options = options
        self._clock = clock
        self._target: Target = parse_url(url, options.api_key)
        self._connection = _connection(self._target)

    @property
    def is_here(self) -> bool:
        """It runs on this machine."""
        host = self._target.host
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def metrics(self) -> str:
        """Its page; empty where it has none. Raises ConfigError if nothing answers, or our key is not good."""
        try:
            status, body = self._ask("GET", "/metrics")
        except _ERRORS as error:
            raise ConfigError(f"No server answers at {self._url}: {reason_of(error)}.") from None
        if status in (401, 403):
            raise ConfigError(
                f"{self._url}/metrics needs a key (--api-key); an operator's, of a gateway."
            )
        return body.decode(errors="replace") if status == 200 else ""

    def probe(self) -> Probe:
        """Ask a few requests. Raises ConfigError for a server that cannot be asked for its models."""
        round_trip = self._round_trip()
        short = self._run(_SHORT_WORDS, _OUTPUT, 1, 3)
        long = self._run(self._options.prompt_words, 1, 1, 2)
        batch = self._run(_SHORT_WORDS, _OUTPUT, self._options.batch, self._options.batch)
        return Probe(
            round_trip=round_trip,
            tokenise=self._tokenise(),
            prefill=_per_token(short, long),
            first_token=short.ttft.p50,
            tpot=short.tpot.p50,
            batch=self._options.batch,
            batch_tpot=batch.tpot.p50,
        )

    def _run(self, words: int, output: int, clients: int, count: int) -> Summary:
        options = BenchOptions(
            url=self._url,
            model=self._options.model,
            api_key=self._options.api_key,
            concurrency=(clients,),
            num_requests=count,
            input_words=words,
            output_tokens=output,
            timeout=_TIMEOUT,
        )
        summary = measure(options, self._clock).runs[0]
        if not summary.num_ok:
            examples = "; ".join(summary.error_examples.values())[:200]
            raise HeadraceError(f"The server answers none of the probe's requests: {examples}.")
        return summary

    def _round_trip(self) -> float | None:
        times = []
        try:
            for _ in range(6):
                start = self._clock.monotonic()
                self._ask("GET", "/health")
                times.append(self._clock.monotonic() - start)
        except _ERRORS:
            return None
        return median(times[1:])  # the first opens the connection

    def _tokenise(self) -> float | None:
        """Seconds per token, without those of the way; None where the server has no /tokenize."""
        found = []
        try:
            for words in (16, _TOKENISED_WORDS, _TOKENISED_WORDS):
                text = " ".join(f"word{n}" for n in range(words))
                body: dict[str, Any] = {"prompt": text, "model": self._model()}
                start = self._clock.monotonic()
                status, answer = self._ask("POST", "/tokenize", msgspec.json.encode(body))
                if status != 200:
                    return None
                found.append((self._clock.monotonic() - start, _count(answer)))
        except (*_ERRORS, msgspec.DecodeError):
            return None
        (base, few), *others = found
        seconds, many = min(others)
        return max(0.0, seconds - base) / (many - few) if many > few else None

    def _model(self) -> str | None:
        if self._options.model is not None:
            return self._options.model
        _, body = self._ask("GET", "/v1/models")
        try:
            return str(msgspec.json.decode(body)["data"][0]["id"])
        except (msgspec.DecodeError, KeyError, IndexError, TypeError):
            return None

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        if self._target.api_key:
            headers["Authorization"] = f"Bearer {self._target.api_key}"
        try:
            self._connection.request(method, self._target.prefix + path, body, headers)
            response = self._connection.getresponse()
            return response.status, response.read(_MAX_BYTES)
        except BaseException:
            self._connection.close()  # it opens again with the next question
            raise


def _connection(target: Target) -> http.client.HTTPConnection:
    if not target.is_tls:
        return http.client.HTTPConnection(target.host, target.port, timeout=_TIMEOUT)
    context = ssl.create_default_context()
    return http.client.HTTPSConnection(target.host, target.port, timeout=_TIMEOUT, context=context)


def _per_token(short: Summary, long: Summary) -> float | None:
    """Seconds for each token that the long prompt has more."""
    if short.ttft.p50 is None or long.ttft.p50 is None:
        return None
    more = long.prompt_tokens / long.num_ok - short.prompt_tokens / short.num_ok
    seconds = long.ttft.p50 - short.ttft.p50
    return seconds / more if more > 0 and seconds > 0 else None


def _count(answer: bytes) -> int:
    found = msgspec.json.decode(answer)
    if not isinstance(found, dict):
        return 0
    tokens = found.get("tokens")
    count = found.get("count", len(tokens) if isinstance(tokens, list) else 0)
    return count if isinstance(count, int) else 0
