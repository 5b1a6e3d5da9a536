"""One function a suite: runs it against a server, reads what it found."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

from cases import Case, Report
from environments import COMPATCANARY, LLAMA_CPP, LM_EVAL, TOOLS, environment, llama_cpp_tests, node

MODEL = "smollm2-135m"
LLAMA_FILES = (
    "basic", "chat_completion", "completion", "compat_anthropic", "compat_oai_responses",
    "tokenize", "metrics",
)  # fmt: skip


def _run(command: Sequence[object], seconds: float, **options: object) -> str:
    done = subprocess.run(
        list(map(str, command)),
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds,
        **options,
    )  # type: ignore[call-overload]
    return str(done.stdout)


def llama_cpp(url: str) -> Report:
    """llama.cpp's tests of its own server, in external mode; `slow` ones need other models."""
    tests, python = llama_cpp_tests(), environment(*TOOLS) / "python"
    files = [f"unit/test_{name}.py" for name in LLAMA_FILES]
    with tempfile.TemporaryDirectory() as folder:
        xml = Path(folder) / "found.xml"
        command = ["env", "DEBUG_EXTERNAL=1", f"PORT={urlsplit(url).port}", python, "-m", "pytest"]
        command += ["-p", "no:cacheprovider", "-m", "not slow", "--timeout=30", "-q", "--tb=line"]
        _run([*command, f"--junitxml={xml}", *files], 1200, cwd=tests)
        cases = [_junit(case) for case in ElementTree.parse(xml).iter("testcase")]
    return Report("llama.cpp", f"the server tests of llama.cpp inside {LLAMA_CPP} (PyPI)", cases)


def _junit(case: ElementTree.Element) -> Case:
    name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
    for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(kind)
        if found is not None:
            return Case(name, outcome, (found.get("message") or "").split("\n")[0])
    return Case(name, "passed")


def llm_comply(url: str) -> list[Report]:
    """Every body against the published schemas, for three APIs."""
    program, reports = environment(*TOOLS) / "llm-comply", []
    for form, options in (
        ("openai-chat", []),
        ("open-responses", []),
        ("anthropic", ["--auth-header", "x-api-key", "--no-bearer"]),
    ):
        command = [program, "--format", form, "-u", f"{url}/v1", "-k", "x", "-m", MODEL, "--json"]
        found = json.loads(_run([*command, *options], 600))
        results = found["results"] if isinstance(found, dict) else found
        cases = [
            Case(
                str(one["id"]),
                one["status"],
                "; ".join(map(str, one.get("errors") or ()))[:200],
            )
            for one in results
        ]
        reports.append(Report(f"llm-comply {form}", "llm-comply 0.5.0 (PyPI)", cases))
    return reports


def compatcanary(url: str) -> Report:
    """Probes for the features that clients rely on."""
    wheel = node(environment(*TOOLS))
    npx = wheel / "lib/node_modules/npm/bin/npx-cli.js"
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "report.json"
        command = ["env", f"PATH={wheel / 'bin'}:/usr/bin:/bin", wheel / "bin" / "node", npx]
        command += ["--yes", COMPATCANARY, "scan", "--base-url", f"{url}/v1", "--model", MODEL]
        _run([*command, "--profile", "modern", "--format", "json", "--output", output], 300)
        results = json.loads(output.read_text())["results"]
    word = {"pass": "passed", "skip": "skipped"}
    cases = [
        Case(one["id"], word.get(one["status"], "failed"), one.get("summary", ""))
        for one in results
    ]
    return Report("compatcanary", f"{COMPATCANARY} (npm), profile modern", cases)


def schemathesis(url: str) -> Report:
    """Requests drawn from our own OpenAPI document; no answer may be a 5xx."""
    program = environment(*TOOLS) / "schemathesis"
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "run", f"{url}/openapi.json", "-c", "not_a_server_error", "--no-color"]
        command += ["--max-examples", "30", "--request-timeout", "30", "--seed", "1"]
        command += ["--phases", "examples,coverage,fuzzing", "--report", "junit"]
        _run([*command, "--report-dir", folder], 1500, cwd=folder)
        (xml,) = Path(folder).glob("*.xml")
        cases = [
            Case(str(case.get("name")), _junit(case).outcome, _junit(case).detail)
            for case in ElementTree.parse(xml).iter("testcase")
        ]
    return Report("schemathesis", "schemathesis 4.32.5 (PyPI), no 5xx on /openapi.json", cases)


def lm_eval(url: str) -> Report:
    """The harness's strictest path: token ids in, `echo` and `logprobs` out, on sixteen facts that even a tiny model knows."""
    program, tasks = environment(LM_EVAL) / "lm_eval", Path(__file__).with_name("tasks")
    with tempfile.TemporaryDirectory() as folder:
        text = (tasks / "facts.yaml").read_text()
        task = text.replace("DATA_FILE", str(tasks / "facts.jsonl"))
        (Path(folder) / "facts.yaml").write_text(task)
        model = f"model={MODEL},base_url={url}/v1/completions,num_concurrent=4"
        model += ",tokenizer_backend=remote,tokenized_requests=True"
        command = ["env", "HF_DATASETS_OFFLINE=1", f"HF_HOME={folder}/home", program]
        command += ["--model", "local-completions", "--model_args", model, "--tasks", "facts"]
        command += ["--include_path", folder, "--output_path", folder, "--log_samples"]
        told = _run(command, 600)
        cases = [
            _fact(json.loads(line))
            for path in Path(folder).rglob("samples_facts*.jsonl")
            for line in path.read_text().splitlines()
        ]
    name = f"{LM_EVAL} (PyPI), local-completions, a fact a case"
    return Report("lm-eval", name, cases or [Case("facts", "failed", told[-300:])])


def _fact(sample: dict[str, Any]) -> Case:
    """Each choice has a finite log-probability, and the true one the best."""
    scores = [float(pair[0][0]) for pair in sample["resps"]]
    is_finite = all(-1000 < score < 0 for score in scores)
    detail = f"{sample['doc']['question']} {scores}"
    return Case(
        sample["doc"]["question"], "passed" if is_finite and sample["acc"] else "failed", detail
    )
