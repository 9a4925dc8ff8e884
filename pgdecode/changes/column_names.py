"""The last version of a relation, and which columns of earlier versions are its columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa

from pgdecode.changes.table_rows import common_type
from pgdecode.relations.relation_version import RelationVersion, used_from


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


def last_column_names(versions: Mapping[int, RelationVersion], schema: pa.Schema) -> dict[int, dict[str, str]]:
    """For each version, the last one at the end, map the names of its columns to their last names.

    A column that was dropped gets a name that no column has. So does one whose values do not fit the last type.

    Parameters
    ----------
    versions : mapping of int to RelationVersion
        Of one relation, by their numbers.
    schema : pa.Schema
        The types of all columns.
    """
    last = last_version(versions.values())
    taken = {item.name for version in versions.values() for item in version.columns}
    types: dict[str, pa.DataType] = {}
    found: dict[int, dict[str, str]] = {}
    after: RelationVersion | None = None
    later: dict[str, str] = {}

    def order_of(number: int) -> tuple[bool, int, int]:
        # A stream may commit after later versions were sent.
        return versions[number] is last, used_from(versions[number]), number

    for number in sorted(versions, key=order_of, reverse=True):
        version = versions[number]
        next_names = {item.name: item.name for item in version.columns} if after is None else _continued(version, after)
        names = {}
        for item in version.columns:
            kind = schema.field(item.name).type
            last_name: str | None = item.name if after is None else later.get(next_names.get(item.name, ""))
            if last_name is None or not _fits(kind, types.get(last_name, kind)):
                last_name = _free_name(item.name, taken)
                taken.add(last_name)
            types.setdefault(last_name, kind)
            names[item.name] = last_name
        found[number], after, later = names, version, names
    return dict(reversed(found.items()))


def _continued(before: RelationVersion, after: RelationVersion) -> dict[str, str]:
    """Find the columns of a version that the next one has too, and their names in that.

    pgoutput does not send the numbers of columns. PostgreSQL keeps the order of columns, and adds new ones at the end.
    """
    places = {item.name: place for place, item in enumerate(before.columns)}
    found: dict[str, str] = {}
    last_old = last_new = -1
    for new_place, item in enumerate(after.columns):
        old_place = places.get(item.name)
        if old_place is None:
            continue
        if old_place < last_old:
            # It was dropped and added again. All columns behind it have been added too.
            break
        olds, news = before.columns[last_old + 1 : old_place], after.columns[last_new + 1 : new_place]
        # New names before a column that was there are renamed columns.
        if [(old.type_id, old.type_modifier) for old in olds] == [(new.type_id, new.type_modifier) for new in news]:
            found |= {old.name: new.name for old, new in zip(olds, news, strict=True)}
        found[item.name] = item.name
        last_old, last_new = old_place, new_place
    return found


def _fits(kind: pa.DataType, last: pa.DataType) -> bool:
    return bool(kind == last or common_type([kind, last]) == last)


def _free_name(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "'"
    return name
