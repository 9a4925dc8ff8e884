"""Each compiled module that Python code imports has a stub, and the stub says what the module has."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

import pgdecode

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pgdecode" / "_native"
STUBS = sorted(".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.pyi"))


def stub(module: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{module.replace('.', '/')}.pyi").read_text())


def declared(body: list[ast.stmt]) -> set[str]:
    """Names that a stub's body defines."""
    names = set()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def public(module: Any) -> set[str]:
    """Names that a compiled module defines for Python, imported ones left out."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", module.__name__) == module.__name__
        and not (inspect.isclass(value) and value.__module__ != module.__name__)
    } - {"datetime", "timedelta", "timezone"}


def imported(path: Path) -> set[str]:
    """Compiled modules that a Python file imports."""
    modules = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
    return {
        module.removeprefix("pgdecode._native.")
        for module in modules
        if module and ".".join(module.split(".")[:2]) == "pgdecode._native"
    }


@pytest.mark.parametrize("name", STUBS)
def test_a_stub_declares_what_its_module_has(name: str) -> None:
    assert declared(stub(name).body) == public(importlib.import_module(f"pgdecode._native.{name}"))


@pytest.mark.parametrize("name", STUBS)
def test_the_methods_in_a_stub_exist(name: str) -> None:
    module = importlib.import_module(f"pgdecode._native.{name}")
    for node in stub(name).body:
        if isinstance(node, ast.ClassDef):
            cls = getattr(module, node.name)
            assert {method for method in declared(node.body) if not hasattr(cls, method)} == set()


@pytest.mark.full
def test_there_is_a_stub_of_each_module_that_python_imports() -> None:
    files = [path for folder in ("pgdecode", "spark_udfs", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert set().union(*map(imported, files)) - set(STUBS) == set()


def test_no_stub_is_left_of_a_module_that_is_gone() -> None:
    sources = ROOT / "src" / "pgdecode" / "_native"
    assert [name for name in STUBS if not (sources / f"{name.replace('.', '/')}.pyx").exists()] == []


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "pgdecode" / "py.typed").exists()
    assert (ROOT / "spark_udfs" / "py.typed").exists()


def test_all_names_only_what_is_there() -> None:
    assert [name for name in pgdecode.__all__ if not hasattr(pgdecode, name)] == []
    assert len(set(pgdecode.__all__)) == len(pgdecode.__all__)
