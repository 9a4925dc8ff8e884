"""A second, plain reading of a slot's output: payloads in slot order in, the changes of committed transactions out.

Written from the documentation's description of transactions and streams, over the messages as tests/reference.py
reads them, and slow on purpose: first every message is given to its transaction, then each transaction is judged,
and only then each row looks backwards for the relation it is of. It shares nothing with the package it checks.

A value is the text that was sent, null, or, where the cell was binary, the bytes that were sent. What a capture in
binary means as text is said by the capture of the same WAL in text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import reference

Change = dict[str, Any]
Message = dict[str, Any]
Value = str | bytes | None

CHANGE_COLUMNS = (
    *("position", "commit_position", "op", "xid", "subxid", "commit_lsn", "commit_timestamp", "gid"),
    *("relation_id", "namespace", "relation_name", "old_type", "old", "new", "unchanged", "committed"),
)

ROW_KINDS = ("insert", "update", "delete", "truncate")
# Messages that stand outside a stream's block or end it; only Stream Start begins one.
DELIMITERS = b"BCSEcAbPKrp"


class UnknownRelation(Exception):
    """A row whose relation was not described before it, or not so that it could be read."""


@dataclass(eq=False)
class Transaction:
    """What the slot sent of one transaction. `committed` is None for as long as nothing decides it."""

    xid: int
    streamed: bool
    gid: str | None = None
    committed: bool | None = None
    commit_position: int | None = None
    commit: Message | None = None
    # Where a streamed transaction's relations begin to count outside it: its Stream Commit or Stream Prepare.
    settled_position: int | None = None
    aborted_subxids: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Sent:
    """A row or a relation, where it was sent and in which transaction."""

    position: int
    message: Message
    transaction: Transaction


class Ledger:
    """Every row and relation with its transaction, and what became of each transaction.

    With `permissive` a payload that cannot be read is one of `bad`. A Relation message that cannot be read, or repeats
    a column's name, is a relation without columns: no row can be of it.
    """

    def __init__(self, payloads: Iterable[tuple[int, bytes]], permissive: bool = False) -> None:
        self.rows: list[Sent] = []
        self.bad: list[int] = []
        self.relations: list[Sent] = []
        # The transaction that rows now belong to, and those that may still get rows or an outcome.
        self.current: Transaction | None = None
        self.streams: dict[int, Transaction] = {}
        self.prepared: dict[str, Transaction] = {}
        in_stream = False
        for position, payload in payloads:
            if payload[0] in DELIMITERS:
                in_stream = False
            try:
                message = reference.decode_payload(payload, in_stream)
                if message["kind"] == "relation" and repeats_a_name(message):
                    raise reference.Malformed("REPEATED_COLUMN", 0)
            except reference.Malformed:
                if not permissive:
                    raise
                self.bad.append(position)
                self.doubt(position, payload, in_stream)
                continue
            in_stream = in_stream or message["kind"] == "stream_start"
            self.take(position, message)

    def doubt(self, position: int, payload: bytes, in_stream: bool) -> None:
        """Note that a Relation message was bad, if what can be read of it says of which relation it was."""
        start = 5 if in_stream else 1
        if payload[:1] == b"R" and len(payload) >= start + 4 and self.current is not None:
            relation_id = int.from_bytes(payload[start : start + 4], "big")
            message = {"relation_id": relation_id, "columns": None, "xid": None}
            self.relations.append(Sent(position, message, self.current))

    def take(self, position: int, message: Message) -> None:
        kind = message["kind"]
        if kind in ROW_KINDS or kind == "relation":
            assert self.current is not None, f"position {position}: a {kind} outside any transaction"
            sent = self.rows if kind in ROW_KINDS else self.relations
            sent.append(Sent(position, message, self.current))
        elif kind not in ("origin", "type", "message"):
            getattr(self, f"take_{kind}")(position, message)

    def take_begin(self, position: int, message: Message) -> None:
        self.discard(message["xid"])
        self.current = Transaction(message["xid"], streamed=False)

    def take_commit(self, position: int, message: Message) -> None:
        assert self.current is not None
        self.decide(self.current, position, message)
        self.current = None

    def take_begin_prepare(self, position: int, message: Message) -> None:
        self.discard(message["xid"])
        self.current = Transaction(message["xid"], streamed=False, gid=message["gid"])

    def take_prepare(self, position: int, message: Message) -> None:
        assert self.current is not None
        self.prepared[message["gid"]] = self.current
        self.current = None

    def take_commit_prepared(self, position: int, message: Message) -> None:
        if message["gid"] in self.prepared:
            self.decide(self.prepared.pop(message["gid"]), position, message)

    def take_rollback_prepared(self, position: int, message: Message) -> None:
        if message["gid"] in self.prepared:
            self.prepared.pop(message["gid"]).committed = False

    def take_stream_start(self, position: int, message: Message) -> None:
        xid = message["xid"]
        if message["first_segment"]:
            self.discard(xid)
            self.streams[xid] = Transaction(xid, streamed=True)
        # Without its first segment, what came before the first payload is missing; what follows is as good as any.
        self.current = self.streams.setdefault(xid, Transaction(xid, streamed=True))

    def take_stream_stop(self, position: int, message: Message) -> None:
        self.current = None

    def take_stream_commit(self, position: int, message: Message) -> None:
        self.current = None
        transaction = self.streams.pop(message["xid"], None)
        if transaction is not None:
            transaction.settled_position = position
            self.decide(transaction, position, message)

    def take_stream_prepare(self, position: int, message: Message) -> None:
        self.current = None
        transaction = self.streams.pop(message["xid"], None)
        if transaction is not None:
            transaction.settled_position = position
            transaction.gid = message["gid"]
            self.prepared[message["gid"]] = transaction

    def take_stream_abort(self, position: int, message: Message) -> None:
        self.current = None
        transaction = self.streams.get(message["xid"])
        if transaction is None:
            return
        if message["subxid"] == message["xid"]:
            transaction.committed = False
            del self.streams[message["xid"]]
        else:
            # A sub-transaction sends nothing after its end, so its rows are those sent before.
            transaction.aborted_subxids.add(message["subxid"])

    def decide(self, transaction: Transaction, position: int, message: Message) -> None:
        transaction.committed = True
        transaction.commit_position = position
        transaction.commit = message

    def discard(self, xid: int) -> None:
        """Forget the copy of a transaction that the slot begins to send again from its start."""
        open_ones = [*self.streams.values(), *self.prepared.values()] + ([self.current] if self.current else [])
        unfinished = [transaction for transaction in open_ones if transaction.xid == xid]
        self.streams.pop(xid, None)
        self.prepared = {gid: kept for gid, kept in self.prepared.items() if kept not in unfinished}
        if unfinished:
            self.rows = [sent for sent in self.rows if sent.transaction not in unfinished]
            self.relations = [sent for sent in self.relations if sent.transaction not in unfinished]

    def relation_of(self, row: Sent, relation_id: int) -> Message | None:
        """The relation that a row is of: the last one of its stream, else the last one that counts for everybody."""
        before = [
            sent
            for sent in self.relations
            if sent.message["relation_id"] == relation_id and sent.position < row.position
        ]
        of_stream = [sent for sent in before if row.transaction.streamed and sent.transaction is row.transaction]
        of_all = [sent for sent in before if counts_outside(sent, row.position)]
        for candidates in (of_stream, of_all):
            if candidates:
                return candidates[-1].message
        return None


def counts_outside(relation: Sent, position: int) -> bool:
    """Whether a relation is to be used, at a position, by rows outside the transaction in which it was sent."""
    transaction = relation.transaction
    if not transaction.streamed:
        return True
    settled = transaction.settled_position is not None and transaction.settled_position < position
    return settled and relation.message["xid"] not in transaction.aborted_subxids


def changes(payloads: Iterable[tuple[int, bytes]], *, include_uncommitted: bool = False) -> list[Change]:
    """The changes of (position, payload) pairs in slot order, in the order in which to apply them.

    The committed ones come by (commit_position, position). With `include_uncommitted` the others follow by
    position: `committed` is False for what was aborted, a sub-transaction of a committed transaction among it, and
    None for what is undecided.
    """
    ledger = Ledger(payloads)
    committed = []
    others = []
    for row in ledger.rows:
        for change in changes_of(ledger, row):
            (committed if change["committed"] else others).append(change)
    committed.sort(key=lambda change: (change["commit_position"], change["position"]))
    others.sort(key=lambda change: change["position"])
    return committed + others if include_uncommitted else committed


def permissive_changes(payloads: Iterable[tuple[int, bytes]]) -> tuple[list[Change], set[int]]:
    """The committed changes whose relation is known, and the positions of all rows that are errors."""
    ledger = Ledger(payloads, permissive=True)
    bad = set(ledger.bad)
    found = []
    for row in ledger.rows:
        if not row.transaction.committed or row.message["xid"] in row.transaction.aborted_subxids:
            continue
        for relation_id in relation_ids(row.message):
            try:
                found.append(change_of(ledger, row, relation_id))
            except UnknownRelation:
                bad.add(row.position)
    return sorted(found, key=lambda change: (change["commit_position"], change["position"])), bad


def repeats_a_name(relation: Message) -> bool:
    names = [column["name"] for column in relation["columns"]]
    return len(names) != len(set(names))


def key_columns(payloads: Iterable[tuple[int, bytes]]) -> dict[tuple[int, int], list[str]]:
    """The replica identity by which each row finds its old version: column names by (position, relation_id)."""
    ledger = Ledger(payloads)
    keys = {}
    for row in ledger.rows:
        for relation_id in relation_ids(row.message):
            relation = ledger.relation_of(row, relation_id)
            if relation is not None:
                keys[row.position, relation_id] = [c["name"] for c in relation["columns"] if c["flags"] & 1]
    return keys


def relation_ids(message: Message) -> list[int]:
    ids: list[int] = message["relation_ids"] if message["kind"] == "truncate" else [message["relation_id"]]
    return ids


def changes_of(ledger: Ledger, row: Sent) -> list[Change]:
    """A row is one change, a truncate one for each of its tables."""
    return [change_of(ledger, row, relation_id) for relation_id in relation_ids(row.message)]


def change_of(ledger: Ledger, row: Sent, relation_id: int) -> Change:
    transaction, message = row.transaction, row.message
    relation = ledger.relation_of(row, relation_id)
    if (relation is not None and relation["columns"] is None) or (relation is None and message["kind"] != "truncate"):
        raise UnknownRelation(f"position {row.position}: relation {relation_id} was not sent before its row")
    own_xid = message["xid"]
    aborted = own_xid in transaction.aborted_subxids
    committed = False if aborted else transaction.committed
    commit = transaction.commit if committed and transaction.commit is not None else {}
    old = old_tuple(message, relation) if message["old"] is not None and relation is not None else None
    new, unchanged = new_tuple(message, relation, old or {}) if message["new"] is not None else (None, [])
    return {
        "position": row.position,
        "commit_position": transaction.commit_position if committed else None,
        "op": message["kind"],
        "xid": transaction.xid,
        "subxid": own_xid if own_xid != transaction.xid else None,
        "commit_lsn": commit.get("lsn"),
        "commit_timestamp": commit.get("timestamp"),
        "gid": transaction.gid,
        "relation_id": relation_id,
        "namespace": relation and relation["namespace"],
        "relation_name": relation and relation["name"],
        "old_type": message["old_type"],
        "old": old,
        "new": new,
        "unchanged": unchanged,
        "committed": committed,
    }


def cells(message: Message, part: str, relation: Message) -> list[tuple[Message, str, Value]]:
    """The columns of a tuple with the letter of each cell and its value."""
    columns, formats, values = relation["columns"], message[f"{part}_formats"], message[part]
    assert len(columns) == len(values), f"{len(values)} cells for {len(columns)} columns"
    return [
        (column, letter, value.decode() if letter == "t" else value)
        for column, letter, value in zip(columns, formats, values, strict=True)
    ]


def old_tuple(message: Message, relation: Message) -> dict[str, Value]:
    """In a tuple of the key alone, a null in another column means that it was not sent."""
    return {
        column["name"]: value
        for column, letter, value in cells(message, "old", relation)
        if letter != "u" and (letter != "n" or message["old_type"] == "O" or column["flags"] & 1)
    }


def new_tuple(message: Message, relation: Message | None, old: dict[str, Value]) -> tuple[dict[str, Value], list[str]]:
    """The new values and the names of those that did not change and were not sent, neither as new nor as old."""
    assert relation is not None
    new: dict[str, Value] = {}
    unchanged = []
    for column, letter, value in cells(message, "new", relation):
        name = column["name"]
        if letter != "u":
            new[name] = value
        elif old.get(name) is not None:
            new[name] = old[name]
        else:
            unchanged.append(name)
    return new, unchanged
