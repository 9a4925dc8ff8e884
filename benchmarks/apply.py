"""Benchmark of applying net changes to tables of files, beside other engines: `python -m benchmarks.apply`.

"floor" is pyarrow, which reads the files that have changed rows and writes them again. Each run is a process. Time and
CPU are counted without imports and without making the changes; the peak is of the memory beside them. "content" is read
from the table afterwards: the number of rows and sums of two columns.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

try:
    from pgdecode.lake import file_writer
    from pgdecode.lake.applied import Applied
    from pgdecode.lake.targets import lake_target
    from pgdecode.net.schema import ABOUT
except ImportError as problem:
    sys.exit(f"{problem}\nthis needs the compiled package: python -m pip install -e .")

from benchmarks.memory import CLEAR, status_bytes

NAME = "public.orders"
# A row has 100 bytes.
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False, {"pg:key": "true"}),
        pa.field("customer", pa.int32()),
        pa.field("price", pa.decimal128(14, 2)),
        pa.field("weight", pa.float64()),
        pa.field("created", pa.timestamp("us", "UTC")),
        pa.field("note", pa.string()),
    ]
)
BATCH = 500_000  # rows that are made at once
NET = 2_000_000  # net changes that are applied at once
# By name: rows of the table, changes, and which rows change. Changes are 10 updates to 1 insert and 1 delete.
CASES = {
    "random": (10_000_000, 220_000, "random"),
    "newest": (10_000_000, 220_000, "newest"),
    "large": (20_000_000, 10_000_000, "random"),
    "larger": (40_000_000, 10_000_000, "random"),
    "many files": (1_000_000, 1_000, "newest"),
}
FILES = 10_000  # of "many files"
# Targets of pgdecode by engine; "pgdecode" is the Parquet target.
TARGETS = {
    "pgdecode": "parquet:{}",
    "pgdecode-delta": "delta:{}/lake",
    "pgdecode-iceberg": "iceberg:{}/iceberg",
    "pgdecode-duckdb": "duckdb:{}/lake.duckdb",
}
ENGINES = (*TARGETS, "floor", "duckdb", "deltalake", "pyiceberg")


def rows_of(ids: pa.Array, salt: int) -> pa.Table:
    """Make rows with these keys."""
    mixed = pc.bit_wise_and(pc.multiply(pc.add(ids, salt), pa.scalar(-7046029254386353131)), (1 << 62) - 1)
    digits = mixed.cast(pa.string())
    note = pc.binary_join_element_wise(digits, "of the customer", pc.utf8_reverse(digits), " ")
    numbers = pc.divide(mixed, 1 << 32)
    columns = [
        ids,
        pc.bit_wise_and(numbers, 0xFFFFF).cast(pa.int32()),
        pc.bit_wise_and(numbers, 0xFFFFFF)
        .cast(pa.decimal128(19, 0))
        .cast(pa.decimal128(21, 2))
        .cast(SCHEMA.field("price").type),
        pc.divide(numbers.cast(pa.float64()), 7.0),
        pc.add(pc.multiply(ids, 1000), 1_700_000_000_000_000).cast(SCHEMA.field("created").type),
        pc.utf8_slice_codeunits(note, 0, 56),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def net_of(rows: pa.Table, action: str, *, has_before: bool) -> pa.Table:
    """Make net changes with one action."""
    n = len(rows)
    ids = rows["id"].combine_chunks()
    before = pa.StructArray.from_arrays([ids], ["id"], mask=pa.repeat(not has_before, n))
    empty = pa.ListArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), n + 1), pa.array([], pa.string()))
    columns = {"_action": pa.repeat(action, n), "_key_before": before, "_unknown": empty}
    columns |= {item.name: pa.nulls(n, item.type) if item.type != pa.int64() else ids for item in ABOUT}
    return pa.table({**columns, **dict(zip(rows.schema.names, rows.columns, strict=True))})


def changes_of(n_rows: int, n_changes: int, which: str, start: int, n: int) -> pa.Table:
    """Make n of the changes of a case, from a number on."""
    stride = n_rows // n_changes if which == "random" else 1
    first = 0 if which == "random" else n_rows - n_changes
    numbers = pa.array(range(start, start + n), pa.int64())
    # A permutation of the keys, so that those of a batch are anywhere.
    spread = 7_919 if which == "random" and n_changes % 7_919 else 1
    at = pc.subtract(
        pc.multiply(numbers, spread), pc.multiply(pc.divide(pc.multiply(numbers, spread), n_changes), n_changes)
    )
    ids = pc.add(pc.multiply(at, stride), first)
    kind = pc.subtract(numbers, pc.multiply(pc.divide(numbers, 12), 12))
    updated = ids.filter(pc.less(kind, 10))
    deleted = ids.filter(pc.equal(kind, 10))
    added = pc.add(numbers.filter(pc.equal(kind, 11)), n_rows)
    return pa.concat_tables(
        [
            net_of(rows_of(updated, 1), "upsert", has_before=True),
            net_of(rows_of(deleted, 0), "delete", has_before=True),
            net_of(rows_of(added, 0), "upsert", has_before=False),
        ]
    )


def prepare(folder: Path, n_rows: int, file_bytes: int | None) -> None:
    """Make the table as a Parquet target."""
    target: Any = lake_target(f"parquet:{folder}")
    if file_bytes is not None:
        target.file_bytes = file_bytes
        file_writer.GROUP_BYTES = file_bytes
    with target.opened():
        table = target.table(NAME)
        table.create(SCHEMA)
        for start in range(0, n_rows, BATCH):
            ids = pa.array(range(start, min(start + BATCH, n_rows)), pa.int64())
            table.apply(net_of(rows_of(ids, 0), "upsert", has_before=False))
        target.commit({NAME: Applied(1, 2)})


def with_target(folder: Path, nets: Iterator[pa.Table], threads: int, *, engine: str) -> dict[str, Any]:
    """Apply the changes to a target of pgdecode."""
    target: Any = lake_target(TARGETS[engine].format(folder))
    target.threads = threads
    opened = []
    original = file_writer.SourceFile.__init__

    def counting(self: Any, *arguments: Any) -> None:
        opened.append(arguments[1].path)
        original(self, *arguments)

    file_writer.SourceFile.__init__ = counting  # type: ignore[method-assign, assignment]
    with target.opened():
        table = target.table(NAME)
        for net in nets:
            table.apply(net)
            del net
        counts = vars(table.counts)
        target.commit({NAME: Applied(2, 3)})
    return {**counts, "files_opened": len(set(opened))}


def with_floor(folder: Path, nets: Iterator[pa.Table], threads: int) -> dict[str, Any]:
    """Read the files that have changed rows, and write them again."""
    ids = pa.concat_tables([net.select(["id"]) for net in nets])["id"]
    least, most = pc.min_max(ids).as_py().values()
    n_bytes = 0
    for path in sorted((folder / NAME).glob("*.parquet")):
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=2**20) as file:
            bounds = [file.metadata.row_group(number).column(0).statistics for number in range(file.num_row_groups)]
            if max(item.max for item in bounds) < least or min(item.min for item in bounds) > most:
                continue
            with pq.ParquetWriter(path.with_name("again"), file.schema_arrow, compression="zstd") as writer:
                for number in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(number, use_threads=threads > 1))
        n_bytes += path.with_name("again").stat().st_size
    return {"bytes_added": n_bytes}


def with_duckdb(folder: Path, nets: Iterator[pa.Table], threads: int) -> dict[str, Any]:
    """Use MERGE of DuckDB."""
    import duckdb

    names = SCHEMA.names
    assigned, values = (", ".join(form.format(name) for name in names) for form in ("{0} = net.{0}", "net.{}"))
    with contextlib.closing(duckdb.connect(str(folder / "table.duckdb"), config={"threads": threads})) as connection:
        for net in nets:
            connection.register("net", net)
            connection.execute(
                "MERGE INTO orders USING net ON orders.id = coalesce(net._key_before.id, net.id) "
                f"WHEN MATCHED AND _action = 'delete' THEN DELETE WHEN MATCHED THEN UPDATE SET {assigned} "
                f"WHEN NOT MATCHED AND _action = 'upsert' THEN INSERT ({', '.join(names)}) VALUES ({values})"
            )
            connection.unregister("net")
    return {}


def with_deltalake(folder: Path, nets: Iterator[pa.Table], threads: int) -> dict[str, Any]:
    """Use `DeltaTable.merge`."""
    from deltalake import DeltaTable

    for net in nets:
        source = net.select(["_action", *SCHEMA.names])
        merge = DeltaTable(folder / "delta").merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        merge = merge.when_matched_delete("s._action = 'delete'").when_matched_update(
            {name: f"s.{name}" for name in SCHEMA.names}
        )
        merge.when_not_matched_insert({name: f"s.{name}" for name in SCHEMA.names}, "s._action = 'upsert'").execute()
    return {}


def with_pyiceberg(folder: Path, nets: Iterator[pa.Table], threads: int) -> dict[str, Any]:
    """Use `Table.upsert`, which deletes nothing."""
    table = _iceberg(folder).load_table("bench.orders")
    for net in nets:
        table.upsert(net.filter(pc.equal(net["_action"], "upsert")).select(SCHEMA.names).cast(_nullable()), ["id"])
    return {}


def _nullable() -> pa.Schema:
    return pa.schema([item.with_nullable(True) for item in SCHEMA])


def _iceberg(folder: Path, name: str = "bench") -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog(name, uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")


def copy_for(engine: str, folder: Path) -> None:
    """Make the table of another engine."""
    paths = str(folder / NAME / "*.parquet")
    if engine == "duckdb":
        import duckdb

        with contextlib.closing(duckdb.connect(str(folder / "table.duckdb"))) as connection:
            connection.execute(f"SET TimeZone = 'UTC'; CREATE TABLE orders AS SELECT * FROM read_parquet('{paths}')")
        return
    files = [pq.ParquetFile(path) for path in sorted((folder / NAME).glob("*.parquet"))]
    batches = (batch.cast(_nullable()) for file in files for batch in file.iter_batches(BATCH))
    if engine in TARGETS:
        target = lake_target(TARGETS[engine].format(folder))
        with target.opened():
            target.table(NAME).create(SCHEMA)
            for batch in batches:
                target.table(NAME).apply(net_of(pa.table([*batch], schema=SCHEMA), "upsert", has_before=False))
            target.commit({NAME: Applied(1, 2)})
    elif engine == "deltalake":
        from deltalake import write_deltalake

        write_deltalake(folder / "delta", pa.RecordBatchReader.from_batches(_nullable(), batches))
    elif engine == "pyiceberg":
        catalog = _iceberg(folder)
        catalog.create_namespace("bench")
        table = catalog.create_table("bench.orders", _nullable())
        for batch in batches:
            table.append(pa.Table.from_batches([batch]))


def content_of(engine: str, folder: Path) -> list[int] | None:
    """Read the table: the number of rows and sums of two columns. The floor changes nothing, so None."""
    columns = ("id", "customer")
    if engine == "floor":
        return None
    if engine.endswith(("delta", "deltalake")):
        from deltalake import DeltaTable

        path = folder / "lake" / NAME if engine == "pgdecode-delta" else folder / "delta"
        table = DeltaTable(path).to_pyarrow_table(columns=[*columns])
    elif engine.endswith("iceberg"):
        mine = engine == "pgdecode-iceberg"
        catalog = _iceberg(folder / "iceberg", "default") if mine else _iceberg(folder)
        table = catalog.load_table(NAME if mine else "bench.orders").scan(selected_fields=columns).to_arrow()
    elif engine.endswith("duckdb"):
        import duckdb

        file, name = ("lake.duckdb", NAME) if engine == "pgdecode-duckdb" else ("table.duckdb", "orders")
        with contextlib.closing(duckdb.connect(str(folder / file), read_only=True)) as connection:
            table = connection.execute(f"SELECT id, customer FROM {name}").to_arrow_table()
    else:
        files = sorted((folder / NAME).glob("*.parquet"))
        table = pa.concat_tables(pq.read_table(path, columns=[*columns], partitioning=None) for path in files)
    return [len(table), *(pc.sum(table[name]).as_py() for name in columns)]


RUNNERS: dict[str, Callable[[Path, Iterator[pa.Table], int], dict[str, Any]]] = {
    **{engine: functools.partial(with_target, engine=engine) for engine in TARGETS},
    "floor": with_floor,
    "duckdb": with_duckdb,
    "deltalake": with_deltalake,
    "pyiceberg": with_pyiceberg,
}


def run(engine: str, folder: Path, case: tuple[int, int, str], threads: int) -> dict[str, Any]:
    """Apply the changes of a case, and measure. They are applied in parts."""
    n_changes = case[1]
    pa.set_cpu_count(threads)
    spent, peak = 0.0, 0.0

    def nets() -> Iterator[pa.Table]:
        nonlocal spent, peak
        for start in range(0, n_changes, NET):
            begun = time.process_time()
            net = changes_of(*case, start, min(NET, n_changes - start)).combine_chunks()
            spent += time.process_time() - begun
            if CLEAR.exists():
                CLEAR.write_text("5")  # resets the high-water mark
            before = status_bytes("VmRSS") if CLEAR.exists() else 0
            yield net
            if CLEAR.exists():
                peak = max(peak, (status_bytes("VmHWM") - before) / 2**20)

    begun, cpu = time.perf_counter(), time.process_time()
    counts = RUNNERS[engine](folder, nets(), threads)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu - spent
    return {"seconds": seconds, "cpu": cpu, "peak_mb": peak, **counts}


def measured(engine: str, source: Path, case: tuple[int, int, str], threads: int) -> dict[str, Any]:
    """Run an engine in a process of its own, on a copy of the table."""
    with tempfile.TemporaryDirectory(dir=source.parent) as scratch:
        folder = Path(scratch, "lake")
        shutil.copytree(source, folder)
        if engine not in ("pgdecode", "floor"):
            copy_for(engine, folder)
        command = [sys.executable, "-m", "benchmarks.apply", "--run", engine, str(folder), json.dumps(case)]
        done = subprocess.run([*command, "--threads", str(threads)], capture_output=True, text=True)
        found: dict[str, Any] = {"error": (done.stderr.strip().splitlines() or ["failed"])[-1]}
        if done.returncode == 0:
            found = {**json.loads(done.stdout.splitlines()[-1]), "content": content_of(engine, folder)}
    return found


def main(words: list[str] | None = None) -> list[dict[str, Any]]:
    """Run the cases, and print a line of JSON for each engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="default: random and newest")
    parser.add_argument("--engine", action="append", choices=ENGINES, help="default: all that are installed")
    parser.add_argument("--divide", type=int, default=1, help="divide all numbers of rows by this, for a trial")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.run:
        engine, folder, case = options.run
        print(json.dumps(run(engine, Path(folder), tuple(json.loads(case)), options.threads)))
        return []
    found = []
    for name in options.case or ("random", "newest"):
        n_rows, n_changes, which = CASES[name]
        case = (n_rows // options.divide, max(n_changes // options.divide, 1), which)
        file_bytes = case[0] * 50 // (FILES // options.divide) if name == "many files" else None
        with tempfile.TemporaryDirectory() as scratch:
            source = Path(scratch, "source")
            usual = file_writer.GROUP_BYTES
            prepare(source, case[0], file_bytes)
            file_writer.GROUP_BYTES = usual
            for engine in options.engine or ENGINES:
                found.append({"case": name, "engine": engine, **measured(engine, source, case, options.threads)})
                print(json.dumps(found[-1]), flush=True)
    return found


if __name__ == "__main__":
    main()
