"""The rooms and the one direction of imports between them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NATIVE = ROOT / "src" / "pgdecode"
PACKAGE = ROOT / "pgdecode"

# Each room may import those of the lines above it. Command-line rooms share one line's rank and are checked as a tree.
ORDER = [
    {"errors", "lsn", "limits", "wire", "encodings"},
    {"messages"},
    {"schemas", "pgtypes", "nulls"},
    {"typenames", "settings"},
    {"overrides"},
    {"relations"},
    {"_room"},
    {"_fault"},
    {"_memory", "_cursor", "_utf8", "_charset", "_source", "_uncached"},
    {"_bits"},
    {"_sink", "_column"},
    {"_codec", "_join", "_rowset"},
    {"_block"},
    {"_codecs"},
    {"_plan"},
    {"_envelope"},
    {"_fields", "_lane"},
    {"_cells"},
    {"_walk", "_heads"},
    {"_streams", "_batch"},
    {"_notes", "_part", "_turns"},
    {"_divided"},
    {"_layouts", "_versions", "_rowdecoder"},
    {"_changes"},
    {"_scan", "_message", "_rows", "_maps", "_outline", "_integers", "_tags"},
    {"inputs", "parallel"},
    {"decode", "rows"},
    {"versions"},
    {"plain", "visibility"},
    {"catalog"},
    {"readings"},
    {"ledger"},
    {"scanned"},
    {"outcomes"},
    {"transactions", "spill"},
    {"deliveries"},
    {"state", "building"},
    {"tables", "change_maps"},
    {"changes", "runs"},
    {"snapshots", "forecast", "run_decoder"},
    {"__init__"},
]
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
SHELL = {path.stem for path in PACKAGE.glob("*.py")} - set(RANK)

NATIVE_IMPORT = re.compile(r"^(?:from pgdecode\.?(\w*) (?:c?import) \(?([\w, ]*)|import pgdecode\b)", re.MULTILINE)


def python_imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere in it, by their full names."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def rooms_of(names: set[str]) -> set[str]:
    """Rooms of the package among imported names."""
    return {name.split(".")[1] for name in names if name.startswith("pgdecode.")} & (set(RANK) | SHELL)


def native_imports(path: Path) -> set[str]:
    rooms = set()
    for module, names in NATIVE_IMPORT.findall(path.read_text()):
        rooms |= {module} if module else {name.split(" as ")[0].strip() for name in names.split(",")}
    return rooms


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_a_python_room_imports_only_rooms_above_it(path: Path) -> None:
    imported = rooms_of(python_imports(path)) - {path.stem}
    if path.stem in RANK:
        assert {room for room in imported if RANK.get(room, len(ORDER)) >= RANK[path.stem]} == set()


@pytest.mark.parametrize("path", sorted((NATIVE / "_codecs").glob("*.p[xy]*")), ids=lambda path: path.name)
def test_a_codec_imports_only_rooms_above_the_codecs(path: Path) -> None:
    imported = native_imports(path) - {"_codecs"}
    assert {room for room in imported if RANK[room] >= RANK["_codecs"]} == set()


@pytest.mark.parametrize("path", sorted(NATIVE.glob("_*.p[xy]*")), ids=lambda path: path.name)
def test_a_native_room_imports_only_rooms_above_it(path: Path) -> None:
    imported = native_imports(path) - {path.stem}
    assert imported <= set(RANK)
    assert {room for room in imported if RANK[room] >= RANK[path.stem]} == set()


def test_every_native_room_has_its_place_in_the_order() -> None:
    assert {path.stem for path in NATIVE.glob("_[a-z]*.p[xy]*")} <= set(RANK)


def test_no_rooms_of_the_command_line_import_each_other_in_a_ring() -> None:
    imports = {room: rooms_of(python_imports(PACKAGE / f"{room}.py")) & SHELL - {room} for room in SHELL}
    while imports:
        leaves = {room for room, wanted in imports.items() if not wanted & set(imports)}
        assert leaves, f"a ring among {sorted(imports)}"
        imports = {room: wanted for room, wanted in imports.items() if room not in leaves}


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_only_spark_udfs_imports_pyspark(path: Path) -> None:
    assert not {name for name in python_imports(path) if name.split(".")[0] in ("pyspark", "pandas")}


@pytest.mark.parametrize("name", ["errors", "lsn", "limits", "wire", "messages", "encodings"])
def test_the_tables_need_the_standard_library_alone(name: str) -> None:
    tops = {module.split(".")[0] for module in python_imports(PACKAGE / f"{name}.py")}
    # Of the package's own, those of the lines above: see the order.
    assert tops - {"pgdecode"} <= set(sys.stdlib_module_names)


def test_importing_the_library_needs_pyarrow_alone() -> None:
    code = (
        "import sys, pgdecode\n"
        "print([name for name in ('pandas', 'numpy', 'pyspark', 'click', 'rich') if name in sys.modules])"
    )
    # pyarrow itself imports numpy where it is installed.
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert seen in ("[]", "['numpy']")


def test_only_the_cursor_and_the_source_move_pointers_into_payloads() -> None:
    # A pointer into a payload is had from take() or from a Span; nobody else adds to one.
    arithmetic = re.compile(r"\bcursor\.at \+= (?!1$)", re.MULTILINE)
    for path in NATIVE.glob("_*.py*"):
        if path.stem != "_cursor":
            assert not arithmetic.search(path.read_text()), path.name


def test_every_documented_top_level_folder_is_there() -> None:
    for name in ("src", "pgdecode", "spark_udfs", "benchmarks", "tests", "setup.py", "pyproject.toml", ".ci/run"):
        assert (ROOT / name).exists()
