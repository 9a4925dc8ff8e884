"""What the campaign of runs decodes, and the rows in the form in which it compares them."""

from __future__ import annotations

import bisect
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode import ChangeDecoder
from pgdecode.files.change_text import change_lines, table_lines
from support import captures
from support.generators.slot import RandomSlot


@dataclass
class Workload:
    """Payloads with positions, and what to decode."""

    name: str
    payloads: pa.Array
    positions: pa.Array | None  # None: no position column
    tables: list[str]  # empty: changes
    options: dict[str, Any]

    def whole(self) -> list[list[dict[str, Any]]]:
        """Decode everything at once: the rows of each output."""
        if not self.tables:
            return [lines(ChangeDecoder(**self.options).decode(self.payloads, self.positions))]
        return [self._table(name) for name in self.tables]

    def described(self) -> int:
        """Count the payloads until all tables are described, because it is an error to decode an unknown table."""

        def are_known(n: int) -> bool:
            decoder = ChangeDecoder(**self.options)
            decoder.decode(self.payloads.slice(0, n))
            return set(self.tables) <= set(decoder._engine.layout_catalog.names)

        return bisect.bisect_left(range(len(self.payloads)), True, key=are_known)

    def _table(self, name: str) -> list[dict[str, Any]]:
        return lines(ChangeDecoder(**self.options).table(self.payloads, name, self.positions))


def sequence(rng: random.Random, capture: Path | None = None) -> Workload:
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
    tables = []
    if rng.random() < 0.5:
        decoder = ChangeDecoder(mode="PERMISSIVE")
        decoder.decode(payloads)
        tables = rng.sample(
            names := sorted(decoder._engine.layout_catalog.names), rng.randint(min(1, len(names)), min(3, len(names)))
        )
    # Recorded captures in binary format have types that FAILFAST mode refuses.
    options = {
        "mode": rng.choice(["PERMISSIVE", "DROPMALFORMED"]),
        "drop_duplicates": rng.random() < 0.3,
    }
    return Workload(name, payloads, positions, tables, options)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Read a Parquet file."""
    return [row for batch in pq.read_table(path).to_batches() for row in lines(batch)]


def lines(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Convert rows to JSON values, because Python has no dates of all years."""
    write = change_lines if "op" in batch.schema.names else table_lines
    return [json.loads(line) for line in write(batch).to_pylist()]


def sparse(row: dict[str, Any]) -> dict[str, Any]:
    """Leave out nulls: a later run may know more columns of a table. Values become text: it may know wider types."""
    found: dict[str, Any] = {}
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
