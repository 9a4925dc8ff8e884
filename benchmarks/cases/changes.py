"""Benchmark cases of changes and tables."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

import pgdecode
from benchmarks.cases.case import require
from benchmarks.datasets import DataSet, Seen, followed, key_of
from pgdecode.changes.table_rows import META, META_BEHIND

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


@dataclass(frozen=True)
class FilterAndRows:
    """Decode the rows of one table without transactions, with the two functions that a user would call."""

    payloads: list[pa.BinaryArray]
    relation: pgdecode.RelationVersion

    def decoded(self) -> Iterator[pa.RecordBatch]:
        """Decode lazily."""
        decoder = pgdecode.MessageDecoder(fields=["kind", "relation_id"])
        for payloads in self.payloads:
            found = decoder.decode(payloads)
            is_row = pc.is_in(found["kind"], pa.array(["insert", "update", "delete"]))
            of_table = pc.equal(found["relation_id"], self.relation.relation_id)
            yield pgdecode.decode_rows(payloads.filter(pc.and_(is_row, of_table)), self.relation)

    def __call__(self) -> deque[pa.RecordBatch]:
        """Decode all batches and keep the last."""
        return deque(self.decoded(), maxlen=1)


@dataclass(frozen=True)
class Snapshot:
    """Decode the rows that a table has at the end, in one call."""

    payloads: pa.BinaryArray
    table: str

    def __call__(self) -> pa.Table:
        """Decode all payloads."""
        return pgdecode.snapshot(self.payloads, self.table)


@dataclass(frozen=True)
class NetChanges:
    """Fold the typed changes of a table, batch after batch."""

    batches: list[pa.RecordBatch]
    table: str

    def __call__(self) -> pa.Table:
        """Fold all batches."""
        net = pgdecode.NetChanges()
        net.add(self.batches)
        return net.table()


@dataclass(frozen=True)
class LastChanges:
    """Find the last change of each key with Arrow: no keys that move, no values that are left out."""

    batches: list[pa.RecordBatch]
    table: str

    def __call__(self) -> pa.Table:
        """Join all batches, and take the last changes."""
        changes = pa.Table.from_batches(self.batches)
        key = changes.schema.names[len(META) + len(META_BEHIND) + 1]
        last = changes.group_by(key).aggregate([("_position", "max")])["_position_max"]
        return changes.take(pc.index_in(last, changes["_position"]))


def table_of(data: DataSet) -> str:
    """Return the table of a data set."""
    return TABLES[data.name.partition(".")[0]]


def relation_of(data: DataSet, table: str) -> pgdecode.RelationVersion:
    """Find a table's relation."""
    return pgdecode.RelationCatalog.from_messages(data.payloads)[table]


def all_changes(data: DataSet) -> Changes:
    """Split the payloads into batches."""
    return Changes(data.batches(), None)


def table_changes(data: DataSet) -> Changes:
    """Split the payloads into batches, for one table."""
    return Changes(data.batches(), table_of(data))


def filter_and_rows(data: DataSet) -> FilterAndRows:
    """Split the payloads into batches, and find the relation."""
    return FilterAndRows(data.batches(), relation_of(data, table_of(data)))


def snapshot(data: DataSet) -> Snapshot:
    """Prepare a snapshot of the table."""
    return Snapshot(data.payloads, table_of(data))


def net_changes(data: DataSet) -> NetChanges:
    """Decode the typed changes of the table."""
    return NetChanges([*table_changes(data).decoded()], table_of(data))


def last_changes(data: DataSet) -> LastChanges:
    """Decode the typed changes of the table."""
    return LastChanges([*table_changes(data).decoded()], table_of(data))


def without_transactions(data: DataSet) -> str | None:
    """Return the reason why a data set has no changes."""
    if data.name.startswith("wide"):
        return "the recording lacks a commit"
    return None if data.whole else "a sample of messages has no complete transactions"


def without_snapshot(data: DataSet) -> str | None:
    """Return the reason why no snapshot of a data set is measured."""
    if data.name.startswith("tiny"):
        return "its table has no key"
    return without_transactions(data)


def committed(payloads: Iterable[bytes], relation: int | None) -> Iterator[Seen]:
    """Read the committed changes in plain Python. A transaction that begins again replaces its first attempt."""
    pending: dict[int | None, list[Seen]] = {}  # changes by their stream; a truncate once for each of its tables
    for seen in followed(payloads):
        tag, stream, _, body = seen
        if tag == b"B" or (tag == b"S" and body[4]):
            pending[stream] = []
        elif tag == b"C":
            yield from pending.pop(None, ())
        elif tag == b"c":
            yield from pending.pop(int.from_bytes(body[:4], "big"), ())
        elif tag == b"A":
            top, gone = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")
            pending[top] = [row for row in pending.get(top, ()) if row.xid != gone and gone != top]
        elif tag == b"T":
            named = [int.from_bytes(body[at : at + 4], "big") for at in range(5, len(body), 4)]
            pending[stream] += [seen] * (len(named) if relation is None else named.count(relation))
        elif tag in b"IUD" and relation in (None, int.from_bytes(body[:4], "big")):
            pending[stream].append(seen)


def committed_rows(data: DataSet, table: str | None) -> int:
    """Count the committed changes of a data set, or of one table."""
    relation = None if table is None else relation_of(data, table).relation_id
    return sum(1 for _ in committed(data.payloads.to_pylist(), relation))


def keys_at_end(data: DataSet, table: str) -> set[int]:
    """Apply a table's committed changes to its keys, in plain Python. No update of the recordings changes a key."""
    keys: set[int] = set()
    for tag, _, _, body in committed(data.payloads.to_pylist(), relation_of(data, table).relation_id):
        if tag == b"T":
            keys.clear()
        elif tag == b"D":
            keys.discard(key_of(tag + body))
        else:
            keys.add(key_of(tag + body))
    return keys


def verify_changes(data: DataSet, work: Changes) -> None:
    """Compare the number of changes with the number of committed rows."""
    seen = sum(batch.num_rows for batch in work.decoded())
    require(data, "number of changes", seen, committed_rows(data, work.table))


def verify_filter(data: DataSet, work: FilterAndRows) -> None:
    """Compare the number of rows with all inserts, updates and deletes of the table, also those not committed."""
    relation = work.relation.relation_id
    rows = (seen for seen in followed(data.payloads.to_pylist()) if seen.tag in b"IUD")
    expected = sum(int.from_bytes(row.body[:4], "big") == relation for row in rows)
    require(data, "number of rows", sum(batch.num_rows for batch in work.decoded()), expected)


def verify_snapshot(data: DataSet, work: Snapshot) -> None:
    """Compare the number of rows and the sum of their keys with plain Python."""
    found, keys = work(), keys_at_end(data, work.table)
    require(data, "number of rows", found.num_rows, len(keys))
    name = relation_of(data, work.table).columns[0].name
    require(data, "sum of keys", pc.sum(found[name]).as_py() or 0, sum(keys))


def verify_net_changes(data: DataSet, work: NetChanges | LastChanges) -> None:
    """Compare the keys of the rows that are there at the end with plain Python."""
    found, keys = work(), keys_at_end(data, work.table)
    is_there = pc.not_equal(found[found.schema.names[0]], "delete")
    name = relation_of(data, work.table).columns[0].name
    rows = found.filter(pc.and_(is_there, pc.is_valid(found[name])))
    require(data, "number of rows", rows.num_rows, len(keys))
    require(data, "sum of keys", pc.sum(rows[name]).as_py() or 0, sum(keys))


def digest_snapshot(found: pa.Table) -> tuple[int, int]:
    """Count rows and bytes."""
    return found.num_rows, found.nbytes


def digest_changes(result: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Count rows and bytes of the batch that was kept."""
    (batch,) = result
    return batch.num_rows, batch.nbytes
