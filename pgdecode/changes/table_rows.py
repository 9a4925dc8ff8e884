"""Builds the changes of one table as typed columns, for all versions of the table."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.rows.row_decoder import Rows
from pgdecode.arrow.null_arrays import null_array
from pgdecode.changes.change_engine import ChangeEngine
from pgdecode.changes.committed_changes import TIMESTAMP, ChangeSlice, unless_negative, values_of
from pgdecode.changes.record_batches import LimitedBuilder, raise_first
from pgdecode.protocol.errors import BatchTooLarge, DecodeError
from pgdecode.protocol.options import ChangeOptions, Shape
from pgdecode.relations.column_history import NO_RENAMES, ColumnHistory, check_renames, histories, last_version
from pgdecode.relations.column_types import common_type
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.schema_metadata import REPLICA_IDENTITY, key_columns, versions_metadata
from pgdecode.relations.table_names import named
from pgdecode.relations.version_tracker import SchemaChanged
from pgdecode.rows.change_feed import FEED, ChangeFeed
from pgdecode.rows.own_names import OWN_NAMES, free_name, output_names, with_free_names, with_free_renames
from pgdecode.rows.row_decoder import error_column
from pgdecode.rows.type_hints import with_type_hint
from pgdecode.rows.value_options import ValueOptions
from pgdecode.types.pgtypes import Decoding

META = (
    ("_op", pa.string()),
    ("_position", pa.int64()),
    ("_commit_position", pa.int64()),
    ("_xid", pa.int64()),
    ("_commit_lsn", pa.int64()),
    ("_commit_timestamp", TIMESTAMP),
    ("_old_type", pa.string()),
)
# The number of the version of each row's relation. No column of a table has this name.
VERSION = pa.field("_pgdecode_version", pa.int32())
META_BEHIND = (("_unchanged", pa.list_(pa.string())), ("_error", pa.string()))
TableName = TypeVar("TableName", bound=str | int)


def versions_of(
    catalog: Iterable[RelationVersion], relation: str | int, shape: Collection[int] | None = None
) -> dict[int, RelationVersion]:
    """Find the versions of a table, by their numbers in a catalog: those with numbers in `shape`, or all.

    Raises
    ------
    KeyError
        If the name may be that of several tables.
    """
    versions = list(catalog)
    if isinstance(relation, str):
        relation = named(relation, {item.qualified_name for item in versions})
    return {
        number: item
        for number, item in enumerate(versions)
        if relation in (item.qualified_name, item.relation_id) and (shape is None or number in shape)
    }


@dataclass(frozen=True)
class TableColumn:
    """A column of a table in all its versions."""

    name: str
    arrow: pa.DataType
    is_text: bool  # in PostgreSQL's text form, because the versions' types have no other common type
    metadata: dict[str, str]


class Table:
    """The common columns of all versions of a table.

    Parameters
    ----------
    versions : iterable of RelationVersion
    value_options : ValueOptions
    sources : iterable, optional
        For each version, the slot (source) that sent it.

    Raises
    ------
    ValueError
        If a column has the name of a metadata column, such as `_op`, unless the options have `name_clash="rename"`; if
        a name occurs twice; if `columns` of the options names a column that no version has; if `renames` has one that
        is not between two versions.

    Notes
    -----
    A renamed column has its last name in all versions. Columns are in the order in which they were first sent. A column
    with several types gets the type that represents all their values (int2, int4, int8; float4, float8; numeric with a
    larger precision), otherwise PostgreSQL's text form. The field's metadata then lists the types in `pg:types`.
    """

    def __init__(
        self,
        versions: Iterable[RelationVersion],
        value_options: ValueOptions,
        sources: Iterable[Any] | None = None,
    ) -> None:
        versions = list(versions)
        self.is_feed = value_options.shape == "delta"
        own = FEED.names if self.is_feed else OWN_NAMES
        output = output_names(versions, own, value_options.name_clash)
        self.versions = [with_free_names(version) for version in versions]
        self.value_options = value_options
        self._names: list[dict[str, str]] = []
        names: list[dict[str, str]] = [{}] * len(self.versions)
        given = [None] * len(self.versions) if sources is None else list(sources)
        every: list[ColumnHistory] = []
        for source in dict.fromkeys(given):
            of_source = {at: item for at, item in enumerate(self.versions) if given[at] == source}
            every += self._histories(of_source)
            for at, found in self.last_names(of_source).items():
                names[at] = found
        check_renames(every)
        self._names = names
        self.types_of_columns = self._types_of_columns(names)
        fields: dict[str, list[pa.Field]] = {}
        for version, last in zip(self.versions, names, strict=True):
            for field in value_options.fields(version, self._own_types(last)):
                fields.setdefault(last[field.name], []).append(field)
        self.columns = [self._column(name, found) for name, found in fields.items()]
        self.kinds = {item.name: item.arrow for item in self.columns}
        self._text_names = {item.name for item in self.columns if item.is_text}
        # The names of the columns in the output.
        self.output_names = {item.name: output.get(item.name, item.name) for item in self.columns}
        self.schema = self._schema(given, names)

    def last_names(self, versions: Mapping[int, RelationVersion]) -> dict[int, dict[str, str]]:
        """For each version of one source, by its number, map the names of its columns to those in this table.

        The names are those of `with_free_names`.
        """
        if list(map(id, versions.values())) == list(map(id, self.versions)) and self._names:
            # A decoder that is called for each of many small batches asks each time.
            return dict(zip(versions, self._names, strict=True))
        versions = {number: with_free_names(version) for number, version in versions.items()}
        every = self._histories(versions)
        return {number: names for history in every for number, names in history.last_names().items()}

    def _histories(self, versions: Mapping[int, RelationVersion]) -> list[ColumnHistory]:
        return histories(versions, with_free_renames(self.value_options.renames or NO_RENAMES))

    def _own_types(self, names: Mapping[str, str]) -> dict[str, str]:
        """Return the caller's types for the columns of a version, by their own names."""
        types = self.types_of_columns
        found = {name: types.get(last, types.get(name)) for name, last in names.items()}
        return {name: text for name, text in found.items() if text is not None}

    def _types_of_columns(self, names: Iterable[Mapping[str, str]]) -> Mapping[str, str]:
        """Find the caller's types for the columns of this table, by its last name or its OID."""
        if not self.versions:
            return {}
        last = self.versions[-1]
        given = self.value_options.columns_of(last)
        found = {free_name(name): text for name, text in given.items()}
        unknown = set(found) - {name for item in names for pair in item.items() for name in pair}
        if unknown:
            raise ValueError(f"columns names {sorted(unknown)}, but table {last.qualified_name!r} has no such column")
        return found

    def _column(self, name: str, fields: list[pa.Field]) -> TableColumn:
        arrow = common_type([item.type for item in fields])
        metadata = {key.decode(): value.decode() for key, value in fields[-1].metadata.items()}
        described = list(dict.fromkeys(item.metadata[b"pg:type"].decode() for item in fields))
        if len(described) > 1 or arrow is None:
            metadata["pg:types"] = ", ".join(described)
        return TableColumn(name, pa.string() if arrow is None else arrow, arrow is None, metadata)

    def _schema(self, sources: Sequence[Any], names: Sequence[Mapping[str, str]]) -> pa.Schema:
        old = pa.struct([pa.field(item.name, item.arrow) for item in self.columns])
        keys: set[str] = set()
        for source in dict.fromkeys(sources):
            last = last_version(item for item, other in zip(self.versions, sources, strict=True) if other == source)
            of_last = next(names[at] for at, item in enumerate(self.versions) if item is last)
            keys |= {of_last[name] for name in key_columns(last)}
        columns = []
        for item in self.columns:
            key = {"pg:key": "true"} if item.name in keys else {}
            columns.append(pa.field(item.name, item.arrow, metadata=item.metadata | key))
        schema = pa.schema([*META, ("_old", old), *META_BEHIND, *columns])
        if len(set(sources)) != 1:
            return schema
        described = versions_metadata(self.versions, self.value_options.renames or NO_RENAMES)
        schema = schema.set(0, schema.field(0).with_metadata(described))
        return schema.with_metadata({REPLICA_IDENTITY: last.replica_identity})

    def decodings(self, version: RelationVersion, names: Mapping[str, str]) -> list[Decoding]:
        """Return the decodings of a version's columns for this table. `names` has their names in it."""
        text = frozenset(name for name, last in names.items() if last in self._text_names)
        return self.value_options.decodings(version, self._own_types(names), text)

    def fit(self, names: Iterable[str], arrays: Iterable[pa.Array]) -> dict[str, pa.Array]:
        """Convert the columns of a version, with their names in this table, to their types in the table."""
        # A cast takes time even if it changes nothing.
        return {
            name: array if array.type == self.kinds[name] else array.cast(self.kinds[name])
            for name, array in zip(names, arrays, strict=True)
        }


class VersionRows(NamedTuple):
    """Changes of one version of a table."""

    about: list[pa.Array]  # `_op`, `_old_type`, whether `_old` is null, `_unchanged`, `_error`
    old: dict[str, pa.Array]
    columns: dict[str, pa.Array]


class TableBuilder:
    """Builds record batches of one table's changes.

    Parameters
    ----------
    table : Table
    versions : mapping
        The table's versions, by their numbers in the catalog.
    options : ChangeOptions
    others : collection of int
        Numbers of further versions of the table, which `table` does not include.
    with_version : bool
        Add a last column, `VERSION`, with the number of each row's version.
    schema : pa.Schema, optional
        Of the typed changes, if a subclass converts them.
    """

    error = "_error"

    def __init__(
        self,
        table: Table,
        versions: Mapping[int, RelationVersion],
        options: ChangeOptions,
        others: Collection[int] = (),
        *,
        with_version: bool = False,
        schema: pa.Schema | None = None,
    ) -> None:
        self.table = table
        self.sent_versions = versions
        self.versions = {number: with_free_names(version) for number, version in versions.items()}
        self.last_names = table.last_names(self.versions)
        self.others = frozenset(others)
        self.options = options
        self.with_version = with_version or table.is_feed
        self._typed_schema = table.schema.append(VERSION) if self.with_version else table.schema
        self.feed = self._feed(table.schema if schema is None else schema) if table.is_feed else None
        self.schema = self._typed_schema if self.feed is None else self.feed.schema
        self.numbers = self.others.union(versions)
        self.text_bytes = 0
        self._decodings: dict[int, list[Decoding]] = {}
        self._groups = self._grouped_versions()

    def _feed(self, schema: pa.Schema) -> ChangeFeed:
        versions: dict[str, list[int]] = {item.name: [] for item in self.table.columns}
        keys: dict[str, list[int]] = {item.name: [] for item in self.table.columns}
        for number, version in self.versions.items():
            for column in version.columns:
                name = self.last_names[number][column.name]
                versions[name].append(number)
                if column.flags & 1:
                    keys[name].append(number)
        return ChangeFeed(schema, self.table.output_names, versions, keys)

    def for_thread(self) -> TableBuilder:
        """Make a builder of the same batches that another thread may use at the same time."""
        other = copy(self)
        other.text_bytes = 0
        return other

    def decodings_of(self, number: int) -> list[Decoding]:
        """Return the decodings of a version's columns."""
        if number not in self._decodings:
            self._decodings[number] = self.table.decodings(self.versions[number], self.last_names[number])
        return self._decodings[number]

    def _grouped_versions(self) -> array[int]:
        """Find the versions that are decoded together: each transaction in a stream sends its relations again."""
        groups = array("i", [-1]) * (max(self.numbers, default=-1) + 1)
        for number in self.others:
            groups[number] = number
        last: RelationVersion | None = None
        group = -1
        for number, version in sorted(self.versions.items()):
            if last is None or not last.is_like(version) or self.last_names[number] != self.last_names[group]:
                group = number
            groups[number] = group
            last = version
        return groups

    def batch(self, change_slice: ChangeSlice) -> pa.RecordBatch:
        """Build the table's changes in a slice, and all bad payloads, because these may be of any table.

        Raises
        ------
        SchemaChanged
            If a change uses a version that `table` does not include.
        """
        rows = self.changes(change_slice)
        return rows if self.feed is None else self.feed.rows(rows, rows.column(len(rows.schema) - 1))

    def changes(self, change_slice: ChangeSlice) -> pa.RecordBatch:
        """Build the changes, with a row for each, as `batch` does."""
        errors = change_slice.unknown()
        faults: list[DecodeError] = []
        places: list[pa.Array] = []
        pieces: list[VersionRows] = []
        text_bytes = 0
        if errors:
            bad = pa.array(errors, pa.int64())
            places.append(bad)
            pieces.append(self._empty(len(bad), error_column(dict(enumerate(errors.values())), len(bad)), None))
        for number, of_version in change_slice.by_version(self._groups):
            if number in self.others:
                position = change_slice.position[of_version[0].as_py()]
                raise SchemaChanged(f"position {position}: the change uses a version that the table does not include")
            if number not in self.versions:
                continue
            for chosen, is_row in self._by_kind(change_slice, of_version):
                try:
                    if is_row:
                        columns, n_bytes = self._decoded(change_slice, number, chosen)
                        text_bytes += n_bytes
                    else:
                        columns = self._empty(len(chosen), null_array(len(chosen), pa.string()), "truncate")
                except BatchTooLarge:
                    raise
                except DecodeError as fault:
                    faults.append(fault)
                    continue
                places.append(chosen)
                pieces.append(columns)
        raise_first(faults)
        # Only now, because a slice that is too large is built again in parts.
        self.text_bytes += text_bytes
        return self._joined(change_slice, places, pieces)

    def _by_kind(self, change_slice: ChangeSlice, places: pa.Array) -> list[tuple[pa.Array, bool]]:
        """Separate the indexes of row changes from those of truncates; True for row changes."""
        if not change_slice.changes.has_truncates:
            return [(places, True)]
        is_truncate = change_slice.truncates if len(places) == change_slice.n else change_slice.truncates.take(places)
        parts = [(places.filter(pc.invert(is_truncate)), True), (places.filter(is_truncate), False)]
        return [part for part in parts if len(part[0])]

    def _empty(self, n: int, errors: pa.Array, op: str | None) -> VersionRows:
        """Make rows without tuples."""
        unchanged = null_array(n, pa.list_(pa.string()))
        if op is not None:
            unchanged = pa.array([[]] * n, pa.list_(pa.string()))
        ops, old_types = pa.array([op] * n, pa.string()), null_array(n, pa.string())
        return VersionRows([ops, old_types, pa.repeat(pa.scalar(True), n), unchanged, errors], {}, {})

    def _decoded(self, change_slice: ChangeSlice, number: int, places: pa.Array) -> tuple[VersionRows, int]:
        """Decode changes of one version. Returns also their bytes of text."""
        n = len(places)
        version = self.versions[number]
        last = list(self.last_names[number].values())
        decodings = self.decodings_of(number)
        whole = n == change_slice.n
        rows = Rows(
            change_slice.source,
            version.relation_id,
            last,
            decodings,
            self.options.limits,
            self.options.strict_flags,
            self.options.mode != "FAILFAST",
            self.table.value_options.unrepresentable == "null",
            selection=values_of(change_slice.rows if whole else change_slice.rows.take(places)),
            streamed=values_of(change_slice.streamed if whole else change_slice.streamed.take(places)),
        )
        try:
            rows.run()
            (op, _, old_type, old, unchanged), columns = rows.results()
        except DecodeError as error:
            types = self.table.value_options.types
            renamed = [replace(column, name=name) for column, name in zip(version.columns, last, strict=True)]
            hinted = with_type_hint(error, renamed, version.types, decodings, types)
            raise change_slice.placed(hinted, places) from None
        olds = self.table.fit(last, [old.field(i) for i in range(old.type.num_fields)])
        about = [op, old_type, old.is_null(), unchanged, error_column(rows.row_errors, n)]
        return VersionRows(about, olds, self.table.fit(last, columns)), rows.text_bytes

    def _joined(self, change_slice: ChangeSlice, places: list[pa.Array], pieces: list[VersionRows]) -> pa.RecordBatch:
        schema = self._typed_schema
        if not places:
            return pa.RecordBatch.from_arrays([pa.array([], item.type) for item in schema], schema=schema)
        at, order = places[0], None
        if len(places) > 1:
            joined = pa.concat_arrays(places)
            order = pc.sort_indices(joined)
            at = joined.take(order)

        def in_order(parts: Sequence[pa.Array]) -> pa.Array:
            return parts[0] if order is None else pa.concat_arrays(parts).take(order)

        parts = zip(*(item.about for item in pieces), strict=True)
        op, old_type, is_null, unchanged, errors = map(in_order, parts)
        ends = [*accumulate(map(len, places))]
        olds = [*map(in_order, _with_nulls([item.old for item in pieces], ends, self.table.kinds))]
        values = [*map(in_order, _with_nulls([item.columns for item in pieces], ends, self.table.kinds))]
        kind = self.table.schema.field("_old").type
        if olds:
            old = pa.StructArray.from_arrays(olds, fields=list(kind), mask=is_null)
        else:
            old = pa.array([None if item else {} for item in is_null.to_pylist()], kind)
        about = [
            change_slice.position,
            change_slice.commit_position,
            change_slice.xid,
            change_slice.commit_lsn,
            change_slice.commit_timestamp,
        ]
        if len(at) != change_slice.n:
            about = [column.take(at) for column in about]
        if self.with_version:
            values.append(
                unless_negative(change_slice.versions if len(at) == change_slice.n else change_slice.versions.take(at))
            )
        return pa.RecordBatch.from_arrays([op, *about, old_type, old, unchanged, errors, *values], schema=schema)


def _with_nulls(
    pieces: Sequence[Mapping[str, pa.Array]], ends: Sequence[int], kinds: Mapping[str, pa.DataType]
) -> Iterator[list[pa.Array]]:
    """Yield the parts of each column, with nulls for the pieces in between that do not have it.

    The cost does not grow with the number of pieces without a column.
    """
    parts: dict[str, list[tuple[int, pa.Array]]] = {name: [] for name in kinds}
    for end, piece in zip(ends, pieces, strict=True):
        for name, values in piece.items():
            parts[name].append((end, values))
    for name, kind in kinds.items():
        found, last = [], 0
        for end, values in parts[name]:
            if end - len(values) > last:
                found.append(null_array(end - len(values) - last, kind))
            found.append(values)
            last = end
        if last < ends[-1]:
            found.append(null_array(ends[-1] - last, kind))
        yield found


# By relation and shape.
TableCache = dict[tuple[str | int, Shape], tuple[Table, tuple[RelationVersion, ...]]]


class TableOutput(Generic[TableName]):
    """The changes of tables as typed columns.

    Parameters
    ----------
    tables : sequence of str or int
        "schema.table", or OIDs.
    with_version : bool
        Add the column `VERSION`.
    known : mapping, optional
        The versions of each table, by their numbers, if more are known than those so far.
    shape : {"changes", "delta"}, optional
        By default, that of the engine's options.
    cache : dict, optional
        Columns of tables, which outputs of one engine may share.
    """

    def __init__(
        self,
        tables: Sequence[TableName],
        *,
        with_version: bool = False,
        known: Mapping[TableName, Mapping[int, RelationVersion]] | None = None,
        shape: Shape | None = None,
        cache: TableCache | None = None,
    ) -> None:
        self.tables = tables
        self._with_version = with_version
        self._known = known or {}
        self._shape = shape
        self._cache = {} if cache is None else cache

    def builder(self, engine: ChangeEngine, table: TableName, *, everything: bool = False) -> TableBuilder:
        """Make a builder with the versions of a table that determine its columns, or with `everything`, all versions.

        Raises
        ------
        KeyError
            If no payload has described the table.
        ValueError
            As `Table` does.
        """
        versions = self._known.get(table) or engine.versions_of(table, everything=everything)
        engine.options.check_names(engine.state.relations.names)
        options = engine.options if self._shape is None else replace(engine.options, shape=self._shape)
        key, described = (table, options.shape), tuple(versions.values())
        if self._cache.get(key, (None, ()))[1] != described:
            self._cache[key] = Table(described, options), described
        others = set(engine.state.relations.numbers_of(table, everything=True)).difference(versions)
        return TableBuilder(self._cache[key][0], versions, engine.options, others, with_version=self._with_version)

    def builders(self, engine: ChangeEngine) -> list[tuple[TableName, LimitedBuilder]]:
        """Make the builders of all tables."""
        return [(table, self.builder(engine, table)) for table in self.tables]
