"""Tracks which version of a relation the rows of each transaction use."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple

from pgdecode._native.changes.relation_versions import VersionTable
from pgdecode.protocol.errors import RepeatedColumn, TooManyRelations
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.messages import (
    Message,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Type,
)
from pgdecode.protocol.wire import offset_of
from pgdecode.relations.relation_facts import UNKNOWN_NUMBER, RelationFacts, StatedFacts, facts_between
from pgdecode.relations.relation_version import RelationVersion, repeated_column
from pgdecode.relations.table_names import named
from pgdecode.relations.undo_log import NoUndoLog, UndoLog

_LIMITS = Limits()
# Values in place of a version's number: no version is known; the payload is bad; the last Relation message was bad.
UNKNOWN = -1
BAD_PAYLOAD = -2
INVALID = -3

_NO_STREAM = -1
_OID_AT = offset_of(Relation, "relation_id")


class SchemaChanged(LookupError):
    """A Relation message made a version that was not preloaded."""


class Sent(NamedTuple):
    """The number of a relation's version, or INVALID, and the position of the last message that sent it."""

    number: int
    position: int


class SentType(NamedTuple):
    """A type, and the position of the last message that sent it."""

    type: Type
    position: int


@dataclass
class SentItems:
    """One relation or type as the transaction and sub-transactions of one stream have sent it."""

    by_xid: dict[int, Any] = field(default_factory=dict)  # the last item that each xid has sent: Sent or SentType
    order: list[int] = field(default_factory=list)  # xids in the order of sending; the last one is in `by_xid`

    @property
    def last(self) -> Any:
        """The item that was sent last; None if all items were dropped."""
        return self.by_xid[self.order[-1]] if self.order else None

    @property
    def in_order(self) -> list[tuple[int, Any]]:
        """The last item of each xid, in the order of sending."""
        last_first = dict.fromkeys(xid for xid in reversed(self.order) if xid in self.by_xid)
        return [(xid, self.by_xid[xid]) for xid in reversed(last_first)]

    @classmethod
    def of(cls, items: Iterable[tuple[int, Any]]) -> SentItems:
        """Convert back what `in_order` returned."""
        by_xid = dict(items)
        return cls(by_xid, list(by_xid))

    def send(self, xid: int, item: Any, undo_log: UndoLog) -> None:
        """Set the item of an xid, which becomes the last one."""
        undo_log.put(self.by_xid, xid, item)
        if not self.order or self.order[-1] != xid:
            undo_log.append(self.order, xid)

    def drop(self, xid: int, undo_log: UndoLog) -> None:
        """Remove the item of an xid."""
        undo_log.pop(self.by_xid, xid)
        while self.order and self.order[-1] not in self.by_xid:
            last = len(self.order) - 1
            undo_log.record(self.order.__setitem__, slice(last, None), self.order[last:])
            self.order.pop()


@dataclass
class Scope:
    """Relations and types that the stream of one transaction has sent."""

    relations: dict[int, SentItems] = field(default_factory=dict)  # of Sent, by OID
    types: dict[int, SentItems] = field(default_factory=dict)  # of SentType, by OID
    # For each xid, the items that it has sent, in the order of its messages.
    by_xid: dict[int, list[SentItems]] = field(default_factory=dict)
    relations_by_xid: dict[int, list[int]] = field(default_factory=dict)
    # For each xid, the numbers of all versions that it has sent, not only the last ones.
    numbers_by_xid: dict[int, list[int]] = field(default_factory=dict)

    def copy(self) -> Scope:
        """Make an independent copy."""
        other = Scope()
        for kind in ("relations", "types"):
            for oid, sent_items in getattr(self, kind).items():
                for xid, item in sent_items.in_order:
                    other.send(kind, oid, xid, item, NoUndoLog())
        other.numbers_by_xid = {xid: list(numbers) for xid, numbers in self.numbers_by_xid.items()}
        return other

    def send(self, kind: str, oid: int, xid: int, item: Any, undo_log: UndoLog) -> None:
        """Add an item that an xid has sent. `kind` is "relations" or "types"."""
        known = self.relations if kind == "relations" else self.types
        if oid not in known:
            undo_log.put(known, oid, SentItems())
        sent_items = known[oid]
        if xid not in sent_items.by_xid:
            if xid not in self.by_xid:
                undo_log.put(self.by_xid, xid, [])
                undo_log.put(self.relations_by_xid, xid, [])
            undo_log.append(self.by_xid[xid], sent_items)
            if kind == "relations":
                undo_log.append(self.relations_by_xid[xid], oid)
        sent_items.send(xid, item, undo_log)


@dataclass(frozen=True)
class Contradiction:
    """Relation messages of one relation that came from the stream of an unknown transaction.

    Versions of the relation that were sent before `position` are invalid, unless they equal `relation`. Versions that
    equal `relation` are invalid if they were sent before `other_position`, where another contradiction came. For
    streams that began before `common_position` and have not sent the relation themselves, the relation is invalid.
    """

    relation: Relation
    position: int
    other_position: int = -1
    common_position: int = -1


class RelationTracker:
    """All versions of relations, and which of them are visible outside streams and in each stream.

    Relations and types that were sent inside a stream are visible only to its transaction until that commits or is
    prepared. Those of an aborted transaction or sub-transaction never become visible outside it. The message that was
    sent last applies.

    Parameters
    ----------
    versions : iterable of RelationVersion
        Versions that are known at the start.
    position : int, optional
        Versions whose `visible_from` is after it are not visible yet.
    limits : Limits
    facts : iterable of StatedFacts
        They become part of the versions that messages describe.

    Attributes
    ----------
    versions : list of RelationVersion
    common : dict of int to Sent
        By relation OID, the version that is visible outside streams.
    types : dict of int to SentType
        By type OID, the type that is visible outside streams.
    scopes : dict of int to Scope
        By the top-level xid of the stream.
    in_layout : set of int
        Numbers of the versions that committed transactions have sent or used. They determine the columns of tables.
    table : VersionTable
        The visible versions, for native code.
    undo_log : UndoLog
        All changes go through it.
    """

    def __init__(
        self,
        versions: Iterable[RelationVersion] = (),
        position: int | None = None,
        limits: Limits = _LIMITS,
        facts: Iterable[StatedFacts] = (),
    ) -> None:
        self.versions: list[RelationVersion] = []
        self._facts_by_id: dict[int, list[StatedFacts]] = {}
        self._last_facts: dict[Relation, StatedFacts] = {}
        self.limits = limits
        self.undo_log: UndoLog = NoUndoLog()
        self.common: dict[int, Sent] = {}
        self.types: dict[int, SentType] = {}
        self.scopes: dict[int, Scope] = {}
        self.contradictions: dict[int, Contradiction] = {}
        self.in_layout: set[int] = set()
        self.table = VersionTable()
        self._by_name: dict[str, list[int]] = {}
        self._by_id: dict[int, list[int]] = {}
        # Relation OID -> the last payload that described it outside streams, and the number of that version.
        self._last_payloads: dict[int, tuple[bytes, int]] = {}
        # After `preload`: position -> numbers of the versions sent there.
        self._preloaded: dict[int, list[int]] | None = None
        self.add_facts(facts)
        for number, version in enumerate(versions):
            self.append(self._with_facts(version))
            since = version.visible_from
            if since is not None and (position is None or since <= position):
                self.in_layout.add(number)
                known = self.common.get(version.relation_id)
                if known is None or known.position <= since:
                    self._set_common(version.relation_id, Sent(number, since))
                self.types |= {item.type_id: SentType(item, since) for item in version.types}

    def copy(self, *, with_versions: bool = True) -> RelationTracker:
        """Make an independent copy; without the versions if `preload` will set them."""
        other = RelationTracker(limits=self.limits)
        if with_versions:
            other.versions = list(self.versions)
            other._by_name = {name: list(numbers) for name, numbers in self._by_name.items()}
            other._by_id = {oid: list(numbers) for oid, numbers in self._by_id.items()}
            other.in_layout = set(self.in_layout)
        other.types = dict(self.types)
        other.contradictions = dict(self.contradictions)
        other._last_payloads = dict(self._last_payloads)
        other._preloaded = self._preloaded
        other.add_facts(self.facts)
        other.common = dict(self.common)
        other.scopes = {xid: scope.copy() for xid, scope in self.scopes.items()}
        if with_versions:
            other.fill_table()
        return other

    def __getstate__(self) -> dict[str, Any]:
        # The native table can be made again. The payloads only save time.
        return {**vars(self), "table": None, "undo_log": NoUndoLog(), "_last_payloads": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, table=VersionTable())
        if self.versions:
            self.fill_table()

    def fill_table(self) -> None:
        """Write all visible versions to the native table."""
        for relation_id, sent in self.common.items():
            self.table.set(_NO_STREAM, relation_id, sent.number)
        for stream, scope in self.scopes.items():
            for relation_id in scope.relations:
                self.table.set(stream, relation_id, self._own(stream, relation_id))
        for relation_id in self.contradictions:
            self.table.set_contradicted(relation_id, True)

    def preload(self, versions: Iterable[RelationVersion]) -> None:
        """Set all versions that the messages will make; the present versions come first and keep their numbers."""
        self.versions, self._by_name, self._by_id = [], {}, {}
        for version in versions:
            self.append(version)
        self._preloaded = {}
        for number, version in enumerate(self.versions):
            self._preloaded.setdefault(version.position, []).append(number)
        self.fill_table()

    def add_visible(self, versions: Iterable[RelationVersion], position: int) -> None:
        """Add versions that became visible before a position, of relations that are unknown outside streams."""
        for version in versions:
            since = version.visible_from
            if since is None or since > position or version.relation_id in self.common:
                continue
            number = self.append(self._with_facts(version))
            self.undo_log.add(self.in_layout, number)
            self._set_common(version.relation_id, Sent(number, since))
            for item in version.types:
                if item.type_id not in self.types:
                    self.undo_log.put(self.types, item.type_id, SentType(item, since))

    def add_facts(self, facts: Iterable[StatedFacts]) -> None:
        """Add facts, in the order of their positions. Those of earlier messages do not change."""
        for item in facts:
            known = self._facts_by_id.setdefault(item.relation.relation_id, [])
            last = self._last_facts.get(item.relation)
            if last is not None and last.position >= item.position:
                continue
            self.undo_log.put(self._last_facts, item.relation, item)
            if len(known) > 1 and known[-2][::2] == known[-1][::2] == item[::2]:
                # Each captured file states them again: the first and the last time are enough.
                self.undo_log.record(known.__setitem__, -1, known[-1])
                known[-1] = item
            else:
                self.undo_log.append(known, item)

    @property
    def facts(self) -> list[StatedFacts]:
        """All facts, in the order of their positions."""
        return sorted(itertools.chain(*self._facts_by_id.values()), key=attrgetter("position"))

    def facts_from(self, position: int) -> list[StatedFacts]:
        """List the facts that messages from a position on may use."""
        facts = self.facts
        last = {item.relation: item for item in facts if item.position < position}
        return [item for item in facts if item.position >= position or last[item.relation] is item]

    # -- lookup ------------------------------------------------------------------------------------------------------

    def number_for(self, stream: int | None, relation_id: int, began: int = 0) -> int:
        """Find the version that the next row of a stream uses, or the next row outside streams.

        Parameters
        ----------
        stream : int or None
            Top-level xid; None outside streams.
        relation_id : int
        began : int
            Position at which the stream began.

        Returns
        -------
        int
            Number of the version, UNKNOWN or INVALID.
        """
        if stream is not None:
            own = self._own(stream, relation_id)
            if own != UNKNOWN:
                return own
            contradiction = self.contradictions.get(relation_id)
            if contradiction is not None and contradiction.common_position > began:
                return INVALID
        sent = self.common.get(relation_id)
        return UNKNOWN if sent is None else sent.number

    @property
    def names(self) -> list[str]:
        """Qualified names of the tables."""
        # After a rollback, a name may have no versions.
        return [name for name, numbers in self._by_name.items() if numbers]

    def numbers_of(self, relation: str | int, *, everything: bool = False) -> list[int]:
        """Find the versions that determine the columns of a table, by "schema.table" or OID.

        These are the versions that committed transactions have sent or used; with `everything`, all versions.

        Raises
        ------
        KeyError
            If the name may be that of several tables.
        """
        if isinstance(relation, int):
            numbers = self._by_id.get(relation, [])
        else:
            numbers = self._by_name.get(named(relation, self.names), [])
        return list(numbers) if everything else [number for number in numbers if number in self.in_layout]

    def flags_of(self, relations: Iterable[str | int]) -> bytes:
        """Return a byte for each version, 1 for all versions of some tables."""
        flags = bytearray(len(self.versions))
        for relation in relations:
            for number in self.numbers_of(relation, everything=True):
                flags[number] = 1
        return bytes(flags)

    def is_repeated(self, payload: bytes, position: int) -> int | None:
        """Return the OID of a Relation message outside streams if it repeats the visible version; otherwise None."""
        relation_id = int.from_bytes(payload[_OID_AT : _OID_AT + 4], "big")
        last, number = self._last_payloads.get(relation_id, (b"", UNKNOWN))
        sent = self.common.get(relation_id)
        if last != payload or sent is None or sent.number != number:
            return None
        stated = self._facts_by_id.get(relation_id)
        if not stated:
            return relation_id
        version = self.versions[number]
        # The table may have been altered until an earlier or a later look at the catalog.
        at = bisect_left(stated, position, key=attrgetter("position"))
        looks = [item for item in stated[max(at - 1, 0) : at + 1] if item.position > version.position]
        return relation_id if all(version.has_numbers_of(item) for item in looks) else None

    def _own(self, stream: int, relation_id: int) -> int:
        """Find the version that a stream has sent itself."""
        sent = self._last_sent(stream, relation_id)
        return UNKNOWN if sent is None else sent.number

    def _last_sent(self, stream: int, relation_id: int) -> Sent | None:
        scope = self.scopes.get(stream)
        sent_items = None if scope is None else scope.relations.get(relation_id)
        sent: Sent | None = None if sent_items is None else sent_items.last
        if sent is None:
            return None
        contradiction = self.contradictions.get(relation_id)
        if contradiction is None or sent.number < 0:
            return sent
        same = self.versions[sent.number].relation == contradiction.relation
        position = contradiction.other_position if same else contradiction.position
        return Sent(INVALID, position) if position > sent.position else sent

    # -- messages ----------------------------------------------------------------------------------------------------

    def follow(self, message: Message, position: int, stream: int | None) -> int | None:
        """Process a message of any kind, and return the transaction in whose stream the next one is; None outside."""
        if isinstance(message, StreamStart):
            if message.first_segment:
                self.drop(message.xid)
            return message.xid
        if isinstance(message, Relation | Type):
            # The Stream Start or Stream Stop of a block may be missing.
            scope = None if message.xid is None else message.xid if stream is None else stream
            if isinstance(message, Type):
                self.add_type(message, position, scope)
            else:
                self.add(message, position, scope)
        elif isinstance(message, StreamCommit | StreamPrepare):
            self.publish(message.xid, position)
        elif isinstance(message, StreamAbort) and message.xid == message.subxid:
            self.drop(message.xid)
        elif isinstance(message, StreamAbort):
            self.drop_subtransaction(message.xid, message.subxid)
        return None if isinstance(message, StreamStop) else stream

    def add(self, message: Relation, position: int, stream: int | None) -> int:
        """Process a Relation message and return the number of its version. A repetition makes no new version.

        Raises
        ------
        RepeatedColumn, TooManyRelations
        SchemaChanged
            If versions were preloaded, but not this one.
        """
        relation = message if message.xid is None else replace(message, xid=None)
        relation_id = relation.relation_id
        repeated = repeated_column(relation)
        if repeated is not None:
            detail = RepeatedColumn.wording.format(field=f"name of column {repeated}")
            offset = _offset_of_name(message, repeated)
            raise RepeatedColumn(detail, offset=offset, tag="R", relation=relation_id, column=repeated)
        types = tuple(self._types_of(relation, stream))
        number = self.number_for(stream, relation_id)
        facts = self._facts_after(number, relation, position)
        visible = position if stream is None else None
        version = RelationVersion(relation, types, position, stream, visible, facts)
        if number < 0 or not self.versions[number].is_like(version):
            number = self._number_of(version)
        self._send(relation_id, Sent(number, position), stream, message.xid)
        return number

    def repeat(self, relation_id: int, position: int) -> None:
        """Process a repeated Relation message outside streams: only the position of the last message changes."""
        sent = self.common[relation_id]
        self.undo_log.put(self.common, relation_id, Sent(sent.number, position))

    def keep_payload(self, relation_id: int, payload: bytes) -> None:
        """Store the payload that has just described a relation, to recognise repetitions, which servers send often."""
        self.undo_log.put(self._last_payloads, relation_id, (payload, self.common[relation_id].number))

    def add_type(self, message: Type, position: int, stream: int | None) -> None:
        """Process a Type message.

        Raises
        ------
        TooManyRelations
        """
        sent = SentType(message if message.xid is None else replace(message, xid=None), position)
        type_id = message.type_id
        known = self.types if stream is None else self._scope(stream).types
        if len(known) >= self.limits.max_relations and type_id not in known:
            raise self._too_many("type", len(known), None)
        if stream is None:
            self.undo_log.put(self.types, type_id, sent)
        else:
            own = stream if message.xid is None else message.xid
            self._scope(stream).send("types", type_id, own, sent, self.undo_log)
        self._forget_payloads()

    def invalidate(self, relation_id: int, position: int, stream: int | None, xid: int | None = None) -> None:
        """Mark a relation as invalid after an unreadable Relation message. Its older versions no longer apply."""
        known = self.common if stream is None else self._scope(stream).relations
        if self._has_room(known) or relation_id in known or relation_id in self.common:
            self._send(relation_id, Sent(INVALID, position), stream, xid)

    def invalidate_everywhere(self, message: Relation, position: int) -> None:
        """Process a Relation message from the stream of an unknown transaction.

        The relation becomes invalid outside streams and in each stream whose version of it differs from the message.
        """
        relation = replace(message, xid=None)
        relation_id = relation.relation_id
        former = self.contradictions.get(relation_id)
        if not (
            self._has_room(self.contradictions)
            or former is not None
            or relation_id in self.common
            or any(self._own(stream, relation_id) >= 0 for stream in self.scopes)
        ):
            return
        other = common = -1
        if former is not None:
            other = former.other_position if former.relation == relation else former.position
            common = former.common_position
        number = self.number_for(None, relation_id)
        if number < 0 or self.versions[number].relation != relation:
            self.invalidate(relation_id, position, None)
            common = position
        if former is None:
            self.undo_log.record(self.table.set_contradicted, relation_id, False)
            self.table.set_contradicted(relation_id, True)
        self.undo_log.put(self.contradictions, relation_id, Contradiction(relation, position, other, common))

    # -- transactions ------------------------------------------------------------------------------------------------

    def publish(self, stream: int, position: int) -> list[int]:
        """Make the relations and types of a stream visible outside it, when its transaction commits or is prepared.

        If a relation was also sent outside the stream, the last message applies. Returns the numbers of all versions
        that the stream sent.

        Raises
        ------
        SchemaChanged
            If versions were preloaded, but not one that becomes visible again.
        """
        scope = self.scopes.get(stream)
        if scope is None:
            return []
        numbers = {number for of_xid in scope.numbers_by_xid.values() for number in of_xid}
        for type_id, sent_items in scope.types.items():
            sent_type = sent_items.last
            known_type = self.types.get(type_id)
            if sent_type is not None and (known_type is None or known_type.position <= sent_type.position):
                self.undo_log.put(self.types, type_id, sent_type)
        if scope.types:
            self._forget_payloads()
        # By OID: new versions get their numbers here, and the order of the dictionary depends on aborted messages too.
        for relation_id in sorted(scope.relations):
            sent = self._last_sent(stream, relation_id)
            if sent is None:
                continue
            known = self.common.get(relation_id)
            number = sent.number
            if known is not None and known.position > sent.position:
                # Another version has overtaken it. If that is the same, and never commits, this one is used instead.
                if number >= 0 and known.number >= 0 and self._are_equal(number, known.number):
                    self._make_visible(number, self.versions[known.number].visible_from)
                continue
            if number >= 0 and not self._make_visible(number, position):
                since = self.versions[number].visible_from
                if since is not None and since < position and known is not None and known.number != number:
                    # It was visible before, until another one was. As a new version it is the last one.
                    again = replace(self.versions[number], position=sent.position, xid=stream, visible_from=position)
                    number = self._number_again(again)
                    numbers.add(number)
            if number >= 0 or known is not None or self._has_room(self.common):
                self._set_common(relation_id, Sent(number, sent.position))
        self.drop(stream)
        return sorted(number for number in numbers if number >= 0)

    def drop(self, stream: int) -> None:
        """Remove the relations and types of a stream, when its transaction aborts or is sent again."""
        scope = self.scopes.get(stream)
        if scope is not None:
            for relation_id in scope.relations:
                self.undo_log.record(self._update_table, stream, relation_id)
            self.undo_log.pop(self.scopes, stream)
            for relation_id in scope.relations:
                self._update_table(stream, relation_id)

    def drop_subtransaction(self, stream: int, xid: int) -> None:
        """Remove the relations and types of a sub-transaction, when it aborts."""
        scope = self.scopes.get(stream)
        if scope is None or xid not in scope.by_xid:
            return
        self.undo_log.pop(scope.numbers_by_xid, xid)
        relations = self.undo_log.pop(scope.relations_by_xid, xid)
        for relation_id in relations:
            self.undo_log.record(self._update_table, stream, relation_id)
        for sent_items in self.undo_log.pop(scope.by_xid, xid):
            sent_items.drop(xid, self.undo_log)
        for relation_id in relations:
            self._update_table(stream, relation_id)

    def count_for_shape(self, numbers: Iterable[int]) -> None:
        """Record that a committed transaction has sent or used versions."""
        for number in numbers:
            self.undo_log.add(self.in_layout, number)

    # -- implementation ----------------------------------------------------------------------------------------------

    def _facts_after(self, number: int, relation: Relation, position: int) -> RelationFacts | None:
        """Find the facts of the relation that a message describes, after the version with a number.

        A file may describe a relation several times, and its footer has the facts of the last time.
        """
        stated = self._facts_by_id.get(relation.relation_id)
        if not stated:
            return None
        before = self.versions[number] if number >= 0 else None
        if before is not None and before.facts is not None:
            known: StatedFacts | None = StatedFacts(before.relation, before.position, before.facts)
            sent = self.common.get(relation.relation_id)
            since = before.position if sent is None or sent.number != number else max(before.position, sent.position)
            since, until = (bisect_right(stated, item, key=attrgetter("position")) for item in (since, position))
            looks = [item for item in stated[since:until] if item.facts.may_follow(before.facts)]
        else:
            earlier = [item for item in stated if item.position <= position]
            known = max(earlier, key=lambda item: (item.position, item.relation == relation), default=None)
            looks = []
        first = bisect_left(stated, position, key=attrgetter("position"))
        later_facts = (stated[index] for index in range(first, len(stated)))
        later = next((item for item in later_facts if known is None or item.facts.may_follow(known.facts)), None)
        if later is None:
            # Nothing says that the table has been altered since.
            last = self._last_facts.get(relation)
            if last is not None and any(item.position > last.position for item in looks):
                last = None
            if last is not None and (known is None or last.facts.may_follow(known.facts)):
                return last.facts
            if known is None:
                return None
        elif later.relation == relation and later.position == position:
            return later.facts
        facts = facts_between(relation, known, looks, later)
        if known is None and later is not None and later.relation == relation and later.facts.attnums == facts.attnums:
            return replace(later.facts, n_attributes=facts.n_attributes)
        return facts

    def _with_facts(self, version: RelationVersion) -> RelationVersion:
        sent = self.common.get(version.relation_id)
        number = UNKNOWN if sent is None else sent.number
        facts = version.facts or self._facts_after(number, version.relation, version.position)
        return version if facts is version.facts else replace(version, facts=facts)

    def _has_room(self, known: Sized) -> bool:
        """Whether a relation that has no version may become invalid. Bad messages must not fill the memory.

        Without room, it stays unknown.
        """
        return len(known) < 2 * self.limits.max_relations

    def _scope(self, stream: int) -> Scope:
        if stream not in self.scopes:
            self.undo_log.put(self.scopes, stream, Scope())
        return self.scopes[stream]

    def _types_of(self, relation: Relation, stream: int | None) -> Iterator[Type]:
        """Yield the types of a relation's columns that Type messages have described."""
        scope = None if stream is None else self.scopes.get(stream)
        for column in relation.columns:
            sent_items = None if scope is None else scope.types.get(column.type_id)
            if sent_items is not None and sent_items.last is not None:
                yield sent_items.last.type
            elif column.type_id in self.types:
                yield self.types[column.type_id].type

    def _send(self, relation_id: int, sent: Sent, stream: int | None, xid: int | None) -> None:
        """Set the version, or INVALID, that was sent last."""
        if stream is None:
            self._set_common(relation_id, sent)
        else:
            self.undo_log.record(self._update_table, stream, relation_id)
            scope, own = self._scope(stream), stream if xid is None else xid
            scope.send("relations", relation_id, own, sent, self.undo_log)
            if sent.number >= 0:
                if own not in scope.numbers_by_xid:
                    self.undo_log.put(scope.numbers_by_xid, own, [])
                if not scope.numbers_by_xid[own] or scope.numbers_by_xid[own][-1] != sent.number:
                    self.undo_log.append(scope.numbers_by_xid[own], sent.number)
            self._update_table(stream, relation_id)

    def _set_common(self, relation_id: int, sent: Sent) -> None:
        former = self.common.get(relation_id)
        self.undo_log.record(self.table.set, _NO_STREAM, relation_id, UNKNOWN if former is None else former.number)
        self.table.set(_NO_STREAM, relation_id, sent.number)
        self.undo_log.put(self.common, relation_id, sent)

    def _update_table(self, stream: int, relation_id: int) -> None:
        """Write a stream's own version to the native table. A rollback calls this after it has undone the change."""
        self.table.set(stream, relation_id, self._own(stream, relation_id))

    def append(self, version: RelationVersion) -> int:
        """Add a version, and return its number."""
        number = len(self.versions)
        self.undo_log.append(self.versions, version)
        self.undo_log.append(self._by_name.setdefault(version.qualified_name, []), number)
        self.undo_log.append(self._by_id.setdefault(version.relation_id, []), number)
        return number

    def _number_of(self, version: RelationVersion) -> int:
        """Find the preloaded number of a version, or add the version.

        Raises
        ------
        SchemaChanged, TooManyRelations
        """
        if self._preloaded is not None:
            at = self._preloaded.get(version.position, ())
            found = [number for number in at if self.versions[number].relation == version.relation]
            if found:
                # A catalog from the caller may have a version of the same message that has other types or is undecided.
                # Prefer equal types, and versions that committed transactions use.
                return min(found, key=lambda no: (self.versions[no].types != version.types, no not in self.in_layout))
        if len(self.versions) >= self.limits.max_relations:
            raise self._too_many("version of a relation", len(self.versions), version.relation_id)
        if self._preloaded is None:
            return self.append(version)
        raise SchemaChanged(f"no preloaded relation version has position {version.position}")

    def _are_equal(self, number: int, other: int) -> bool:
        return self.versions[number].is_like(self.versions[other])

    def _make_visible(self, number: int, position: int | None) -> bool:
        """Record from where a version is visible, unless it is known."""
        version = self.versions[number]
        if version.visible_from is not None:
            return False
        facts = version.facts
        if facts is None or UNKNOWN_NUMBER in facts.attnums:
            # The catalog shows it only now.
            facts = self._facts_after(self.number_for(None, version.relation_id), version.relation, version.position)
        self.undo_log.record(self.versions.__setitem__, number, version)
        self.versions[number] = replace(version, visible_from=position, facts=facts)
        return True

    def _number_again(self, version: RelationVersion) -> int:
        """Find or add a version that becomes visible again; INVALID if there are too many."""
        try:
            return self._number_of(version)
        except TooManyRelations:
            return INVALID

    def _too_many(self, what: str, n: int, relation_id: int | None) -> TooManyRelations:
        limit = self.limits.max_relations
        detail = TooManyRelations.wording.format(field=what, seen=n + 1, expected=limit)
        return TooManyRelations(detail, tag="R", relation=relation_id, expected=limit, seen=n + 1)

    def _forget_payloads(self) -> None:
        """Forget the last payloads, because a version includes the types of its columns, and these have changed."""
        if self._last_payloads:
            self.undo_log.set_attribute(self, "_last_payloads", {})


def _offset_of_name(message: Relation, column: int) -> int:
    """Byte offset of a column's name in the message's payload."""
    head = 1 + (0 if message.xid is None else 4) + 4  # tag, xid, OID
    head += len(message.namespace.encode()) + len(message.name.encode()) + 2 + 1 + 2  # NULs, identity, count
    before = sum(len(item.name.encode()) + 10 for item in message.columns[:column])  # flags, NUL, type, modifier
    return head + before + 1
