"""Where the versions of a table change the types of columns, and what that makes of the rows from before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pgdecode.relations.relation_version import RelationVersion
from pgdecode.types.pgtypes import FIRST_USER_OID, NAME_BY_OID
from pgdecode.types.type_changes import ColumnType, TypeChange


def column_types(version: RelationVersion) -> dict[str, ColumnType]:
    """Return the types of a version's columns. The Type message of a domain has the name of its base type."""
    messages = {item.type_id: item for item in version.types}
    found = {}
    for column in version.columns:
        name, is_user_defined = NAME_BY_OID.get(column.type_id), column.type_id >= FIRST_USER_OID
        message = messages.get(column.type_id) if is_user_defined else None
        if message is not None and message.namespace in ("", "pg_catalog"):
            name = message.name
        elif message is not None and message.name == "citext":
            name, is_user_defined = message.name, False
        found[column.name] = ColumnType(name, column.type_modifier, column.type_id, is_user_defined)
    return found


class AlteredTypes:
    """The types that the columns of a table have in its versions.

    Parameters
    ----------
    versions : mapping of int to RelationVersion
        By their numbers.
    columns : mapping
        For each version, in ascending order, the last names of its columns by their names.
    """

    def __init__(self, versions: Mapping[int, RelationVersion], columns: Mapping[int, Mapping[str, str]]) -> None:
        self._order = list(columns)
        self._at = {number: at for at, number in enumerate(self._order)}
        self._changes: list[dict[str, TypeChange]] = []  # of each version, against the versions before it
        self._types: list[dict[str, ColumnType]] = []  # of all columns so far
        self._periods: dict[int, int] = {}  # the number of versions with changes so far
        for number, names in columns.items():
            before = self._types[-1] if self._types else {}
            types = {names[name]: kind for name, kind in column_types(versions[number]).items()}
            changes = _changes(before, types)
            self._periods[number] = max(self._periods.values(), default=0) + bool(changes)
            self._changes.append(changes)
            self._types.append({**before, **types})
        self.is_any = any(self._changes)
        self._now = -1

    def period(self, number: int) -> int:
        """Return how many versions up to this one have altered types."""
        return self._periods[number]

    def advance(self, number: int | None = None) -> Iterator[tuple[int, int, dict[str, TypeChange]]]:
        """Go on to a version, or to the last one.

        Yield the changes of types on the way: the numbers of the versions before and after, and the changes by the last
        names of the columns.
        """
        to = len(self._order) - 1 if number is None else self._at[number]
        if to < self._now:
            # A transaction that was delivered again.
            yield self._order[self._now], self._order[to], _changes(self._types[self._now], self._types[to])
        for at in range(max(self._now + 1, 1), to + 1):
            yield self._order[at - 1], self._order[at], self._changes[at]
        self._now = to


def _changes(before: Mapping[str, ColumnType], after: Mapping[str, ColumnType]) -> dict[str, TypeChange]:
    return {
        name: TypeChange(before[name], kind) for name, kind in after.items() if name in before and before[name] != kind
    }
