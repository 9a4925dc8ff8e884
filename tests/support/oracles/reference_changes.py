"""The reference fold, an independent implementation: payloads in slot order in, changes of committed transactions out.

It is written from the documentation of transactions and streams and from the project's rules for incomplete input and
reconnects, on the messages that tests/support/oracles/reference.py reads. It is slow on purpose: it keeps every message
with its transaction, and for every row it searches all earlier Relation messages. It shares nothing with the package.

A value is the text that was sent, null, or the bytes of a binary cell. The text of a binary capture is in the text
capture of the same WAL.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from support.oracles import reference

Change = dict[str, Any]
Message = dict[str, Any]
Value = str | bytes | None
Pairs = Iterable[tuple[int, bytes | None]]

CHANGE_COLUMNS = (
    *("position", "commit_position", "op", "xid", "subxid", "commit_lsn", "commit_timestamp", "gid"),
    *("relation_id", "namespace", "relation_name", "old_type", "old", "new", "unchanged", "committed"),
)

ROW_KINDS = ("insert", "update", "delete", "truncate")
# Messages that occur outside a stream block or end it; only Stream Start begins one.
DELIMITERS = b"BCSEcAbPKrp"

DESYNC, STREAM_DESYNC, COMMIT_ORDER = "STATE_TRANSACTION", "STATE_DESYNC", "STATE_COMMIT_ORDER"


class Refused(Exception):
    """A message that FAILFAST mode refuses: its position and the code of the fault."""

    def __init__(self, position: int, code: str, detail: str) -> None:
        super().__init__(f"position {position}: {detail}")
        self.position = position
        self.code = code


class UnknownRelation(Refused):
    """A row whose relation was not described before it, or whose description could not be read."""


@dataclass(eq=False)
class Transaction:
    """The messages of one transaction. `committed` is None until its outcome is known."""

    xid: int
    streamed: bool
    gid: str | None = None
    final_lsn: int = -1
    # For a streamed transaction: the positions of its first and its last Stream Start.
    first_position: int = -1
    block_position: int = -1
    # False if its beginning was not read; then none of its changes are returned.
    known: bool = True
    counted: bool = False
    # True if it was delivered before and is left out.
    repeated: bool = False
    committed: bool | None = None
    commit_position: int | None = None
    commit: Message | None = None
    # Position of its Stream Commit or Stream Prepare, from which its relations are visible outside it.
    settled_position: int | None = None
    # Sub-transactions that were rolled back, each with the position of its Stream Abort.
    aborted: dict[int, int] = field(default_factory=dict)

    def has_aborted(self, sent: Sent) -> bool:
        """Whether a row or a relation was sent in a sub-transaction that was rolled back later."""
        return sent.position < self.aborted.get(sent.message["xid"], -1)

    def delivers(self, sent: Sent) -> bool:
        return self.committed is True and self.known and not self.repeated and not self.has_aborted(sent)


@dataclass(eq=False)
class Sent:
    """A row or a relation, its position and its transaction; None outside a transaction."""

    position: int
    message: Message
    transaction: Transaction | None
    # For a row: the Relation message of each of its relations.
    relations: dict[int, Sent | None] = field(default_factory=dict)


class Fold:
    """Collects every row and relation with its transaction, and the outcome of each transaction.

    Parameters
    ----------
    payloads : iterable of (position, payload)
    permissive : bool
        Record faults in `errors` and continue, instead of raising. A Relation message that cannot be read, or that
        repeats a column's name, is a relation without columns, which no row can use.
    anywhere : bool
        Leave out transactions whose beginning is missing and count them in `skipped`, instead of refusing them.
    drop_duplicates : bool
        Leave out transactions whose commit LSN is not greater than all earlier ones.
    reconnects : collection of int
        Positions before which the reader announces that it has connected again.
    empty_is_error : bool
        Refuse empty payloads, instead of ignoring and counting them.
    known : iterable of Relation messages as rows
        Relations of a catalog.
    """

    def __init__(
        self,
        payloads: Pairs,
        *,
        permissive: bool = False,
        anywhere: bool = False,
        drop_duplicates: bool = False,
        is_counted: bool = False,
        reconnects: Collection[int] = (),
        empty_is_error: bool = False,
        known: Iterable[Message] = (),
    ) -> None:
        self.permissive = permissive
        self.anywhere = anywhere
        self.drop_duplicates = drop_duplicates
        self.is_counted = is_counted
        self.empty_is_error = empty_is_error
        self.rows: list[Sent] = []
        # All relations that were sent, and those that later rows may use.
        self.sent = [Sent(-1, message, None) for message in known]
        self.relations = list(self.sent)
        self.faults: dict[int, str] = {}  # by position, of messages; the first one of each
        self.skipped = 0
        self.empty_payloads = 0
        # Whether a Relation message contradicted the stream state, so that its transaction is not known.
        self.stray_relations = False
        # The open plain transaction, the streamed transaction whose block is open, and those without an outcome.
        self.open: Transaction | None = None
        self.block: Transaction | None = None
        self.streams: dict[int, Transaction] = {}
        self.prepared: dict[str, Transaction] = {}
        # Streamed transactions without their beginning, and the GIDs under which they were prepared.
        self.unknown: dict[int, Transaction] = {}
        self.unknown_gids: set[str] = set()
        # Whether a transaction boundary has been read, and the transactions that were left out before it.
        self.begun = False
        self.headless: Transaction | None = None
        self.headless_block: Transaction | None = None
        # LSN of the newest commit, and its position.
        self.newest_lsn = self.newest_position = -1
        # LSN of the newest commit of the session.
        self.session_lsn = -1
        items = list(payloads)
        in_stream = begins_in_a_block([payload for _, payload in items if payload])
        for position, payload in items:
            if position in reconnects:
                self.reconnect()
                self.session_lsn = -1
                in_stream = False
            if payload is not None:
                in_stream = self.read(position, payload, in_stream)

    def read(self, position: int, payload: bytes, in_stream: bool) -> bool:
        """Read a payload; return whether the next one is inside a block."""
        if not payload and not self.empty_is_error:
            self.empty_payloads += 1
            return in_stream
        before = in_stream
        if payload and payload[0] in DELIMITERS:
            in_stream = False
        try:
            message = reference.decode_payload(payload, in_stream)
            if message["kind"] == "relation" and repeats_a_name(message):
                raise reference.Malformed("REPEATED_COLUMN", 0)
        except reference.Malformed as fault:
            self.fault(position, fault.code, f"{fault.code} at offset {fault.offset}")
            self.doubt(position, payload, in_stream, fault.code)
            # A payload that cannot be read says nothing about the payloads after it: its tag may be what is damaged.
            return before
        self.take(position, message)
        return in_stream or message["kind"] == "stream_start"

    def fault(self, position: int, code: str, detail: str) -> None:
        if not self.permissive:
            raise Refused(position, code, detail)
        self.faults.setdefault(position, code)

    def doubt(self, position: int, payload: bytes, in_stream: bool, code: str) -> None:
        """Record that a Relation message was bad, if its relation OID can be read."""
        if payload[:1] != b"R":
            return
        if code == STREAM_DESYNC:
            self.stray_relations = True
            return
        start = 5 if in_stream else 1
        if len(payload) >= start + 4:
            own_xid = int.from_bytes(payload[1:5], "big") if in_stream else None
            message = {
                "relation_id": int.from_bytes(payload[start : start + 4], "big"),
                "columns": None,
                "xid": own_xid,
            }
            self.describe(Sent(position, message, self.transaction_of(own_xid)))

    # -- rows and relations ------------------------------------------------------------------------------------------

    def take(self, position: int, message: Message) -> None:
        kind = message["kind"]
        if kind in ROW_KINDS or (kind == "message" and message["flags"] & 1):
            self.take_row(position, message)
        elif kind == "relation":
            self.describe(Sent(position, message, self.transaction_of(message["xid"])))
        elif kind not in ("origin", "type", "message"):
            getattr(self, f"take_{kind}")(position, message)
            self.begun = True

    def describe(self, relation: Sent) -> None:
        self.sent.append(relation)
        self.relations.append(relation)

    def transaction_of(self, own_xid: int | None) -> Transaction | None:
        """The transaction of a relation that is read now.

        In a block whose Stream Start was before the input, only the relation's own xid is known.
        """
        if self.block is None and own_xid is not None:
            return self.unknown.setdefault(own_xid, Transaction(own_xid, streamed=True, known=False))
        return self.block or self.open

    def take_row(self, position: int, message: Message) -> None:
        """Process a row, or a transactional logical message."""
        transaction = self.block or self.open
        if transaction is None:
            if self.anywhere and not self.begun:
                self.leave_out_headless()
            else:
                self.fault(position, DESYNC, f"{message['kind']} outside a transaction")
        elif transaction.known and message["kind"] != "message":
            row = Sent(position, message, transaction)
            row.relations = {relation_id: self.last_sent(row, relation_id) for relation_id in relation_ids(message)}
            self.rows.append(row)

    def last_sent(self, row: Sent, relation_id: int) -> Sent | None:
        """The relation of a row: the last one of its stream, else the last one that is visible to all."""
        before = [sent for sent in self.relations if sent.message["relation_id"] == relation_id]
        of_stream = [sent for sent in before if self.block is not None and sent.transaction is self.block]
        of_all = [sent for sent in before if counts_outside(sent)]
        for candidates in (of_stream, of_all):
            if candidates:
                return candidates[-1]
        return None

    def relation_of(self, row: Sent, relation_id: int) -> Message | None:
        sent = row.relations[relation_id]
        return None if sent is None else sent.message

    # -- reconnects, and transactions without their beginning ---------------------------------------------------------

    def reconnect(self, last_position: int | None = None) -> None:
        """Discard open transactions, which the server sends again from the beginning. Prepared ones stay.

        If only a position before the reconnect is known, streams that began after that position are kept, because they
        may have begun after the reconnect.
        """
        self.open = self.block = None
        for streams in (self.streams, self.unknown):
            for xid, transaction in list(streams.items()):
                if last_position is None or transaction.first_position <= last_position:
                    self.forget_relations(transaction)
                    del streams[xid]
        self.begun = True

    def is_sent_again(self, message: Message) -> bool:
        """Whether a message shows that the server has restarted: its LSN is before the last one."""
        kind = message["kind"]
        if kind == "stream_start":
            return message["first_segment"] and message["xid"] in self.streams
        if kind in ("begin", "begin_prepare", "commit_prepared", "rollback_prepared"):
            lsn = message["end_lsn"] if kind == "rollback_prepared" else message["lsn"]
            if self.open is not None and self.open.xid == 0:
                # The open transaction is a copy: other copies, and a commit, may have its LSN.
                return bool(lsn < self.open.final_lsn)
            if self.open is not None:
                return bool(lsn <= self.open.final_lsn)
            if self.block is not None or kind in ("begin", "begin_prepare"):
                return bool(lsn <= self.newest_lsn)
        return False

    def between(self, position: int, message: Message) -> None:
        """Process a message that occurs outside blocks and plain transactions."""
        if self.is_sent_again(message):
            if self.open is not None or self.block is not None:
                # The message is possible only after a reconnect, so the reconnect was here.
                self.reconnect()
            elif message["kind"] == "stream_start":
                self.reconnect(self.streams[message["xid"]].block_position)
            else:
                self.reconnect(self.newest_position)
        if self.block is not None:
            self.fault(position, STREAM_DESYNC, f"{message['kind']} inside a stream, reconnected() was not called")
        if self.open is not None:
            self.fault(position, DESYNC, f"{message['kind']} inside a transaction, reconnected() was not called")
        self.open = self.block = None

    def forget_relations(self, transaction: Transaction) -> None:
        self.relations = [sent for sent in self.relations if sent.transaction is not transaction]

    def leave_out(self, transaction: Transaction) -> None:
        """Count a transaction whose beginning is missing, once."""
        if not transaction.counted:
            transaction.counted = True
            self.skipped += 1

    def leave_out_headless(self) -> None:
        if self.headless is None:
            self.headless = Transaction(0, streamed=False, known=False)
        self.leave_out(self.headless)

    def without_beginning(self, position: int, message: Message) -> Transaction:
        """Process a message of an unknown streamed transaction: refuse it, or leave it out."""
        xid = message["xid"]
        transaction = self.unknown.setdefault(xid, Transaction(xid, streamed=True, known=False))
        if not self.anywhere:
            self.fault(position, DESYNC, f"{message['kind']} of {xid}, whose first segment is missing")
        elif self.headless_block is not None and not transaction.counted:
            # The input probably began inside a block of this transaction.
            transaction.counted = True
            self.headless_block = None
        else:
            self.leave_out(transaction)
        return transaction

    # -- plain transactions ------------------------------------------------------------------------------------------

    def take_begin(self, position: int, message: Message) -> None:
        self.between(position, message)
        self.open = Transaction(message["xid"], streamed=False, final_lsn=message["lsn"], gid=message["gid"])

    take_begin_prepare = take_begin

    def take_commit(self, position: int, message: Message) -> None:
        transaction = self.end_of_plain(position, message)
        if transaction is not None:
            self.check_order(position, message)
            self.commit(transaction, position, message)

    def take_prepare(self, position: int, message: Message) -> None:
        transaction = self.end_of_plain(position, message)
        self.prepare(transaction, message)

    def end_of_plain(self, position: int, message: Message) -> Transaction | None:
        """The plain transaction that ends here; None if its beginning is missing."""
        if self.block is not None:
            self.between(position, message)
        elif self.open is None:
            if self.anywhere and not self.begun:
                self.leave_out_headless()
            else:
                self.fault(position, DESYNC, f"{message['kind']} outside a transaction")
        transaction, self.open = self.open, None
        return transaction

    # -- streams -----------------------------------------------------------------------------------------------------

    def take_stream_start(self, position: int, message: Message) -> None:
        self.between(position, message)
        xid = message["xid"]
        if message["first_segment"]:
            for copy in (self.streams.pop(xid, None), self.unknown.pop(xid, None)):
                if copy is not None:
                    self.forget_relations(copy)
            self.streams[xid] = Transaction(xid, streamed=True, first_position=position)
        self.block = self.streams.get(xid) or self.without_beginning(position, message)
        self.block.block_position = position

    def take_stream_stop(self, position: int, message: Message) -> None:
        if self.block is None and self.begun:
            self.fault(position, STREAM_DESYNC, "stream_stop outside a stream")
        elif self.block is None and self.anywhere:
            self.leave_out_headless()
            self.headless_block = self.headless
        self.block = None

    def take_stream_commit(self, position: int, message: Message) -> None:
        transaction = self.end_of_stream(position, message)
        if transaction.known:
            self.check_order(position, message)
            self.commit(transaction, position, message)

    def take_stream_prepare(self, position: int, message: Message) -> None:
        transaction = self.end_of_stream(position, message)
        self.prepare(transaction if transaction.known else None, message)

    def end_of_stream(self, position: int, message: Message) -> Transaction:
        """The streamed transaction that ends here; its relations are visible to all from now on."""
        self.between(position, message)
        xid = message["xid"]
        transaction = self.streams.pop(xid, None)
        if transaction is None:
            transaction = self.without_beginning(position, message)
            del self.unknown[xid]
        transaction.settled_position = position
        return transaction

    def take_stream_abort(self, position: int, message: Message) -> None:
        self.between(position, message)
        xid, subxid = message["xid"], message["subxid"]
        for transactions in (self.streams, self.unknown):
            transaction = transactions.get(xid)
            if transaction is None:
                continue
            if subxid == xid:
                transaction.committed = False
                del transactions[xid]
                self.forget_relations(transaction)
            else:
                # A sub-transaction sends nothing after its end, so its rows are those sent before.
                transaction.aborted[subxid] = position
                self.relations = [
                    sent
                    for sent in self.relations
                    if sent.transaction is not transaction or sent.message["xid"] != subxid
                ]

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def prepare(self, transaction: Transaction | None, message: Message) -> None:
        """Store a transaction under its GID, in place of an unfinished copy; None for an unknown one."""
        gid = message["gid"]
        self.prepared.pop(gid, None)
        self.unknown_gids.discard(gid)
        if transaction is None:
            self.unknown_gids.add(gid)
        else:
            transaction.gid = gid
            self.prepared[gid] = transaction

    def take_commit_prepared(self, position: int, message: Message) -> None:
        self.between(position, message)
        self.check_order(position, message)
        gid = message["gid"]
        transaction = self.prepared.get(gid)
        if transaction is not None and message["lsn"] <= self.newest_lsn and message["xid"] != transaction.xid:
            # Sent again: it commits the transaction that had the name before.
            return
        if transaction is not None:
            del self.prepared[gid]
            self.commit(transaction, position, message)
            return
        is_counted = gid in self.unknown_gids
        self.unknown_gids.discard(gid)
        if message["lsn"] <= self.newest_lsn:
            return
        if not self.anywhere:
            self.fault(position, DESYNC, f"commit_prepared of {gid!r}, whose prepare is missing")
        elif not is_counted:
            self.skipped += 1

    def take_rollback_prepared(self, position: int, message: Message) -> None:
        self.between(position, message)
        self.unknown_gids.discard(message["gid"])
        transaction = self.prepared.pop(message["gid"], None)
        if transaction is not None:
            transaction.committed = False

    def check_order(self, position: int, message: Message) -> None:
        """A server sends the commits of a session in order of LSN, which matters if positions do not tell the order."""
        if message["lsn"] <= self.session_lsn and self.is_counted and not self.drop_duplicates:
            self.fault(position, COMMIT_ORDER, "the commit does not come after the one before")

    def commit(self, transaction: Transaction, position: int, message: Message) -> None:
        transaction.committed = True
        transaction.repeated = self.drop_duplicates and message["lsn"] <= self.newest_lsn
        transaction.commit_position = position
        transaction.commit = message
        if transaction.xid == 0:
            # A copy of a table: the LSN is where it was read, which says nothing about the commits after it.
            return
        self.session_lsn = max(self.session_lsn, message["lsn"])
        if message["lsn"] > self.newest_lsn:
            self.newest_lsn, self.newest_position = message["lsn"], position

    # -- results -----------------------------------------------------------------------------------------------------

    @property
    def n_undecided(self) -> int:
        """Transactions without an outcome."""
        return len(self.streams) + len(self.prepared) + (self.open is not None)

    def committed(self) -> list[Change]:
        """The committed changes without errors, in the order in which to apply them."""
        return self.results()[0]

    def errors(self) -> list[tuple[int, str]]:
        """Position and code of each bad row."""
        return self.results()[1]

    def bad_rows(self) -> dict[str, int]:
        """Number of bad rows by code."""
        return dict(Counter(code for _, code in self.errors()))

    def results(self) -> tuple[list[Change], list[tuple[int, str]]]:
        found = []
        errors = list(self.faults.items())
        for row in self.rows:
            assert row.transaction is not None
            if not row.transaction.delivers(row):
                continue
            for relation_id in row.relations:
                try:
                    found.append(change_of(row, relation_id))
                except Refused as error:
                    if not self.permissive:
                        raise
                    errors.append((row.position, error.code))
        return sorted(found, key=lambda change: (change["commit_position"], change["position"])), sorted(errors)

    def others(self) -> list[Change]:
        """Changes that were rolled back (`committed` is False) or have no outcome (None), by position."""
        return [
            change_of(row, relation_id)
            for row in self.rows
            if row.transaction is not None and not row.transaction.repeated and not row.transaction.delivers(row)
            for relation_id in row.relations
        ]

    def versions(self, relation_id: int) -> list[Message]:
        """The versions of a relation that committed, delivered transactions sent or used, in the order they were sent.

        A version that equals the previous one is not listed again.
        """
        return [message for message, _ in self.history(relation_id)]

    def history(self, relation_id: int) -> list[tuple[Message, list[Sent]]]:
        """The versions, each with the Relation messages that sent it."""
        delivered = [row for row in self.rows if row.transaction is not None and row.transaction.delivers(row)]
        used = {sent for row in delivered for sent in row.relations.values()}
        found: list[tuple[Message, list[Sent]]] = []
        for sent in self.sent:
            counts = sent in used or (sent.transaction is not None and sent.transaction.delivers(sent))
            if not counts or sent.message["relation_id"] != relation_id:
                continue
            message = {**sent.message, "xid": None}
            if not found or found[-1][0] != message:
                found.append((message, []))
            found[-1][1].append(sent)
        return found

    def last_names(self, relation_id: int) -> dict[Sent, dict[str, str]]:
        """By Relation message, the last name of each of its columns.

        A column that was dropped keeps its name. If its version has another column that ends with this name, an
        apostrophe is added, or several.
        """
        found: dict[Sent, dict[str, str]] = {}
        history = self.history(relation_id)
        all_names = {column["name"] for message, _ in history for column in message["columns"]}
        after: Message | None = None
        later: dict[str, str] = {}
        for message, sent in reversed(history):
            names = [column["name"] for column in message["columns"]]
            kept = {name: name for name in names} if after is None else continued(message, after)
            last = {name: kept[name] if after is None else later[kept[name]] for name in names if name in kept}
            taken = set(last.values())
            for name in names:
                if name not in last:
                    free = name
                    while free in (taken if free == name else all_names):
                        free += "'"
                    last[name] = free
                    all_names.add(free)
            after, later = message, last
            found |= dict.fromkeys(sent, last)
        return found

    def column_names(self, relation_id: int) -> list[str]:
        """The columns of a table over its versions, by their last names, in the order in which they were first sent."""
        last_names = self.last_names(relation_id)
        in_order = [last_names[sent] for _, group in self.history(relation_id) for sent in group]
        columns = [
            [c["name"] for c in message["columns"]] for message, group in self.history(relation_id) for _ in group
        ]
        return list(dict.fromkeys(names[name] for names, sent in zip(in_order, columns, strict=True) for name in sent))


def continued(before: Message, after: Message) -> dict[str, str]:
    """The columns of a version that the next one has too, each with its name there.

    ALTER TABLE keeps the order of columns, and adds new ones at the end. So new names before a column that kept its
    name are renamed columns, if as many columns of the same types are missing there.
    """
    olds, news = ([(c["name"], c["type_id"], c["type_modifier"]) for c in item["columns"]] for item in (before, after))
    old_names, new_names = ([name for name, *_ in item] for item in (olds, news))
    # Where the order of the others ends, columns were dropped and added again.
    kept = [name for name in new_names if name in old_names]
    while [old_names.index(name) for name in kept] != sorted(old_names.index(name) for name in kept):
        kept.pop()
    found = {name: name for name in kept}
    for name in kept:
        missing, added = (_before(name, item, kept) for item in (olds, news))
        if [kind for _, *kind in missing] == [kind for _, *kind in added]:
            found |= {old: new for (old, *_), (new, *_) in zip(missing, added, strict=True)}
    return found


def _before(name: str, columns: list[Any], kept: list[str]) -> list[Any]:
    """The columns between a column that was kept and the one that was kept before it."""
    end = [item[0] for item in columns].index(name)
    starts = [place + 1 for place, item in enumerate(columns[:end]) if item[0] in kept]
    return columns[max(starts, default=0) : end]


def begins_in_a_block(payloads: list[bytes]) -> bool:
    """Whether input begins inside a stream block: the first delimiter decides, or else the structure of a row."""
    for payload in payloads:
        if payload[0] in DELIMITERS:
            return payload[:1] == b"E"
    rows = [payload for payload in payloads if payload[:1] in (b"I", b"D")]
    return any(reference.is_well_formed(payload, in_stream=True) for payload in rows)


def counts_outside(sent: Sent) -> bool:
    """Whether a relation is visible now to rows outside the transaction in which it was sent."""
    transaction = sent.transaction
    return transaction is None or not transaction.streamed or transaction.settled_position is not None


def changes(payloads: Pairs, *, include_uncommitted: bool = False, **rules: Any) -> list[Change]:
    """The changes of (position, payload) pairs in slot order, in the order in which to apply them.

    The committed ones come by (commit_position, position). With `include_uncommitted` the others follow by
    position: `committed` is False for what was aborted, a sub-transaction of a committed transaction among it, and
    None for what is undecided or was discarded at a reconnect. `rules` are those of `Fold`.
    """
    fold = Fold(payloads, **rules)
    return fold.committed() + (fold.others() if include_uncommitted else [])


def permissive_changes(payloads: Pairs, **rules: Any) -> tuple[list[Change], set[int]]:
    """The committed changes whose relation is known, and the positions of all bad rows."""
    found, errors = Fold(payloads, permissive=True, **rules).results()
    return found, {position for position, _ in errors}


def repeats_a_name(relation: Message) -> bool:
    names = [column["name"] for column in relation["columns"]]
    return len(names) != len(set(names))


def key_columns(payloads: Pairs, **rules: Any) -> dict[tuple[int, int], list[str]]:
    """The replica identity by which each row finds its old version: column names by (position, relation_id)."""
    return {
        (row.position, relation_id): [c["name"] for c in sent.message["columns"] if c["flags"] & 1]
        for row in Fold(payloads, **rules).rows
        for relation_id, sent in row.relations.items()
        if sent is not None
    }


def relation_ids(message: Message) -> list[int]:
    if message["kind"] == "message":
        return []
    ids: list[int] = message["relation_ids"] if message["kind"] == "truncate" else [message["relation_id"]]
    return ids


def change_of(row: Sent, relation_id: int) -> Change:
    """A row as a change of one of its relations: a truncate has one for each of its tables."""
    transaction, message, sent = row.transaction, row.message, row.relations[relation_id]
    assert transaction is not None
    relation = None if sent is None else sent.message
    if relation is None and message["kind"] != "truncate":
        raise UnknownRelation(row.position, "REL_UNKNOWN", f"relation {relation_id} was not sent before its row")
    if relation is not None and relation["columns"] is None:
        raise UnknownRelation(row.position, "REL_IN_DOUBT", f"the last Relation message of {relation_id} was bad")
    own_xid = message["xid"]
    committed = False if transaction.has_aborted(row) else transaction.committed
    commit = transaction.commit if committed and transaction.commit is not None else {}
    old = old_tuple(row, relation) if message["old"] is not None and relation is not None else None
    new, unchanged = new_tuple(row, relation, old or {}) if message["new"] is not None else (None, [])
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


def cells(row: Sent, part: str, relation: Message) -> list[tuple[Message, str, Value]]:
    """The columns of a tuple with the format letter and the value of each cell."""
    columns, formats, values = relation["columns"], row.message[f"{part}_formats"], row.message[part]
    if len(columns) != len(values):
        raise Refused(row.position, "ARITY", f"{len(values)} cells for {len(columns)} columns")
    return [
        (column, letter, value.decode() if letter == "t" else value)
        for column, letter, value in zip(columns, formats, values, strict=True)
    ]


def old_tuple(row: Sent, relation: Message) -> dict[str, Value]:
    """In a key tuple, a null in a non-key column means that it was not sent."""
    return {
        column["name"]: value
        for column, letter, value in cells(row, "old", relation)
        if letter != "u" and (letter != "n" or row.message["old_type"] == "O" or column["flags"] & 1)
    }


def new_tuple(row: Sent, relation: Message | None, old: dict[str, Value]) -> tuple[dict[str, Value], list[str]]:
    """The new values, and the names of unchanged columns that neither tuple contains."""
    assert relation is not None
    new: dict[str, Value] = {}
    unchanged = []
    for column, letter, value in cells(row, "new", relation):
        name = column["name"]
        if letter != "u":
            new[name] = value
        elif old.get(name) is not None:
            new[name] = old[name]
        else:
            unchanged.append(name)
    return new, unchanged
