"""The versions of a table that changes tell of, and what changes from one to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.relations.altered_types import column_types
from pgdecode.relations.column_history import NO_RENAMES, Renames, histories
from pgdecode.relations.relation_version import RelationVersion, used_from, values_before
from pgdecode.relations.schema_metadata import Described, key_columns
from pgdecode.rows.own_names import with_free_names, with_free_renames
from pgdecode.types.type_changes import TypeChange

# The names of a table's columns in the changes of a schema -> their names with all versions.
LastNames = Mapping[str, str]


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
        self.versions = sorted(map(with_free_names, versions), key=used_from)
        self.renames = renames
        by_number = dict(enumerate(self.versions))
        found = {
            number: names
            for history in histories(by_number, with_free_renames(renames))
            for number, names in history.last_names().items()
        }
        self.names = [found[number] for number in by_number]

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

    def number_of(self, version: RelationVersion) -> int:
        """Return the number of a version of an earlier history."""
        ids = [(item.relation_id, item.position) for item in self.versions]
        return ids.index((version.relation_id, version.position))

    def added(self, number: int) -> dict[str, tuple[str, str | None] | None]:
        """Find the columns that a version adds: their names in it, with the value of older rows; None if unknown.

        One may have the name of a column that was dropped.
        """
        before, after = self.versions[number - 1 : number + 1]
        names, former = self.names[number], {*self.columns(number - 1)}
        found = {item.name for item in after.columns if names[item.name] not in former}
        if before.facts is not None and after.facts is not None:
            known = {*before.facts.attnums}
            numbered = zip(after.columns, after.facts.attnums, strict=True)
            found |= {item.name for item, attnum in numbered if not attnum or attnum not in known}
        values = values_before(before, after)
        return {names[name]: (name, values[name]) if name in values else None for name in found}

    def type_changes(self, before: int, after: int) -> dict[str, TypeChange]:
        """Find the columns whose type is another in a version than in the one before it."""
        old, new = (
            {self.names[at][name]: kind for name, kind in column_types(self.versions[at]).items()}
            for at in (before, after)
        )
        return {name: TypeChange(old[name], kind) for name, kind in new.items() if old.get(name, kind) != kind}
