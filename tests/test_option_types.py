"""Options with few values have Literal types in all public functions, so that a type checker refuses other values."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import pgdecode
import spark_udfs
from pgdecode.cli.commands import command_named
from support.docs.options import hints_of, literals

# Strings of any value: names of columns, encodings, styles and outputs.
FREE = {"encoding", "datestyle", "payload", "position", "what"}


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions and constructors, by their names."""
    for module in (pgdecode, spark_udfs):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found):
                yield f"{module.__name__}.{name}", found
    for decoder in (pgdecode.ChangeDecoder, pgdecode.MessageDecoder):
        yield f"pgdecode.{decoder.__name__}", decoder.__init__


def options(function: Callable[..., Any]) -> Iterator[tuple[str, Any, Any]]:
    """Names, types and defaults of the parameters of a function."""
    hints = hints_of(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            yield parameter.name, hints.get(parameter.name), parameter.default
    for name in hints.keys() - inspect.signature(function).parameters.keys():  # without defaults
        yield name, hints[name], None


NAMES = {
    "mode": {"FAILFAST", "PERMISSIVE"},
    "in_stream": {"ordered", "auto"},
    "start": {"transaction", "anywhere"},
    "empty": {"null", "error"},
    "unrepresentable": {"error", "null", "clamp", "text"},
    "name_clash": {"error", "rename"},
    "format": {"parquet", "jsonl", "csv"},
    "years": {"1-9999", "any"},
    "others": {"error", "null"},
    "adapter": {"auto", "arrow", "pandas"},
}


@pytest.mark.parametrize(("name", "function"), [pytest.param(*item, id=item[0]) for item in functions()])
def test_an_option_with_few_values_has_a_literal_type(name: str, function: Callable[..., Any]) -> None:
    for option, hint, default in options(function):
        values = set(literals(hint))
        if isinstance(default, str) and option not in FREE:
            assert default in values, option
        if option in NAMES and name != "pgdecode.decode":
            assert values >= NAMES[option], option
            assert values - NAMES[option] <= {"DROPMALFORMED"}, option


def test_rows_are_dropped_where_they_may_be_missing_and_nowhere_else() -> None:
    drops = {
        name
        for name, function in functions()
        for option, hint, _ in options(function)
        if option == "mode" and "DROPMALFORMED" in literals(hint)
    }
    assert drops == {
        "pgdecode.ChangeDecoder",
        "pgdecode.snapshot",
        "spark_udfs.changes",
        "spark_udfs.table_changes",
        "spark_udfs.snapshot",
        "spark_udfs.decode_files",
    }
    for command in ("decode", "cat"):
        (mode,) = (item for item in command_named(command).params if item.name == "mode")
        assert isinstance(mode.type, click.Choice)
        assert "DROPMALFORMED" in mode.type.choices


SNIPPET = """
import pgdecode
import spark_udfs
from pyspark.sql import DataFrame

relation: pgdecode.Relation
df: DataFrame
pgdecode.decode_messages([b"E"], {})
pgdecode.MessageDecoder({})
pgdecode.decode_rows([b"E"], relation, {})
pgdecode.ChangeDecoder({})
pgdecode.snapshot([b"E"], "public.t", {})
spark_udfs.parse_pgoutput("data", {})
spark_udfs.from_pgoutput("data", relation, {})
spark_udfs.changes(df, {})
spark_udfs.table_changes(df, "public.t", {})
spark_udfs.snapshot(df, "public.t", {})
spark_udfs.decode_files(None, "in", "out", {})
"""
CALLS = 11


def refused(tmp_path: Path, given: str) -> list[str]:
    """Codes of the errors that mypy reports of the calls with an argument."""
    path = tmp_path / "snippet.py"
    path.write_text(SNIPPET.replace("{}", given))
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line.split()[-1] for line in done.stdout.splitlines() if ": error:" in line]


@pytest.mark.full
def test_a_type_checker_refuses_a_value_that_an_option_does_not_have(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    assert refused(tmp_path, 'mode="FAILFAST"') == []
    assert refused(tmp_path, 'mode="permissive"') == ["[arg-type]"] * CALLS
    assert refused(tmp_path, 'empty="skip"') == ["[arg-type]"] * CALLS
    assert refused(tmp_path, "empty=None") == ["[arg-type]"] * CALLS
    # Four have this option.
    assert refused(tmp_path, 'in_stream="ordered"').count("[arg-type]") == 0
    assert refused(tmp_path, 'in_stream="order"').count("[arg-type]") == 4
