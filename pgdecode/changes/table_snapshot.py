"""Applies the changes of a table, and returns the rows that the table has at the end."""

from __future__ import annotations

import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.int64_kernels import grouped
from pgdecode._native.changes.row_replacement import replaced_rows, value_rows
from pgdecode.arrow.batch_sizes import table_of
from pgdecode.arrow.distinct_values import numbered_rows, plain_values, zipped
from pgdecode.arrow.null_arrays import null_array
from pgdecode.changes.change_engine import ChangeEngine
from pgdecode.changes.committed_changes import unless_negative, values_of
from pgdecode.changes.table_rows import VERSION, TableOutput
from pgdecode.payloads.commits import until
from pgdecode.payloads.payload_input import payload_array
from pgdecode.protocol.options import NameClash
from pgdecode.relations.altered_types import AlteredTypes
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.column_history import NO_RENAMES, Renames, check_renames, histories, last_version
from pgdecode.relations.column_names import last_column_names
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.table_names import named
from pgdecode.rows.old_values import old_values
from pgdecode.rows.options import Options, SnapshotKeywords, with_options
from pgdecode.rows.own_names import output_names, with_free_names, with_free_renames
from pgdecode.types.type_changes import TypeChange

_UNKNOWN = pa.field("_unknown", pa.list_(pa.string()))
# The column of the present rows with the number of the set. No column of a table has this name.
_SETS = "_pgdecode_unknown"
_UNKNOWN_SET = pa.field(_SETS, pa.int32())
_ERROR = pa.field("_error", pa.string())
ABOUT = ("_position", "_commit_position", "_commit_timestamp")
# The least number of changes to apply at once, because each time costs as much as the present rows; their bytes, from
# which fewer are enough; and the number of payloads to process at once.
_CHANGES = 262_144
_BYTES = 1 << 26
_BATCH_ROWS = 65_536
# How many sets of unknown columns are kept that no row has.
_FEW_SETS = 1000
# A set of unknown columns also has the names, after this, of columns whose values were converted from another type. No
# name of a column has this character.
_CONVERTED = "\0"

Key = tuple[Any, ...]


@with_options()
def snapshot(
    payloads: Any,
    relation: str,
    position: Any = None,
    *,
    catalog: RelationCatalog | None = None,
    threads: int = 1,
    **options: Unpack[SnapshotKeywords],
) -> pa.Table:
    """Apply the committed changes of a table, and return the rows that it has at the end.

    Parameters
    ----------
    payloads : column of payloads, as in `decode_messages`
        All payloads, in slot order.
    relation : str
        "schema.table", the last name of the table. Changes under former names are included.
    position : column of ascending integers, optional
        As in `ChangeDecoder.decode`.
    catalog, threads
        As in `ChangeDecoder`.

    Other Parameters
    ----------------
    mode : {"FAILFAST", "PERMISSIVE", "DROPMALFORMED"}
        Raise on the first bad payload; or return it as a row with the reason in an additional column, `_error`; or
        leave it out. A bad change is not applied.
    as_of : LSN as int or text, or time as text or datetime, optional
        Apply the commits up to and including this LSN or time, which has a time zone: those before the first later
        commit, as with PostgreSQL's `recovery_target_lsn` and `recovery_target_time`. The payloads from there on are
        not decoded, so the table has the name and columns of then. The caller must know that the payloads go that far.
    columns : mapping of a column's name to a PostgreSQL type, optional
        Types of columns of the table, as in `decode_rows`. They take precedence over `types`.
    renames : list of (old name, new name, position), optional
        Columns that were renamed where the payloads do not show it. The position is that of the Relation message with
        the new name, which `pgdecode inspect` prints.
    **options
        As in `ChangeDecoder`.

    Returns
    -------
    pa.Table
        `_position`, `_commit_position` and `_commit_timestamp` of the last change of each row, `_unknown`, and the
        columns of the table's last version, with the types of `ChangeDecoder.table`. `_unknown` lists the columns of a
        row whose values are in no payload. They are null here, but not necessarily NULL in the database. The schema's
        metadata count what is missing from the table: `pgdecode:bad_rows` (JSON, by error code), `pgdecode:skipped` and
        `pgdecode:undecided` (transactions).

    Raises
    ------
    DecodeError
        As in `ChangeDecoder.table`.
    KeyError
        If no payload has described the table, or its last name is another.
    ValueError
        If an update or delete may refer to several rows, because a column of the replica identity is unknown in them;
        if it finds no row, and may refer to one whose key was converted because its type was altered; if `renames` has
        a rename that the table does not have at this position.

    Notes
    -----
    Updates and deletes find their row by its replica identity. A row from before the first payload is included from its
    first update. These values are unknown, because they are not in the payloads: a TOAST value that has not changed
    since before the first payload; a column that was added later, in older rows, unless the `catalog` tells the value,
    as footers of captured files do where PostgreSQL has not rewritten the table; a renamed column, in older rows, if it
    is the last column and the `catalog` does not have its number; a column whose type was altered, in older rows,
    unless PostgreSQL keeps its values, as for a longer varchar.

    If the type of a column of the replica identity was altered, its older values become those of PostgreSQL's cast
    where that is certain (int4 to numeric(10,2): 1 becomes 1.00), and are unknown otherwise (text to int4). pgoutput
    does not send whether USING computed other values. A change that then finds no row raises ValueError, unless an
    integer only became longer or shorter. The concepts in the documentation have the details.

    pgoutput does not report that a column was renamed. PostgreSQL keeps the order of columns, and adds new ones at the
    end. So the new names before a column that kept its name are renamed columns, if as many columns of the same types
    are missing there. `renames` states others.

    Examples
    --------
    >>> capture = pq.read_table("tests/data/16.shop.v1.parquet")
    >>> rows = pgdecode.snapshot(capture["data"], "public.orders", capture["seq"])
    >>> len(rows), rows.select(["id", "state"]).slice(0, 1).to_pylist()
    (114, [{'id': 3, 'state': 'paid'}])
    """
    given = Options.of(options, relation)
    of_changes = replace(given, name_clash="rename")  # fewer columns are added to a snapshot, see `SnapshotRows`
    # What a pass needs beside the payloads stays in the processor's cache.
    column = payload_array(payloads)
    column, position = until(column, position, given.as_of)
    payloads = pa.chunked_array(
        [chunk.slice(first, _CHANGES) for chunk in column.chunks for first in range(0, max(len(chunk), 1), _CHANGES)],
        column.type,
    )
    # All versions of the table must be known before its first row. Payloads in memory are scanned twice for that.
    first_pass, engine = (ChangeEngine(of_changes, catalog=catalog, threads=threads) for _ in range(2))
    first_pass.advance(payloads, position)
    relation_id = last_named(first_pass.layout_catalog, relation)
    versions, stated = first_pass.versions_of(relation_id), given.renames or NO_RENAMES
    check_renames(histories(versions, stated), is_complete=True)
    output = TableOutput([relation_id], with_version=True, known={relation_id: versions})
    rows = SnapshotRows(
        output.builder(engine, relation_id).table.schema,
        versions,
        stated,
        with_errors=given.mode == "PERMISSIVE",
        name_clash=given.name_clash,
    )
    with engine.call() as call:
        for _, batch in engine.batches(call, payloads, position, output, _BATCH_ROWS):
            rows.apply(batch)
    return rows.counted_table(engine.counts.bad_rows, engine.state.skipped.count, engine.state.n_undecided)


def last_named(catalog: RelationCatalog, relation: str) -> int:
    """Find the OID of the table whose last name is `relation`. The catalog has committed versions only.

    Raises
    ------
    KeyError
        If there is no such table.
    """
    relation_id = last_version(catalog.versions(relation)).relation_id
    last = last_version(catalog.versions(relation_id))
    if last.qualified_name != named(relation, catalog.names):
        raise KeyError(f"{relation!r} was renamed to {last.qualified_name!r}")
    return relation_id


def snapshot_schema(
    schema: pa.Schema,
    versions: Iterable[RelationVersion],
    names: Iterable[str],
    *,
    with_errors: bool = False,
    name_clash: NameClash = "error",
) -> pa.Schema:
    """Return the schema of a snapshot with some of the table's columns, from the schema of the table's changes.

    Raises
    ------
    ValueError
        If a column has the name of a column that the snapshot adds, unless `name_clash` is "rename".
    """
    about = [*(schema.field(name) for name in ABOUT), _UNKNOWN, *([_ERROR] if with_errors else [])]
    output = output_names(versions, {item.name for item in about}, name_clash)
    return pa.schema([*about, *(schema.field(name).with_name(output.get(name, name)) for name in names)])


@dataclass(frozen=True)
class _Shape:
    """The columns that matter in the changes of one version."""

    identity: tuple[str, ...]  # columns of the replica identity
    is_key: bool  # whether the identity is unique
    unsent: frozenset[str]  # columns of the table that this version does not have, and whose values are not known


@dataclass(slots=True)
class _Row:
    """A row of the table, by the number of the change that wrote it."""

    change: int
    unknown: frozenset[str]
    carried: dict[str, int] = field(default_factory=dict)  # column -> the earlier change that has its value


class SnapshotRows:
    """The rows of a table, after changes in the order in which to apply them.

    Parameters
    ----------
    schema : pa.Schema
        Of the changes.
    versions : mapping of int to RelationVersion
        The versions of one relation, by their numbers. Each change has the number of its version in the column
        `VERSION`.
    renames : Renames
        What the caller states.
    with_errors : bool
        Return bad changes as rows with the reason in `_error`. Otherwise there are no bad changes.
    name_clash : {"error", "rename"}
        What to do with a column that has the name of a column that the snapshot adds.
    """

    def __init__(
        self,
        schema: pa.Schema,
        versions: Mapping[int, RelationVersion],
        renames: Renames = NO_RENAMES,
        *,
        with_errors: bool = False,
        name_clash: NameClash = "error",
    ) -> None:
        sent = list(versions.values())
        versions = {number: with_free_names(version) for number, version in versions.items()}
        self.last_names = [item.name for item in last_version(versions.values()).columns]
        self.columns = last_column_names(versions, schema, with_free_renames(renames))
        fields = {last: schema.field(name) for names in self.columns.values() for name, last in names.items()}
        self.names = list(fields)
        # The names that a column had, and the numbers of the versions in which it had each.
        self.former_names: dict[str, dict[str, list[int]]] = {name: {} for name in fields}
        for number, names in self.columns.items():
            for name, last_name in names.items():
                self.former_names[last_name].setdefault(name, []).append(number)
        about = [schema.field(name) for name in ABOUT]
        # The sets of columns that are unknown in a row. The present rows have the numbers of theirs.
        self.unknown_sets: dict[frozenset[str], int] = {frozenset(): 0}
        self.kept = pa.schema([*about, _UNKNOWN_SET, *(item.with_name(name) for name, item in fields.items())])
        self.with_errors = with_errors
        self.schema = snapshot_schema(schema, sent, self.last_names, with_errors=with_errors, name_clash=name_clash)
        self.old_values = old_values(versions, self.columns, {item.name: item.type for item in self.kept})
        self.shapes = {number: self._shape(number, versions) for number in versions}
        self.altered = AlteredTypes(versions, self.columns)
        self.bad: list[pa.RecordBatch] = []
        self.live = self.kept.empty_table()
        self.waiting: list[tuple[pa.RecordBatch, list[bool] | None]] = []
        self.n_waiting = self.bytes_waiting = 0

    def _shape(self, number: int, versions: Mapping[int, RelationVersion]) -> _Shape:
        version, columns = versions[number], self.columns[number]
        identity = tuple(columns[item.name] for item in version.columns if item.flags & 1)
        unsent = frozenset(self.names).difference(columns.values(), self.old_values[number])
        return _Shape(identity, version.replica_identity != "f" and identity != (), unsent)

    def apply(self, changes: pa.RecordBatch, is_kept: list[bool] | None = None) -> None:
        """Apply the next changes of `ChangeDecoder.table`. `is_kept` is whether to keep each change's new row."""
        changes = self._with_old_values(self._with_last_names(changes))
        if self.with_errors and changes["_error"].null_count < len(changes):
            errors = changes["_error"]
            is_kept = [True] * len(changes) if is_kept is None else is_kept
            is_good = errors.is_null()
            is_first = pc.and_(pc.invert(is_good), pa.array(is_kept, pa.bool_()))
            self.bad.append(changes.filter(is_first))
            changes = changes.filter(is_good)
            is_kept = [kept for kept, good in zip(is_kept, is_good.to_pylist(), strict=True) if good]
        self.waiting.append((changes, is_kept))
        self.n_waiting += len(changes)
        self.bytes_waiting += changes.nbytes
        if self.n_waiting >= max(_CHANGES, len(self.live)) or self.bytes_waiting >= max(_BYTES, self.live.nbytes):
            self._apply_waiting()

    def _with_last_names(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Move the values of renamed columns to their last names."""
        if all(name == last for columns in self.columns.values() for name, last in columns.items()):
            return changes
        versions = changes[VERSION.name]
        old = changes["_old"]
        children = dict(zip([item.name for item in old.type], old.flatten(), strict=True))
        values = {name: self._under_last_name(name, versions, changes) for name in self.names}
        old_values = [self._under_last_name(name, versions, children) for name in self.names]
        given = set(self.names).union(*(columns.keys() for columns in self.columns.values()))
        kept = {name: changes[name] for name in changes.schema.names if name not in given}
        kept["_old"] = pa.StructArray.from_arrays(old_values, self.names, mask=old.is_null())
        kept["_unchanged"] = self._last_unchanged(changes["_unchanged"], versions)
        return pa.RecordBatch.from_pydict({**kept, **values})

    def _with_old_values(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Fill columns that were added after a change, where their value in the row is known."""
        for name in dict.fromkeys(name for values in self.old_values.values() for name in values):
            by_version = {number: values[name] for number, values in self.old_values.items() if name in values}
            numbers = pa.array([*by_version], VERSION.type)
            at = pc.index_in(changes[VERSION.name], numbers)
            if at.null_count < len(changes):
                values = pa.array(by_version.values(), changes[name].type).take(at)
                filled = pc.if_else(at.is_valid(), values, changes[name])
                changes = changes.set_column(changes.schema.get_field_index(name), name, filled)
        return changes

    def _under_last_name(self, last: str, versions: pa.Array, columns: Any) -> pa.Array:
        """Return the values of a column by its last name, from the column that had them in each version."""
        kind = self.kept.field(last).type
        found: pa.Array | None = None
        for name, numbers in self.former_names[last].items():
            values = columns[name] if columns[name].type == kind else columns[name].cast(kind)
            if len(numbers) < len(self.columns):
                other = null_array(len(values), kind) if found is None else found
                values = pc.if_else(pc.is_in(versions, pa.array(numbers, VERSION.type)), values, other)
            found = values
        return found

    def _last_unchanged(self, unchanged: pa.ListArray, versions: pa.Array) -> pa.ListArray:
        """Replace names of columns by their last names."""
        given = found = unchanged.flatten()
        if not len(given):
            return unchanged
        versions = versions.take(pc.list_parent_indices(unchanged))
        for last, names in self.former_names.items():
            for name, numbers in names.items():
                if name != last:
                    is_former = pc.and_(pc.equal(given, name), pc.is_in(versions, pa.array(numbers, VERSION.type)))
                    found = pc.if_else(is_former, last, found)
        offsets = pc.subtract(unchanged.offsets, unchanged.offsets[0])
        return pa.ListArray.from_arrays(offsets, found, mask=unchanged.is_null())

    def table(self) -> pa.Table:
        """Return the present rows."""
        self._apply_waiting()
        self._alter_types(None)
        n_about = len(self.schema) - len(self.last_names)
        output = dict(zip(self.last_names, self.schema.names[n_about:], strict=True))
        sets = [sorted(output[name] for name in unknown & output.keys()) for unknown in self.unknown_sets]
        unknown = pa.array(sets, _UNKNOWN.type).take(self.live[_SETS])
        found = [self._output(self.live, unknown, pa.nulls(len(self.live), pa.string()))]
        found += (self._output(item, pa.array([[]] * len(item), _UNKNOWN.type), item["_error"]) for item in self.bad)
        return pa.concat_tables(found)

    def _output(self, rows: pa.Table | pa.RecordBatch, unknown: pa.Array, errors: pa.Array) -> pa.Table:
        """Select the columns of the snapshot, which may have other names here."""
        columns = [*(rows[name] for name in ABOUT), unknown, *([errors] if self.with_errors else [])]
        columns += (rows[name] for name in self.last_names)
        if [column.type for column in columns] == self.schema.types:
            # A cast takes time even if it changes nothing.
            return pa.Table.from_arrays(columns, schema=self.schema)
        return pa.table(columns, names=self.schema.names).cast(self.schema)

    def counted_table(self, bad_rows: Mapping[str, int], skipped: int, undecided: int) -> pa.Table:
        """Return the present rows, with metadata that count what is missing from them."""
        counts = {"bad_rows": json.dumps(bad_rows), "skipped": skipped, "undecided": undecided}
        return self.table().replace_schema_metadata({f"pgdecode:{name}": str(count) for name, count in counts.items()})

    def _apply_waiting(self) -> None:
        if not self.waiting:
            return
        changes = table_of([batch for batch, _ in self.waiting])
        is_kept = None
        if any(kept is not None for _, kept in self.waiting):
            is_kept = [item for batch, kept in self.waiting for item in kept or [True] * len(batch)]
        self.waiting, self.n_waiting, self.bytes_waiting = [], 0, 0
        if not self.altered.is_any:
            self._apply_changes(changes, is_kept)
            return
        for first, n, version in self.altered.runs(changes[VERSION.name]):
            self._alter_types(version)
            self._apply_changes(changes.slice(first, n), None if is_kept is None else is_kept[first : first + n])

    def _apply_changes(self, changes: pa.Table, is_kept: list[bool] | None) -> None:
        found = self._apply_at_once(changes, is_kept)
        if found is None:
            found = _RowByRow(self, self.live, changes, is_kept or [True] * len(changes)).run()
        self.live = found
        if len(self.unknown_sets) > 2 * len(found) + _FEW_SETS:
            self._forget_sets()

    def _apply_at_once(self, changes: pa.Table, is_kept: list[bool] | None) -> pa.Table | None:
        """Apply changes as `_RowByRow` does, by columns; None if rows cannot be found by one known replica identity."""
        live = self.live
        # Changes before a truncate matter too: one of them may refer to several rows, which is an error.
        shape, sets = self._shared_shape(changes, live)
        if shape is None:
            return None
        truncates = pc.indices_nonzero(pc.equal(changes["_op"], "truncate"))
        has_converted = self._has_converted(shape)
        if len(truncates) and has_converted:
            return None
        if len(truncates):
            first = truncates[-1].as_py() + 1
            sets = sets.slice(len(live) + first)
            changes, live = changes.slice(first), live.slice(0, 0)
            is_kept = None if is_kept is None else is_kept[first:]
        names = [name for name in self.kept.names if name != _SETS]
        rows = pa.concat_tables([live.select(names), changes.select(names)])
        ops = changes["_op"].combine_chunks()
        is_update = pc.equal(ops, "update")
        keys, removed, n_keys = _keys(rows, changes, shape, ops, is_update)
        is_added = pc.not_equal(ops, "delete")
        if is_kept is not None:
            is_added = pc.and_(is_added, pa.array(is_kept, pa.bool_()))
        before, left = replaced_rows(values_of(keys), values_of(removed), values_of(is_added.cast(pa.uint8())), n_keys)
        if has_converted:
            replaced = pa.Array.from_buffers(pa.int64(), len(changes), [None, before])
            if pc.any(pc.and_(pc.less(replaced, 0), pc.not_equal(ops, "insert"))).as_py():
                # Whether this is an error depends on the other columns of the replica identity.
                return None
        is_left = pa.Array.from_buffers(pa.uint8(), len(rows), [None, left]).cast(pa.bool_())
        columns, is_unknown = {}, {}
        for name, places in self._unchanged_values(changes, is_update, before, sets, is_left):
            columns[name] = rows[name].take(places)
            if places.null_count:
                is_unknown[name] = places.is_null()
        columns[_SETS] = self._with_unknown(sets.filter(is_left), is_unknown)
        # Select the remaining rows first, then copy each column into one array.
        others = rows.select([name for name in names if name not in columns]).filter(is_left)
        every = [columns[name] if name in columns else others[name] for name in self.kept.names]
        return pa.table(every, schema=self.kept).combine_chunks()

    def _unchanged_values(
        self, changes: pa.Table, is_update: pa.Array, before: pa.Buffer, sets: pa.Array, is_left: pa.Array
    ) -> Iterator[tuple[str, pa.Array]]:
        """For each column that an update did not change, find the rows that were sent with the remaining rows' values.

        `before` has the row that each change removed, `sets` the unknown columns of each row. `is_left` selects the
        remaining rows. The rows found are null if the value is unknown.
        """
        unchanged = changes["_unchanged"].combine_chunks()
        names = unchanged.flatten().dictionary_encode()
        if not len(names):
            return
        numbers = names.dictionary.to_pylist()
        changed_by = pc.list_parent_indices(unchanged).cast(pa.int64())
        replaced = pa.Array.from_buffers(pa.int64(), len(changes), [None, before])
        # An insert has no values of a row before it, even if there was one with its key.
        replaced = pc.if_else(is_update, replaced, pa.scalar(-1, pa.int64()))
        with_name = self._sets_with_name(sets)
        groups, found = grouped(values_of(names.indices), array("i", range(len(numbers))))
        for number, start, end in groups:
            name = numbers[number]
            rows = changed_by.take(pa.Array.from_buffers(pa.int64(), end - start, [None, found], offset=start))
            is_unknown = bytearray(len(self.unknown_sets))
            for item in with_name.get(name, ()):
                is_unknown[item] = 1
            sent = value_rows(values_of(replaced), values_of(rows), values_of(sets), is_unknown)
            yield name, unless_negative(pa.Array.from_buffers(pa.int64(), len(sets), [None, sent]).filter(is_left))

    def _sets_with_name(self, sets: pa.Array) -> dict[str, list[int]]:
        """For each column, list the sets among these that have it."""
        every, found = list(self.unknown_sets), defaultdict(list)
        for number in sets.unique().to_pylist():
            for name in every[number]:
                found[name].append(number)
        return found

    def _with_unknown(self, sets: pa.Array, is_unknown: Mapping[str, pa.Array]) -> pa.Array:
        """Add columns to the unknown ones of the rows in which they are."""
        codes, steps = sets, []
        for name, is_added in is_unknown.items():
            # The code of a row says whether the column is added, and its code before.
            pairs = pc.add(pc.multiply(codes.cast(pa.int64()), pa.scalar(2, pa.int64())), is_added.cast(pa.int64()))
            encoded = pairs.dictionary_encode()
            codes = encoded.indices
            steps.append((name, encoded.dictionary.to_pylist()))
        if not steps:
            return sets
        every, numbers = list(self.unknown_sets), []
        for code in range(len(steps[-1][1])):
            names = []
            for name, pairs_before in reversed(steps):
                code, is_added = divmod(pairs_before[code], 2)
                if is_added:
                    names.append(name)
            numbers.append(self.number_of(every[code].union(names)))
        return pa.array(numbers, sets.type).take(codes)

    def _alter_types(self, version: int | None) -> None:
        """Make of the present rows what changes of types up to a version, or to the last one, have made of them.

        A column of the replica identity is converted as PostgreSQL does without USING, so that later changes find their
        rows. The values of other columns are unknown, unless PostgreSQL keeps them.
        """
        if not self.altered.is_any:
            return
        for before, after, changes in self.altered.advance(version):
            identity = {*self.shapes[before].identity}.intersection(self.shapes[after].identity)
            for name, change in changes.items() if len(self.live) else ():
                self._alter_type(name, change, is_key=name in identity)

    def _alter_type(self, name: str, change: TypeChange, *, is_key: bool) -> None:
        if not (change.is_kept or (is_key and change.is_certain)):
            self._set_values(name, pa.chunked_array([null_array(len(self.live), self.live[name].type)]))
            self._add_unknown(name)
            return
        values = self.live[name]
        found = change.converted(values)
        self._set_values(name, found)
        if found.null_count > values.null_count:
            self._add_unknown(name, pc.and_(found.is_null(), values.is_valid()))
        if not change.is_kept and not change.is_same_number:
            self._add_unknown(_CONVERTED + name)

    def _set_values(self, name: str, values: pa.ChunkedArray) -> None:
        at = self.live.schema.get_field_index(name)
        self.live = self.live.set_column(at, self.live.field(at), values)

    def _add_unknown(self, name: str, rows: pa.ChunkedArray | None = None) -> None:
        """Add a name to the unknown columns of all present rows, or of those that `rows` selects."""
        every, sets = list(self.unknown_sets), self.live[_SETS]
        numbers = list(range(len(every)))
        for number in sets.unique().to_pylist():
            numbers[number] = self.number_of(every[number] | {name})
        found = pa.chunked_array([pa.array(numbers, _UNKNOWN_SET.type).take(sets.combine_chunks())])
        self._set_values(_SETS, found if rows is None else pc.if_else(rows, found, sets))

    def _forget_sets(self) -> None:
        """Forget sets of unknown columns that no present row has, and number the others again."""
        every, column = list(self.unknown_sets), self.live[_SETS]
        self.unknown_sets = {frozenset(): 0}
        numbers = [0] * len(every)
        for number in column.unique().to_pylist():
            numbers[number] = self.number_of(every[number])
        self.live = self.live.set_column(len(ABOUT), _UNKNOWN_SET, pa.array(numbers, pa.int32()).take(column))

    def _has_converted(self, shape: _Shape) -> bool:
        """Whether a present row has a converted value in its replica identity."""
        if not self.altered.is_any:
            return False
        every, names = list(self.unknown_sets), {_CONVERTED + name for name in shape.identity}
        return any(names & every[number] for number in self.live[_SETS].unique().to_pylist())

    def number_of(self, unknown: frozenset[str]) -> int:
        """Return the number of a set of unknown columns."""
        return self.unknown_sets.setdefault(unknown, len(self.unknown_sets))

    def _shared_shape(self, changes: pa.Table, live: pa.Table) -> tuple[_Shape | None, pa.Array]:
        """Find the replica identity that all changes have; None if there is none, or it is unknown in a row.

        Also return the number of the unknown columns of each row: of the present rows, and then of the changes.
        """
        used = [next(iter(self.shapes))]
        if len(self.shapes) > 1:
            used = pc.unique(changes[VERSION.name]).to_pylist() or used
        shapes = [self.shapes[number] for number in used]
        unsent = pa.array([self.number_of(shape.unsent) for shape in shapes], _UNKNOWN_SET.type)
        if len({shape.unsent for shape in shapes}) == 1:
            of_changes = pa.repeat(unsent[0], len(changes))
        else:
            of_changes = unsent.take(pc.index_in(changes[VERSION.name], pa.array(used, VERSION.type)).combine_chunks())
        every = list(self.unknown_sets)
        unknown = set().union(*(every[number] for number in live[_SETS].unique().to_pylist()))
        unknown.update(*(shape.unsent for shape in shapes), pc.list_flatten(changes["_unchanged"]).unique().to_pylist())
        is_shared = len({(shape.identity, shape.is_key) for shape in shapes}) == 1
        sets = pa.concat_arrays([*live[_SETS].chunks, of_changes])
        return shapes[0] if is_shared and unknown.isdisjoint(shapes[0].identity) else None, sets


def _keys(
    rows: pa.Table, changes: pa.Table, shape: _Shape, ops: pa.Array, is_update: pa.Array
) -> tuple[pa.Array, pa.Array, int]:
    """Give each key of the rows a number; the rows of the changes are at the end.

    Return the key of each row, the key of the row that each change removes, or -1, and the number of different keys.
    """
    n = n_keys = len(rows)
    columns = [rows[name].chunks for name in shape.identity]
    is_moved = pc.and_(is_update, changes["_old_type"].combine_chunks().is_valid())
    has_moved = pc.any(is_moved).as_py()
    if has_moved:
        n_keys += len(changes)
        for name, chunks in zip(shape.identity, columns, strict=True):
            chunks.extend(chunk.field(name) for chunk in changes["_old"].chunks)
    found, n_different = numbered_rows(columns, n_keys)
    removed = found.slice(n - len(changes), len(changes))
    if has_moved:
        removed = pc.if_else(is_moved, found.slice(n), removed)
    if not shape.is_key:
        # With a unique key, an insert removes an earlier copy of its row.
        removed = pc.if_else(pc.equal(ops, "insert"), pa.scalar(-1, removed.type), removed)
    return found.slice(0, n), removed, n_different


class _RowByRow:
    """Applies some changes to the present rows.

    Rows are numbered: first the present rows, then the new rows of the changes.
    """

    def __init__(self, rows: SnapshotRows, live: pa.Table, changes: pa.Table, is_kept: list[bool]) -> None:
        self.rows = rows
        self.changes = changes
        self.versions = changes[VERSION.name].to_pylist() if len(rows.shapes) > 1 else []
        self.is_kept = is_kept
        self.n_live = len(live)
        names = [name for name in rows.kept.names if name != _SETS]
        self.all = pa.concat_tables([live.select(names), changes.select(names)]).combine_chunks()
        self.identity: tuple[str, ...] | None = None
        self.index: dict[Key, list[_Row]] = {}
        # Rows with unknown columns in their replica identity: by these columns, and by the values of the others.
        self.loose: dict[frozenset[str], dict[Key, list[_Row]]] = {}
        # How many rows have converted values in their replica identity: by these columns and the unknown ones, and by
        # the values of the others.
        self.converted: dict[frozenset[str], Counter[Key]] = {}
        # Rows that are not indexed yet.
        sets = list(rows.unknown_sets)
        self.first = [_Row(number, sets[unknown]) for number, unknown in enumerate(live[_SETS].to_pylist())]
        self.values: dict[str, list[Any]] = {}
        self.keys: dict[tuple[str, ...], list[Key]] = {}

    def run(self) -> pa.Table:
        """Apply all changes, and return the rows after them."""
        changes = self.changes
        columns = [changes[name].to_pylist() for name in ("_op", "_old_type", "_unchanged")]
        old_keys: dict[tuple[str, ...], list[Key]] = {}
        keys: list[Key] = []
        for at, (op, old_type, unchanged) in enumerate(zip(*columns, strict=True)):
            if op == "truncate":
                self.index, self.loose, self.converted, self.first = {}, {}, {}, []
                continue
            shape = self._shape_of(at)
            if shape.identity != self.identity:
                self._identify(shape.identity)
                keys = self._keys(shape.identity)
            number = self.n_live + at
            before = None
            if old_type is not None and op == "update":
                if shape.identity not in old_keys:
                    old_keys[shape.identity] = _old_keys(changes["_old"], shape.identity)
                before = self._remove(old_keys[shape.identity][at], shape, at)
            elif op != "insert" or shape.is_key:
                # The key of an insert is unique in the database, so a row with this key is an earlier copy of this one.
                before = self._remove(keys[number], shape, at, exactly=op == "insert")
            if op != "delete" and self.is_kept[at]:
                self._add(_written(number, shape, unchanged, before if op == "update" else None))
        return self._table()

    def _shape_of(self, at: int) -> _Shape:
        shapes = self.rows.shapes
        if len(shapes) == 1:
            return next(iter(shapes.values()))
        return shapes[self.versions[at]]

    # -- rows by their identity --------------------------------------------------------------------------------------

    def _column(self, name: str) -> list[Any]:
        if name not in self.values:
            self.values[name] = plain_values(self.all[name].combine_chunks())
        return self.values[name]

    def _keys(self, identity: tuple[str, ...]) -> list[Key]:
        """Return the keys of all rows. Values that were not sent are null."""
        if identity not in self.keys:
            self.keys[identity] = zipped([self._column(name) for name in identity], len(self.all))
        return self.keys[identity]

    def _value(self, row: _Row, name: str) -> Any:
        return self._column(name)[row.carried.get(name, row.change)]

    def _present(self) -> list[_Row]:
        groups = [self.index, *self.loose.values()]
        return [*self.first, *(row for group in groups for rows in group.values() for row in rows)]

    def _identify(self, identity: tuple[str, ...]) -> None:
        """Index the rows by another replica identity."""
        present = self._present()
        self.identity, self.index, self.loose, self.converted, self.first = identity, {}, {}, {}, []
        for row in sorted(present, key=lambda row: row.change):
            self._add(row)

    def _add(self, row: _Row) -> None:
        identity = self.identity or ()
        unknown = row.unknown.intersection(identity) if row.unknown else row.unknown
        if row.unknown:
            self._count_converted(row, 1)
        if unknown:
            key = tuple(self._value(row, name) for name in identity if name not in unknown)
            self.loose.setdefault(unknown, {}).setdefault(key, []).append(row)
            return
        key = self._keys(identity)[row.change]
        if row.carried:
            key = tuple(self._value(row, name) for name in identity)
        self.index.setdefault(key, []).append(row)

    def _remove(self, key: Key, shape: _Shape, at: int, *, exactly: bool = False) -> _Row | None:
        """Remove and return the row with a key, if it exists. With `exactly`, ignore rows whose key is partly unknown.

        Raises
        ------
        ValueError
            If several rows may have the key.
        """
        row = self.index[key][-1] if key in self.index else None
        if row is not None:
            _pop(self.index, key)
        elif not exactly:
            row = self._remove_loose(key, shape, at)
            if row is None:
                self._check_converted(key, shape, at)
        if row is not None and row.unknown:
            self._count_converted(row, -1)
        return row

    def _remove_loose(self, key: Key, shape: _Shape, at: int) -> _Row | None:
        """Remove and return a row whose key is partly unknown and may be this one."""
        wanted = dict(zip(shape.identity, key, strict=True))
        found = []
        for unknown, rows in self.loose.items():
            known = tuple(value for name, value in wanted.items() if name not in unknown)
            if known in rows:
                found.append((unknown, known))
        if not found:
            return None
        # Without a unique key, rows that agree in all known columns are interchangeable.
        if shape.is_key or len(found) > 1:
            name = min(name for unknown, _ in found for name in unknown)
            n_rows = sum(len(self.loose[unknown][known]) for unknown, known in found)
            position = self.changes["_position"][at].as_py()
            raise ValueError(
                f"position {position}: the changed row is not found by its replica identity: column {name!r} is "
                f"unknown in {n_rows} rows, which were written before it was added, renamed or altered"
            )
        [(unknown, known)] = found
        row = _pop(self.loose[unknown], known)
        if not self.loose[unknown]:
            del self.loose[unknown]
        return row

    def _count_converted(self, row: _Row, n: int) -> None:
        """Count a row that has converted values in its replica identity."""
        identity = self.identity or ()
        converted = {name for name in identity if _CONVERTED + name in row.unknown}
        if converted:
            columns = frozenset(converted.union(row.unknown.intersection(identity)))
            key = tuple(self._value(row, name) for name in identity if name not in columns)
            self.converted.setdefault(columns, Counter())[key] += n

    def _check_converted(self, key: Key, shape: _Shape, at: int) -> None:
        """Check that a change that finds no row is not of one whose key PostgreSQL has converted otherwise.

        Raises
        ------
        ValueError
            If it may be.
        """
        wanted = dict(zip(shape.identity, key, strict=True))
        for columns, rows in self.converted.items():
            n_rows = rows[tuple(value for name, value in wanted.items() if name not in columns)]
            if n_rows:
                position = self.changes["_position"][at].as_py()
                raise ValueError(
                    f"position {position}: the changed row is not found by its replica identity: column "
                    f"{min(columns)!r} was written with another type in {n_rows} rows, and ALTER COLUMN ... TYPE ... "
                    "USING may have computed other values"
                )

    # -- the result --------------------------------------------------------------------------------------------------

    def _table(self) -> pa.Table:
        present = sorted(self._present(), key=lambda row: row.change)
        numbers = pa.array([row.change for row in present], pa.int64())
        incomplete = {name for row in present for name in (*row.carried, *row.unknown)}
        columns = {}
        for name in self.all.column_names:
            places = numbers
            if name in incomplete:
                places = pa.array(
                    [None if name in row.unknown else row.carried.get(name, row.change) for row in present], pa.int64()
                )
            columns[name] = self.all[name].take(places)
        columns[_SETS] = pa.array([self.rows.number_of(row.unknown) for row in present], _UNKNOWN_SET.type)
        return pa.table([columns[name] for name in self.rows.kept.names], schema=self.rows.kept)


def _pop(index: dict[Key, list[_Row]], key: Key) -> _Row:
    rows = index[key]
    row = rows.pop()
    if not rows:
        del index[key]
    return row


def _written(number: int, shape: _Shape, unchanged: Sequence[str], before: _Row | None) -> _Row:
    """Make the row after a change. Unchanged values come from the row before it."""
    if not unchanged:
        return _Row(number, shape.unsent)
    unknown = shape.unsent.union(name for name in unchanged if before is None or name in before.unknown)
    if before is None:
        return _Row(number, unknown)
    carried = {name: before.carried.get(name, before.change) for name in unchanged if name not in unknown}
    return _Row(number, unknown, carried)


def _old_keys(old: pa.ChunkedArray, identity: tuple[str, ...]) -> list[Key]:
    struct = old.combine_chunks()
    if isinstance(struct, pa.ChunkedArray):
        struct = pa.concat_arrays(struct.chunks)
    return zipped([plain_values(struct.field(name)) for name in identity], len(struct))
