"""The payloads that are decoded: recorded slices shipped in data/, repeated to the length wanted."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import pgdecode

FOLDER = Path(__file__).with_name("data")
MAX_BYTES = 2**31 - 1  # what 32-bit Arrow offsets reach

# What a data set is of; a line says which of these it is for.
MESSAGES = "messages"
ROWS = "rows of one table"
VALUES = "values of one type"


@dataclass(frozen=True)
class Recording:
    """A shipped slice, and how many messages of it a full and a quick run decode; of one table only, if named."""

    name: str
    full_rows: int
    quick_rows: int
    table: str | None = None

    @property
    def kind(self) -> str:
        """What its data set is of."""
        return ROWS if self.table else MESSAGES


RECORDINGS = (
    Recording("pgbench.text", 2_000_000, 300_000),
    Recording("pgbench.bin", 2_000_000, 300_000),
    Recording("wide.text", 500_000, 75_000),
    Recording("wide.bin", 500_000, 75_000),
    Recording("pgbench.text, accounts", 500_000, 75_000, "pgbench_accounts"),
    Recording("pgbench.bin, accounts", 500_000, 75_000, "pgbench_accounts"),
    Recording("wide.text, rows", 500_000, 75_000, "wide"),
    Recording("wide.bin, rows", 500_000, 75_000, "wide"),
)


@dataclass(frozen=True)
class DataSet:
    """Payloads in one Arrow array without nulls and with offset 0."""

    name: str
    payloads: pa.BinaryArray
    relation_id_sum: int  # over R, I, U and D messages, read here in plain Python: what every line's result must give
    kind: str = MESSAGES
    relation: pgdecode.Relation | None = None  # of ROWS

    @property
    def n_rows(self) -> int:
        """Number of messages."""
        return len(self.payloads)

    @functools.cached_property
    def n_bytes(self) -> int:
        """Bytes of all payloads, offsets not counted."""
        return int(self.payloads.total_values_length)

    @property
    def offsets_address(self) -> int:
        """Where the n + 1 int32 offsets are."""
        return int(self.payloads.buffers()[1].address)

    @property
    def bytes_address(self) -> int:
        """Where the payloads' bytes are."""
        return int(self.payloads.buffers()[2].address)

    def sample(self, n_rows: int) -> DataSet:
        """Every k-th row, so that all kinds of message are there in their proportions."""
        if n_rows >= self.n_rows:
            return self
        return data_set(self.name, spread(self.payloads, n_rows), relation=self.relation)


def relation_id(payload: bytes) -> int:
    """Read the relation id of a message outside a stream, 0 for a message that has none."""
    return int.from_bytes(payload[1:5], "big") if payload[:1] in (b"R", b"I", b"U", b"D") else 0


def spread(payloads: pa.Array, n_rows: int) -> pa.Array:
    """Pick `n_rows` rows at even distances."""
    return payloads.take(pa.array([row * len(payloads) // n_rows for row in range(n_rows)], pa.int64()))


def data_set(
    name: str,
    payloads: pa.Array,
    relation_id_sum: int | None = None,
    relation: pgdecode.Relation | None = None,
) -> DataSet:
    """Make a data set, with the sum counted in plain Python where it is not known yet."""
    if relation_id_sum is None:
        relation_id_sum = sum(map(relation_id, payloads.to_pylist()))
    return DataSet(name, payloads, relation_id_sum, MESSAGES if relation is None else ROWS, relation)


def rows_of(payloads: pa.BinaryArray, table: str) -> tuple[pa.BinaryArray, pgdecode.Relation]:
    """Pick the inserts, updates and deletes of one table out of a recording."""
    described = (pgdecode.decode(payload) for payload in payloads.to_pylist() if payload[:1] == b"R")
    relation = next(found for found in described if isinstance(found, pgdecode.Relation) and found.name == table)
    rows = [
        payload
        for payload in payloads.to_pylist()
        if payload[:1] in (b"I", b"U", b"D") and relation_id(payload) == relation.relation_id
    ]
    return pa.array(rows, pa.binary()), relation


def load(name: str, n_rows: int) -> DataSet:
    """Read a shipped slice and repeat it to `n_rows` messages, or spread fewer over it."""
    recording = next(recording for recording in RECORDINGS if recording.name == name)
    table = pq.read_table(FOLDER / f"{name.partition(',')[0]}.parquet", columns=["data"])
    recorded = pa.concat_arrays(table["data"].chunks)
    relation = None
    if recording.table:
        recorded, relation = rows_of(recorded, recording.table)
    if n_rows < len(recorded):
        return data_set(name, spread(recorded, n_rows), relation=relation)
    n_bytes = int(recorded.total_values_length) * n_rows // len(recorded)
    if n_bytes > MAX_BYTES:
        raise ValueError(f"{name}: {n_rows} messages are {n_bytes} bytes, one Arrow array holds {MAX_BYTES}")
    times, rest = divmod(n_rows, len(recorded))
    ids = [relation_id(payload) for payload in recorded.to_pylist()]
    payloads = pa.concat_arrays([recorded] * times + [recorded.slice(0, rest)])
    return data_set(name, payloads, times * sum(ids) + sum(ids[:rest]), relation)
