"""The ideal two-thread baseline: two threads each decode one half of the data, and the results are not merged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

import pgdecode
from benchmarks.cases.case import require
from benchmarks.datasets import DataSet

Decode = Callable[[pa.BinaryArray], pa.RecordBatch]


@dataclass(frozen=True)
class IdealThreads:
    """Decode each half in one thread; the second thread has already been started."""

    data: DataSet
    decode: Decode
    thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def __call__(self) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Decode both parts."""
        middle = self.data.n_rows // 2
        second = self.thread.submit(self.decode, self.data.payloads.slice(middle))
        return self.decode(self.data.payloads.slice(0, middle)), second.result()


def ideal_messages(data: DataSet, fields: Sequence[str] | None) -> IdealThreads:
    """Prepare the two parts of a data set of messages."""
    return IdealThreads(data, lambda payloads: pgdecode.decode_messages(payloads, fields=fields))


def without_start(data: DataSet) -> str | None:
    """Return the reason why messages cannot be divided."""
    return "the stream state at the start of the second half is not known" if data.streamed else None


def ideal_rows(data: DataSet) -> IdealThreads:
    """Prepare the two parts of a table's rows."""
    relation = data.relation
    assert relation is not None
    return IdealThreads(data, lambda payloads: pgdecode.decode_rows(payloads, relation))


def verify_ideal(data: DataSet, work: IdealThreads) -> None:
    """Compare both parts with the whole."""
    whole = work.decode(data.payloads)
    found = pa.concat_batches(work())
    require(data, "number of rows", found.num_rows, whole.num_rows)
    for name, column in zip(whole.schema.names, whole.columns, strict=True):
        require(data, f"equality of {name}", int(found[name].equals(column)), 1)


def digest_ideal(found: tuple[pa.RecordBatch, pa.RecordBatch]) -> tuple[int, int]:
    """Count rows, and nulls of the last column."""
    return sum(batch.num_rows for batch in found), sum(pc.sum(batch.column(-1).is_null()).as_py() for batch in found)
