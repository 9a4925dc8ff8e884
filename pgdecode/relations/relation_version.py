"""A relation as one Relation message described it."""

from __future__ import annotations

from dataclasses import dataclass

from pgdecode.protocol.messages import Column, Relation, Type
from pgdecode.relations.relation_facts import UNKNOWN_NUMBER, RelationFacts, StatedFacts, numbers_between
from pgdecode.relations.table_names import qualified_name

BEFORE = -1  # the position of versions of a catalog that were sent before payloads whose positions are counted


@dataclass(frozen=True, slots=True)
class RelationVersion:
    """A relation as one Relation message described it, and which rows the description applies to.

    Attributes
    ----------
    relation : Relation
        The message, without the xid of a stream.
    types : tuple of Type
        Type messages for the types of its columns that had been sent before it.
    position : int
        Position of the Relation message; -1 if it was sent before all payloads, whose positions are counted.
    xid : int or None
        Top-level xid of the stream in which it was sent. The rows of that stream use it from `position` on.
    visible_from : int or None
        Position from which rows of other transactions use it. Outside a stream this is `position`; inside a stream, the
        commit or prepare of the transaction; if an equal version was sent later and is visible at that commit, where
        that one became visible. -1 if that was before all payloads. None if the transaction is undecided or was
        aborted, or if a different version was sent later.
    facts : RelationFacts or None
        What the server's catalog tells of it. None if it is not known.

    Examples
    --------
    >>> capture = pq.read_table("tests/data/16.shop.v1.parquet")
    >>> version = pgdecode.RelationCatalog.from_messages(capture["data"], capture["seq"])["public.orders"]
    >>> version.qualified_name, version.position, version.replica_identity
    ('public.orders', 560, 'f')
    """

    relation: Relation
    types: tuple[Type, ...] = ()
    position: int = 0
    xid: int | None = None
    visible_from: int | None = None
    facts: RelationFacts | None = None

    @property
    def relation_id(self) -> int:
        """OID of the table."""
        return self.relation.relation_id

    @property
    def namespace(self) -> str:
        """Schema of the table; "pg_catalog" where the message has an empty namespace."""
        return self.relation.namespace or "pg_catalog"

    @property
    def name(self) -> str:
        """Name of the table, without its schema."""
        return self.relation.name

    @property
    def qualified_name(self) -> str:
        """Schema and name as "schema.table", the form that `table_changes` takes.

        A part with a dot or a quote is quoted, as in PostgreSQL.
        """
        return qualified_name(self.namespace, self.name)

    @property
    def replica_identity(self) -> str:
        """One of d, n, f, i."""
        return self.relation.replica_identity

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns in wire order."""
        return self.relation.columns

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the columns of the primary key; empty without one, if it is unknown, or if one is not sent."""
        if self.facts is None:
            return ()
        names = {number: column.name for number, column in zip(self.facts.attnums, self.columns, strict=True)}
        key = self.facts.primary_key
        return tuple(names[number] for number in key) if names.keys() >= {*key} else ()

    def describes(self, relation: Relation, types: tuple[Type, ...]) -> bool:
        """Whether a Relation message with these types has the same content."""
        return self.relation == relation and self.types == types

    def is_like(self, other: RelationVersion) -> bool:
        """Whether another version has the same content, and the same columns as far as that is known."""
        is_other = False
        if self.facts is not None and other.facts is not None:
            is_certain = UNKNOWN_NUMBER not in self.facts.attnums
            is_other = self.facts.is_other(other.facts) or not (is_certain or self.position == other.position)
        return self.describes(other.relation, other.types) and not is_other

    def has_numbers_of(self, stated: StatedFacts) -> bool:
        """Whether facts are those of the same columns, all of which have certain numbers."""
        facts = self.facts
        if facts is None or UNKNOWN_NUMBER in facts.attnums or facts.is_other(stated.facts):
            return False
        return self.relation == stated.relation


def repeated_column(relation: Relation) -> int | None:
    """Find the first column with the name of an earlier column; None if all names differ, as on every server."""
    names = [column.name for column in relation.columns]
    if len(set(names)) == len(names):
        return None
    return next(at for at, name in enumerate(names) if name in names[:at])


def values_before(before: RelationVersion, after: RelationVersion) -> dict[str, str | None]:
    """Find which values rows of a version have in the columns that were added until the next version.

    Returns
    -------
    dict of str to str or None
        For names of columns of `after`: the value in PostgreSQL's text form, or None for NULL. A column that was added
        but is not in it has values that are not known, because PostgreSQL may have rewritten the table: a copy of the
        table has them. If the facts of `before` are not known, it must have the first columns of `after`, because
        otherwise a column may have been renamed. If a column was dropped and added again under its name, rows of
        `before` may have been written before or after that: none is known.
    """
    old, new = before.facts, after.facts
    if new is None:
        return {}
    if old is not None:
        if _is_ambiguous(before, after):
            return {}
        last, is_same = old.n_attributes, new.has_storage_of(old)
    else:
        n = len(before.columns)
        if not (new.has_same_list and [c.name for c in before.columns] == [c.name for c in after.columns[:n]]):
            return {}
        last, is_same = max(new.attnums[:n], default=0), new.has_first_storage
    columns = zip(new.attnums, after.columns, new.missing, strict=True)
    added = {column.name: value for number, column, value in columns if number > last}
    return {name: value for name, value in added.items() if value is not None or is_same}


def _is_ambiguous(before: RelationVersion, after: RelationVersion) -> bool:
    """Whether the message of a version may also describe the table after a column was dropped and added again."""
    first, last = (
        StatedFacts(version.relation, version.position, version.facts)
        for version in (before, after)
        if version.facts is not None
    )
    names = [column.name for column in before.columns]
    numbers = {*first.facts.attnums}
    columns = zip(last.facts.attnums, after.columns, strict=True)
    is_again = any(number not in numbers and column.name in names for number, column in columns)
    return is_again and UNKNOWN_NUMBER in numbers_between(names, first, last)


def used_from(version: RelationVersion) -> int:
    """Return the position from which rows of all transactions use a version, or if none do, those of its own stream."""
    return version.position if version.visible_from is None else version.visible_from
