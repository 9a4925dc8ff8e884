"""Imports between packages go in one direction."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from support import clone

ROOT = Path(__file__).parent.parent
NATIVE = ROOT / "src" / "pgdecode" / "_native"

# A package imports only packages above it. Modules of a package may import each other, but not in a cycle.
PACKAGES = [
    "pgdecode.protocol",
    "pgdecode.storage",
    "pgdecode.types",
    "pgdecode.arrow",
    "pgdecode._native",
    "pgdecode.payloads",
    "pgdecode.envelope",
    "pgdecode.relations",
    "pgdecode.rows",
    "pgdecode.datasets",
    "pgdecode.changes",
    "pgdecode.net",
    "pgdecode.partitions",
    "pgdecode.files",
    "pgdecode.jobs",
    "pgdecode.capture",
    "pgdecode.lake",
    "pgdecode.cli",
    "spark_udfs.schema",
    "spark_udfs.runtime",
    "spark_udfs.columns",
    "spark_udfs.dataframes",
    "spark_udfs.jobs",
    "spark_udfs.sources",
    "spark_udfs.lake",
    "pgdecode.spark",
]
# Modules of pgdecode that spark_udfs imports. They are its interface: what they offer changes together with spark_udfs.
INTERFACE = {
    "protocol": "as_of boundaries errors json_document limits messages options wire",
    "storage": "errors object_path object_store parquet_input",
    "types": "type_changes user_types",
    "arrow": "null_arrays",
    "_native": "arrow.payload_array wire.message_filter",
    "payloads": "commits payload_input unwrap",
    "envelope": "schema",
    "relations": ("catalog column_history relation_json relation_version schema_metadata table_names version_tracker"),
    "rows": "change_feed options own_names value_options",
    "datasets": "errors file_digest input_listing input_selection manifest new_files payload_ranges run state target",
    "changes": (
        "change_rows checkpoint committed_changes record_batches replication_state stored_state table_rows "
        "transaction_assembler"
    ),
    "net": "history net_changes schema snapshot",
    "partitions": "partition_decoder partition_index source_index speculation split_statistics",
    "files": (
        "captured_payloads change_export change_reader envelope_batches file_metadata ordered_files payload_batches "
        "payload_file payload_files writers"
    ),
    "jobs": "decode_run message_export new_input",
    "lake": "reading.schema_steps stored_types target",
}
# The same order for native packages. Modules outside these folders (fault, cursor, capacity) are below all of them.
NATIVE_PACKAGES = ["memory", "arrow", "wire", "literals", "codecs", "threads", "scan", "rows", "changes"]
MOST_MODULES = 16  # in a folder

NATIVE_IMPORT = re.compile(
    r"^[ \t]*(?:from (pgdecode[\w.]*) c?import (?:\(([^)]*)\)|([^(\n]*))|c?import (pgdecode[\w.]*))", re.MULTILINE
)


def package_of(module: str) -> str:
    """The package of a module: the first two parts of its name."""
    return ".".join(module.split(".")[:2])


# Remedies may name psql's, and those of another call, `pgdecode capture DSN RAW`.
FLAG = re.compile(r"(^|(?<!psql)(?<!DSN RAW)[\s(])--[a-z]")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Source(NamedTuple):
    """What the tests look for in a Python file. It is parsed once, and its many nodes are not kept."""

    imports: set[str]  # full names of the modules that it imports anywhere
    for_annotations: set[str]  # those of them that it imports only for annotations
    attributes: set[str]
    flags: set[str]  # strings with a flag of a command, without documentation


@cache
def source_of(path: Path) -> Source:
    tree = ast.parse(path.read_text())
    unused = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    for_annotations = imports_in(node for part in unused for node in ast.walk(part))
    tree.body = [node for node in tree.body if node not in unused]
    nodes = list(ast.walk(tree))
    at_run_time = imports_in(nodes)
    texts = {node.body[0].value for node in nodes if isinstance(node, DOCUMENTED) and ast.get_docstring(node)}
    strings = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return Source(
        imports=at_run_time | for_annotations,
        for_annotations=for_annotations - at_run_time,
        attributes={node.attr for node in nodes if isinstance(node, ast.Attribute)},
        flags={node.value for node in strings if node not in texts and FLAG.search(node.value)},
    )


def imports_in(nodes: Iterable[ast.AST]) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found


def python_imports(path: Path, at_run_time: bool = False) -> set[str]:
    """Full names of the modules that a file imports anywhere; `at_run_time` leaves out those only for annotations."""
    source = source_of(path)
    return source.imports - source.for_annotations if at_run_time else source.imports


@cache
def native_imports(path: Path) -> set[str]:
    """Modules of the package that a native source imports or cimports, and their names."""
    found = set()
    for module, many, few, plain in NATIVE_IMPORT.findall(path.read_text()):
        names = re.findall(r"\w+(?= as |,|\s*$)", (many or few).replace("\n", " "))
        found |= {plain} if plain else {module, *(f"{module}.{name}" for name in names)}
    return found


def module_of(path: Path) -> str:
    base = ROOT / "src" if "src" in path.relative_to(ROOT).parts else ROOT
    return ".".join(path.relative_to(base).with_suffix("").parts)


PYTHON = sorted(
    path
    for folder in ("pgdecode", "spark_udfs")
    for path in (ROOT / folder).rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
)
BENCHMARKS = sorted(path for part in ("", "cases") for path in (ROOT / "benchmarks" / part).glob("[a-z]*.py"))
SOURCES = sorted(path for path in NATIVE.rglob("*.p[xy]*") if path.stem != "__init__")


def named(wrong: dict[Path, set[str]]) -> dict[str, set[str]]:
    """The files in which something wrong was found."""
    return {str(path.relative_to(ROOT)): names for path, names in wrong.items() if names}


def imports_of(path: Path, at_run_time: bool = False) -> set[str]:
    return python_imports(path, at_run_time) if path.suffix == ".py" else native_imports(path)


def test_a_module_imports_only_packages_above_its_own() -> None:
    wrong = {}
    for path in [*PYTHON, *SOURCES]:
        own = package_of(module_of(path))
        allowed = set(PACKAGES[: PACKAGES.index(own) + 1])
        imported = {package_of(name) for name in imports_of(path) if name.count(".") > 1}
        if own == "pgdecode.cli":
            imported -= {"spark_udfs.jobs", "spark_udfs.runtime"}  # inside functions, for --engine spark
        wrong[path] = {name for name in imported if name.startswith(("pgdecode.", "spark_udfs."))} - allowed
    assert not any(wrong.values()), named(wrong)


def test_spark_imports_the_declared_modules_of_pgdecode() -> None:
    files = [path for path in PYTHON if path.relative_to(ROOT).parts[0] == "spark_udfs"]
    imported = {name for path in files for name in imports_of(path)}
    modules = {module_of(path) for path in [*PYTHON, *SOURCES] if module_of(path).startswith("pgdecode.")}
    declared = {f"pgdecode.{package}.{name}" for package, names in INTERFACE.items() for name in names.split()}
    assert {name for name in imported & modules if name.count(".") > 1} <= declared


def test_a_native_module_imports_only_native_packages_above_its_own() -> None:
    wrong = {}
    for path in SOURCES:
        folder = path.relative_to(NATIVE).parts[0] if path.parent != NATIVE else None
        allowed = set(NATIVE_PACKAGES[: NATIVE_PACKAGES.index(folder) + 1]) if folder else set()
        imported = {name.split(".")[2] for name in imports_of(path) if name.startswith("pgdecode._native.")}
        wrong[path] = imported & set(NATIVE_PACKAGES) - allowed
    assert not any(wrong.values()), named(wrong)


def test_no_modules_import_each_other_in_a_cycle() -> None:
    modules: dict[str, set[str]] = {}
    for path in [*PYTHON, *SOURCES, *BENCHMARKS]:
        modules.setdefault(module_of(path), set()).update(imports_of(path, at_run_time=True) - {module_of(path)})
    while modules:
        lowest = {name for name, imported in modules.items() if not imported & set(modules)}
        assert lowest, f"a cycle among {sorted(modules)}"
        modules = {name: imported for name, imported in modules.items() if name not in lowest}


def test_every_module_is_in_an_ordered_package() -> None:
    assert {package_of(module_of(path)) for path in [*PYTHON, *SOURCES]} <= set(PACKAGES)
    assert {path.relative_to(NATIVE).parts[0] for path in SOURCES if path.parent != NATIVE} == set(NATIVE_PACKAGES)


def test_no_folder_has_too_many_modules() -> None:
    folders: dict[Path, set[str]] = {}
    for path in [*PYTHON, *SOURCES, *BENCHMARKS]:
        folders.setdefault(path.parent, set()).add(path.stem)
    assert {path.name: len(stems) for path, stems in folders.items() if len(stems) > MOST_MODULES} == {}


def test_only_spark_udfs_imports_pyspark() -> None:
    wrong = {
        path: {name.split(".")[0] for name in python_imports(path)} & {"pyspark", "pandas"}
        for path in PYTHON
        if not path.is_relative_to(ROOT / "spark_udfs")
    }
    assert not any(wrong.values()), named(wrong)


def test_only_one_module_uses_the_jvm_which_spark_connect_does_not_have() -> None:
    of_classic_spark = {"_jvm", "_jsc", "_jdf", "_jsparkSession", "_gateway", "py4j"}
    wrong = {}
    for path in PYTHON:
        if path.name != "jvm.py":
            names = source_of(path).attributes | {name.split(".")[0] for name in python_imports(path)}
            wrong[path] = names & of_classic_spark
    assert not any(wrong.values()), named(wrong)


def test_the_wire_format_needs_only_the_standard_library() -> None:
    wrong = {}
    for path in [*(ROOT / "pgdecode" / "protocol").glob("*.py"), ROOT / "pgdecode" / "types" / "encodings.py"]:
        imported = {name for name in python_imports(path) if package_of(name) != "pgdecode.protocol"}
        wrong[path] = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert not any(wrong.values()), named(wrong)


def test_importing_the_library_needs_only_pyarrow() -> None:
    code = (
        "import sys, pgdecode\n"
        "print([name for name in ('pandas', 'numpy', 'pyspark', 'click', 'rich') if name in sys.modules])"
    )
    # pyarrow itself imports numpy if it is installed.
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert seen in ("[]", "['numpy']")


def test_a_cursor_moves_by_more_than_a_byte_only_in_its_functions() -> None:
    moved = re.compile(r"\bcursor\.at [+-]=(?! 1$)", re.MULTILINE)
    assert [path.name for path in SOURCES if path.stem != "cursor" and moved.search(path.read_text())] == []


def test_the_library_names_parameters_and_no_flags_of_the_command_line() -> None:
    # Not the command line itself, and what starts other programs.
    library = [path for path in PYTHON if "cli" not in path.parts and path.name not in ("demo.py", "java.py")]
    wrong = {path: source_of(path).flags for path in library}
    assert not any(wrong.values()), named(wrong)


@pytest.mark.parametrize("module", ["pgdecode", "pgdecode.spark", "spark_udfs"])
def test_a_package_lists_its_public_names_alone(module: str) -> None:
    found = importlib.import_module(module)
    assert dir(found) == sorted(found.__all__)
    assert all(getattr(found, name) is not None for name in dir(found))


def test_the_documents_name_files_that_exist() -> None:
    files = [str(path) for path in (*PYTHON, *SOURCES)]
    for document in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"):
        text = clone.path_of(document).read_text()
        names = re.findall(r"`(?:src/|pgdecode/)*([\w/.-]+\.(?:pyx|pxd|py))`", text)
        others = [name for name in names if not any(path.endswith(f"/{name}") for path in files)]
        assert [name for name in others if not (ROOT / name).exists()] == [], document
