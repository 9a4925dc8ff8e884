"""What the catalog of a server tells of a relation, and its messages do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pgdecode.protocol.messages import Relation

MAX_ATTNUM = (1 << 15) - 1
# The files of so many partitions are recorded, those of the newest ones.
MOST_FILES = 16


@dataclass(frozen=True, slots=True)
class RelationFacts:
    """What the catalog of a server tells of a relation, and its messages do not.

    Attributes
    ----------
    attnums : tuple of int
        pg_attribute.attnum of each column. A renamed column keeps its number, another column never gets it.
    missing : tuple of str or None
        For each column, the value that rows have which are older than the column (pg_attribute.attmissingval), in
        PostgreSQL's text form. None if there is none: these rows have NULL, or PostgreSQL has rewritten the table.
    primary_key : tuple of int
        Numbers of the columns of the primary key, in its order; empty without one.
    storage : tuple of (int, int)
        OID and pg_class.relfilenode of the table, or of its newest partitions. PostgreSQL rewrites a table to another
        file.
    n_attributes : int
        The greatest number that a column of the table has had, also one that is not sent or was dropped.
    has_same_list : bool
        Whether all versions that a slot has sent so far have had all columns of the table. Otherwise a column that a
        version has, and an earlier one has not, may have been there before.
    """

    attnums: tuple[int, ...]
    missing: tuple[str | None, ...]
    primary_key: tuple[int, ...] = ()
    storage: tuple[tuple[int, int], ...] = ()
    n_attributes: int = MAX_ATTNUM
    has_same_list: bool = False

    def is_other(self, other: RelationFacts) -> bool:
        """Whether the columns or the primary key are others than those of another relation with the same names."""
        return (self.attnums, self.primary_key) != (other.attnums, other.primary_key)

    def has_storage_of(self, before: RelationFacts) -> bool:
        """Whether the rows of a table are certainly in the files in which they were before."""
        files = dict(before.storage)
        common = [node == files[oid] for oid, node in self.storage if oid in files]
        return bool(common) and all(common)

    @property
    def has_first_storage(self) -> bool:
        """Whether the rows of a table are certainly in the files that it was made with, which have its OID as name."""
        return 0 < len(self.storage) < MOST_FILES and all(oid == node for oid, node in self.storage)


class StatedFacts(NamedTuple):
    """Facts of the relation that a message describes, and the position of the first message that they apply to."""

    relation: Relation  # without an xid
    position: int
    facts: RelationFacts
