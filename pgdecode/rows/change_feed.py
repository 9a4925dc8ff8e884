"""Typed changes of a table in the shape of Delta's change feed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.arrow.null_arrays import null_array

# The columns behind those of the table: Delta's three, then those that say what Delta's do not.
FEED = pa.schema(
    [
        ("_change_type", pa.string()),
        ("_commit_version", pa.int64()),
        ("_commit_timestamp", pa.timestamp("us", "UTC")),
        ("_position", pa.int64()),
        ("_commit_position", pa.int64()),
        ("_unknown", pa.list_(pa.string())),
        ("_error", pa.string()),
    ]
)
_TYPES = {"insert": "insert", "update": "update_postimage", "delete": "delete", "truncate": "truncate"}


def feed_schema(schema: pa.Schema, names: Mapping[str, str]) -> pa.Schema:
    """Return the schema of the feed, from that of the typed changes and the names of the table's columns in both."""
    return pa.schema([*(schema.field(name).with_name(given) for name, given in names.items()), *FEED], schema.metadata)


class ChangeFeed:
    """Converts the typed changes of a table.

    Parameters
    ----------
    schema : pa.Schema
        Of the typed changes.
    names : mapping
        The table's columns, with their names in the feed.
    versions, keys : mapping
        For each of these columns, the numbers of the table's versions that have it, and that have it in the replica
        identity.
    """

    def __init__(
        self,
        schema: pa.Schema,
        names: Mapping[str, str],
        versions: Mapping[str, Collection[int]],
        keys: Mapping[str, Collection[int]],
    ) -> None:
        self._names = names
        self._versions, self._keys = (
            {name: pa.array(sorted(numbers), pa.int32()) for name, numbers in found.items()}
            for found in (versions, keys)
        )
        self.schema = feed_schema(schema, names)

    def rows(self, changes: pa.RecordBatch, versions: pa.Array) -> pa.RecordBatch:
        """Convert changes. `versions` has the number of each one's version of the table.

        An update makes two rows. A bad change makes one row without a type. The values that a row had before a change
        are those of `_old`, or of an unchanged key; `_unknown` lists the others.
        """
        op, old_type, n = changes["_op"], changes["_old_type"], len(changes)
        is_good = changes["_error"].is_null()
        is_update = pc.fill_null(pc.and_(pc.equal(op, "update"), is_good), False)
        is_delete = pc.fill_null(pc.and_(pc.equal(op, "delete"), is_good), False)
        has_old, has_key = old_type.is_valid(), pc.fill_null(pc.equal(old_type, "K"), False)
        old = dict(zip((item.name for item in changes["_old"].type), changes["_old"].flatten(), strict=True))
        before = pc.indices_nonzero(is_update)
        # Rows 0 to n are the changes, the others the rows before updates. A row before an update comes before it.
        order = pc.sort_indices(
            pa.concat_arrays(
                [
                    pc.add(pc.multiply(pa.array(range(n), pa.int64()), 2), 1),
                    pc.multiply(before.cast(pa.int64()), 2),
                ]
            )
        )
        source = pa.concat_arrays([pa.array(range(n), pa.int64()), before.cast(pa.int64())]).take(order)

        def merged(after: pa.Array, updated: pa.Array) -> pa.Array:
            return after if not len(before) else pa.concat_arrays([after, updated.take(before)]).take(order)

        columns, unknown = [], []
        unchanged = self._unchanged(changes["_unchanged"])
        for name in self._names:
            value = changes[name]
            is_key = pc.fill_null(pc.is_in(versions, self._keys[name]), False)
            has_column = pc.fill_null(pc.is_in(versions, self._versions[name]), False)
            is_unchanged = unchanged.get(name)
            # Without an old tuple, the key is unchanged. Its value is known, unless it is TOASTed and was not sent.
            is_told = (
                pc.or_(has_old, is_key) if is_unchanged is None else pc.or_(has_old, pc.and_not(is_key, is_unchanged))
            )
            is_told = pc.and_not(is_told, pc.and_not(has_key, is_key))
            nothing = null_array(n, value.type)
            first = pc.if_else(is_told, pc.if_else(has_old, old[name], value), nothing)
            columns.append(merged(value, first))
            is_left_out = pc.and_(is_delete, pc.and_not(has_key, is_key))
            if is_unchanged is not None:
                is_left_out = pc.or_(is_left_out, pc.and_(is_update, is_unchanged))
            unknown.append(merged(pc.and_(is_left_out, has_column), pc.and_not(has_column, is_told)))
        known = pa.array(_TYPES, pa.string())
        after = pa.array(_TYPES.values(), pa.string()).take(pc.index_in(op, known))
        after = pc.if_else(is_good, after, pa.scalar(None, pa.string()))
        about = [changes[name] for name in ("_commit_lsn", "_commit_timestamp", "_position", "_commit_position")]
        return pa.RecordBatch.from_arrays(
            [
                *columns,
                merged(after, pa.repeat("update_preimage", n)),
                *(column if not len(before) else column.take(source) for column in about),
                self._lists(unknown, len(source)),
                changes["_error"] if not len(before) else changes["_error"].take(source),
            ],
            schema=self.schema,
        )

    def _unchanged(self, unchanged: pa.ListArray) -> dict[str, pa.Array]:
        """For each column that was not sent in a row: whether it was not sent, for all rows."""
        names, rows = pc.list_flatten(unchanged), pc.list_parent_indices(unchanged)
        numbers = pa.array(range(len(unchanged)), pa.int64())
        return {
            name: pc.is_in(numbers, rows.filter(pc.equal(names, name)).cast(pa.int64()))
            for name in pc.unique(names).to_pylist()
        }

    def _lists(self, masks: list[pa.Array], n: int) -> pa.ListArray:
        """Make lists of the columns whose masks are true."""
        width = max(len(masks), 1)
        cells = [
            pc.add(pc.multiply(pc.indices_nonzero(mask).cast(pa.int64()), width), at) for at, mask in enumerate(masks)
        ]
        found = pa.concat_arrays(cells) if cells else pa.array([], pa.int64())
        found = found.take(pc.sort_indices(found))
        counts = pa.repeat(pa.scalar(0, pa.int32()), n)
        for mask in masks:
            counts = pc.add(counts, mask.cast(pa.int32()))
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts)])
        places = pc.subtract(found, pc.multiply(pc.divide(found, width), width))
        return pa.ListArray.from_arrays(offsets, pa.array(self._names.values(), pa.string()).take(places))
