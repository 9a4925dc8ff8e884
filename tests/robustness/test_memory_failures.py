"""No memory: MemoryError, nothing left over, and a decoder that goes on when there is some again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Of each case so many allocations fail, chosen by the run's seed; 0 is all of them, which takes some minutes.
MOST = os.environ.get("PGDECODE_TEST_ALLOCATIONS", "25")
CASES = (
    "envelope",
    "envelope of a list",
    "envelope in no order",
    "envelope with bad payloads",
    "envelope by two threads",
    "rows in text",
    "rows in binary",
    "rows as text",
    "rows by two threads",
    "rows that grow by two threads",
    "rows of a stream",
    "changes",
    "changes in binary, by pieces",
    "changes of two phases",
    "changes of many relations",
    "a table",
    "a catalog",
)

COMPILER = shutil.which("cc")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the failing allocator is glibc's"),
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler for the failing allocator"),
    pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="another allocator is preloaded, a sanitizer's perhaps"),
    pytest.mark.full,
]


@pytest.fixture(scope="module")
def allocator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("allocator") / "failing_malloc.so"
    source = HERE / "failing_malloc.c"
    assert COMPILER is not None
    subprocess.run([COMPILER, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def run(allocator: Path, most: str, case: str) -> None:
    environment = {
        **os.environ,
        "LD_PRELOAD": str(allocator),
        # The pool whose memory goes through the C library.
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE.parent)]),
    }
    command = [sys.executable, HERE / "memory_failures.py", str(int(os.environ["PGDECODE_TEST_SEED"])), most, case]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{case}: ")
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("case", CASES)
def test_an_allocation_that_fails_is_a_memory_error_and_leaves_nothing_behind(allocator: Path, case: str) -> None:
    run(allocator, MOST, case)


# Not of changes: CPython 3.11 itself crashes where a dict cannot grow in `|=`.
@pytest.mark.parametrize("case", ["envelope", "few payloads"])
def test_a_python_object_that_cannot_be_made_is_a_memory_error_too(allocator: Path, case: str) -> None:
    pytest.importorskip("_testcapi", reason="this interpreter came without its test helpers")
    run(allocator, "objects", case)
