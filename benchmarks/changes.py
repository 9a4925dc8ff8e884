"""Benchmark cases of changes and tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

import pgdecode
from benchmarks.case import require
from benchmarks.datasets import DataSet, followed

# Table with typed columns, by the first part of the data set's name.
TABLES = {
    "pgbench": "public.pgbench_accounts",
    "toast": "public.document",
    "columns": "public.columns",
    "tiny": "public.tick",
    "streamed": "public.payment",
}


@dataclass(frozen=True)
class Changes:
    """Decode batch after batch with one decoder: the changes of all tables, or the typed rows of one table."""

    payloads: list[pa.BinaryArray]
    table: str | None

    def decoded(self) -> Iterator[pa.RecordBatch]:
        """Decode lazily."""
        decoder = pgdecode.ChangeDecoder()
        for payloads in self.payloads:
            yield decoder.decode(payloads) if self.table is None else decoder.table(payloads, self.table)

    def __call__(self) -> deque[pa.RecordBatch]:
        """Decode all batches and keep the last."""
        return deque(self.decoded(), maxlen=1)


def all_changes(data: DataSet) -> Changes:
    """Split the payloads into batches."""
    return Changes(data.batches(), None)


def table_changes(data: DataSet) -> Changes:
    """Split the payloads into batches, for one table."""
    return Changes(data.batches(), TABLES[data.name.partition(".")[0]])


def without_transactions(data: DataSet) -> str | None:
    """Return the reason why a data set has no changes."""
    if data.name.startswith("wide"):
        return "the recording lacks a commit"
    return None if data.whole else "a sample of messages has no complete transactions"


def committed(payloads: Iterable[bytes], relation: int | None) -> int:
    """Count committed changes in plain Python. A transaction that begins again replaces its first attempt."""
    found = 0
    pending: dict[int | None, list[int | None]] = {}  # the xid of every change, by its stream
    for tag, stream, xid, body in followed(payloads):
        if tag == b"B" or (tag == b"S" and body[4]):
            pending[stream] = []
        elif tag == b"C":
            found += len(pending.pop(None, ()))
        elif tag == b"c":
            found += len(pending.pop(int.from_bytes(body[:4], "big"), ()))
        elif tag == b"A":
            top, gone = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")
            pending[top] = [own for own in pending.get(top, ()) if own != gone and gone != top]
        elif tag == b"T":
            named = [int.from_bytes(body[at : at + 4], "big") for at in range(5, len(body), 4)]
            pending[stream] += [xid] * (len(named) if relation is None else named.count(relation))
        elif tag in b"IUD" and relation in (None, int.from_bytes(body[:4], "big")):
            pending[stream].append(xid)
    return found


def committed_rows(data: DataSet, table: str | None) -> int:
    """Count the committed changes of a data set, or of one table."""
    relation = None
    if table is not None:
        relation = pgdecode.RelationCatalog.from_messages(data.payloads)[table].relation_id
    return committed(data.payloads.to_pylist(), relation)


def verify_changes(data: DataSet, work: Changes) -> None:
    """Compare the number of changes with the number of committed rows."""
    seen = sum(batch.num_rows for batch in work.decoded())
    require(data, "number of changes", seen, committed_rows(data, work.table))


def digest_changes(result: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Count rows and bytes of the batch that was kept."""
    (batch,) = result
    return batch.num_rows, batch.nbytes
