"""Random transactions as in the write-ahead log, and the sessions in which a server sends them to a reader.

A `Workload` is one sequence of records: transactions that write tables, with sub-transactions, DDL under locks,
prepared transactions and rollbacks. A `Sender` encodes it like pgoutput: plain transactions at their end, streamed ones
in blocks while they run, and a Relation message before the first row of a table and whenever the server has forgotten
that it sent one. A `Reader` connects several times, each time from an LSN that it has confirmed.

The records alone determine the expected result: the rows of each committed transaction, and the final tables.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from pgdecode.protocol import messages as m
from support.generators.encoder import encode
from support.generators.samples import MOMENT
from support.generators.slots import TEXT, cells

Values = tuple[str | None, ...]
MOOD = 16999  # OID of a type that the server describes


@dataclass(frozen=True)
class Shape:
    """The state of a table at one moment: its name and columns. The first column is the key."""

    relation_id: int
    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Record:
    """One record of a transaction at one LSN.

    `op` is insert, update, delete, truncate, message, ddl, abort_sub, commit, rollback, prepare, commit_prepared or
    rollback_prepared.
    """

    lsn: int
    xid: int
    own_xid: int
    op: str
    shapes: tuple[Shape, ...] = ()
    old: Values | None = None
    new: Values | None = None
    subxid: int = 0
    gid: str = ""

    @property
    def end_lsn(self) -> int:
        return self.lsn + 8


@dataclass(eq=False)
class Live:
    """An open transaction: its open sub-transactions, innermost last, and how to undo each."""

    xid: int
    # Each with the released sub-transactions inside it, which are rolled back with it.
    subxids: list[list[int]] = field(default_factory=list)
    # By level: the tables before it. Restoring them undoes truncates and changes of rows.
    undo: list[dict[int, tuple[Shape, dict[str, Values]]]] = field(default_factory=lambda: [{}])
    gid: str | None = None

    @property
    def own_xid(self) -> int:
        return self.subxids[-1][0] if self.subxids else self.xid


class Workload:
    """Random records in order. Only one transaction at a time uses a table, so each table has one history."""

    TABLES = (20001, 20002, 20003)

    def __init__(self, rng: random.Random, n_steps: int, *, two_phase: bool = True) -> None:
        self.rng = rng
        self.two_phase = two_phase
        self.records: list[Record] = []
        self.number = 700
        self.shapes = {table: Shape(table, f"t{table}", (f"id{table}", "a", "b")) for table in self.TABLES}
        self.rows: dict[int, dict[str, Values]] = {table: {} for table in self.TABLES}
        self.owner: dict[int, Live] = {}
        self.live: list[Live] = []
        self.prepared: list[Live] = []
        for _ in range(n_steps):
            self.step()

    def fresh(self) -> int:
        self.number += 1
        return self.number

    def log(self, owner: Live, op: str, **fields: object) -> None:
        lsn = 0x1000 + 16 * len(self.records)
        record = Record(lsn, owner.xid, owner.own_xid, op)
        self.records.append(replace(record, **fields))  # type: ignore[arg-type]

    def step(self) -> None:
        rng = self.rng
        if not self.live or (len(self.live) < 3 and rng.random() < 0.2):
            self.live.append(Live(self.fresh()))
            return
        owner = rng.choice(self.live)
        steps = [self.write] * 9 + [self.change_shape, self.truncate, self.message, self.savepoint, self.savepoint]
        steps += [self.roll_back_to, self.end, self.end]
        rng.choice(steps)(owner)
        if self.prepared and rng.random() < 0.15:
            self.finish_prepared(self.prepared.pop(rng.randrange(len(self.prepared))))

    def table(self, owner: Live) -> int | None:
        """Choose a table that no other transaction uses, and lock it until the transaction ends."""
        free = [table for table in self.TABLES if self.owner.get(table, owner) is owner]
        if not free:
            return None
        table = self.rng.choice(free)
        self.owner[table] = owner
        owner.undo[-1].setdefault(table, (self.shapes[table], dict(self.rows[table])))
        return table

    def write(self, owner: Live) -> None:
        table = self.table(owner)
        if table is None:
            return
        rng, rows, shape = self.rng, self.rows[table], self.shapes[table]
        values = tuple(rng.choice([None, "", "x", f"v{self.number}"]) for _ in shape.columns[1:])
        op = rng.choice(["insert", "insert", "update", "move", "delete"]) if rows else "insert"
        if op == "insert":
            new = (str(self.fresh()), *values)
            rows[str(new[0])] = new
            self.log(owner, "insert", shapes=(shape,), new=new)
            return
        key = rng.choice(sorted(rows))
        before = rows.pop(key)
        if op == "delete":
            self.log(owner, "delete", shapes=(shape,), old=before)
            return
        new = (str(self.fresh()) if op == "move" else key, *values)
        rows[str(new[0])] = new
        self.log(owner, "update", shapes=(shape,), old=before, new=new)

    def change_shape(self, owner: Live) -> None:
        """Rename, add or drop a column, or rename the table."""
        table = self.table(owner)
        if table is None:
            return
        rng, shape = self.rng, self.shapes[table]
        kind = rng.choice(["rename", "rename", "add", "drop", "table", "key"])
        columns = list(shape.columns)
        if kind == "table":
            shape = replace(shape, name=f"t{table}" if shape.name != f"t{table}" else f"r{table}")
        elif kind == "key":
            columns[0] = f"id{self.fresh()}"
        elif kind == "add" or len(columns) == 1:
            columns.append(f"c{self.fresh()}")
            for key, row in self.rows[table].items():
                self.rows[table][key] = (*row, None)
        elif kind == "drop":
            at = rng.randrange(1, len(columns))
            del columns[at]
            for key, row in self.rows[table].items():
                self.rows[table][key] = (*row[:at], *row[at + 1 :])
        else:
            columns[rng.randrange(1, len(columns))] = f"c{self.fresh()}"
        self.shapes[table] = replace(shape, columns=tuple(columns))
        self.log(owner, "ddl", shapes=(self.shapes[table],))

    def truncate(self, owner: Live) -> None:
        found = {table for _ in range(self.rng.randrange(1, 3)) if (table := self.table(owner)) is not None}
        if found:
            for table in found:
                self.rows[table] = {}
            self.log(owner, "truncate", shapes=tuple(self.shapes[table] for table in sorted(found)))

    def message(self, owner: Live) -> None:
        self.log(owner, "message")

    def savepoint(self, owner: Live) -> None:
        owner.subxids.append([self.fresh()])
        owner.undo.append({})

    def roll_back_to(self, owner: Live) -> None:
        """Roll back to a savepoint, or release one, which merges its sub-transaction with the outer one."""
        if not owner.subxids:
            return
        subxids = owner.subxids.pop()
        if self.rng.random() < 0.3:
            owner.undo[-2] = {**owner.undo[-1], **owner.undo[-2]}
            owner.undo.pop()
            if owner.subxids:
                owner.subxids[-1] += subxids
            return
        self.undo(owner.undo.pop())
        for subxid in reversed(subxids):
            self.log(owner, "abort_sub", subxid=subxid)

    def undo(self, tables: dict[int, tuple[Shape, dict[str, Values]]]) -> None:
        for table, (shape, rows) in tables.items():
            self.shapes[table], self.rows[table] = shape, dict(rows)

    def end(self, owner: Live) -> None:
        self.live.remove(owner)
        ending = self.rng.choice(["commit", "commit", "rollback", "prepare" if self.two_phase else "commit"])
        owner.subxids.clear()
        if ending == "prepare":
            owner.gid = f"g{owner.xid}" if self.rng.random() < 0.7 else "g"
            if any(other.gid == owner.gid for other in self.prepared):
                owner.gid = f"g{owner.xid}"
            self.prepared.append(owner)
            self.log(owner, "prepare", gid=owner.gid)
            return
        self.over(owner, committed=ending == "commit")
        self.log(owner, ending)

    def finish_prepared(self, owner: Live) -> None:
        committed = self.rng.random() < 0.6
        self.over(owner, committed=committed)
        self.log(owner, "commit_prepared" if committed else "rollback_prepared", gid=owner.gid)

    def over(self, owner: Live, *, committed: bool) -> None:
        for level in reversed(owner.undo if not committed else []):
            self.undo(level)
        self.owner = {table: other for table, other in self.owner.items() if other is not owner}

    def finish(self) -> Workload:
        """End every transaction."""
        for owner in list(self.live):
            self.end(owner)
        for owner in self.prepared:
            self.finish_prepared(owner)
        self.live, self.prepared = [], []
        return self

    # -- expected results ----------------------------------------------------------------------------------------------

    def committed(self, until: int | None = None) -> list[tuple[int, int, str, str, Values | None]]:
        """The rows of transactions that committed up to an LSN, in the order in which to apply them.

        Each row has its top-level xid, its own xid, the operation, the name of its table and the new values. A truncate
        has one row per table.
        """
        found = []
        for end, record in enumerate(self.records):
            if record.op not in ("commit", "commit_prepared") or (until is not None and record.end_lsn > until):
                continue
            own = [item for item in self.records[:end] if item.xid == record.xid]
            for at, item in enumerate(own):
                undone = any(later.op == "abort_sub" and later.subxid == item.own_xid for later in own[at:])
                if item.op in ("insert", "update", "delete", "truncate") and not undone:
                    found += [(item.xid, item.own_xid, item.op, shape.name, item.new) for shape in item.shapes]
        return found


@dataclass(frozen=True)
class Payload:
    """One message, and the LSN that a reader may confirm after it (0 if none)."""

    data: bytes
    confirms: int = 0


@dataclass(eq=False)
class Buffered:
    """A transaction as a server decodes it: its records, the number of streamed ones, and its state."""

    records: list[Record] = field(default_factory=list)
    n_sent: int = 0
    is_streamed: bool = False


class Sender:
    """One session of a server: `payloads` are sent to a reader that has confirmed an LSN."""

    def __init__(self, rng: random.Random, workload: Workload, confirmed: int = 0, *, two_phase: bool = True) -> None:
        self.rng = rng
        self.two_phase = two_phase
        self.payloads: list[Payload] = []
        self.repeats, self.streams = rng.random() * 0.3, rng.random() * 0.6
        # The last description of each table, outside streams and in the stream of each transaction.
        self.described: dict[int | None, dict[int, Shape]] = {None: {}}
        self.buffers: dict[int, Buffered] = {}
        outcomes = ("commit_prepared", "rollback_prepared")
        endings = ("commit", "rollback", "prepare") if two_phase else ("commit", "rollback", *outcomes)
        ends = {record.xid: record for record in workload.records if record.op in endings}
        for record in workload.records:
            end = ends.get(record.xid)
            # Transactions that ended up to the confirmed LSN are not sent again.
            is_over = end is not None and end.end_lsn <= confirmed
            if record.op in outcomes and two_phase:
                if record.end_lsn > confirmed:
                    self.decide(record, ends[record.xid])
            elif not is_over and (record.op != "prepare" or two_phase):
                self.take(record, is_end=record is end)
            if rng.random() < 0.03:
                self.send(m.LogicalMessage(flags=0, lsn=record.lsn, prefix="p", content=b"outside"))

    def send(self, message: m.Message, confirms: int = 0) -> None:
        self.payloads.append(Payload(encode(message), confirms))

    def take(self, record: Record, *, is_end: bool) -> None:
        buffer = self.buffers.setdefault(record.xid, Buffered())
        if is_end:
            self.end(record, self.buffers.pop(record.xid))
        elif record.op == "abort_sub":
            self.abort_part(record, buffer)
        else:
            buffer.records.append(record)
            if len(buffer.records) > buffer.n_sent + 1 and self.rng.random() < self.streams:
                self.send_block(record.xid, buffer)

    # -- rows and relations --------------------------------------------------------------------------------------------

    def describe(self, shape: Shape, stream: int | None, own_xid: int) -> None:
        """Send a Relation message if the description of the table is new; sometimes send one more."""
        described = self.described.setdefault(stream, {})
        if described.get(shape.relation_id) == shape and self.rng.random() >= self.repeats:
            return
        described[shape.relation_id] = shape
        xid = None if stream is None else own_xid
        types = [MOOD if name == "a" else TEXT for name in shape.columns]
        if MOOD in types:
            self.send(m.Type(xid=xid, type_id=MOOD, namespace="public", name="mood"))
        columns = tuple(
            m.Column(int(at == 0), name, type_id, -1)
            for at, (name, type_id) in enumerate(zip(shape.columns, types, strict=True))
        )
        self.send(
            m.Relation(
                xid=xid,
                relation_id=shape.relation_id,
                namespace="public",
                name=shape.name,
                replica_identity="d",
                columns=columns,
            )
        )

    def send_record(self, record: Record, stream: int | None) -> None:
        xid = None if stream is None else record.own_xid
        if record.op == "ddl":
            return
        for shape in record.shapes:
            self.describe(shape, stream, record.own_xid)
        if record.op == "message":
            self.send(m.LogicalMessage(xid=xid, flags=1, lsn=record.lsn, prefix="p", content=b"inside"))
            return
        ids = tuple(shape.relation_id for shape in record.shapes)
        if record.op == "truncate":
            self.send(m.Truncate(xid=xid, options=0, relation_ids=ids))
            return
        key = None
        if record.old is not None and (record.new is None or record.old[0] != record.new[0]):
            key = (record.old[0], *[None] * (len(record.old) - 1))
        old, old_formats = (None, None) if key is None else cells(key)
        if record.op == "delete":
            self.send(m.Delete(xid=xid, relation_id=ids[0], old_type="K", old=old, old_formats=old_formats))
            return
        assert record.new is not None
        new, new_formats = cells(record.new)
        if record.op == "insert":
            self.send(m.Insert(xid=xid, relation_id=ids[0], new=new, new_formats=new_formats))
            return
        self.send(
            m.Update(
                xid=xid,
                relation_id=ids[0],
                old_type=None if key is None else "K",
                old=old,
                old_formats=old_formats,
                new=new,
                new_formats=new_formats,
            )
        )

    # -- transactions --------------------------------------------------------------------------------------------------

    def send_block(self, xid: int, buffer: Buffered) -> None:
        self.send(m.StreamStart(xid=xid, first_segment=not buffer.is_streamed))
        buffer.is_streamed = True
        for record in buffer.records[buffer.n_sent :]:
            self.send_record(record, xid)
        buffer.n_sent = len(buffer.records)
        self.send(m.StreamStop())

    def abort_part(self, record: Record, buffer: Buffered) -> None:
        """Roll back a sub-transaction. Its records that were not streamed are never sent."""
        was_streamed = any(item.own_xid == record.subxid for item in buffer.records[: buffer.n_sent])
        pending = [item for item in buffer.records[buffer.n_sent :] if item.own_xid != record.subxid]
        buffer.records[buffer.n_sent :] = pending
        # PostgreSQL 18 also sends aborts of sub-transactions that it never streamed.
        if was_streamed or self.rng.random() < 0.2:
            self.send(m.StreamAbort(xid=record.xid, subxid=record.subxid))
            self.described.pop(record.xid, None)

    def end(self, record: Record, buffer: Buffered) -> None:
        if record.op in ("rollback", "rollback_prepared"):
            if buffer.is_streamed:
                self.send(m.StreamAbort(xid=record.xid, subxid=record.xid))
            self.described.pop(record.xid, None)
        elif buffer.is_streamed:
            if buffer.n_sent < len(buffer.records):
                self.send_block(record.xid, buffer)
            if record.op == "prepare":
                self.send(m.StreamPrepare(flags=0, **prepared(record)), record.end_lsn)
            else:
                self.send(m.StreamCommit(xid=record.xid, flags=0, **commit(record)), record.end_lsn)
            self.described[None] |= self.described.pop(record.xid, {})
        else:
            if record.op == "prepare":
                self.send(m.BeginPrepare(**prepared(record)))
            else:
                self.send(m.Begin(final_lsn=record.lsn, commit_timestamp=MOMENT, xid=record.xid))
            for item in buffer.records:
                self.send_record(item, None)
            if record.op == "prepare":
                self.send(m.Prepare(flags=0, **prepared(record)), record.end_lsn)
            else:
                self.send(m.Commit(flags=0, **commit(record)), record.end_lsn)

    def decide(self, record: Record, prepare: Record) -> None:
        if record.op == "commit_prepared":
            self.send(m.CommitPrepared(flags=0, xid=record.xid, gid=record.gid, **commit(record)), record.end_lsn)
            return
        self.send(
            m.RollbackPrepared(
                flags=0,
                prepare_end_lsn=prepare.end_lsn,
                rollback_end_lsn=record.end_lsn,
                prepare_timestamp=MOMENT,
                rollback_timestamp=MOMENT,
                xid=record.xid,
                gid=record.gid,
            ),
            record.end_lsn,
        )


def commit(record: Record) -> dict[str, Any]:
    return {"commit_lsn": record.lsn, "end_lsn": record.end_lsn, "commit_timestamp": MOMENT}


def prepared(record: Record) -> dict[str, Any]:
    lsns = {"prepare_lsn": record.lsn, "end_lsn": record.end_lsn}
    return {**lsns, "prepare_timestamp": MOMENT, "xid": record.xid, "gid": record.gid}


class Reader:
    """The payloads that a reader has received in several sessions, each cut anywhere and begun at a confirmed LSN.

    Attributes
    ----------
    payloads : list of bytes
    sessions : list of int
        Index of the first payload of each session after the first.
    until : int
        Transactions that ended up to this LSN are complete.
    """

    def __init__(
        self, rng: random.Random, workload: Workload, n_sessions: int, *, two_phase: bool = True, whole: bool = True
    ) -> None:
        self.workload = workload
        self.payloads: list[bytes] = []
        self.sessions: list[int] = []
        self.until = 0
        confirmed = 0
        for number in range(n_sessions):
            sent = Sender(rng, workload, confirmed, two_phase=two_phase).payloads
            if number:
                self.sessions.append(len(self.payloads))
            if number < n_sessions - 1 or not whole:
                sent = sent[: rng.randrange(len(sent) + 1)]
            confirms = [payload.confirms for payload in sent if payload.confirms]
            self.until = max([self.until, *confirms])
            confirmed = rng.choice([confirmed, *confirms])
            self.payloads += [payload.data for payload in sent]
