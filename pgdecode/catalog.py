"""Relations by position: which columns a table had when a row of it was sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.decode import MessageDecoder, decode
from pgdecode.errors import RepeatedColumn, TooManyRelations, listed
from pgdecode.inputs import payload_array, positions_of
from pgdecode.limits import Limits
from pgdecode.messages import (
    Column,
    Message,
    Relation,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Type,
)

FORMAT = "pgdecode.RelationCatalog"
FORMAT_VERSION = 1
MAX_OID = MAX_XID = (1 << 32) - 1
MAX_POSITION = (1 << 63) - 1
_LIMITS = Limits()
# In place of a version: the last Relation message, at position p, was bad. Written as IN_DOUBT - p.
IN_DOUBT = -3


@dataclass(frozen=True, slots=True)
class RelationVersion:
    """A relation as one Relation message described it, and the rows that the description is for.

    Attributes
    ----------
    relation : Relation
        Without the xid of a stream.
    types : tuple of Type
        What the stream had said of its columns' types by then.
    position : int
        Of the Relation message.
    xid : int or None
        The top-level transaction in whose stream it was sent: its rows use it from `position` on.
    visible_from : int or None
        The position from which the rows of other transactions use it: `position` itself outside a stream, the commit
        or prepare of its transaction inside one. None while that is undecided, and for good after an abort.
    """

    relation: Relation
    types: tuple[Type, ...] = ()
    position: int = 0
    xid: int | None = None
    visible_from: int | None = None

    @property
    def relation_id(self) -> int:
        """OID of the table."""
        return self.relation.relation_id

    @property
    def namespace(self) -> str:
        """Schema of the table; pg_catalog is written out."""
        return self.relation.namespace or "pg_catalog"

    @property
    def name(self) -> str:
        """Name of the table, without its schema."""
        return self.relation.name

    @property
    def qualified_name(self) -> str:
        """Schema and name, as `table_changes` and the like take them: "schema.table"."""
        return f"{self.namespace}.{self.name}"

    @property
    def replica_identity(self) -> str:
        """One of d, n, f, i."""
        return self.relation.replica_identity

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in wire order."""
        return self.relation.columns

    def describes(self, relation: Relation, types: tuple[Type, ...]) -> bool:
        """Whether a Relation message, sent when these were the types, says the same."""
        return self.relation == relation and self.types == types


class RelationCatalog:
    """The relations of a sequence of payloads, every version of each, in the order they were sent.

    Immutable. `from_messages` makes one from payloads, `ChangeDecoder.catalog` is the one that a decoder has seen,
    `to_json` and `from_json` store it.

    Parameters
    ----------
    versions : iterable of RelationVersion
        In ascending order of position.

    Raises
    ------
    ValueError
        If a relation gives two columns one name.
    """

    def __init__(self, versions: Iterable[RelationVersion] = ()) -> None:
        self._versions = tuple(versions)
        for version in self._versions:
            if repeated_column(version.relation) is not None:
                raise ValueError(f"relation {version.relation_id} gives two columns one name")
        self._by_id: dict[int, list[RelationVersion]] = {}
        self._by_name: dict[str, list[RelationVersion]] = {}
        for version in self._versions:
            self._by_id.setdefault(version.relation_id, []).append(version)
            self._by_name.setdefault(version.qualified_name, []).append(version)

    def __len__(self) -> int:
        return len(self._versions)

    def __iter__(self) -> Iterator[RelationVersion]:
        return iter(self._versions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RelationCatalog) and self._versions == other._versions

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RelationCatalog({len(self._by_id)} relations, {len(self)} versions)"

    @property
    def names(self) -> tuple[str, ...]:
        """Qualified name of each table, in the order they were first sent."""
        return tuple(self._by_name)

    def versions(self, relation: int | str) -> tuple[RelationVersion, ...]:
        """Versions of a table, by its OID or "schema.table"; several OIDs may have borne one name.

        Raises
        ------
        KeyError
            If no version is of that table.
        """
        found = self._by_id if isinstance(relation, int) else self._by_name
        if relation not in found:
            raise KeyError(f"no relation {relation!r} in the catalog, which has {listed(self.names)}")
        return tuple(found[relation])  # type: ignore[index]

    def at(self, relation: int | str, position: int | None = None, xid: int | None = None) -> RelationVersion | None:
        """Find the version that a row at a position uses.

        Parameters
        ----------
        relation : int or str
            OID, or "schema.table".
        position : int, optional
            Of the row; without it, after everything.
        xid : int, optional
            The top-level transaction, for a row that was sent in its stream.

        Returns
        -------
        RelationVersion or None
            None if the relation had not been described by then.
        """
        found = None
        known = self._by_id.get(relation, ()) if isinstance(relation, int) else self._by_name.get(relation, ())
        for version in known:
            if xid is not None and version.xid == xid and (position is None or version.position <= position):
                found = version
            elif found is None or found.xid is None or found.xid != xid:
                seen = version.visible_from
                if seen is not None and (position is None or seen <= position):
                    found = version
        return found

    def __getitem__(self, relation: int | str) -> RelationVersion:
        """Find the last version of a table that rows outside its own stream see.

        Raises
        ------
        KeyError
            If there is none.
        """
        self.versions(relation)
        found = self.at(relation)
        if found is None:
            raise KeyError(f"relation {relation!r} was sent only in streams that did not commit")
        return found

    def to_json(self) -> str:
        """Write the catalog as one JSON object."""
        return json.dumps(
            {
                "format": FORMAT,
                "version": FORMAT_VERSION,
                "length": len(self),
                "relations": [version_to_plain(item) for item in self],
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes, *, limits: Limits = _LIMITS) -> RelationCatalog:
        """Read back what `to_json` wrote.

        Raises
        ------
        ValueError
            If it is something else, was cut, comes from a later version of the format, or has more versions than
            `limits.max_relations`.
        """
        plain = json.loads(text)
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise ValueError(f"no {FORMAT} in JSON")
        if plain.get("version") != FORMAT_VERSION:
            raise ValueError(f"{FORMAT} of version {plain.get('version')!r}, this pgdecode reads {FORMAT_VERSION}")
        relations = plain.get("relations")
        if not isinstance(relations, list) or plain.get("length") != len(relations):
            raise ValueError(f"{FORMAT} is not whole: it says that it has {plain.get('length')!r} relations")
        if len(relations) > limits.max_relations:
            raise ValueError(f"{FORMAT} has {len(relations)} versions, limit {limits.max_relations} (max_relations)")
        return cls(version_from_plain(item) for item in relations)

    @classmethod
    def from_messages(cls, messages: Any, position: Any = None, *, limits: Limits = _LIMITS) -> RelationCatalog:
        """Collect the relations of messages in slot order.

        Parameters
        ----------
        messages : column of payloads, as `decode_messages` takes them, or iterable of Message
            Messages of other kinds are passed over.
        position : column of ascending integers, optional
            Of each message; by default its place, counted from 0.
        limits : Limits
            Sizes past which a payload is refused, and how many relations there may be.

        Raises
        ------
        DecodeError
            For a bad payload, and for one relation too many.
        """
        builder = CatalogBuilder(limits=limits)
        stream: int | None = None
        for at, message in _catalog_messages(messages, position, limits):
            if isinstance(message, StreamStart):
                stream = message.xid
                if message.first_segment:
                    builder.drop(stream)
            elif isinstance(message, StreamStop):
                stream = None
            elif isinstance(message, Relation | Type):
                # A block may lack its start, or its stop.
                scope = None if message.xid is None else message.xid if stream is None else stream
                if isinstance(message, Type):
                    builder.add_type(message, scope)
                else:
                    builder.add(message, at, scope)
            elif isinstance(message, StreamCommit | StreamPrepare):
                builder.publish(message.xid, at)
            elif isinstance(message, StreamAbort) and message.xid == message.subxid:
                builder.drop(message.xid)
        return cls(builder.versions)


_KINDS = ("relation", "type", "stream_start", "stream_stop", "stream_commit", "stream_abort", "stream_prepare")


def _catalog_messages(messages: Any, position: Any, limits: Limits) -> Iterator[tuple[int, Message]]:
    """Yield the messages that a catalog is made from, each with its position."""
    if not isinstance(messages, pa.Array | pa.ChunkedArray) and not hasattr(messages, "__arrow_c_stream__"):
        messages = list(messages)
        if messages and isinstance(messages[0], Message):
            yield from zip(range(len(messages)) if position is None else position, messages, strict=True)
            return
    payloads = payload_array(messages)
    positions = positions_of(position, len(payloads), 0)
    decoder = MessageDecoder(fields=["kind", "xid"], limits=limits)
    first = 0
    for chunk in payloads.chunks:
        envelope = decoder.decode(chunk)
        kinds, xids = envelope.column("kind"), envelope.column("xid")
        # Not by is_in, which crashes where there is no memory for its table.
        wanted = pc.indices_nonzero(reduce(pc.or_, [pc.equal(kinds, pa.scalar(kind)) for kind in _KINDS]))
        for row in wanted.to_pylist():
            message = decode(chunk[row].as_py(), in_stream=xids[row].is_valid, limits=limits)
            yield positions[first + row].as_py(), message
        first += len(chunk)


def repeated_column(relation: Relation) -> int | None:
    """Find the first column that has the name of one before it; None where all differ, as they do on a server."""
    names = [column.name for column in relation.columns]
    if len(set(names)) == len(names):
        return None
    return next(at for at, name in enumerate(names) if name in names[:at])


def _offset_of_name(message: Relation, column: int) -> int:
    """Where the name of a column begins in the message's payload."""
    head = 1 + (0 if message.xid is None else 4) + 4  # tag, xid, OID
    head += len(message.namespace.encode()) + len(message.name.encode()) + 2 + 1 + 2  # NULs, identity, count
    before = sum(len(item.name.encode()) + 10 for item in message.columns[:column])  # flags, NUL, type, modifier
    return head + before + 1


def version_to_plain(version: RelationVersion) -> dict[str, Any]:
    """Say a version in JSON's own types."""
    return {
        "position": version.position,
        "xid": version.xid,
        "visible_from": version.visible_from,
        "relation": asdict(version.relation),
        "types": [type_to_plain(item) for item in version.types],
    }


def type_to_plain(message: Type) -> dict[str, Any]:
    """Say a Type message in JSON's own types."""
    return asdict(message)


def type_from_plain(plain: Mapping[str, Any]) -> Type:
    """Undo `type_to_plain`.

    Raises
    ------
    ValueError
        If something is of another kind than it was.
    """
    type_id = whole_number(plain["type_id"], 0, MAX_OID)
    return Type(type_id, _text(plain["namespace"]), _text(plain["name"]))


def _column_from_plain(plain: Mapping[str, Any]) -> Column:
    return Column(
        whole_number(plain["flags"], 0, 255),
        _text(plain["name"]),
        whole_number(plain["type_id"], 0, MAX_OID),
        whole_number(plain["type_modifier"], -(1 << 31), (1 << 31) - 1),
    )


def whole_number(value: Any, lowest: int, highest: int) -> int:
    """Check that a value from JSON is an integer in a range.

    Raises
    ------
    ValueError
        If it is not.
    """
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError(f"no integer from {lowest} to {highest} in JSON, but a {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"no text in JSON, but a {type(value).__name__}")
    value.encode()  # JSON can hold half a surrogate pair, which no name can
    return value


def version_from_plain(plain: Mapping[str, Any]) -> RelationVersion:
    """Undo `version_to_plain`.

    Raises
    ------
    ValueError
        If something is missing, or of another kind than it was.
    """
    try:
        described = plain["relation"]
        relation = Relation(
            whole_number(described["relation_id"], 0, MAX_OID),
            _text(described["namespace"]),
            _text(described["name"]),
            _text(described["replica_identity"]),
            tuple(map(_column_from_plain, described["columns"])),
        )
        xid, visible_from = plain["xid"], plain["visible_from"]
        return RelationVersion(
            relation,
            tuple(map(type_from_plain, plain["types"])),
            whole_number(plain["position"], 0, MAX_POSITION),
            None if xid is None else whole_number(xid, 0, MAX_XID),
            None if visible_from is None else whole_number(visible_from, 0, MAX_POSITION),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no relation in JSON: {type(error).__name__}") from None


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
        # Where somebody has gone over the whole before: all versions there will be, which then keep their numbers.
        self.known: dict[int, list[int]] | None = None
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
        other.known = self.known
        other.scopes = {xid: Scope(dict(item.visible), dict(item.types)) for xid, item in self.scopes.items()}
        return other

    def foresee(self, versions: Iterable[RelationVersion]) -> None:
        """Take over all versions that there will be, those of now first; they keep their numbers."""
        self.versions = list(versions)
        self.known = {}
        for number, version in enumerate(self.versions):
            self.known.setdefault(version.position, []).append(number)

    def seen_by(self, stream: int | None) -> dict[int, int]:
        """Version of each relation that a stream has sent, for the rows in it; without a stream, of all for others."""
        if stream is None:
            return self.visible
        scope = self.scopes.get(stream)
        return {} if scope is None else scope.visible

    def add(self, message: Relation, position: int, stream: int | None) -> int:
        """Take up a Relation message, and give its version's index; one that says nothing new costs nothing.

        Raises
        ------
        RepeatedColumn, TooManyRelations
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
        """Give a version that comes now its number."""
        if self.known is not None:
            for number in self.known.get(version.position, ()):
                if self.versions[number].relation == version.relation:
                    return number
        if len(self.versions) >= self.limits.max_relations:
            raise self._too_many("version of a relation", len(self.versions), version.relation_id)
        if self.known is None:
            self.versions.append(version)
            return len(self.versions) - 1
        raise LookupError(f"no relation is known to have been sent at position {version.position}")

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

    def publish(self, stream: int, position: int) -> dict[int, int]:
        """Make visible to all what a stream sent: its transaction has committed or been prepared.

        Gives the versions of the relations that it sent, as they are now.
        """
        scope = self.scopes.pop(stream, None)
        if scope is None:
            return {}
        self.types |= scope.types
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
