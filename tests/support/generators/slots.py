"""Payloads of a slot in short notation. `Slot` (slot.py) records them with ascending LSNs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pgdecode.protocol import messages as m
from support.generators.encoder import encode
from support.generators.samples import MOMENT

TEXT = 25  # OID of the type text
Row = Sequence[str | None]  # text of cells; None is null

# A cell that an update did not change and did not send.
UNCHANGED = "\0unchanged"

STOP = encode(m.StreamStop())


def begin(xid: int, lsn: int | None = None) -> bytes:
    return encode(m.Begin(final_lsn=100 + xid if lsn is None else lsn, commit_timestamp=MOMENT, xid=xid))


def commit(lsn: int) -> bytes:
    return encode(m.Commit(flags=0, commit_lsn=lsn, end_lsn=lsn + 8, commit_timestamp=MOMENT))


def start(xid: int, *, first: bool) -> bytes:
    return encode(m.StreamStart(xid=xid, first_segment=first))


def stream_commit(xid: int, lsn: int) -> bytes:
    return encode(m.StreamCommit(xid=xid, flags=0, commit_lsn=lsn, end_lsn=lsn + 8, commit_timestamp=MOMENT))


def abort(xid: int, subxid: int) -> bytes:
    return encode(m.StreamAbort(xid=xid, subxid=subxid))


def begin_prepare(xid: int, gid: str, lsn: int = 1) -> bytes:
    return encode(m.BeginPrepare(prepare_lsn=lsn, end_lsn=lsn + 8, prepare_timestamp=MOMENT, xid=xid, gid=gid))


def prepare(xid: int, gid: str, lsn: int = 1) -> bytes:
    return encode(m.Prepare(flags=0, prepare_lsn=lsn, end_lsn=lsn + 8, prepare_timestamp=MOMENT, xid=xid, gid=gid))


def stream_prepare(xid: int, gid: str, lsn: int = 1) -> bytes:
    return encode(
        m.StreamPrepare(flags=0, prepare_lsn=lsn, end_lsn=lsn + 8, prepare_timestamp=MOMENT, xid=xid, gid=gid)
    )


def commit_prepared(xid: int, gid: str, lsn: int) -> bytes:
    moment = MOMENT + timedelta(seconds=1)
    return encode(m.CommitPrepared(flags=0, commit_lsn=lsn, end_lsn=lsn + 8, commit_timestamp=moment, xid=xid, gid=gid))


def rollback_prepared(xid: int, gid: str, lsn: int = 2) -> bytes:
    return encode(
        m.RollbackPrepared(
            flags=0,
            prepare_end_lsn=lsn - 1,
            rollback_end_lsn=lsn,
            prepare_timestamp=MOMENT,
            rollback_timestamp=MOMENT,
            xid=xid,
            gid=gid,
        )
    )


def relation(
    columns: str | Sequence[str],
    *,
    xid: int | None = None,
    relation_id: int = 1,
    name: str = "t",
    keys: Sequence[str] = (),
    types: Sequence[int] = (),
    identity: str = "d",
    namespace: str = "public",
) -> bytes:
    """A relation, of text columns without `types`. In a string, a star after a name marks a key column: "id* v"."""
    if isinstance(columns, str):
        keys = [column.rstrip("*") for column in columns.split() if column.endswith("*")]
        columns = [column.rstrip("*") for column in columns.split()]
    described = tuple(
        m.Column(int(column in keys), column, type_id, -1)
        for column, type_id in zip(columns, types or [TEXT] * len(columns), strict=True)
    )
    return encode(
        m.Relation(
            xid=xid,
            relation_id=relation_id,
            namespace=namespace,
            name=name,
            replica_identity=identity,
            columns=described,
        )
    )


def cells(row: Row) -> tuple[tuple[bytes | None, ...], str]:
    """The values of a tuple and their kinds."""
    values = tuple(None if value in (None, UNCHANGED) else value.encode() for value in row)  # type: ignore[union-attr]
    kinds = "".join("n" if value is None else "u" if value == UNCHANGED else "t" for value in row)
    return values, kinds


def insert(*values: str | None, xid: int | None = None, relation_id: int = 1) -> bytes:
    new, formats = cells(values)
    return encode(m.Insert(xid=xid, relation_id=relation_id, new=new, new_formats=formats))


def update(
    new: Row, *, key: Row | None = None, full: Row | None = None, xid: int | None = None, relation_id: int = 1
) -> bytes:
    """An update with the old key, the whole old row, or neither."""
    old_type = "K" if key is not None else "O" if full is not None else None
    before = key if key is not None else full
    old, old_formats = (None, None) if before is None else cells(before)
    values, formats = cells(new)
    return encode(
        m.Update(
            xid=xid,
            relation_id=relation_id,
            old_type=old_type,
            old=old,
            old_formats=old_formats,
            new=values,
            new_formats=formats,
        )
    )


def delete(*old: str | None, old_type: str = "K", xid: int | None = None, relation_id: int = 1) -> bytes:
    values, formats = cells(old)
    return encode(m.Delete(xid=xid, relation_id=relation_id, old_type=old_type, old=values, old_formats=formats))


def truncate(*relation_ids: int, xid: int | None = None) -> bytes:
    return encode(m.Truncate(xid=xid, options=0, relation_ids=relation_ids))


def message(flags: int, *, xid: int | None = None, lsn: int = 1) -> bytes:
    return encode(m.LogicalMessage(xid=xid, flags=flags, lsn=lsn, prefix="p", content=b"c"))
