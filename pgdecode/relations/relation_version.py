"""A relation as one Relation message described it."""

from __future__ import annotations

from dataclasses import dataclass

from pgdecode.protocol.messages import Column, Relation, Type


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


def repeated_column(relation: Relation) -> int | None:
    """Find the first column that has the name of one before it; None where all differ, as they do on a server."""
    names = [column.name for column in relation.columns]
    if len(set(names)) == len(names):
        return None
    return next(at for at, name in enumerate(names) if name in names[:at])
