"""Names of columns on their way to a target, which adds none to a table. The changes of a table and its net changes do.

A column of the table with the name of one of these has a mark meanwhile, which no name of PostgreSQL has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa

from pgdecode.lake.target import ColumnSource
from pgdecode.net.schema import NET_COLUMNS, parts_of
from pgdecode.net.touched_rows import one_array
from pgdecode.protocol.messages import Relation
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.rows.options import Options
from pgdecode.rows.own_names import OWN_NAMES

_MARK = "\0"


def marked_name(name: str, options: Options) -> str:
    """Add the mark to the name of a column that pgdecode adds.

    With name_clash="rename", columns with the names of those of changes get other ones in the target instead.
    """
    is_added = options.name_clash != "rename" if name in OWN_NAMES else name in NET_COLUMNS
    return name + _MARK if is_added else name


def plain_name(name: str) -> str:
    """Remove the mark."""
    return name.removesuffix(_MARK)


def plain_text(text: str) -> str:
    """Remove the mark from names in a text."""
    return text.replace(repr(_MARK)[1:-1], "").replace(_MARK, "")


def marked_relation(relation: Relation) -> Relation:
    """Mark the columns of a relation."""
    return _renamed(relation, lambda name: marked_name(name, Options()))


def marked_version(version: RelationVersion, options: Options) -> RelationVersion:
    """Mark the columns of a version."""
    return replace(version, relation=_renamed(version.relation, lambda name: marked_name(name, options)))


def plain_version(version: RelationVersion) -> RelationVersion:
    """Return a version as it was sent."""
    return replace(version, relation=_renamed(version.relation, plain_name))


def marked_options(options: Options) -> Options:
    """Mark the columns that options name."""
    columns = {
        table: {marked_name(name, options): kind for name, kind in of_table.items()}
        for table, of_table in (options.columns or {}).items()
    }
    renames = {
        table: [(marked_name(old, options), marked_name(new, options), position) for old, new, position in of_table]
        for table, of_table in (options.renames or {}).items()
    }
    return replace(options, columns=columns or None, renames=renames or None)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a table under their names."""
    return pa.schema([item.with_name(plain_name(item.name)) for item in schema], metadata=schema.metadata)


def plain_sources(columns: Mapping[str, ColumnSource]) -> dict[str, ColumnSource]:
    """Return the sources of columns with the names of both."""
    return {
        plain_name(name): source if source.name is None else replace(source, name=plain_name(source.name))
        for name, source in columns.items()
    }


def plain_net(net: pa.Table) -> pa.Table:
    """Return net changes with the names of the columns. `parts_of` divides them."""
    if not any(name.endswith(_MARK) for name in net.schema.names):
        return net
    added, own = parts_of(net)
    before = one_array(added["_key_before"])
    fields = [item.with_name(plain_name(item.name)) for item in before.type]
    parts = [before.field(at) for at in range(len(fields))]
    keys = pa.StructArray.from_arrays(parts, fields=fields, mask=before.is_null())
    unknown = [None if names is None else [*map(plain_name, names)] for names in added["_unknown"].to_pylist()]
    found = {"_key_before": keys, "_unknown": pa.array(unknown, added["_unknown"].type)}
    columns = [found.get(name, added[name]) for name in added.schema.names]
    names = [*added.schema.names, *map(plain_name, own.schema.names)]
    kinds = [item.type for item in (*columns, *own.columns)]
    schema = pa.schema(
        [item.with_name(name).with_type(kind) for item, name, kind in zip(net.schema, names, kinds, strict=True)],
        metadata=net.schema.metadata,
    )
    return pa.Table.from_arrays([*columns, *own.columns], schema=schema)


def _renamed(relation: Relation, name_of: Callable[[str], str]) -> Relation:
    columns = tuple(replace(column, name=name_of(column.name)) for column in relation.columns)
    return replace(relation, columns=columns)
