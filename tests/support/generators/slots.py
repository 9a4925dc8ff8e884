"""Short notation for a slot's output, for sequences that a server cannot be made to send."""

from __future__ import annotations

from pgdecode.protocol import messages as m
from support.generators.encoder import encode
from support.generators.samples import MOMENT

# One letter for each cell that is not text. Anything else is the text of the cell.
NULL, UNCHANGED = "<null>", "<unchanged>"
LETTERS = {NULL: "n", UNCHANGED: "u"}


def begin(xid: int) -> bytes:
    return encode(m.Begin(final_lsn=100 + xid, commit_timestamp=MOMENT, xid=xid))


def commit(lsn: int) -> bytes:
    return encode(m.Commit(flags=0, commit_lsn=lsn, end_lsn=lsn + 1, commit_timestamp=MOMENT))


def start(xid: int, *, first: bool) -> bytes:
    return encode(m.StreamStart(xid=xid, first_segment=first))


STOP = encode(m.StreamStop())


def stream_commit(xid: int, lsn: int) -> bytes:
    return encode(m.StreamCommit(xid=xid, flags=0, commit_lsn=lsn, end_lsn=lsn + 1, commit_timestamp=MOMENT))


def abort(xid: int, subxid: int) -> bytes:
    return encode(m.StreamAbort(xid=xid, subxid=subxid))


def begin_prepare(xid: int, gid: str) -> bytes:
    return encode(m.BeginPrepare(prepare_lsn=1, end_lsn=2, prepare_timestamp=MOMENT, xid=xid, gid=gid))


def prepare(xid: int, gid: str) -> bytes:
    return encode(m.Prepare(flags=0, prepare_lsn=1, end_lsn=2, prepare_timestamp=MOMENT, xid=xid, gid=gid))


def stream_prepare(xid: int, gid: str) -> bytes:
    return encode(m.StreamPrepare(flags=0, prepare_lsn=1, end_lsn=2, prepare_timestamp=MOMENT, xid=xid, gid=gid))


def commit_prepared(xid: int, gid: str, lsn: int) -> bytes:
    return encode(m.CommitPrepared(flags=0, commit_lsn=lsn, end_lsn=lsn + 1, commit_timestamp=MOMENT, xid=xid, gid=gid))


def rollback_prepared(xid: int, gid: str) -> bytes:
    return encode(
        m.RollbackPrepared(
            flags=0,
            prepare_end_lsn=1,
            rollback_end_lsn=2,
            prepare_timestamp=MOMENT,
            rollback_timestamp=MOMENT,
            xid=xid,
            gid=gid,
        )
    )


def relation(columns: str, *, xid: int | None = None, relation_id: int = 1, name: str = "t") -> bytes:
    """A relation of text columns. A star after a name marks a key column: "id* v"."""
    described = tuple(
        m.Column(flags=int(column.endswith("*")), name=column.rstrip("*"), type_id=25, type_modifier=-1)
        for column in columns.split()
    )
    return encode(
        m.Relation(
            xid=xid,
            relation_id=relation_id,
            namespace="public",
            name=name,
            replica_identity="d",
            columns=described,
        )
    )


def cells(values: tuple[str, ...]) -> tuple[tuple[bytes | None, ...], str]:
    return (
        tuple(None if value in LETTERS else value.encode() for value in values),
        "".join(LETTERS.get(value, "t") for value in values),
    )


def insert(*values: str, xid: int | None = None, relation_id: int = 1) -> bytes:
    new, formats = cells(values)
    return encode(m.Insert(xid=xid, relation_id=relation_id, new=new, new_formats=formats))


def update(new: tuple[str, ...], *, key: tuple[str, ...] | None = None, full: tuple[str, ...] | None = None) -> bytes:
    """An update with the old key, the whole old row, or neither."""
    old_type = "K" if key is not None else "O" if full is not None else None
    before = key if key is not None else full
    old, old_formats = (None, None) if before is None else cells(before)
    values, formats = cells(new)
    return encode(
        m.Update(relation_id=1, old_type=old_type, old=old, old_formats=old_formats, new=values, new_formats=formats)
    )


def delete(*key: str) -> bytes:
    old, formats = cells(key)
    return encode(m.Delete(relation_id=1, old_type="K", old=old, old_formats=formats))


def truncate(*relation_ids: int, xid: int | None = None) -> bytes:
    return encode(m.Truncate(xid=xid, options=0, relation_ids=relation_ids))


def message(flags: int, *, xid: int | None = None) -> bytes:
    return encode(m.LogicalMessage(xid=xid, flags=flags, lsn=1, prefix="p", content=b"c"))
