"""Which version of a relation the rows of each transaction use, as the messages come."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pgdecode._native.changes.relation_versions import VersionTable
from pgdecode.protocol.errors import RepeatedColumn, TooManyRelations
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.messages import Relation, Type
from pgdecode.relations.journal import Journal, NoJournal
from pgdecode.relations.relation_version import RelationVersion, repeated_column

_LIMITS = Limits()
# In place of a version's number, as in _versions: none is known; the payload is bad; the last Relation message was bad.
UNKNOWN = -1
BAD_PAYLOAD = -2
INVALID = -3

_NO_STREAM = -1


class SchemaChanged(LookupError):
    """A relation has a version that was not preloaded."""


class Sent(NamedTuple):
    """The version of a relation, or INVALID, and the position of the last message that sent it."""

    number: int
    position: int


class SentType(NamedTuple):
    """A type, and the position of the last message that sent it."""

    type: Type
    position: int


@dataclass
class Sendings:
    """What the transactions and sub-transactions of one stream have sent of one relation or type."""

    by_xid: dict[int, Any] = field(default_factory=dict)  # the last item that each has sent: Sent or SentType
    order: list[int] = field(default_factory=list)  # who sent after whom; the last one is in `by_xid`

    @property
    def last(self) -> Any:
        """What was sent last, None where all of it was dropped."""
        return self.by_xid[self.order[-1]] if self.order else None

    @property
    def in_order(self) -> list[tuple[int, Any]]:
        """What counts, by xid, the last at the end."""
        last_first = dict.fromkeys(xid for xid in reversed(self.order) if xid in self.by_xid)
        return [(xid, self.by_xid[xid]) for xid in reversed(last_first)]

    @classmethod
    def of(cls, items: Iterable[tuple[int, Any]]) -> Sendings:
        """Undo `in_order`."""
        by_xid = dict(items)
        return cls(by_xid, list(by_xid))

    def send(self, xid: int, item: Any, journal: Journal) -> None:
        """Take up what comes now."""
        journal.put(self.by_xid, xid, item)
        if not self.order or self.order[-1] != xid:
            journal.append(self.order, xid)

    def drop(self, xid: int, journal: Journal) -> None:
        """Forget what was sent for an xid."""
        journal.pop(self.by_xid, xid)
        while self.order and self.order[-1] not in self.by_xid:
            journal.note(self.order.append, self.order[-1])
            self.order.pop()


@dataclass
class Scope:
    """What the stream of one transaction has sent."""

    relations: dict[int, Sendings] = field(default_factory=dict)  # of Sent, by OID
    types: dict[int, Sendings] = field(default_factory=dict)  # of SentType, by OID
    # What each xid has sent, in the order of its messages.
    by_xid: dict[int, list[Sendings]] = field(default_factory=dict)
    relations_by_xid: dict[int, list[int]] = field(default_factory=dict)
    # Numbers of all versions that it has sent, not only of those sent last.
    numbers_by_xid: dict[int, list[int]] = field(default_factory=dict)

    def copy(self) -> Scope:
        """Make one that goes its own way."""
        other = Scope()
        for kind in ("relations", "types"):
            for oid, sendings in getattr(self, kind).items():
                for xid, item in sendings.in_order:
                    other.send(kind, oid, xid, item, NoJournal())
        other.numbers_by_xid = {xid: list(numbers) for xid, numbers in self.numbers_by_xid.items()}
        return other

    def send(self, kind: str, oid: int, xid: int, item: Any, journal: Journal) -> None:
        """Take up a relation or type, "relations" or "types"."""
        known = self.relations if kind == "relations" else self.types
        if oid not in known:
            journal.put(known, oid, Sendings())
        sendings = known[oid]
        if xid not in sendings.by_xid:
            if xid not in self.by_xid:
                journal.put(self.by_xid, xid, [])
                journal.put(self.relations_by_xid, xid, [])
            journal.append(self.by_xid[xid], sendings)
            if kind == "relations":
                journal.append(self.relations_by_xid[xid], oid)
        sendings.send(xid, item, journal)


@dataclass(frozen=True)
class Contradiction:
    """Relation messages of one relation of which nobody knows whose stream they are from.

    What was sent before `position` counts no longer, unless it says what `relation` says; nor does that if another
    contradiction came at `other_position`. Streams that began before `common_position` and have not sent the relation
    themselves do not know it.
    """

    relation: Relation
    position: int
    other_position: int = -1
    common_position: int = -1


class RelationTracker:
    """The versions of relations: what is visible now, outside the streams and in each of them.

    Relations and types sent inside a stream are for its transaction alone until that commits or is prepared; those of
    a transaction or sub-transaction that aborts never count outside it. The message that was sent last counts.

    Parameters
    ----------
    versions : iterable of RelationVersion
    position : int, optional
        Versions from past it are not visible yet.
    limits : Limits

    Attributes
    ----------
    versions : list of RelationVersion
    common : dict of int to Sent
        By relation OID, what counts outside streams.
    types : dict of int to SentType
    scopes : dict of int to Scope
        By the top-level xid of the stream.
    in_shape : set of int
        Numbers of the versions that committed transactions have sent or used: tables are made of these.
    table : VersionTable
        What is visible, for native code.
    journal : Journal
        What changes are made by.
    """

    def __init__(
        self, versions: Iterable[RelationVersion] = (), position: int | None = None, limits: Limits = _LIMITS
    ) -> None:
        self.versions: list[RelationVersion] = []
        self.limits = limits
        self.journal: Journal = NoJournal()
        self.common: dict[int, Sent] = {}
        self.types: dict[int, SentType] = {}
        self.scopes: dict[int, Scope] = {}
        self.contradictions: dict[int, Contradiction] = {}
        self.in_shape: set[int] = set()
        self.table = VersionTable()
        self._by_name: dict[str, list[int]] = {}
        self._by_id: dict[int, list[int]] = {}
        # Relation OID -> the payload that described it last outside streams, and the version that it made.
        self._last_payloads: dict[int, tuple[bytes, int]] = {}
        # After `preload`: position -> numbers of the versions that it brings, and the tables for which that is all.
        self._preloaded: dict[int, list[int]] | None = None
        self._fixed: Collection[str] | None = None
        for number, version in enumerate(versions):
            self.append(version)
            since = version.visible_from
            if since is not None:
                self.in_shape.add(number)
                if position is None or since <= position:
                    self._set_common(version.relation_id, Sent(number, since))
                    self.types |= {item.type_id: SentType(item, since) for item in version.types}

    def copy(self, *, with_versions: bool = True) -> RelationTracker:
        """Make one that goes its own way; without the versions where these come by `preload`."""
        other = RelationTracker(limits=self.limits)
        if with_versions:
            other.versions = list(self.versions)
            other._by_name = {name: list(numbers) for name, numbers in self._by_name.items()}
            other._by_id = {oid: list(numbers) for oid, numbers in self._by_id.items()}
            other.in_shape = set(self.in_shape)
        other.types = dict(self.types)
        other.contradictions = dict(self.contradictions)
        other._last_payloads = dict(self._last_payloads)
        other._preloaded, other._fixed = self._preloaded, self._fixed
        other.common = dict(self.common)
        other.scopes = {xid: scope.copy() for xid, scope in self.scopes.items()}
        if with_versions:
            other.fill_table()
        return other

    def fill_table(self) -> None:
        """Bring the native table up to what has been set here."""
        for relation_id, sent in self.common.items():
            self.table.set(_NO_STREAM, relation_id, sent.number)
        for stream, scope in self.scopes.items():
            for relation_id in scope.relations:
                self.table.set(stream, relation_id, self._own(stream, relation_id))
        for relation_id in self.contradictions:
            self.table.set_contradicted(relation_id, True)

    def preload(
        self, versions: Iterable[RelationVersion], fixed: Collection[str] | None = None, end: int | None = None
    ) -> None:
        """Take over all versions that there will be, those of now first; they keep their numbers.

        With `fixed`, names of tables, that is so of these tables alone; and from position `end` on no message makes
        a version, not even one that a given catalog has from there.
        """
        self.versions, self._by_name, self._by_id = [], {}, {}
        for version in versions:
            self.append(version)
        self._fixed = fixed
        self._preloaded = {}
        for number, version in enumerate(self.versions):
            if end is None or version.position < end:
                self._preloaded.setdefault(version.position, []).append(number)
        self.fill_table()

    # -- looking up --------------------------------------------------------------------------------------------------

    def number_for(self, stream: int | None, relation_id: int, began: int = 0) -> int:
        """Find the version that the next row of a stream uses, or that of rows outside streams.

        Parameters
        ----------
        stream : int or None
            Top-level xid.
        relation_id : int
        began : int
            Position at which the stream began.
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

    def numbers_of(self, relation: str | int, *, everything: bool = False) -> list[int]:
        """Find the versions that make the shape of a table, by "schema.table" or OID.

        They are those that committed transactions have sent or used; with `everything`, all.
        """
        found = self._by_id.get(relation) if isinstance(relation, int) else self._by_name.get(relation)
        numbers = found or []
        return list(numbers) if everything else [number for number in numbers if number in self.in_shape]

    def is_repeated(self, payload: bytes) -> int | None:
        """Find the relation of a Relation message, outside streams, that says what counts already; None for others."""
        relation_id = int.from_bytes(payload[1:5], "big")
        last, number = self._last_payloads.get(relation_id, (b"", UNKNOWN))
        sent = self.common.get(relation_id)
        return relation_id if last == payload and sent is not None and sent.number == number else None

    def _own(self, stream: int, relation_id: int) -> int:
        """Find the version that a stream has sent itself."""
        sent = self._last_sent(stream, relation_id)
        return UNKNOWN if sent is None else sent.number

    def _last_sent(self, stream: int, relation_id: int) -> Sent | None:
        scope = self.scopes.get(stream)
        sendings = None if scope is None else scope.relations.get(relation_id)
        sent: Sent | None = None if sendings is None else sendings.last
        if sent is None:
            return None
        contradiction = self.contradictions.get(relation_id)
        if contradiction is None or sent.number < 0:
            return sent
        same = self.versions[sent.number].relation == contradiction.relation
        position = contradiction.other_position if same else contradiction.position
        return Sent(INVALID, position) if position > sent.position else sent

    # -- messages ----------------------------------------------------------------------------------------------------

    def add(self, message: Relation, position: int, stream: int | None) -> int:
        """Take up a Relation message, and give its version's number; one that says nothing new makes no version.

        Raises
        ------
        RepeatedColumn, TooManyRelations
        SchemaChanged
            If all versions were preloaded, but not this one.
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
        if number < 0 or not self.versions[number].describes(relation, types):
            visible = position if stream is None else None
            number = self._number_of(RelationVersion(relation, types, position, stream, visible))
        self._send(relation_id, Sent(number, position), stream, message.xid)
        return number

    def repeat(self, relation_id: int, position: int) -> None:
        """Take up a Relation message, outside streams, that says what counts already: it is the last one now."""
        sent = self.common[relation_id]
        self.journal.put(self.common, relation_id, Sent(sent.number, position))

    def keep_payload(self, relation_id: int, payload: bytes) -> None:
        """Keep the payload that has just described a relation: servers repeat them."""
        self.journal.put(self._last_payloads, relation_id, (payload, self.common[relation_id].number))

    def add_type(self, message: Type, position: int, stream: int | None) -> None:
        """Take up a Type message.

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
            self.journal.put(self.types, type_id, sent)
        else:
            own = stream if message.xid is None else message.xid
            self._scope(stream).send("types", type_id, own, sent, self.journal)
        self._forget_payloads()

    def invalidate(self, relation_id: int, position: int, stream: int | None, xid: int | None = None) -> None:
        """Take up that a relation was described in a way that could not be read: no older version counts any more."""
        known = self.common if stream is None else self._scope(stream).relations
        # Bad messages must not fill the memory: past twice the limit, what was not known before stays that.
        if len(known) < 2 * self.limits.max_relations or relation_id in known:
            self._send(relation_id, Sent(INVALID, position), stream, xid)

    def invalidate_everywhere(self, message: Relation, position: int) -> None:
        """Take up the same of a message of an unknown transaction, wherever it says other than what counts there."""
        relation = replace(message, xid=None)
        relation_id = relation.relation_id
        former = self.contradictions.get(relation_id)
        if former is None and len(self.contradictions) >= 2 * self.limits.max_relations:
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
            self.journal.note(self.table.set_contradicted, relation_id, False)
            self.table.set_contradicted(relation_id, True)
        self.journal.put(self.contradictions, relation_id, Contradiction(relation, position, other, common))

    # -- transactions ------------------------------------------------------------------------------------------------

    def publish(self, stream: int, position: int) -> list[int]:
        """Make visible to all what a stream sent: its transaction has committed or been prepared.

        Of a relation that was also sent outside the stream, the last message counts. Gives the numbers of all versions
        that the stream sent.
        """
        scope = self.scopes.get(stream)
        if scope is None:
            return []
        for type_id, sendings in scope.types.items():
            sent_type = sendings.last
            known_type = self.types.get(type_id)
            if sent_type is not None and (known_type is None or known_type.position <= sent_type.position):
                self.journal.put(self.types, type_id, sent_type)
        if scope.types:
            self._forget_payloads()
        for relation_id in scope.relations:
            sent = self._last_sent(stream, relation_id)
            if sent is None:
                continue
            known = self.common.get(relation_id)
            if known is None or known.position <= sent.position:
                self._set_common(relation_id, sent)
                number = sent.number
                if number >= 0 and self.versions[number].visible_from is None and self._preloaded is None:
                    visible = replace(self.versions[number], visible_from=position)
                    self.journal.note(self.versions.__setitem__, number, self.versions[number])
                    self.versions[number] = visible
        self.drop(stream)
        return sorted({number for numbers in scope.numbers_by_xid.values() for number in numbers})

    def drop(self, stream: int) -> None:
        """Forget what a stream sent: its transaction was aborted, or is sent again."""
        scope = self.scopes.get(stream)
        if scope is not None:
            for relation_id in scope.relations:
                self.journal.note(self._show_own, stream, relation_id)
            self.journal.pop(self.scopes, stream)
            for relation_id in scope.relations:
                self._show_own(stream, relation_id)

    def drop_part(self, stream: int, xid: int) -> None:
        """Forget what a sub-transaction sent: it was aborted."""
        scope = self.scopes.get(stream)
        if scope is None or xid not in scope.by_xid:
            return
        self.journal.pop(scope.numbers_by_xid, xid)
        relations = self.journal.pop(scope.relations_by_xid, xid)
        for relation_id in relations:
            self.journal.note(self._show_own, stream, relation_id)
        for sendings in self.journal.pop(scope.by_xid, xid):
            sendings.drop(xid, self.journal)
        for relation_id in relations:
            self._show_own(stream, relation_id)

    def count_for_shape(self, numbers: Iterable[int]) -> None:
        """Take up that a committed transaction has sent or used versions."""
        for number in numbers:
            self.journal.add(self.in_shape, number)

    # -- the parts of these ------------------------------------------------------------------------------------------

    def _scope(self, stream: int) -> Scope:
        if stream not in self.scopes:
            self.journal.put(self.scopes, stream, Scope())
        return self.scopes[stream]

    def _types_of(self, relation: Relation, stream: int | None) -> Iterator[Type]:
        """Give the types of a relation's columns, as far as they have been sent."""
        scope = None if stream is None else self.scopes.get(stream)
        for column in relation.columns:
            sendings = None if scope is None else scope.types.get(column.type_id)
            if sendings is not None and sendings.last is not None:
                yield sendings.last.type
            elif column.type_id in self.types:
                yield self.types[column.type_id].type

    def _send(self, relation_id: int, sent: Sent, stream: int | None, xid: int | None) -> None:
        """Let a version, or INVALID, be the last one that was sent."""
        if stream is None:
            self._set_common(relation_id, sent)
        else:
            self.journal.note(self._show_own, stream, relation_id)
            scope, own = self._scope(stream), stream if xid is None else xid
            scope.send("relations", relation_id, own, sent, self.journal)
            if sent.number >= 0:
                if own not in scope.numbers_by_xid:
                    self.journal.put(scope.numbers_by_xid, own, [])
                if not scope.numbers_by_xid[own] or scope.numbers_by_xid[own][-1] != sent.number:
                    self.journal.append(scope.numbers_by_xid[own], sent.number)
            self._show_own(stream, relation_id)

    def _set_common(self, relation_id: int, sent: Sent) -> None:
        former = self.common.get(relation_id)
        self.journal.note(self.table.set, _NO_STREAM, relation_id, UNKNOWN if former is None else former.number)
        self.table.set(_NO_STREAM, relation_id, sent.number)
        self.journal.put(self.common, relation_id, sent)

    def _show_own(self, stream: int, relation_id: int) -> None:
        """Let native code know what a stream has sent; what undoes a change calls this when all else is undone."""
        self.table.set(stream, relation_id, self._own(stream, relation_id))

    def append(self, version: RelationVersion) -> int:
        """Give a version the next number."""
        number = len(self.versions)
        self.journal.append(self.versions, version)
        self.journal.append(self._by_name.setdefault(version.qualified_name, []), number)
        self.journal.append(self._by_id.setdefault(version.relation_id, []), number)
        return number

    def _number_of(self, version: RelationVersion) -> int:
        """Give a version that comes now its number.

        Raises
        ------
        SchemaChanged, TooManyRelations
        """
        if self._preloaded is not None:
            at = self._preloaded.get(version.position, ())
            found = [number for number in at if self.versions[number].relation == version.relation]
            if found:
                # A given catalog may have one of the same message whose maker knew other types.
                return min(found, key=lambda number: self.versions[number].types != version.types)
        if len(self.versions) >= self.limits.max_relations:
            raise self._too_many("version of a relation", len(self.versions), version.relation_id)
        if self._preloaded is None or (self._fixed is not None and version.qualified_name not in self._fixed):
            return self.append(version)
        raise SchemaChanged(f"no relation is known to have been sent at position {version.position}")

    def _too_many(self, what: str, n: int, relation_id: int | None) -> TooManyRelations:
        limit = self.limits.max_relations
        detail = TooManyRelations.wording.format(field=what, seen=n + 1, expected=limit)
        return TooManyRelations(detail, tag="R", relation=relation_id, expected=limit, seen=n + 1)

    def _forget_payloads(self) -> None:
        """Let no Relation message pass as repeated: versions tell the types of their columns."""
        if self._last_payloads:
            self.journal.set_attribute(self, "_last_payloads", {})


def _offset_of_name(message: Relation, column: int) -> int:
    """Where the name of a column begins in the message's payload."""
    head = 1 + (0 if message.xid is None else 4) + 4  # tag, xid, OID
    head += len(message.namespace.encode()) + len(message.name.encode()) + 2 + 1 + 2  # NULs, identity, count
    before = sum(len(item.name.encode()) + 10 for item in message.columns[:column])  # flags, NUL, type, modifier
    return head + before + 1
