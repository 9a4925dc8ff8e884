"""The versions of a table that changes tell of, and what changes from one to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.relations.column_history import NO_RENAMES, Renames, histories, last_version
from pgdecode.relations.column_types import column_types
from pgdecode.relations.relation_version import RelationVersion, used_from, values_before
from pgdecode.relations.schema_metadata import Described, key_columns
from pgdecode.rows.own_names import with_free_names, with_free_renames
from pgdecode.types.type_changes import ColumnType, TypeChange

# The names of a table's columns in the changes of a schema -> their names with all versions.
LastNames = Mapping[str, str]
# The version that tells the value of a column in older rows, the column's name in it, and the value in text.
ValueBefore = tuple[RelationVersion, str, str | None]


class TableHistory:
    """The versions of a table, in the order in which rows use them.

    Attributes
    ----------
    versions : list of RelationVersion
        Empty if the changes do not tell them.
    names : list of dict
        For each version, the last names of its columns by the names that it has in the payloads.
    """

    def __init__(self, versions: Sequence[RelationVersion] = (), renames: Renames = NO_RENAMES) -> None:
        last = last_version(versions) if versions else None
        # A stream may commit after later versions were sent.
        ordered = sorted(versions, key=lambda version: (version is last, used_from(version)))
        self.versions = [*map(with_free_names, ordered)]
        self.renames = renames
        by_number = dict(enumerate(self.versions))
        every = histories(by_number, with_free_renames(renames))
        names = {number: last_names for history in every for number, last_names in history.last_names().items()}
        self.names = [names[number] for number in by_number]
        self._added = {number: added for history in every for number, added in history.added().items()}

    def with_versions(self, described: Described) -> TableHistory:
        """Return the history with further versions. Of equal positions, the later description counts."""
        versions = {(item.relation_id, item.position): item for item in (*self.versions, *described.versions)}
        return TableHistory([*versions.values()], {**self.renames, **described.renames})

    def last_names(self, later: TableHistory) -> LastNames:
        """Map the names of the columns in this history to those in a later one with the same versions."""
        numbers = {(item.relation_id, item.position): at for at, item in enumerate(later.versions)}
        found = {}
        for version, names in zip(self.versions, self.names, strict=True):
            last = later.names[numbers[version.relation_id, version.position]]
            found.update({names[name]: last[name] for name in names})
        return found

    def runs(self, positions: pa.Array) -> Iterator[tuple[int, int, int]]:
        """Divide changes by their positions where versions begin: first change, count, number of the version."""
        if len(self.versions) < 2:
            yield from [(0, len(positions), 0)] * len(self.versions)
            return
        numbers = pc.multiply(positions, 0)
        for version in self.versions[1:]:
            numbers = pc.add(numbers, pc.greater_equal(positions, version.position).cast(pa.int64()))
        found = pc.run_end_encode(numbers.cast(pa.int32()))
        starts = [0, *found.run_ends.to_pylist()]
        for (start, end), number in zip(pairwise(starts), found.values.to_pylist(), strict=True):
            yield start, end - start, number

    def used_from(self, position: int) -> list[RelationVersion]:
        """Return the versions that changes from a position on may use."""
        first = sum(version.position <= position for version in self.versions[1:])
        return self.versions[first:]

    def columns(self, number: int) -> list[str]:
        """Return the last names of the columns of a version."""
        return [self.names[number][item.name] for item in self.versions[number].columns]

    def key(self, number: int) -> tuple[tuple[str, ...], bool]:
        """Return the columns that tell the rows of a version apart, and whether they are unique."""
        version = self.versions[number]
        found = tuple(self.names[number][name] for name in key_columns(version))
        is_unique = found != () and version.replica_identity != "f"
        return (found if is_unique else tuple(self.columns(number))), is_unique

    def identity(self, number: int) -> tuple[str, ...]:
        """Return the columns of the replica identity of a version."""
        names = self.names[number]
        return tuple(names[item.name] for item in self.versions[number].columns if item.flags & 1)

    def types(self, name: str) -> list[ColumnType]:
        """Return the types that a column has in the versions that have it."""
        versions = zip(self.versions, self.names, strict=True)
        return [
            kind for version, names in versions for sent, kind in column_types(version).items() if names[sent] == name
        ]

    def number_of(self, version: RelationVersion) -> int:
        """Return the number of a version of an earlier history."""
        ids = [(item.relation_id, item.position) for item in self.versions]
        return ids.index((version.relation_id, version.position))

    def added(self, number: int) -> dict[str, ValueBefore | None]:
        """Find the columns that a version adds, and the value of each in older rows; None if it is not known.

        One may have the name of a column that was dropped.
        """
        names, added = self.names[number], self._added[number]
        if self.versions[number - 1].relation_id != self.versions[number].relation_id:
            added = {name for name, last in names.items() if last not in self.columns(number - 1)}
        return {names[name]: self._value_before(number, names[name]) for name in added}

    def _value_before(self, number: int, last_name: str) -> ValueBefore | None:
        """Find the value of a column in rows from before the version that adds it, as a version from then on tells.

        PostgreSQL gives each of these rows the same value. If it has rewritten the table, for a default that is
        volatile, the rows have different ones, which only a copy of the table tells.
        """
        described = [version for version in self.versions[:number] if version.facts is not None]
        for at, version in enumerate(self.versions[number:], number):
            name = next((name for name, last in self.names[at].items() if last == last_name), None)
            is_other = version.relation_id != self.versions[number].relation_id or name is None
            if is_other or (at > number and name in self._added[at]):
                break
            for before in (self.versions[number - 1], *described[-1:]) if version.facts else ():
                values = values_before(before, version)
                if name in values:
                    return version, name, values[name]
        return None

    def is_same(self, number: int) -> bool:
        """Whether a version has the columns and key of the one before it, with the same types."""
        before, after = self.versions[number - 1 : number + 1]
        if self._added[number] or self.columns(number - 1) != self.columns(number):
            return False
        if before.relation_id != after.relation_id:
            return False
        if before.is_like(after):
            return True
        is_same_key = before.replica_identity == after.replica_identity and self.key(number - 1) == self.key(number)
        return is_same_key and not self.type_changes(number - 1, number)

    def type_changes(self, before: int, after: int) -> dict[str, TypeChange]:
        """Find the columns whose type is another in a version than in the one before it."""
        old, new = (
            {self.names[at][name]: kind for name, kind in column_types(self.versions[at]).items()}
            for at in (before, after)
        )
        return {name: TypeChange(old[name], kind) for name, kind in new.items() if old.get(name, kind) != kind}
