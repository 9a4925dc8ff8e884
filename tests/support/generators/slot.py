"""Slots: payloads recorded message by message, and slots of random transactions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from pgdecode.protocol import messages as m
from support.generators import slots
from support.generators.encoder import encode
from support.generators.slots import UNCHANGED, Row


class Slot:
    """The payloads sent so far. LSNs ascend from message to message, but a Begin has the LSN of its Commit."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.lsn = 0x1000
        self.plain: tuple[int, int] | None = None  # xid and final LSN of the open transaction

    def send(self, message: m.Message) -> None:
        self.payloads.append(encode(message))

    def next_lsn(self) -> int:
        self.lsn += 8
        return self.lsn

    # -- relations and rows ------------------------------------------------------------------------------------------

    def relation(self, relation_id: int, columns: Sequence[str], *, name: str | None = None, **described: Any) -> None:
        name = name or f"t{relation_id}"
        self.payloads.append(slots.relation(columns, relation_id=relation_id, name=name, **described))

    def insert(self, relation_id: int, *new: str | None, xid: int | None = None) -> None:
        self.payloads.append(slots.insert(*new, xid=xid, relation_id=relation_id))

    def update(
        self,
        relation_id: int,
        *new: str | None,
        old: Row | None = None,
        old_type: str | None = None,
        xid: int | None = None,
    ) -> None:
        before = {"key" if old_type == "K" else "full": old}
        self.payloads.append(slots.update(new, xid=xid, relation_id=relation_id, **before))

    def delete(self, relation_id: int, *old: str | None, old_type: str = "O", xid: int | None = None) -> None:
        self.payloads.append(slots.delete(*old, old_type=old_type, xid=xid, relation_id=relation_id))

    def truncate(self, *relation_ids: int, xid: int | None = None) -> None:
        self.payloads.append(slots.truncate(*relation_ids, xid=xid))

    def message(self, *, flags: int, xid: int | None = None) -> None:
        self.payloads.append(slots.message(flags, xid=xid, lsn=self.next_lsn()))

    # -- transactions ------------------------------------------------------------------------------------------------

    def begin(self, xid: int) -> None:
        self.plain = xid, self.next_lsn()
        self.payloads.append(slots.begin(*self.plain))

    def commit(self) -> None:
        assert self.plain is not None
        self.payloads.append(slots.commit(self.plain[1]))

    def begin_prepare(self, xid: int, gid: str) -> None:
        self.plain = xid, self.next_lsn()
        self.payloads.append(slots.begin_prepare(xid, gid, self.plain[1]))

    def prepare(self, gid: str) -> None:
        assert self.plain is not None
        xid, lsn = self.plain
        self.payloads.append(slots.prepare(xid, gid, lsn))

    def commit_prepared(self, xid: int, gid: str) -> None:
        self.payloads.append(slots.commit_prepared(xid, gid, self.next_lsn()))

    def rollback_prepared(self, xid: int, gid: str) -> None:
        self.payloads.append(slots.rollback_prepared(xid, gid, self.next_lsn()))

    def start(self, xid: int, *, first: bool = False) -> None:
        self.payloads.append(slots.start(xid, first=first))

    def stop(self) -> None:
        self.payloads.append(slots.STOP)

    def stream_commit(self, xid: int) -> None:
        self.payloads.append(slots.stream_commit(xid, self.next_lsn()))

    def stream_abort(self, xid: int, subxid: int | None = None) -> None:
        self.payloads.append(slots.abort(xid, xid if subxid is None else subxid))

    def stream_prepare(self, xid: int, gid: str) -> None:
        self.payloads.append(slots.stream_prepare(xid, gid, self.next_lsn()))


def one_row(relation_id: int = 16385, xid: int = 700, columns: tuple[str, ...] = ("a",)) -> Slot:
    """A transaction that inserts a row of 1s into a table."""
    slot = Slot()
    slot.begin(xid)
    slot.relation(relation_id, columns)
    slot.insert(relation_id, *"1" * len(columns))
    slot.commit()
    return slot


class RandomSlot(Slot):
    """A slot of random transactions, interleaved as a server does: blocks of streams between whole transactions.

    All versions of a table have the same number of columns, with different names: a row that is decoded with the wrong
    version is well-formed and has the wrong names. A stream's relations are sent under the top-level xid. After the
    abort of a sub-transaction that sent a relation, servers send it again, so dropping it would make no difference.
    """

    TABLES = (20001, 20002, 20003)

    def __init__(
        self, rng: random.Random, n_steps: int, *, with_versions: bool = True, with_copies: bool = True
    ) -> None:
        super().__init__()
        self.rng = rng
        self.with_versions, self.with_copies = with_versions, with_copies
        self.streams: dict[int, list[int]] = {}  # top-level xid -> its sub-transactions that are not aborted
        self.prepared: dict[str, int] = {}
        self.xid = 700
        self.version = 0
        self.described: dict[int, bytes] = {}  # by table, its last Relation message outside streams
        self.begin(self.next_xid())
        for table in self.TABLES:
            self.describe(table, None)
        self.commit()
        for _ in range(n_steps):
            rng.choice(list(self.steps()))()

    def next_xid(self) -> int:
        self.xid += 1
        return self.xid

    def steps(self) -> Iterator[object]:
        """Perform a random step of a server."""
        yield from (self.plain_transaction, self.new_stream, self.plain_prepare)
        if self.with_copies:
            yield self.copies
        yield lambda: self.message(flags=0)
        if self.streams:
            yield from (self.block, self.block, self.block, self.abort_part, self.end_stream)
        if self.prepared:
            yield self.decide_prepared

    def describe(self, table: int, xid: int | None) -> None:
        self.version += 1
        names = [f"{letter}{self.version}" for letter in "abc"]
        self.relation(table, names, xid=xid, keys=names[:1])

    def relation(self, relation_id: int, columns: Sequence[str], *, name: str | None = None, **described: Any) -> None:
        super().relation(relation_id, columns, name=name, **described)
        if described.get("xid") is None:
            self.described[relation_id] = self.payloads[-1]

    def rows(self, xids: Sequence[int | None]) -> None:
        """Send some rows and relations, each in one of the transactions."""
        rng = self.rng
        for _ in range(rng.randrange(5)):
            xid, table = rng.choice(xids), rng.choice(self.TABLES)
            row = [rng.choice([None, "", "1", "ä" * 3]) for _ in range(3)]
            kind = rng.randrange(0 if self.with_versions else 1, 9)
            if kind == 0:
                # With the top-level xid: see the docstring.
                self.describe(table, xids[0])
            elif kind == 1:
                self.truncate(*rng.sample(self.TABLES, rng.randrange(1, 4)), xid=xid)
            elif kind == 2:
                self.message(flags=1, xid=xid)
            elif kind == 3:
                self.delete(table, "k", None, None, old_type="K", xid=xid)
            elif kind == 4:
                self.update(table, "1", UNCHANGED, row[0], old=row, old_type="O", xid=xid)
            elif kind == 5:
                self.update(table, UNCHANGED, None, UNCHANGED, old=["k", None, None], old_type="K", xid=xid)
            else:
                self.insert(table, *row, xid=xid)

    def plain_transaction(self) -> None:
        self.begin(self.next_xid())
        self.rows([None])
        self.commit()

    def copies(self) -> None:
        """Send tables with their rows at one LSN, and sometimes a transaction with this commit LSN."""
        lsn = self.next_lsn()
        for table in self.rng.sample(self.TABLES, self.rng.randrange(1, 4)):
            self.payloads += [slots.begin(0, lsn), slots.message(1, lsn=lsn), self.described[table]]
            self.truncate(table)
            for _ in range(self.rng.randrange(4)):
                self.insert(table, str(len(self.payloads)), None, "1")
            self.payloads.append(slots.commit(lsn))
        if self.rng.random() < 0.5:
            self.lsn -= 8
            self.plain_transaction()

    def plain_prepare(self) -> None:
        xid = self.next_xid()
        gid = f"g{xid}"
        self.begin_prepare(xid, gid)
        self.rows([None])
        self.prepare(gid)
        self.prepared[gid] = xid

    def decide_prepared(self) -> None:
        gid = self.rng.choice(list(self.prepared))
        decide = self.rng.choice([self.commit_prepared, self.rollback_prepared])
        decide(self.prepared.pop(gid), gid)

    def new_stream(self) -> None:
        xid = self.next_xid()
        self.streams[xid] = []
        self.block_of(xid, first=True)

    def block(self) -> None:
        self.block_of(self.rng.choice(list(self.streams)), first=False)

    def block_of(self, xid: int, *, first: bool) -> None:
        if self.rng.random() < 0.5:
            self.streams[xid].append(self.next_xid())
        self.start(xid, first=first)
        self.rows([xid, *self.streams[xid]])
        self.stop()

    def abort_part(self) -> None:
        xid = self.rng.choice(list(self.streams))
        if self.streams[xid]:
            gone = self.rng.choice(self.streams[xid])
            self.streams[xid].remove(gone)
            self.stream_abort(xid, gone)

    def end_stream(self) -> None:
        xid = self.rng.choice(list(self.streams))
        del self.streams[xid]
        end = self.rng.randrange(3)
        if end == 0:
            self.stream_abort(xid)
        elif end == 1:
            self.stream_commit(xid)
        else:
            self.stream_prepare(xid, f"g{xid}")
            self.prepared[f"g{xid}"] = xid
