"""The catalog of relations: which columns a table had when a row of it was sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.envelope.decoder import MessageDecoder, decode
from pgdecode.payloads.payload_input import payload_array, positions_of
from pgdecode.protocol.errors import listed
from pgdecode.protocol.json_document import load_json
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.messages import Message
from pgdecode.relations.relation_facts import StatedFacts
from pgdecode.relations.relation_json import stated_from_json, stated_to_json, version_from_json, version_to_json
from pgdecode.relations.relation_version import BEFORE, RelationVersion, repeated_column, used_from
from pgdecode.relations.table_names import named
from pgdecode.relations.version_tracker import RelationTracker

FORMAT = "pgdecode.RelationCatalog"
FORMAT_VERSION = 1
_LIMITS = Limits()


class RelationCatalog:
    """All versions of all relations in a sequence of payloads, in the order they were sent.

    Immutable. `from_messages` makes a catalog from payloads. `ChangeDecoder.catalog` is the catalog of the payloads
    that a decoder has read. `to_json` and `from_json` store a catalog.

    Parameters
    ----------
    versions : iterable of RelationVersion
        In ascending order of position.
    facts : iterable of StatedFacts
        What the server's catalog tells of these and of later versions. A decoder with this catalog gives them to each
        version that a message with the same columns and replica identity describes.

    Raises
    ------
    ValueError
        If two columns of a relation have the same name.

    Examples
    --------
    >>> capture = pq.read_table("tests/data/16.shop.v1.parquet")
    >>> catalog = pgdecode.RelationCatalog.from_messages(capture["data"], capture["seq"])
    >>> catalog
    RelationCatalog(4 relations, 8 versions)
    >>> [version.position for version in catalog.versions("public.customers")]
    [64, 393, 767]
    >>> pgdecode.RelationCatalog.from_json(catalog.to_json()) == catalog
    True
    """

    def __init__(self, versions: Iterable[RelationVersion] = (), facts: Iterable[StatedFacts] = ()) -> None:
        self.facts = tuple(facts)
        self._versions = tuple(versions)
        for version in self._versions:
            if repeated_column(version.relation) is not None:
                raise ValueError(f"relation {version.relation_id} has two columns of the same name")
        self._by_id: dict[int, list[RelationVersion]] = {}
        self._by_name: dict[str, list[RelationVersion]] = {}
        for version in self._versions:
            self._by_id.setdefault(version.relation_id, []).append(version)
            self._by_name.setdefault(version.qualified_name, []).append(version)

    def __bool__(self) -> bool:
        return bool(self._versions or self.facts)

    def __len__(self) -> int:
        return len(self._versions)

    def __iter__(self) -> Iterator[RelationVersion]:
        return iter(self._versions)

    def __contains__(self, relation: object) -> bool:
        """Whether the catalog has a version, or a table by its OID or "schema.table"."""
        if isinstance(relation, RelationVersion):
            return relation in self._versions
        try:
            return isinstance(relation, int | str) and bool(self._known(relation))
        except KeyError:  # several tables can be meant
            return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RelationCatalog) and (self._versions, self.facts) == (other._versions, other.facts)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RelationCatalog({len(self._by_id)} relations, {len(self)} versions)"

    @property
    def names(self) -> tuple[str, ...]:
        """Qualified name of each table, in the order they were first sent."""
        return tuple(self._by_name)

    def versions(self, relation: int | str) -> tuple[RelationVersion, ...]:
        """Versions of a table, by its OID or "schema.table". Over time, several tables may have had the same name.

        Raises
        ------
        KeyError
            If the catalog does not have the table, or several tables can be meant.
        """
        found = self._known(relation)
        if not found:
            raise KeyError(f"no relation {relation!r} in the catalog, which has {listed(self.names)}")
        return tuple(found)

    def _known(self, relation: int | str) -> list[RelationVersion]:
        """Versions of a table; none if the catalog does not have it."""
        if isinstance(relation, int):
            return self._by_id.get(relation, [])
        return self._by_name.get(named(relation, self._by_name), [])

    def at(self, relation: int | str, position: int | None = None, xid: int | None = None) -> RelationVersion | None:
        """Find the version that a row at a position uses.

        Parameters
        ----------
        relation : int or str
            OID, or "schema.table".
        position : int, optional
            Position of the row; by default, after all messages.
        xid : int, optional
            Top-level xid, if the row was sent in the stream of that transaction.

        Returns
        -------
        RelationVersion or None
            None if no message had described the relation before that position.
        """
        own = common = None
        for version in self._known(relation):
            if xid is not None and version.xid == xid and (position is None or version.position <= position):
                own = version
            since = version.visible_from
            is_seen = since is not None and (position is None or max(since, version.position) <= position)
            # A version that was sent in a stream may become visible later than a version that was sent after it.
            if is_seen and (common is None or (common.visible_from or 0) <= (since or 0)):
                common = version
        return common if own is None else own

    def __getitem__(self, relation: int | str) -> RelationVersion:
        """Find the last version of a table that is visible outside the stream that sent it.

        Raises
        ------
        KeyError
            If there is no such version.
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
                "relations": [version_to_json(item) for item in self],
                **({"facts": [stated_to_json(item) for item in self.facts]} if self.facts else {}),
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes, *, limits: Limits = _LIMITS) -> RelationCatalog:
        """Read JSON that `to_json` wrote.

        Raises
        ------
        ValueError
            If the JSON is not a catalog, is incomplete, has a later version of the format, or has more versions than
            `limits.max_relations`.
        """
        plain = load_json(text)
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise ValueError(f"the JSON is not a {FORMAT}")
        if plain.get("version") != FORMAT_VERSION:
            raise ValueError(f"{FORMAT} of version {plain.get('version')!r}, this pgdecode reads {FORMAT_VERSION}")
        relations = plain.get("relations")
        if not isinstance(relations, list) or plain.get("length") != len(relations):
            raise ValueError(f"{FORMAT} is incomplete: its length is {plain.get('length')!r} relations")
        if len(relations) > limits.max_relations:
            raise ValueError(f"{FORMAT} has {len(relations)} versions, limit {limits.max_relations} (max_relations)")
        facts = plain.get("facts", [])
        if not isinstance(facts, list) or len(facts) > limits.max_relations:
            raise ValueError(f"{FORMAT} has facts of more than {limits.max_relations} relations (max_relations)")
        return cls(map(version_from_json, relations), map(stated_from_json, facts))

    @classmethod
    def from_messages(cls, messages: Any, position: Any = None, *, limits: Limits = _LIMITS) -> RelationCatalog:
        """Collect the relations of messages in slot order.

        Parameters
        ----------
        messages : column of payloads, as `decode_messages` takes them, or iterable of Message
            Messages of other kinds are ignored.
        position : column of ascending integers, optional
            Position of each message; by default its index, counted from 0.
        limits : Limits
            Sizes above which a payload is refused, and the maximum number of relations.

        Raises
        ------
        DecodeError
            If a payload is bad, or there are too many relations.
        """
        tracker = RelationTracker(limits=limits)
        stream: int | None = None
        for at, message in _catalog_messages(messages, position, limits):
            stream = tracker.follow(message, at, stream)
        return cls(tracker.versions)


def tracker_of(catalog: RelationCatalog | None, position: int | None = None) -> RelationTracker:
    """Make a tracker that knows the relations and facts of a catalog, as far as they are visible at a position."""
    catalog = RelationCatalog() if catalog is None else catalog
    return RelationTracker(catalog, position, facts=catalog.facts)


def before_payloads(catalog: RelationCatalog) -> RelationCatalog:
    """Move all versions before the payloads, in the order they became visible.

    Counted positions cannot be compared with those of the catalog. Facts that depend on the position are left out.
    """
    versions = [
        replace(version, position=BEFORE, visible_from=None if version.visible_from is None else BEFORE)
        for version in sorted(catalog, key=used_from)
    ]
    last = {item.relation: item for item in catalog.facts}
    for item in catalog.facts:
        if item.relation in last and item.facts.is_other(last[item.relation].facts):
            del last[item.relation]
    return RelationCatalog(versions, [item._replace(position=BEFORE) for item in last.values()])


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
        # pc.is_in crashes if there is no memory for its hash table.
        wanted = pc.indices_nonzero(reduce(pc.or_, [pc.equal(kinds, pa.scalar(kind)) for kind in _KINDS]))
        for row in wanted.to_pylist():
            message = decode(chunk[row].as_py(), in_stream=xids[row].is_valid, limits=limits)
            yield positions[first + row].as_py(), message
        first += len(chunk)
