"""Net changes of a table whose columns have changed, with the columns that the table of the target keeps."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.arrow.null_arrays import null_array
from pgdecode.datasets.errors import RunError
from pgdecode.lake.reading.column_names import plain_text
from pgdecode.lake.reading.schema_steps import SchemaStep
from pgdecode.net.schema import NET_COLUMNS, UNKNOWN
from pgdecode.net.touched_rows import converted
from pgdecode.relations.relation_version import RelationVersion

_KEY = "_key_before"


class KeptColumns:
    """The columns of a table of a target, which stay when those of the server change.

    Parameters
    ----------
    name : str
        "schema.table".
    schema : pa.Schema
        The columns of the target.
    last : RelationVersion
        The last version of the table.
    columns : mapping of str to str
        The columns of the target, by those of the last version that it has.
    """

    def __init__(self, name: str, schema: pa.Schema, last: RelationVersion, columns: Mapping[str, str]) -> None:
        self.name, self.schema, self.last, self.columns = name, schema, last, dict(columns)

    def advance(self, step: SchemaStep) -> None:
        """Follow the table to its next version."""
        sources = [(name, source) for name, source in step.sources.items() if source is not None]
        self.columns = {name: self.columns[source] for name, source in sources if source in self.columns}
        self.last = step.after

    def net(self, net: pa.Table) -> pa.Table:
        """Return net changes with the columns of the target.

        Raises
        ------
        RunError
            If the key is not among them, or a value does not fit.
        """
        key = net.schema.field(_KEY).type
        names = [name for name in net.schema.names if name not in NET_COLUMNS]
        is_same = {*names} == {*self.columns} and {*self.columns.values()} == {*self.schema.names}
        missing = [item.name for item in key if item.name not in self.columns]
        if missing or (len(key) == len(names) and not is_same):
            what = f"column {missing[0]!r} of the key is not in the target" if missing else "rows are compared whole"
            raise RunError(
                f"table {self.name}: {plain_text(what)}: apply with schema_changes='evolve' into another target"
            )
        sources = {kept: name for name, kept in self.columns.items()}
        before = net[_KEY].combine_chunks()
        parts = [self._converted(before.field(at), self.columns[item.name]) for at, item in enumerate(key)]
        fields = [self.schema.field(self.columns[item.name]) for item in key]
        found = {name: net[name] for name in NET_COLUMNS}
        found[_KEY] = pa.StructArray.from_arrays(parts, fields=fields, mask=before.is_null())
        found[UNKNOWN.name] = self._unknown(net, [name for name in self.schema.names if name not in sources])
        for item in self.schema:
            source = sources.get(item.name)
            values = null_array(len(net), item.type) if source is None else self._converted(net[source], item.name)
            found[item.name] = values
        order = [name for name in net.schema.names if name in NET_COLUMNS] + self.schema.names
        schema = pa.schema(
            [
                net.schema.field(name).with_type(found[name].type) if name in NET_COLUMNS else self.schema.field(name)
                for name in order
            ],
            metadata=net.schema.metadata,
        )
        return pa.table([found[name] for name in order], schema=schema)

    def _converted(self, values: pa.Array, name: str) -> pa.Array:
        kind = self.schema.field(name).type
        try:
            return converted(values, kind)
        except pa.ArrowException:
            raise RunError(
                f"table {self.name}: column {plain_text(repr(name))} has another type now, and a value does not fit "
                f"{kind}: apply with schema_changes='evolve' into another target"
            ) from None

    def _unknown(self, net: pa.Table, dropped: list[str]) -> pa.Array:
        """List unknown columns by the names in the target. Rows that were there keep the values of dropped columns."""
        updated = pc.and_(net[_KEY].is_valid(), pc.equal(net["_action"], "upsert")).to_pylist()
        lists = [
            [self.columns[name] for name in names or () if name in self.columns] + (dropped if was_there else [])
            for names, was_there in zip(net[UNKNOWN.name].to_pylist(), updated, strict=True)
        ]
        return pa.array(lists, UNKNOWN.type)
