"""The guide to adapters: its requests run as printed, against a real server that loads and unloads."""

import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.support.lora_files import tiny_sides, write_adapter
from tests.support.patience import PATIENCE
from tests.support.processes import ServeProcess, Stream, settle, until
from tests.support.tiny_models import make_tiny_llama

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "lora.md").read_text()
COMMANDS = [block for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL) if "curl" in block]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    model = make_tiny_llama(folder / "base")
    for seed, name in enumerate(("sql", "poems", "other"), 1):
        write_adapter(folder / "adapters" / name, tiny_sides(seed=seed), rank=4, alpha=16)
    arguments = [str(model), "--port", "0", "--threads", "1", "--max-loras", "2"]
    arguments += ["--lora-root", str(folder / "adapters")]
    arguments += ["--lora", f"sql={folder / 'adapters' / 'sql'}"]
    with ServeProcess(*arguments) as server:
        yield server.wait_ready()


def names(served):
    return [card["id"] for card in httpx.get(f"{served.url}/v1/models").json()["data"]]


def load(served, name, path, **body):
    body |= {"lora_name": name, "lora_path": path}
    return httpx.post(f"{served.url}/v1/load_lora_adapter", json=body, timeout=PATIENCE)


def unload(served, name):
    return httpx.post(
        f"{served.url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=PATIENCE
    )


def text(served, model, **body):
    ask = {"model": model, "prompt": "once", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(f"{served.url}/v1/completions", json=ask | body, timeout=PATIENCE)
    return answer.json()["choices"][0]["text"] if answer.is_success else answer.status_code


@pytest.mark.parametrize("command", COMMANDS)
def test_the_requests_of_the_guide_run(served, command):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    done = subprocess.run(
        ["bash", "-euc", command.replace("http://127.0.0.1:8000", served.url)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    if "load_lora" in command:
        assert "Success: LoRA adapter 'poems' added successfully." in done.stdout
    assert names(served) == ["base", "sql"]


def test_what_runs_ends_with_the_adapter_it_began_with(served):
    assert load(served, "a", "poems").status_code == 200
    assert names(served) == ["base", "sql", "a"]
    whole = text(served, "a", max_tokens=300)
    assert len({text(served, name, max_tokens=300) for name in names(served)}) == 3
    stream = Stream(
        served.url, model="a", prompt="once", temperature=0, max_tokens=300, logprobs=0
    ).begun()
    assert unload(served, "a").status_code == 200
    assert text(served, "a") == 404
    busy = load(served, "b", "other").status_code
    stream.join()
    assert "".join(c["text"] for e in stream.events for c in e["choices"]) == whole
    assert busy in (200, 429)  # 200 where the stream had ended by then
    settle(served.url)
    if busy == 429:
        assert load(served, "b", "other").status_code == 200
    full = load(served, "c", "poems")
    assert (full.status_code, "--max-loras" in full.text) == (429, True)
    assert int(full.headers["retry-after"]) >= 1
    assert unload(served, "b").status_code == 200


def test_a_restarted_engine_has_them_again(served):
    assert load(served, "a", "poems").status_code == 200
    before = {name: text(served, name) for name in names(served)}
    vectors = {name: vector(served, name) for name in before}
    assert len({tuple(v) for v in vectors.values()}) == 3
    served.engine.kill()
    until(lambda: served.ready_status() == 503, "the engine is gone")
    until(lambda: served.ready_status() == 200, "the engine is back")
    assert {name: text(served, name) for name in names(served)} == before
    assert {name: vector(served, name) for name in before} == vectors
    assert unload(served, "a").status_code == 200


def vector(served, model):
    answer = httpx.post(
        f"{served.url}/v1/embeddings", json={"model": model, "input": "once"}, timeout=PATIENCE
    ).json()
    assert answer["model"] == model
    return answer["data"][0]["embedding"]


def test_what_is_no_adapter_is_said_in_a_sentence(served, tmp_path):
    root = Path(load_root(served))
    (root / "empty").mkdir()
    write_adapter(root / "dora", tiny_sides(), rank=4, alpha=4, use_dora=True)
    for name, words in (("empty", "is no LoRA adapter"), ("dora", "use_dora")):
        answer = load(served, "x", name)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "lora_path")
        assert words in error["message"]
    own = load(served, "base", "poems")
    assert (own.status_code, own.json()["error"]["param"]) == (400, "lora_name")
    assert names(served) == ["base", "sql"]


def load_root(served):
    arguments = served.process.args
    return arguments[arguments.index("--lora-root") + 1]
