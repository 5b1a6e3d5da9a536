"""A real server process (uvicorn, sockets, signals) over a fake engine process."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlencode

import msgspec
from tests.support import fake_engine
from tests.support.patience import PATIENCE
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from headrace.config.root import ServeConfig
from headrace.preprocess.spelling import BYTE_ALPHABET

SPECIAL = ("<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PEER_TOKEN = "a secret between machines"


def write_byte_tokenizer(
    path: Path, *, template: str = CHAT_TEMPLATE, added: tuple[str, ...] = ()
) -> Path:
    """Token ids are bytes; 256 and 257 are special, those of `added` follow and are text."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE(vocab=dict(BYTE_ALPHABET), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"chat_template": template, "eos_token": SPECIAL[1]}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


class FakeServer:
    """One `headrace serve` as a child. Its stderr is kept in `lines`."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        wait: bool = True,
        engine: dict | None = None,
        lora_root: Path | None = None,
        hosting: dict | None = None,
        models: dict[str, dict] | None = None,
        **server,
    ):
        """`models` are several, by name: what the engine of each does, with `keep` as it is configured."""
        tokenizer = write_byte_tokenizer(tmp_path / "tokenizer")
        self.tokenizer = tokenizer
        config = {
            "server": {"port": 0, "trusted_peer_token": PEER_TOKEN, **server},
            "engine": {
                "model": {
                    "model": fake_source(tokenizer, **(engine or {})),
                    "lora_root": None if lora_root is None else str(lora_root),
                }
            },
            "hosting": hosting or {},
            "models": [
                fake_entry(name, tokenizer, **given) for name, given in (models or {}).items()
            ],
        }
        environment = {
            **os.environ,
            "PYTHONPATH": fake_engine.python_path(),
            "HEADRACE_CACHE": str(tmp_path / "cache"),
        }
        self.lines: list[str] = []
        self.url = ""
        self._is_ready = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from tests.support.fake_server import main; main()"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.process.stdin.write(json.dumps(config))
        self.process.stdin.close()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        assert self._is_ready.wait(PATIENCE), "\n".join(self.lines)
        assert self.url, "\n".join(self.lines)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        self.process.stderr.close()

    def __enter__(self) -> "FakeServer":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if " is ready at " in line:
                self.url = line.split(" is ready at ")[1].split()[0]
                self._is_ready.set()
        self._is_ready.set()


def fake_source(default_tokenizer: Path, **engine) -> str:
    """The model that makes a fake engine behave so; it may name another tokenizer."""
    return f"fake?{urlencode({'tokenizer': str(default_tokenizer), **engine})}"


def fake_entry(name: str, tokenizer: Path, *, keep: bool = False, settings=None, **engine) -> dict:
    """One of several models."""
    return {
        "model": fake_source(tokenizer, **engine),
        "served_model_name": [name],
        "keep": keep,
        "settings": settings or {},
    }


def main() -> None:
    """In the child: the configuration on stdin, the exit code as the command line has it."""
    from headrace.core.errors import ConfigError
    from headrace.server.run import run_server

    given = sys.stdin.buffer.read()
    config = msgspec.json.decode(given, type=ServeConfig, dec_hook=lambda kind, value: kind(value))
    try:
        sys.exit(run_server(config, build=fake_engine.BUILD))
    except ConfigError as error:
        print(f"headrace: {error}", file=sys.stderr)
        sys.exit(2)
