"""What the campaign of calls decodes, and the rows in the form in which it compares them."""

from __future__ import annotations

import bisect
import contextlib
import io
import json
import random
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode import decode_messages
from pgdecode.cli.main import main
from pgdecode.files.change_text import change_lines, table_lines
from support import captures, compare
from support.generators.slot import RandomSlot

Row = dict[str, Any]


@dataclass
class Workload:
    """Payloads, perhaps with positions, and what to decode of them."""

    name: str
    payloads: pa.Array
    positions: pa.Array | None  # None: no position column
    what: list[str]  # "messages", "changes" or tables
    options: dict[str, Any]

    @property
    def words(self) -> list[str]:
        """The options of a command."""
        words = ["--mode", self.options["mode"]]
        words += [f"--{name.replace('_', '-')}" for name, value in self.options.items() if value is True]
        if self.what in (["messages"], ["changes"]):
            return [*words, f"--{self.what[0]}"]
        return [*words, *(word for name in self.what for word in ("--table", name))]

    @property
    def has_holes(self) -> bool:
        """Whether there are positions, but not of each number."""
        return self.positions is not None and len(self.positions) > 1 and self.positions[1].as_py() > 101

    @property
    def folders(self) -> list[str]:
        """The folders of the outputs in a data set."""
        return [""] if len(self.what) == 1 else self.what

    def write(self, path: Path, start: int, end: int, row_group_size: int = 10_000) -> None:
        """Write some of the payloads to a Parquet file."""
        columns = {"data": self.payloads.slice(start, end - start)}
        if self.positions is not None:
            columns["seq"] = self.positions.slice(start, end - start)
        pq.write_table(pa.table(columns), path, row_group_size=row_group_size)

    def decode(self, n: int, folder: Path) -> bool:
        """Decode the first payloads by one call of the local engine. Return whether it succeeded."""
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "raw").mkdir(parents=True)
        self.write(folder / "raw" / "1.parquet", 0, n)
        with contextlib.redirect_stderr(io.StringIO()):
            return main(["decode", str(folder / "raw"), str(folder / "out"), *self.words]) == 0

    def described(self, folder: Path) -> int:
        """Count the payloads until all tables are described, because it is an error to decode an unknown table."""
        if self.what in (["messages"], ["changes"]):
            return 0
        return bisect.bisect_left(range(len(self.payloads)), True, key=lambda n: self.decode(n, folder))


def sequence(rng: random.Random, folder: Path, capture: Path | None = None) -> Workload:
    """Choose payloads, of a capture or at random, and what to decode of them."""
    if capture is not None or rng.random() < 0.5:
        capture = capture or captures.DATA / f"{rng.choice(captures.NAMES)}.parquet"
        name = capture.stem
        payloads = pq.read_table(capture, columns=["data"])["data"].combine_chunks()
    else:
        name = f"random slot {rng.getrandbits(32)}"
        sent = RandomSlot(random.Random(name), rng.randrange(5, 120)).payloads
        if rng.random() < 0.4:
            # The server sends something again, or something is missing: then there are bad rows, here and there alike.
            sent = sent[: rng.randrange(len(sent))] + sent[rng.randrange(len(sent)) :]
        payloads = pa.array(sent, pa.binary())
    positions = None
    if rng.random() < 0.8:
        step = rng.choice([1, 1, 7])
        positions = pa.array(range(100, 100 + step * len(payloads), step), pa.int64())
    # Recorded captures in binary format have types that FAILFAST mode refuses.
    options = {
        "mode": rng.choice(["PERMISSIVE", "DROPMALFORMED"]),
        "drop_duplicates": rng.random() < 0.3,
    }
    item = Workload(name, payloads, positions, ["changes"], options)
    if not item.decode(len(payloads), folder):
        # Without positions, commits that were sent again must be dropped.
        options["drop_duplicates"] = True
    if rng.random() < 0.5:
        sent = decode_messages(payloads, fields=["kind", "namespace", "name"], mode="PERMISSIVE").to_pylist()
        names = sorted({f"{row['namespace']}.{row['name']}" for row in sent if row["kind"] == "relation"})
        names = rng.sample(names, min(3, len(names)))
        item.what = [name for name in names if _is_known(item, name, folder)][: rng.randint(1, 3)] or ["changes"]
    elif rng.random() < 0.2:
        item.what, item.options = ["messages"], {"mode": options["mode"]}
    return item


def _is_known(item: Workload, name: str, folder: Path) -> bool:
    return Workload(item.name, item.payloads, item.positions, [name], item.options).decode(len(item.payloads), folder)


def lines(batch: pa.RecordBatch) -> list[Row]:
    """Convert rows to JSON values, because Python has no dates of all years."""
    if "kind" in batch.schema.names and "op" not in batch.schema.names and "_op" not in batch.schema.names:
        return compare.rows_of(batch)
    write = change_lines if "op" in batch.schema.names else table_lines
    return [json.loads(line) for line in write(batch).to_pylist()]


def rows_in(content: bytes) -> list[Row]:
    """Read the rows of a Parquet file."""
    return [row for batch in pq.read_table(pa.BufferReader(content)).to_batches() for row in map(sparse, lines(batch))]


def sparse(row: Row) -> Row:
    """Leave out nulls: a later run may know more columns of a table. Values become text: it may know wider types."""
    found: Row = {}
    for name, value in row.items():
        if isinstance(value, dict):
            value = sparse(value) or None
        elif name not in ("old", "new") and not isinstance(value, list | None):
            value = str(value)
            # A time is a string on Spark, as the server wrote it.
            if re.fullmatch(r"\d\d:\d\d:\d\d(\.\d{1,5})?", value):
                value = f"{value.partition('.')[0]}.{value.partition('.')[2]:0<6}"
        if value is not None:
            found[name] = value
    return found


def without_names(row: Row) -> Row:
    """Replace the columns of a table by their values, sorted."""
    meta = {name: value for name, value in row.items() if name.startswith("_") and name not in ("_old", "_unchanged")}
    values = [value for name, value in row.items() if not name.startswith("_")]
    return {**meta, "old": sorted(map(repr, row.get("_old", {}).values())), "new": sorted(map(repr, values))}
