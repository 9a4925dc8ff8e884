"""Targets of all formats, with the reader of each, for tests that are the same for all of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake.memory_target import MemoryTarget

from pgdecode.lake import ApplyResult, StaleTables, Target, apply, lake_target

Rows = list[tuple[Any, ...]]


@dataclass
class Lake:
    """A place with tables, and the function that reads the columns of one."""

    target: str | Target
    read: Callable[[str], pa.Table]

    def rows(self, table: str = "public.t16385") -> Rows:
        """The rows of a table in any order, sorted by their texts."""
        found = self.read(table)
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)

    def apply_batches(
        self, folder: Path, payloads: Sequence[bytes], cuts: Sequence[int], **options: Any
    ) -> ApplyResult:
        """Apply payloads in batches that end at `cuts`, and at the end. Stale tables are no error."""
        folder.mkdir(exist_ok=True)
        first = 0
        for end in [*cuts, len(payloads)]:
            table = {"seq": pa.array(range(first, end), pa.int64()), "data": pa.array(payloads[first:end], pa.binary())}
            pq.write_table(pa.table(table), folder / f"part-{first:08d}.parquet")
            first = end
            try:
                result = apply(folder, self.target, workers=1, **options)
            except StaleTables as error:
                result = error.result
        return result


def _memory(folder: Path) -> Lake:
    target = MemoryTarget()
    return Lake(target, lambda name: target.read(name).read_all())


def _read_by_target(uri: str) -> Callable[[str], pa.Table]:
    def read(name: str) -> pa.Table:
        with lake_target(uri).opened() as target:
            return target.read(name).read_all()

    return read


def _parquet(folder: Path) -> Lake:
    uri = f"parquet:{folder / 'lake'}"
    return Lake(uri, _read_by_target(uri))


def _duckdb(folder: Path) -> Lake:
    duckdb = pytest.importorskip("duckdb")

    def read(name: str) -> pa.Table:
        schema, table = name.split(".")
        with duckdb.connect(str(folder / "lake.duckdb"), read_only=True) as connection:
            return connection.sql(f'SELECT * FROM "{schema}"."{table}"').to_arrow_table()

    return Lake(f"duckdb:{folder / 'lake.duckdb'}", read)


def _ducklake(folder: Path) -> Lake:
    pytest.importorskip("duckdb_extension_ducklake")
    uri = f"ducklake:{folder / 'lake.ducklake'}"
    return Lake(uri, _read_by_target(uri))


def _delta(folder: Path) -> Lake:
    deltalake = pytest.importorskip("deltalake")

    def read(name: str) -> pa.Table:
        return pa.table(deltalake.DeltaTable(str(folder / "lake" / name)).to_pyarrow_table())

    return Lake(f"delta:{folder / 'lake'}", read)


def _iceberg(folder: Path) -> Lake:
    catalogs = pytest.importorskip("pyiceberg.catalog")

    def read(name: str) -> pa.Table:
        lake = folder / "lake"
        catalog = catalogs.load_catalog("default", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
        return pa.table(catalog.load_table(name).scan().to_arrow())

    return Lake(f"iceberg:{folder / 'lake'}", read)


# To add a format: a function that makes an empty place in a folder, and the module of `pgdecode.lake` that it needs.
_FORMATS: dict[str, tuple[Callable[[Path], Lake], str]] = {
    "memory": (_memory, "target"),
    "parquet": (_parquet, "parquet_format"),
    "duckdb": (_duckdb, "duckdb"),
    "ducklake": (_ducklake, "duckdb"),
    "delta": (_delta, "delta"),
    "iceberg": (_iceberg, "iceberg"),
}
FORMATS = tuple(
    name for name, (_, module) in _FORMATS.items() if importlib.util.find_spec(f"pgdecode.lake.{module}") is not None
)


def new_lake(format: str, folder: Path) -> Lake:
    """Make an empty place for tables."""
    return _FORMATS[format][0](folder)
