"""Converts rows of a table that were decoded before all its versions were known."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.arrow.null_arrays import null_array
from pgdecode.changes.table_rows import TableBuilder, TableColumn

# Codecs whose values determine the text that a server sends.
_PLAIN = ("bool", "int2", "int4", "int8")


class LayoutChange:
    """The conversion of a table's rows to the columns that it has with later versions.

    Parameters
    ----------
    before, after : TableBuilder
        Of the same table. `after` has all versions of `before`, and others.

    Attributes
    ----------
    is_possible : bool
        Whether the converted rows are certain to be those that `after` makes. Columns are added, renamed or widened, or
        integers and booleans become text. If another type becomes text, the value does not determine its text.
    """

    def __init__(self, before: TableBuilder, after: TableBuilder) -> None:
        self._before, self._after = before, after
        self._last_names: dict[str, str] = {}
        # The rows of a feed do not say whether a column that they do not have was sent.
        self.is_possible = set(before.versions) <= set(after.versions) and before.feed is None
        self._has_other_types = False
        for number in before.versions if self.is_possible else ():
            self._add_version(number)
        if len(set(self._last_names.values())) < len(self._last_names):
            # A version may have both columns, or one column may have had both names.
            self.is_possible = False
        self._has_other_names = any(name != last for name, last in self._last_names.items())

    def _add_version(self, number: int) -> None:
        before, after = self._before, self._after
        names, last_names = before.last_names[number], after.last_names[number]
        decodings = zip(before.decodings_of(number), after.decodings_of(number), strict=True)
        for name, (own, last) in zip(names, decodings, strict=True):
            if self._last_names.setdefault(names[name], last_names[name]) != last_names[name]:
                self.is_possible = False
            if own != last:
                self._has_other_types = True
                self.is_possible &= own.codec in _PLAIN and last.arrow == pa.string()

    def converted(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Convert rows; None if an error in them may not be one with the later types or has a former name."""
        if (self._has_other_types or self._has_other_names) and rows["_error"].null_count < len(rows):
            return None
        schema = self._after.schema
        former = {last: name for name, last in self._last_names.items()}
        columns = self._after.table.columns
        arrays = [rows[item.name] if item.name in _ABOUT else None for item in schema]
        names = schema.names
        if "_old" in rows.schema.names and columns:
            old = rows["_old"]
            children = {old.type.field(i).name: child for i, child in enumerate(old.flatten())}
            arrays[names.index("_old")] = pa.StructArray.from_arrays(
                [_column(children, former, item, len(rows)) for item in columns],
                fields=list(schema.field("_old").type),
                mask=old.is_null(),
            )
        else:
            arrays[names.index("_old")] = null_array(len(rows), schema.field("_old").type)
        arrays[names.index("_unchanged")] = self._with_last_names(rows["_unchanged"])
        values = {name: rows[name] for name in self._last_names}
        for item in columns:
            arrays[names.index(item.name)] = _column(values, former, item, len(rows))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _with_last_names(self, unchanged: pa.ListArray) -> pa.ListArray:
        names = unchanged.flatten()
        if not self._has_other_names or not len(names):
            return unchanged
        known = pa.array(self._last_names, pa.string())
        last = pa.array(self._last_names.values(), pa.string()).take(pc.index_in(names, known))
        offsets = pc.subtract(unchanged.offsets, unchanged.offsets[0])
        return pa.ListArray.from_arrays(offsets, last, mask=unchanged.is_null())


_ABOUT = frozenset(
    ("_op", "_position", "_commit_position", "_xid", "_commit_lsn", "_commit_timestamp", "_old_type", "_error")
)


def _column(columns: Mapping[str, pa.Array], former: Mapping[str, str], item: TableColumn, n: int) -> pa.Array:
    """Find the values of a column by its former name, and convert them."""
    if item.name not in former:
        return null_array(n, item.arrow)
    values = columns[former[item.name]]
    if values.type == item.arrow:
        return values
    if pa.types.is_boolean(values.type):
        return pc.if_else(values, "t", "f")
    return values.cast(item.arrow)
