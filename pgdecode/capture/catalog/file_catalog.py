"""What the footer of a file says of the server's catalog. It is read while the file is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from pgdecode.capture.undecided import Described, SessionState
from pgdecode.files.file_metadata import CATALOG_KEY, TYPES_KEY
from pgdecode.protocol.messages import COPY_XID, Relation
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.relation_facts import RelationFacts, StatedFacts
from pgdecode.types.user_types import UserType, merged, referred, to_json

FIRST_NORMAL_XID = 3  # smaller ones are before all others


class CatalogContents(NamedTuple):
    """Types of a database, and facts of those relations that are as their messages say.

    `altered` has, by OID, the xid of the transaction that changed the columns of a table last, or one before
    `FIRST_NORMAL_XID` if the slot sends no change from before that. `keyed` has that of the transaction that made its
    primary key.
    """

    types: tuple[UserType, ...] = ()
    facts: dict[Relation, RelationFacts] = {}  # noqa: RUF012 (it is not changed)
    altered: dict[int, int] = {}  # noqa: RUF012 (it is not changed)
    keyed: dict[int, int] = {}  # noqa: RUF012 (it is not changed)


class FileCatalog:
    """Types and facts of relations for the footers of files.

    They are read where messages describe a relation, because it may be altered before the file is complete, and again
    at the end of that file.

    Parameters
    ----------
    read : callable
        Reads types by their OIDs, with those that they consist of, and facts of relations.
    """

    def __init__(self, read: Callable[[set[int], set[Relation]], CatalogContents]) -> None:
        self._read = read
        # What this run has read.
        self._types: dict[int, UserType] = {}
        self._facts: dict[Relation, RelationFacts] = {}
        # Those that apply to the last message that described them, and whether the transaction of that message has not
        # altered the table itself. Otherwise later messages of it may show that it did so after the first ones.
        self._certain: dict[Relation, bool] = {}
        # The position of the last message that described the table of each of these relations then.
        self._positions: dict[Relation, int] = {}
        self._asked: set[int | Relation] = set()
        self._last: dict[int, Relation] = {}  # by OID: as messages described it last
        self.begin_file()

    def begin_file(self) -> None:
        """Begin a file with the next message."""
        self._facts_before = {item: facts for item, facts in self._facts.items() if item in self._certain}
        self._file_types: list[UserType] = []
        self._stated: dict[Relation, list[StatedFacts]] = {}

    def update(self, state: SessionState) -> None:
        """Read what is new in the file so far."""
        last = {item.relation_id: item for item, _ in sorted(state.described.items(), key=lambda item: item[1].last)}
        # A table may have a former description again, with other columns.
        again = {item for oid, item in last.items() if self._last.get(oid, item) != item}
        self._last |= last
        types, relations = state.described_types - self._asked, (state.described.keys() - self._asked) | again
        if types or relations:
            self._asked |= types | relations
            self._read_for(types, relations, state)

    def keys(self, state: SessionState) -> dict[bytes, str]:
        """Return the keys of the footer of a file that is complete."""
        types = self._types_of_file(state)
        before = [replace(item, facts=self._facts_before.get(item.relation)) for item in state.catalog()]
        stated = sorted((item for found in self._stated.values() for item in found), key=lambda item: item.position)
        catalog = RelationCatalog(before, stated).to_json()
        return {CATALOG_KEY: catalog, **({TYPES_KEY: to_json(types)} if types else {})}

    def _read_for(self, oids: set[int], relations: set[Relation], state: SessionState) -> None:
        contents = self._read(oids, relations)
        self._file_types += contents.types
        self._types |= {item.oid: item for item in contents.types}
        for relation, facts in contents.facts.items():
            oid = relation.relation_id
            described = state.described.get(relation)
            if relation.replica_identity == "f" and described and not _has_key(described, contents.keyed.get(oid)):
                facts = replace(facts, primary_key=())
            self._state(relation, facts, contents.altered.get(oid), state)

    def _state(self, relation: Relation, facts: RelationFacts, altered: int | None, state: SessionState) -> None:
        """Record facts of a relation that the file describes, or of the present state of one."""
        same = [item for other, item in state.described.items() if other.relation_id == relation.relation_id]
        latest = max(same, key=lambda item: item.last)
        described = state.described.get(relation, latest._replace(first_xid=None))
        former = self._facts.get(relation)
        is_altered = former is not None and (
            facts.is_other(former) or (facts.has_same_list and facts.n_attributes != former.n_attributes)
        )
        if is_altered and self._positions[relation] == latest.last:
            return  # The server describes the table again before the next row.
        if former is not None and not facts.is_other(former):
            # Where the table has been rewritten since, rows that are older than a column have its value all the same.
            values = zip(facts.missing, former.missing, strict=True)
            facts = replace(facts, missing=tuple(old if new is None else new for new, old in values))
        self._facts[relation], self._positions[relation] = facts, latest.last
        stated = self._stated.setdefault(relation, [])
        replaced = stated.pop() if stated and not is_altered else None
        position: int | None
        if self._certain.get(relation) and not is_altered:
            position = described.first if replaced is None else replaced.position
        else:
            position = _first_certain(described, altered, is_altered=is_altered)
            self._certain.pop(relation, None)
            if position is not None:
                self._certain[relation] = altered != described.last_xid
        stated.append(StatedFacts(relation, latest.last + 1 if position is None else position, facts))

    def _types_of_file(self, state: SessionState) -> tuple[UserType, ...]:
        """Describe the types that the file needs, as they are now; of those that were dropped, what is known."""
        left = state.type_oids()
        if left or state.described:
            self._read_for(left, {*state.described}, state)
        types = {item.oid: item for item in merged(self._file_types)} if left else {}
        while left := {oid for oid in left if oid in self._types and oid not in types}:
            types |= {oid: self._types[oid] for oid in left}
            left = {oid for item in types.values() for oid in referred(item)}
        return tuple(types.values())


def _first_certain(described: Described, altered: int | None, *, is_altered: bool) -> int | None:
    """Find the first message that certainly describes a table as it is now; None if the last one may not.

    A message of the transaction that has altered the table last, or of a later one, does so. Another one may describe a
    former state with the same names. Nor need the first message, if the table was altered since an earlier look.
    """
    is_later = _is_since(altered, described.first_xid) and altered != described.first_xid
    if is_later and not is_altered:
        return described.first
    # A copy locks its tables.
    is_certain = described.last_xid == COPY_XID or _is_since(altered, described.last_xid)
    return described.last if is_certain else None


def _has_key(described: Described, keyed: int | None) -> bool:
    """Whether a table certainly has had its primary key since the first message that describes it.

    No message says whether a table with a FULL identity has one. Without it, rows are found by all columns.
    """
    # A copy locks its tables.
    is_copy = described.last_xid == COPY_XID
    return keyed is None or is_copy or (_is_since(keyed, described.first_xid) and keyed != described.first_xid)


def _is_since(xid: int | None, later: int | None) -> bool:
    """Whether a transaction has the xid of another one or a later one; xids are reused after 2**32."""
    if xid is None or later is None:
        return False
    return xid < FIRST_NORMAL_XID or (later != COPY_XID and (later - xid) % (1 << 32) < 1 << 31)
