"""Which columns of a relation's versions are the same column, although it was renamed.

pgoutput sends neither renames nor the numbers of columns. Where a catalog states the numbers, they decide. Otherwise
the order does: PostgreSQL keeps the order of columns, and adds new ones at the end. So new names before a column that
kept its name are renamed columns, if as many columns of the same types are missing there. The caller can state other
renames.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pgdecode.relations.relation_version import RelationVersion, used_from
from pgdecode.relations.table_names import joined_name, normal_name

# By "schema.table" or OID: old name, new name, and the position of the Relation message with the new name.
Renames = Mapping[str | int, Sequence[tuple[str, str, int]]]
NO_RENAMES: Renames = {}


class Rename(NamedTuple):
    """A column that has another name from a version of a relation on."""

    version: RelationVersion
    old: str
    new: str
    is_stated: bool


def last_version(versions: Iterable[RelationVersion]) -> RelationVersion:
    """Find the last of several versions that committed transactions use, in ascending order of position.

    It is the one that became visible last, because a stream may commit after later versions were sent. A version never
    becomes visible if a different one overtakes it.
    """

    def when_used(version: RelationVersion) -> tuple[bool, int, bool]:
        since = version.visible_from or 0
        # If an equal one was visible before this one was sent, that one is the last.
        return version.visible_from is not None, since, version.position <= since

    return max(reversed([*versions]), key=when_used)


class ColumnHistory:
    """The versions of one relation, in the order in which rows use them, and the names of columns from one to the next.

    Parameters
    ----------
    versions : mapping of int to RelationVersion
        By their numbers, at least one.
    renames : Renames
        What the caller states. It takes precedence.

    Attributes
    ----------
    numbers : list of int
        Of the versions, in order.
    used : set
        The stated renames that are between two of the versions.
    """

    def __init__(self, versions: Mapping[int, RelationVersion], renames: Renames = NO_RENAMES) -> None:
        last = last_version(versions.values())

        def order_of(number: int) -> tuple[bool, int, int]:
            # A stream may commit after later versions were sent.
            return versions[number] is last, used_from(versions[number]), number

        self.numbers = sorted(versions, key=order_of)
        self.versions = versions
        self._stated = [
            (old, new, position)
            for table, found in renames.items()
            if any(_is_of(version, table) for version in versions.values())
            for old, new, position in found  # lists in a manifest
        ]
        self.used: set[tuple[str, str, int]] = set()
        self._steps = [self._stated_between(before, after) for before, after in self._pairs()]

    def _pairs(self) -> Iterator[tuple[RelationVersion, RelationVersion]]:
        return itertools.pairwise(self.versions[number] for number in self.numbers)

    def _stated_between(self, before: RelationVersion, after: RelationVersion) -> dict[str, str]:
        found = {}
        olds, news = ({item.name for item in version.columns} for version in (before, after))
        for stated in self._stated:
            old, new, position = stated
            is_here = before.position < position <= max(after.position, used_from(after))
            if is_here and old in olds and new in news and stated not in self.used:
                self.used.add(stated)
                found[old] = new
        return found

    def check(self, used: Collection[tuple[str, str, int]], *, is_complete: bool) -> None:
        """Check that each stated rename is among those that are `used`.

        With `is_complete`, there are no further versions. Otherwise only renames between these versions are checked.

        Raises
        ------
        ValueError
            If one is not.
        """
        first, last = (self.versions[number].position for number in (self.numbers[0], self.numbers[-1]))
        for stated in self._stated:
            old, new, position = stated
            if stated not in used and (is_complete or first < position <= last):
                name = self.versions[self.numbers[-1]].qualified_name
                raise ValueError(
                    f"renames: at position {position}, table {name!r} does not get a column {new!r} in place of {old!r}"
                )

    def steps(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Yield the number of each version, the last one first, and the next version's names of its columns."""
        yield self.numbers[-1], {}
        pairs = [*zip(self._pairs(), self._steps, strict=True)]
        for number, ((before, after), stated) in zip(self.numbers[-2::-1], reversed(pairs), strict=True):
            yield number, _continued(before, after, stated)

    def renames(self) -> list[Rename]:
        """List the columns that have been renamed, in order."""
        found = []
        for (before, after), stated in zip(self._pairs(), self._steps, strict=True):
            for old, new in _continued(before, after, stated).items():
                if old != new:
                    found.append(Rename(after, old, new, old in stated))
        return found

    def last_names(self) -> dict[int, dict[str, str]]:
        """For each version, map the names of its columns to their last names.

        A column that was dropped keeps its name, unless another column of the version has it at the end.
        """
        taken = {item.name for version in self.versions.values() for item in version.columns}
        found: dict[int, dict[str, str]] = {}
        later: dict[str, str] = {}
        for number, next_names in self.steps():
            version = self.versions[number]
            names = {item.name: later[next_names[item.name]] for item in version.columns if item.name in next_names}
            if not found:
                names = {item.name: item.name for item in version.columns}
            used = set(names.values())
            for item in version.columns:
                if item.name not in names:
                    names[item.name] = free_name(item.name, taken) if item.name in used else item.name
            found[number] = later = {item.name: names[item.name] for item in version.columns}
        return found

    def added(self) -> dict[int, set[str]]:
        """For each version, find its columns that the version before it does not have; none for the first version."""
        (last, _), *steps = self.steps()
        added: dict[int, set[str]] = {}
        for number, next_names in steps:
            added[last] = {item.name for item in self.versions[last].columns}.difference(next_names.values())
            last = number
        return {**added, last: set()}


def _is_of(version: RelationVersion, table: str | int) -> bool:
    if isinstance(table, int):
        return version.relation_id == table
    return normal_name(table) == version.qualified_name or table == joined_name(version.qualified_name)


def renames_of(versions: Iterable[RelationVersion], renames: Renames = NO_RENAMES) -> list[Rename]:
    """List the columns that have been renamed, of all relations, in the order of positions."""
    found = [item for history in histories(dict(enumerate(versions)), renames) for item in history.renames()]
    return sorted(found, key=lambda item: item.version.position)


def rename_events(
    versions: Iterable[RelationVersion], renames: Renames = NO_RENAMES, position: int = 0
) -> list[dict[str, Any]]:
    """Describe the renames from a position on, for a manifest."""
    return [
        {
            "table": item.version.qualified_name,
            "position": item.version.position,
            "old": item.old,
            "new": item.new,
            "stated": item.is_stated,
        }
        for item in renames_of(versions, renames)
        if item.version.position >= position
    ]


def histories(versions: Mapping[int, RelationVersion], renames: Renames = NO_RENAMES) -> list[ColumnHistory]:
    """Make the history of each relation."""
    by_relation: dict[int, dict[int, RelationVersion]] = {}
    for number, version in versions.items():
        by_relation.setdefault(version.relation_id, {})[number] = version
    return [ColumnHistory(found, renames) for found in by_relation.values()]


def check_renames(every: Sequence[ColumnHistory], *, is_complete: bool = False) -> None:
    """Check that each stated rename is one between two versions of one of the relations.

    Raises
    ------
    ValueError
        If one is not.
    """
    used = {stated for history in every for stated in history.used}
    for history in every:
        history.check(used, is_complete=is_complete)


def _continued(before: RelationVersion, after: RelationVersion, stated: Mapping[str, str]) -> dict[str, str]:
    """Find the columns of a version that the next one has too, and their names in that."""
    if before.facts is not None and after.facts is not None:
        names = {number: item.name for number, item in zip(after.facts.attnums, after.columns, strict=True)}
        numbered = zip(before.facts.attnums, before.columns, strict=True)
        same = {item.name: names[number] for number, item in numbered if number and number in names}
        others = {old: new for old, new in same.items() if old not in stated and new not in stated.values()}
        return {**others, **stated}
    if stated:
        found = dict(stated)
        # The others are compared without the columns that are decided.
        olds = [item for item in before.columns if item.name not in stated]
        news = [item for item in after.columns if item.name not in stated.values()]
    else:
        found, olds, news = {}, [*before.columns], [*after.columns]
    places = {item.name: place for place, item in enumerate(olds)}
    last_old = last_new = -1
    for new_place, item in enumerate(news):
        old_place = places.get(item.name)
        if old_place is None:
            continue
        if old_place < last_old:
            # It was dropped and added again. All columns behind it have been added too.
            break
        missing, added = olds[last_old + 1 : old_place], news[last_new + 1 : new_place]
        if len(added) > len(missing):
            # No column is added before others, so another column was renamed to this name.
            continue
        # New names before a column that was there are renamed columns.
        if [(old.type_id, old.type_modifier) for old in missing] == [(new.type_id, new.type_modifier) for new in added]:
            found |= {old.name: new.name for old, new in zip(missing, added, strict=True)}
        found[item.name] = item.name
        last_old, last_new = old_place, new_place
    return found


def free_name(name: str, taken: set[str]) -> str:
    """Find a name that no column has, and take it."""
    while name in taken:
        name += "'"
    taken.add(name)
    return name
