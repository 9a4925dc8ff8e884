"""The examples in the docstrings of the public names run, and every public function and class has one."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgdecode
import spark_udfs
from support.docs import markdown

pytest_plugins = ["support.spark_session"]

FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


def run(module: Any, name: str, **names: Any) -> None:
    """Run the example of a name."""
    (found,) = doctest.DocTestFinder(recurse=False).find(
        getattr(module, name), name, globs={module.__name__: module, **names}
    )
    assert found.examples, f"{name} has no example"
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(found, out=said.append)
    assert result.failed == 0, "".join(said)


def is_described_together(item: Any) -> bool:
    """Whether a name has no example of its own: the errors share that of `DecodeError`; a version is a string."""
    return isinstance(item, str) or (
        isinstance(item, type) and issubclass(item, pgdecode.DecodeError) and item is not pgdecode.DecodeError
    )


@pytest.mark.parametrize(
    "name", [name for name in pgdecode.__all__ if not is_described_together(getattr(pgdecode, name))]
)
def test_the_example_of_a_name_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(markdown.ROOT)
    run(pgdecode, name, pa=pa, pq=pq)


@pytest.mark.full
def test_the_examples_on_spark_run(spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(markdown.ROOT)
    for name in spark_udfs.__all__:
        run(spark_udfs, name, spark=spark, folder=str(tmp_path / name))
