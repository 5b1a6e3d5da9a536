"""Kernel objects of an instruction set define nothing that the linker could use for another one.

An inline function or template outside the set's own namespace has the same name in every object. The linker
keeps one of them: were it the AVX-512 one, the generic path would crash on an older machine.
"""

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

OBJECTS = Path(__file__).parents[2] / "build" / "native" / "CMakeFiles"
IS_ARM = platform.machine() in ("aarch64", "arm64")
X86_SETS = {"avx2": ("avx2",), "avx512": ("avx512", "avx512_bf16", "amx")}
SETS = {"neon": ("neon",)} if IS_ARM else X86_SETS


def foreign_symbols(listing: str, namespaces: tuple[str, ...]) -> list[str]:
    """External names in the output of `nm` that do not mention `headrace::<namespace>`.

    A name that does, be it as its scope or as a template argument (the lambda of a kernel), is in no other
    set's objects.
    """
    names = "|".join(
        f"{len(name)}{name}" for name in namespaces
    )  # as the Itanium C++ ABI spells them
    ours = re.compile(rf"_Z.*(?<!\d)(?:{names})")
    symbols = [line.split()[-1] for line in listing.splitlines() if len(line.split()) == 3]
    return [symbol for symbol in symbols if not ours.match(symbol)]


@pytest.mark.parametrize("isa", SETS)
def test_every_external_symbol_of_a_kernel_names_its_set(isa: str) -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm (binutils) is not installed")
    objects = sorted((OBJECTS / f"headrace_{isa}.dir").rglob("*.o"))
    if not objects:
        pytest.skip(
            f"there are no {isa} objects in build/native: `make native` makes them on machines of its kind"
        )
    seen = 0
    for path in objects:
        done = subprocess.run(
            [nm, "--extern-only", "--defined-only", str(path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        assert foreign_symbols(done.stdout, SETS[isa]) == [], path.name
        seen += len(done.stdout.splitlines())
    assert seen


@pytest.mark.parametrize(
    ("symbol", "is_foreign"),
    [
        ("_ZN8headrace4avx26linearERKNS_10LinearArgsERNS_9OpContextE", False),
        ("_ZTVN8headrace4avx24TileE", False),
        ("_ZGVZN8headrace4avx25tableEvE1t", False),
        (
            "_ZZN8headrace10ThreadPool12parallel_forIZNS_4avx24tileEvEUliE_EEvlOT_ENUlPvE_4_FUNES6_",
            False,
        ),
        ("_ZNSt6vectorIfSaIfEE9push_backEOf", True),
        ("_ZN8headrace14avx2_is_presentEv", True),
        ("_ZN8headrace9OpContext7scratchEm", True),
        ("_ZN8headrace6avx51212linear", True),
        ("_ZSt3maxIfERKT_S2_S2_", True),
        ("helper", True),
    ],
)
def test_what_counts_as_foreign(symbol: str, is_foreign: bool) -> None:
    listing = f"0000000000000000 W {symbol}\n"
    assert foreign_symbols(listing, ("avx2",)) == [symbol] * is_foreign
