"""What two threads come to on this machine: halves decoded side by side, with nothing to be joined afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

import pgdecode
from benchmarks.datasets import DataSet
from benchmarks.line import require

Decode = Callable[[pa.BinaryArray], pa.RecordBatch]


@dataclass(frozen=True)
class Halves:
    """Each half by a thread, of which the second is there already."""

    data: DataSet
    decode: Decode
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def __call__(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Decode both."""
        middle = self.data.n_rows // 2
        second = self.thread.submit(self.decode, self.data.payloads.slice(middle))
        return self.decode(self.data.payloads.slice(0, middle)), second.result()


def halves_of_messages(data: DataSet, fields: Sequence[str] | None) -> Halves:
    """Halves of a batch of messages."""
    return Halves(data, lambda payloads: pgdecode.decode_messages(payloads, fields=fields))


def without_start(data: DataSet) -> str | None:
    """Why messages cannot be divided by hand."""
    return "the second half would have to be told what it begins in" if data.streamed else None


def halves_of_rows(data: DataSet) -> Halves:
    """Halves of a table's rows."""
    relation = data.relation
    assert relation is not None
    return Halves(data, lambda payloads: pgdecode.decode_rows(payloads, relation))


def verify_halves(data: DataSet, work: Halves) -> None:
    """Compare both with the whole."""
    whole = work.decode(data.payloads)
    found = pa.concat_batches(work())
    require(data, "number of rows", found.num_rows, whole.num_rows)
    for name, column in zip(whole.schema.names, whole.columns, strict=True):
        require(data, f"equality of {name}", int(found[name].equals(column)), 1)


def digest_halves(found: tuple[pa.RecordBatch, pa.RecordBatch]) -> tuple[int, int]:
    """Rows, and nulls of the last column."""
    return sum(batch.num_rows for batch in found), sum(pc.sum(batch.column(-1).is_null()).as_py() for batch in found)
