"""What importing a module loads, in a fresh process; and that every name given as text exists."""

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

from headrace.modeling.models.family import Family
from headrace.modeling.registry import CONFIG_FAMILIES, GGUF_FAMILIES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headrace"

WEB = ("starlette", "uvicorn", "aiohttp")
SLOW = ("torch", "transformers", "huggingface_hub", "boto3", "httpx", "prometheus_client", "tqdm")
RPC = ("grpc", "grpc_health", "grpc_reflection", "google")


def loaded_by(module: str) -> set[str]:
    """Top-level packages in a fresh interpreter after `import module`."""
    code = (
        f"import sys, json, {module}; "
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("headrace.cli.main", (*SLOW, *WEB, "numpy", "msgspec", "asyncio", "argparse")),
        ("headrace.cli.serve", (*SLOW, *WEB, "numpy", "asyncio")),
        ("headrace.cli.chat", (*SLOW, *WEB, "numpy", "asyncio")),
        ("headrace.server.run", (*SLOW, *WEB, *RPC, "numpy")),
        ("headrace.server.app", (*SLOW, "numpy")),
        ("headrace.server.serving", (*SLOW, *RPC, "numpy")),
        ("headrace.engine.scheduler.scheduler", (*SLOW, *WEB, "numpy")),
        ("headrace.engine.memory.ledger", (*SLOW, *WEB, "numpy")),
        ("headrace.engine.process", (*SLOW, *WEB)),
        ("headrace.engine.build", (*SLOW, *WEB)),
        ("headrace.completion.respond", (*SLOW, *WEB, "numpy")),
        ("headrace.bench.session", (*SLOW, *WEB, "numpy")),
        ("headrace.fleet.gateway.routing.choose", (*SLOW, *WEB, "numpy", "zmq", "asyncio")),
        ("headrace.fleet.gateway.models.resolve", (*SLOW, *WEB, "numpy", "zmq", "asyncio")),
        ("headrace.fleet.gateway.prefix.index", (*SLOW, *WEB, "numpy", "zmq", "asyncio")),
        ("headrace.fleet.gateway.prefix.knowledge", (*SLOW, *WEB, "numpy")),
    ],
)
def test_importing_loads_only_what_is_needed(module: str, forbidden: tuple[str, ...]) -> None:
    assert loaded_by(module) & set(forbidden) == set()


def test_preprocessing_loads_no_numpy() -> None:
    modules = sorted(
        f"headrace.preprocess.{path.stem}"
        for path in (SOURCE / "preprocess").glob("*.py")
        if path.stem != "__init__"
    )
    assert modules
    assert loaded_by(", ".join(modules)) & {"numpy", *SLOW, *WEB} == set()


def named_as_text() -> list[tuple[str, str]]:
    """Every "package.module:attribute" in the source, and every constant given to import_module."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        file = str(path.relative_to(SOURCE))
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Constant(value=str() as text) if re.fullmatch(r"headrace[\w.]+:\w+", text):
                    found.add((file, text))
                case ast.Call(
                    func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                    args=[ast.Constant(value=str() as text)],
                ):
                    found.add((file, text))
    return sorted(found)


@pytest.mark.parametrize(("file", "target"), named_as_text())
def test_every_name_given_as_text_exists(file: str, target: str) -> None:
    module, _, attribute = target.partition(":")
    resolved = import_module(module)
    assert not attribute or callable(getattr(resolved, attribute))


@pytest.mark.parametrize("target", sorted({*CONFIG_FAMILIES.values(), *GGUF_FAMILIES.values()}))
def test_every_registered_family_exists(target: str) -> None:
    module, _, attribute = target.partition(":")
    assert isinstance(getattr(import_module(module), attribute), Family)


def test_some_names_are_given_as_text() -> None:
    targets = {target for _, target in named_as_text()}
    assert {"headrace.cli.serve:main", "headrace.kernels.cpu.backend"} <= targets


def test_native_code_knows_no_python_framework() -> None:
    banned = re.compile(r"#\s*include\s*[<\"](torch|ATen|c10|Python\.h|pybind11)")
    files = [p for p in (ROOT / "csrc").rglob("*") if p.suffix in (".h", ".cc", ".cpp")]
    assert files
    assert [str(p) for p in files if banned.search(p.read_text())] == []


def test_only_bindings_know_nanobind() -> None:
    files = [p for p in (ROOT / "csrc").rglob("*") if p.suffix in (".h", ".cc", ".cpp")]
    outside = [p for p in files if "bindings" not in p.relative_to(ROOT / "csrc").parts]
    assert [str(p) for p in outside if "nanobind" in p.read_text()] == []


def test_tests_share_by_their_support_alone() -> None:
    """A test module that another imports cannot be changed on its own."""
    found = [
        f"{path.relative_to(ROOT)}: {node.module}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and re.fullmatch(r"tests\..*\.test_\w+", node.module or "")
    ]
    assert found == []


def test_the_public_names() -> None:
    import headrace

    assert headrace.__all__ == ["LLM", "__version__"]
    assert import_module("headrace.llm").LLM is headrace.LLM
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = headrace.nothing
