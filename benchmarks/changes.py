"""Lines of changes and tables: what a sequence of payloads commits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

import pgdecode
from benchmarks.datasets import DataSet, relation_id

TABLE = "public.pgbench_accounts"
BATCH_ROWS = 65_536  # a usual Parquet or Spark batch


@dataclass(frozen=True)
class Changes:
    """Batch after batch through one decoder: the changes of all tables, or the typed rows of one."""

    payloads: list[pa.BinaryArray]
    table: str | None

    def decoded(self) -> Iterator[pa.RecordBatch]:
        """Decode them as they are asked for."""
        decoder = pgdecode.ChangeDecoder()
        for payloads in self.payloads:
            yield decoder.decode(payloads) if self.table is None else decoder.table(payloads, self.table)

    def __call__(self) -> deque[pa.RecordBatch]:
        """Decode them all and keep the last."""
        return deque(self.decoded(), maxlen=1)


def all_changes(data: DataSet) -> Changes:
    """Cut the payloads into batches."""
    return Changes([data.payloads.slice(at, BATCH_ROWS) for at in range(0, data.n_rows, BATCH_ROWS)], None)


def table_changes(data: DataSet) -> Changes:
    """Cut the payloads into batches, for one table."""
    return Changes(all_changes(data).payloads, TABLE)


def without_transactions(data: DataSet) -> str | None:
    """Why there are no changes to give."""
    if data.name.startswith("wide"):
        return "the recording leaves out a commit"
    # Few messages are spread over the recording.
    tags = b"".join(payload[:1] for payload in data.payloads.slice(0, 1000).to_pylist())
    boundaries = tags.translate(None, bytes(set(tags) - set(b"BC")))
    return "a sample of messages has no whole transactions" if b"BB" in boundaries else None


def committed(payloads: Iterable[bytes], relation: int | None) -> int:
    """Count changes that a commit follows, in plain Python; a transaction that begins anew is another try."""
    found = pending = 0
    for payload in payloads:
        if payload[:1] == b"B":
            pending = 0
        elif payload[:1] == b"C":
            found += pending
        elif payload[:1] == b"T":
            named = [int.from_bytes(payload[at : at + 4], "big") for at in range(6, len(payload), 4)]
            pending += len(named) if relation is None else named.count(relation)
        elif payload[:1] in (b"I", b"U", b"D"):
            pending += relation in (None, relation_id(payload))
    return found


def verify_changes(data: DataSet, work: Changes) -> None:
    """Compare the number of changes with that of committed rows."""
    relation = None
    if work.table is not None:
        relation = pgdecode.RelationCatalog.from_messages(data.payloads)[work.table].relation_id
    seen = sum(batch.num_rows for batch in work.decoded())
    expected = committed(data.payloads.to_pylist(), relation)
    if seen != expected:
        raise AssertionError(f"{data.name}: number of changes is {seen}, not {expected}")


def digest_changes(result: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Count rows and bytes of the one batch that was kept."""
    (batch,) = result
    return batch.num_rows, batch.nbytes
