"""Builds record batches of the changes of all tables; tuples are maps of text."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.changes.text_layouts import TextLayout
from pgdecode._native.changes.text_maps import MAP, NAMES, TextMapBuilder, repeated
from pgdecode.changes.change_engine import ChangeEngine
from pgdecode.changes.committed_changes import TIMESTAMP, ChangeSlice, values_of
from pgdecode.changes.record_batches import LimitedBuilder
from pgdecode.protocol.errors import DecodeError
from pgdecode.protocol.options import ChangeOptions
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.rows.row_decoder import error_column
from pgdecode.rows.type_hints import with_type_hint
from pgdecode.rows.value_options import ValueOptions

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


class Layouts(threading.local):
    """The text layouts of versions, by their numbers. Those of encodings other than UTF-8 have state.

    So each thread has its own.
    """

    def __init__(self) -> None:
        self.by_number: dict[int, TextLayout] = {}


class ChangeBuilder:
    """Builds record batches of the changes of all tables, with the schema `CHANGES`."""

    error = "error"
    numbers = None
    schema = CHANGES

    def __init__(
        self,
        versions: list[RelationVersion],
        value_options: ValueOptions,
        options: ChangeOptions,
        layouts: Layouts | None = None,
    ) -> None:
        self.versions = versions
        self.layouts = Layouts() if layouts is None else layouts
        self.value_options = value_options
        self.options = options
        self.text_bytes = 0

    def for_thread(self) -> ChangeBuilder:
        """Make a builder of the same batches that another thread may use at the same time."""
        return ChangeBuilder(self.versions, self.value_options, self.options, self.layouts)

    def _layout(self, index: int) -> TextLayout:
        layouts = self.layouts.by_number
        if index not in layouts:
            version = self.versions[index]
            columns = version.columns
            layouts[index] = TextLayout(
                version.relation_id,
                [item.name for item in columns],
                [item.flags & 1 != 0 for item in columns],
                self.value_options.texts(version),
            )
        return layouts[index]

    def _relation_bytes(self, index: int) -> int:
        version = self.versions[index]
        return len(version.namespace.encode()) + len(version.name.encode())

    def _hinted(self, error: DecodeError, versions: Iterable[int]) -> DecodeError:
        """Add which type the column of an error may have."""
        for version in (self.versions[number] for number in versions):
            if version.relation_id == error.relation:
                decodings = self.value_options.texts(version)
                return with_type_hint(error, version.columns, version.types, decodings, self.value_options.types)
        return error

    def batch(self, change_slice: ChangeSlice) -> pa.RecordBatch:
        """Build the changes of a slice."""
        # The cost of a batch depends on the versions that it uses, not on the number of all versions.
        versions, counts, numbers = change_slice.dense_versions(len(self.versions))
        layouts: list[TextLayout | None] = [self._layout(version) for version in versions]
        options = self.options
        gid = change_slice.gid
        # Bytes of the names of relations and prepared transactions, which each change repeats.
        made = sum(n * self._relation_bytes(version) for version, n in zip(versions, counts, strict=True))
        if gid.null_count < len(gid):
            made += pc.sum(pc.binary_length(gid)).as_py()
        permissive = options.mode != "FAILFAST"
        maps = TextMapBuilder(change_slice.source, layouts, options.limits, options.strict_flags, permissive, made)
        try:
            columns, errors = maps.run(*map(values_of, (change_slice.rows, numbers, change_slice.streamed)))
        except DecodeError as error:
            raise change_slice.placed(self._hinted(error, versions)) from None
        self.text_bytes += maps.text_bytes
        op, old_type, old, new, unchanged = columns
        places = values_of(numbers)
        return pa.RecordBatch.from_arrays(
            [
                change_slice.position,
                change_slice.commit_position,
                op,
                change_slice.xid,
                change_slice.subxid,
                change_slice.commit_lsn,
                change_slice.commit_timestamp,
                gid,
                change_slice.relation_id,
                repeated(places, counts, [self.versions[version].namespace for version in versions]),
                repeated(places, counts, [self.versions[version].name for version in versions]),
                old_type,
                old,
                new,
                unchanged,
                change_slice.committed,
                error_column(errors | change_slice.unknown(), change_slice.n),
            ],
            schema=CHANGES,
        )


class TextOutput:
    """The changes of all tables, with the schema `CHANGES`."""

    tables = None

    def __init__(self) -> None:
        self._layouts = Layouts()
        self._n_rollbacks = 0

    def builder(self, engine: ChangeEngine) -> ChangeBuilder:
        """Make a builder with the versions of relations so far."""
        if engine.n_rollbacks != self._n_rollbacks:
            self._layouts, self._n_rollbacks = Layouts(), engine.n_rollbacks
        return ChangeBuilder(engine.state.relations.versions, engine.options, engine.options, self._layouts)

    def builders(self, engine: ChangeEngine) -> list[tuple[None, LimitedBuilder]]:
        """Make the builder."""
        return [(None, self.builder(engine))]
