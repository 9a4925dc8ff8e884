"""Changes of all tables as record batches of one schema, their tuples as maps of text."""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from pgdecode._layouts import TextLayout
from pgdecode._maps import MAP, NAMES, Maps
from pgdecode.deliveries import TIMESTAMP, Stretch, unless_negative, values_of
from pgdecode.errors import DecodeError
from pgdecode.ledger import Options
from pgdecode.readings import Reading
from pgdecode.rows import texts
from pgdecode.versions import RelationVersion

CHANGES = pa.schema(
    [
        ("position", pa.int64()),
        ("commit_position", pa.int64()),
        ("op", pa.string()),
        ("xid", pa.int64()),
        ("subxid", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("commit_timestamp", TIMESTAMP),
        ("gid", pa.string()),
        ("relation_id", pa.int64()),
        ("namespace", pa.string()),
        ("relation_name", pa.string()),
        ("old_type", pa.string()),
        ("old", MAP),
        ("new", MAP),
        ("unchanged", NAMES),
        ("committed", pa.bool_()),
        ("error", pa.string()),
    ]
)


class ChangeBuilder:
    """Builds record batches of the changes of all tables, by the schema `CHANGES`."""

    error = "error"
    numbers = None

    def __init__(
        self,
        versions: list[RelationVersion],
        layouts: dict[int, TextLayout],
        reading: Reading,
        options: Options,
    ) -> None:
        self.versions = versions
        self.layouts = layouts
        self.reading = reading
        self.options = options

    @cached_property
    def _namespaces(self) -> pa.Array:
        return pa.array([item.namespace for item in self.versions], pa.string())

    @cached_property
    def _names(self) -> pa.Array:
        return pa.array([item.name for item in self.versions], pa.string())

    def _layout(self, index: int) -> TextLayout:
        if index not in self.layouts:
            version = self.versions[index]
            columns = version.columns
            self.layouts[index] = TextLayout(
                version.relation_id,
                [item.name for item in columns],
                [item.flags & 1 != 0 for item in columns],
                self.reading.texts(version),
            )
        return self.layouts[index]

    def batch(self, stretch: Stretch) -> pa.RecordBatch:
        """Build the changes of a stretch."""
        wanted = [version for version, _ in stretch.by_version(len(self.versions))]
        layouts: list[TextLayout | None] = [None] * (max(wanted, default=-1) + 1)
        for index in wanted:
            layouts[index] = self._layout(index)
        options = self.options
        maps = Maps(stretch.source, layouts, options.limits, options.strict_flags, options.mode != "FAILFAST")
        try:
            columns, told = maps.run(*map(values_of, (stretch.rows, stretch.versions, stretch.streamed)))
        except DecodeError as error:
            raise stretch.placed(error) from None
        op, old_type, old, new, unchanged = columns
        numbers = unless_negative(stretch.versions)
        return pa.RecordBatch.from_arrays(
            [
                stretch.position,
                stretch.commit_position,
                op,
                stretch.xid,
                stretch.subxid,
                stretch.commit_lsn,
                stretch.commit_timestamp,
                stretch.gid,
                stretch.relation_id,
                self._namespaces.take(numbers),
                self._names.take(numbers),
                old_type,
                old,
                new,
                unchanged,
                stretch.committed,
                texts(told | stretch.unknown(), stretch.n),
            ],
            schema=CHANGES,
        )
