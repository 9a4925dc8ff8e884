"""Columns of a table that have the name of one of the columns that pgdecode adds, such as `_op`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from pgdecode.protocol.errors import listed
from pgdecode.protocol.options import NameClash
from pgdecode.relations.column_history import Renames
from pgdecode.relations.relation_version import RelationVersion

# The names of the columns that a typed table adds.
OWN_NAMES = frozenset(
    {
        *("_op", "_position", "_commit_position", "_xid", "_commit_lsn", "_commit_timestamp", "_old_type", "_old"),
        *("_unchanged", "_error"),
    }
)


def free_name(name: str) -> str:
    """Append "_" to a name that is one of `OWN_NAMES`."""
    return f"{name}_" if name in OWN_NAMES else name


def with_free_names(version: RelationVersion) -> RelationVersion:
    """Replace names of columns that are in `OWN_NAMES`. Typed rows have columns of both."""
    if OWN_NAMES.isdisjoint(column.name for column in version.columns):
        return version
    columns = tuple(replace(column, name=free_name(column.name)) for column in version.columns)
    return replace(version, relation=replace(version.relation, columns=columns))


def with_free_renames(renames: Renames) -> Renames:
    """Replace names in stated renames as `with_free_names` does."""
    return {
        table: [(free_name(old), free_name(new), position) for old, new, position in of_table]
        for table, of_table in renames.items()
    }


def output_names(versions: Iterable[RelationVersion], own: Collection[str], name_clash: NameClash) -> Mapping[str, str]:
    """Map the names of `with_free_names` to those of an output that adds only the columns `own`.

    Names that are not in the mapping stay.

    Raises
    ------
    ValueError
        With `name_clash="error"`, if a column of the table has one of these names.
    """
    names = {column.name for version in versions for column in version.columns}
    clashes = sorted(names & set(own))
    if clashes and name_clash == "error":
        one = len(clashes) == 1
        raise ValueError(
            f"the table has {'a column' if one else 'columns'} {listed(map(repr, clashes))}, but "
            f"{'this is the name of a metadata column' if one else 'these are names of metadata columns'}: "
            'pass name_clash="rename" to append _ to such a name'
        )
    free = {free_name(name): name for name in names & OWN_NAMES - set(own)}
    # A column that `with_free_names` has not renamed, because only this output adds one of the same name.
    return free | {name: f"{name}_" for name in clashes if name not in OWN_NAMES}
