"""Which version of a relation the rows of each transaction see, as the messages come."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from pgdecode.errors import RepeatedColumn, TooManyRelations
from pgdecode.limits import Limits
from pgdecode.messages import Relation, Type
from pgdecode.versions import RelationVersion, repeated_column

_LIMITS = Limits()
# In place of a version, as in _versions: the change could not be read; or the last Relation message, at position p, was
# bad, which is written as IN_DOUBT - p.
BAD_PAYLOAD = -2
IN_DOUBT = -3


class Unforeseen(LookupError):
    """More must be known than somebody has foreseen."""


@dataclass
class Scope:
    """What the stream of one transaction has sent."""

    visible: dict[int, int]
    types: dict[int, Type]


class CatalogBuilder:
    """A catalog that grows: what is visible now, outside the streams and in each of them.

    Relations and types sent inside a stream are for its transaction alone until that commits or is prepared; those of
    a transaction that aborts never count outside it.
    """

    def __init__(
        self, versions: Iterable[RelationVersion] = (), position: int | None = None, limits: Limits = _LIMITS
    ) -> None:
        """Start with versions, those from past a position left out of what is visible."""
        self.versions = list(versions)
        self.limits = limits
        # Relation OID -> index of its version, or IN_DOUBT less a position; for rows outside streams.
        self.visible: dict[int, int] = {}
        self.types: dict[int, Type] = {}
        self.scopes: dict[int, Scope] = {}  # by top-level xid
        # Relation OID -> the payload that described it last outside streams, and the version that it made.
        self.said: dict[int, tuple[bytes, int]] = {}
        # Where somebody has gone over the whole before: all versions there will be, which then keep their numbers.
        self.known: dict[int, list[int]] | None = None
        # Where somebody has gone over the beginning alone: tables by name, of which there will be no other versions.
        self.settled: Collection[str] | None = None
        for index, version in enumerate(self.versions):
            since = version.visible_from
            if since is not None and (position is None or since <= position):
                self.visible[version.relation_id] = index
                self.types |= {item.type_id: item for item in version.types}

    def copy(self) -> CatalogBuilder:
        """One that goes its own way."""
        other = CatalogBuilder(limits=self.limits)
        other.versions = list(self.versions)
        other.visible = dict(self.visible)
        other.types = dict(self.types)
        other.said = dict(self.said)
        other.known, other.settled = self.known, self.settled
        other.scopes = {xid: Scope(dict(item.visible), dict(item.types)) for xid, item in self.scopes.items()}
        return other

    def foresee(
        self, versions: Iterable[RelationVersion], settled: Collection[str] | None = None, end: int | None = None
    ) -> None:
        """Take over all versions that there will be, those of now first; they keep their numbers.

        With `settled`, names of tables, that is so of these tables alone; and from position `end` on no message makes
        a version, not even one that a given catalog has from there.
        """
        self.versions = list(versions)
        self.settled = settled
        self.known = {}
        for number, version in enumerate(self.versions):
            if end is None or version.position < end:
                self.known.setdefault(version.position, []).append(number)

    def seen_by(self, stream: int | None) -> dict[int, int]:
        """Version of each relation that a stream has sent, for the rows in it; without a stream, of all for others."""
        if stream is None:
            return self.visible
        scope = self.scopes.get(stream)
        return {} if scope is None else scope.visible

    def is_said_again(self, payload: bytes) -> bool:
        """Whether a Relation message outside streams says of its relation what counts already, to the byte."""
        relation_id = int.from_bytes(payload[1:5], "big")
        said, index = self.said.get(relation_id, (b"", -1))
        return said == payload and self.visible.get(relation_id) == index

    def keep_said(self, relation_id: int, payload: bytes) -> None:
        """Keep the payload that has just described a relation: servers repeat them."""
        self.said[relation_id] = payload, self.visible[relation_id]

    def add(self, message: Relation, position: int, stream: int | None) -> int:
        """Take up a Relation message, and give its version's index; one that says nothing new costs nothing.

        Raises
        ------
        RepeatedColumn, TooManyRelations
        Unforeseen
            If all versions were foreseen, but not this one.
        """
        relation = message if message.xid is None else replace(message, xid=None)
        repeated = repeated_column(relation)
        if repeated is not None:
            detail = RepeatedColumn.wording.format(field=f"name of column {repeated}")
            raise RepeatedColumn(
                detail,
                offset=_offset_of_name(message, repeated),
                tag="R",
                relation=relation.relation_id,
                column=repeated,
            )
        scope = Scope(self.visible, self.types) if stream is None else self.scopes.setdefault(stream, Scope({}, {}))
        found = [scope.types.get(column.type_id) or self.types.get(column.type_id) for column in relation.columns]
        types = tuple(item for item in found if item is not None)
        index = scope.visible.get(relation.relation_id)
        if index is None:
            index = self.visible.get(relation.relation_id)
        if index is None or index < 0 or not self.versions[index].describes(relation, types):
            index = self._number_of(
                RelationVersion(relation, types, position, stream, position if stream is None else None)
            )
        scope.visible[relation.relation_id] = index
        return index

    def _number_of(self, version: RelationVersion) -> int:
        """Give a version that comes now its number.

        Raises
        ------
        Unforeseen, TooManyRelations
        """
        if self.known is not None:
            at = self.known.get(version.position, ())
            found = [number for number in at if self.versions[number].relation == version.relation]
            if found:
                # A given catalog may have one of the same message whose maker knew other types.
                return min(found, key=lambda number: self.versions[number].types != version.types)
        if len(self.versions) >= self.limits.max_relations:
            raise self._too_many("version of a relation", len(self.versions), version.relation_id)
        if self.known is None or (self.settled is not None and version.qualified_name not in self.settled):
            self.versions.append(version)
            return len(self.versions) - 1
        raise Unforeseen(f"no relation is known to have been sent at position {version.position}")

    def _too_many(self, what: str, n: int, relation_id: int | None) -> TooManyRelations:
        limit = self.limits.max_relations
        detail = TooManyRelations.wording.format(field=what, seen=n + 1, expected=limit)
        return TooManyRelations(detail, tag="R", relation=relation_id, expected=limit, seen=n + 1)

    def doubt(self, relation_id: int, position: int, stream: int | None) -> None:
        """Take up that a relation was described in a way that could not be read: no older version counts any more."""
        scope = self.visible if stream is None else self.scopes.setdefault(stream, Scope({}, {})).visible
        # Bad messages must not fill the memory: past twice the limit, what was not known before stays that.
        if len(scope) < 2 * self.limits.max_relations or relation_id in scope:
            scope[relation_id] = IN_DOUBT - position

    def doubt_everywhere(self, message: Relation, position: int) -> None:
        """Take up the same of a message of an unknown transaction, wherever it says other than what counts there."""
        relation = replace(message, xid=None)
        known = self.visible.get(relation.relation_id)
        for stream in (None, *self.scopes):
            index = self.seen_by(stream).get(relation.relation_id, known)
            if index is None or index < 0 or self.versions[index].relation != relation:
                self.doubt(relation.relation_id, position, stream)

    def _position(self, index: int) -> int:
        """Position of the Relation message that made an entry of what is visible."""
        return self.versions[index].position if index >= 0 else IN_DOUBT - index

    def add_type(self, message: Type, stream: int | None) -> None:
        """Take up a Type message.

        Raises
        ------
        TooManyRelations
        """
        types = self.types if stream is None else self.scopes.setdefault(stream, Scope({}, {})).types
        if len(types) >= self.limits.max_relations and message.type_id not in types:
            raise self._too_many("type", len(types), None)
        types[message.type_id] = replace(message, xid=None)
        # Versions tell the types of their columns.
        self.said.clear()

    def publish(self, stream: int, position: int) -> dict[int, int]:
        """Make visible to all what a stream sent: its transaction has committed or been prepared.

        Gives the versions of the relations that it sent, as they are now.
        """
        scope = self.scopes.pop(stream, None)
        if scope is None:
            return {}
        self.types |= scope.types
        self.said.clear()
        for relation_id, index in scope.visible.items():
            known = self.visible.get(relation_id)
            if known is None or self._position(known) <= self._position(index):
                self.visible[relation_id] = index
            if index >= 0 and self.versions[index].visible_from is None and self.known is None:
                self.versions[index] = replace(self.versions[index], visible_from=position)
        return {relation_id: self.visible[relation_id] for relation_id in scope.visible}

    def drop(self, stream: int) -> None:
        """Forget what a stream sent: its transaction was aborted, or is sent again."""
        self.scopes.pop(stream, None)


def _offset_of_name(message: Relation, column: int) -> int:
    """Where the name of a column begins in the message's payload."""
    head = 1 + (0 if message.xid is None else 4) + 4  # tag, xid, OID
    head += len(message.namespace.encode()) + len(message.name.encode()) + 2 + 1 + 2  # NULs, identity, count
    before = sum(len(item.name.encode()) + 10 for item in message.columns[:column])  # flags, NUL, type, modifier
    return head + before + 1
