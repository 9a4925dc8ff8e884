"""The rows that changes have touched: found by their keys, with the values that changes have told."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.int64_kernels import counted, grouped
from pgdecode._native.changes.row_tracker import (
    DELETE,
    DELETED,
    GONE,
    LIVE,
    UPDATE,
    NeededChanges,
    RowTracker,
    ValuePlaces,
    op_codes,
)
from pgdecode.arrow.batch_sizes import table_of
from pgdecode.arrow.distinct_values import plain_values, zipped
from pgdecode.arrow.null_arrays import null_array
from pgdecode.changes.committed_changes import unless_negative, values_of
from pgdecode.net.keys import KeyNumbers
from pgdecode.net.schema import ABOUT, UNKNOWN, schema_with_key
from pgdecode.protocol.errors import listed
from pgdecode.types.type_changes import TypeChange

# Changes that no row needs are forgotten once there are 4 times as many as rows and some more, or twice as many if the
# bytes have doubled since the last time, and some more.
_FEW_ROWS = 1 << 18
_FEW_BYTES = 1 << 26
# What the tracker needs for a row, about.
_ROW_BYTES = 32
# The value of a column is in no change; it is the one that rows have which are older than the column.
_UNKNOWN, _MISSING = -1, -2

_COMMIT = ("_commit_position", "_commit_lsn")
_NONE = memoryview(b"").cast("q")

Fields = Mapping[str, pa.Field]


class TouchedRows:
    """The rows that changes have touched.

    Parameters
    ----------
    fields : mapping of str to pa.Field
        The columns of the table.
    key : sequence of str
        The columns that tell rows apart.
    is_unique : bool
        Whether no two rows have the same key. Otherwise a change refers to one of several equal rows.
    has_before : bool
        Whether there may be rows from before all changes.
    about : sequence of pa.Field
        The columns about the last change of each row.
    """

    def __init__(
        self,
        fields: Fields,
        key: Sequence[str],
        *,
        is_unique: bool,
        has_before: bool = True,
        about: Sequence[pa.Field] = ABOUT,
    ) -> None:
        self.fields, self.key, self.is_unique = dict(fields), tuple(key), is_unique
        self._has_before, self._about = has_before, {item.name: item for item in about}
        self._missing: dict[str, pa.Scalar] = {}
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._keys = KeyNumbers([self.fields[name] for name in self.key])
        self._tracker = RowTracker(self.is_unique, self._has_before)
        self._batches: list[pa.RecordBatch] = []
        self._n_changes = self._n_bytes = self._n_bytes_needed = 0
        # For columns that a change has not told: the change with the value of each row.
        self._places: dict[str, ValuePlaces] = {}
        # For columns that were in the key when their type was altered: whether a row has a converted value.
        self._converted: dict[str, pa.Array] = {}
        self._others = OtherKeys()

    def __len__(self) -> int:
        return len(self._tracker)

    @property
    def nbytes(self) -> int:
        """Bytes in memory, about."""
        n_rows = len(self._tracker)
        return self._n_bytes + self._keys.nbytes + n_rows * (_ROW_BYTES + 8 * len(self._places))

    @property
    def has_keys_before(self) -> bool:
        """Whether one of the rows was there before all changes."""
        _, before, _, state = self._columns()
        return bool(pc.any(pc.and_(pc.greater_equal(before, 0), pc.not_equal(state, GONE))).as_py())

    @property
    def has_other_keys(self) -> bool:
        """Whether a row's key is partly unknown, or was converted to another type."""
        return bool(self._others)

    # -- changes -------------------------------------------------------------------------------------------------------

    def apply(
        self,
        changes: pa.RecordBatch,
        ops: pa.Array,
        told: Collection[str],
        is_kept: pa.Array | None = None,
        *,
        is_deferrable: bool = False,
    ) -> None:
        """Apply inserts, updates and deletes.

        Parameters
        ----------
        changes : pa.RecordBatch
        ops : pa.Array
        told : collection of str
            The columns that the changes may have.
        is_kept : pa.Array, optional
            Whether to keep the new row of each change.
        is_deferrable : bool
            Whether rows may have the same key within a transaction. All changes then tell all former values.

        Raises
        ------
        ValueError
            If a change does not tell the key; if a change may be of several rows; if two rows have the same key.
        """
        n, old_types = len(changes), changes["_old_type"]
        own = removed = self._keys.numbered([changes[name] for name in self.key], n)
        if old_types.null_count < n:
            is_moved = pc.and_(old_types.is_valid(), pc.equal(ops, UPDATE))
            moved = pc.indices_nonzero(is_moved).cast(pa.int64())
            if len(moved):
                olds = [pc.struct_field(changes["_old"], name).take(moved) for name in self.key]
                removed = pc.replace_with_mask(own, is_moved, self._keys.numbered(olds, len(moved)))
        if is_kept is not None:
            ops = pc.if_else(is_kept, ops, pa.scalar(DELETE, pa.uint8()))
        self._others.begin(self._keys, removed, changes["_position"])
        untold = self._untold(changes, told)
        for name in untold:
            if name not in self._places:
                self._places[name] = ValuePlaces(values_of(self._columns()[2]))
        first = self._n_changes
        find = self._others.find if self._others else None
        rows, previous = self._tracker.apply(
            values_of(ops), values_of(own), values_of(removed), first, len(self._keys), find, is_deferrable
        )
        for name, places in self._places.items():
            places.apply(values_of(ops), memoryview(rows).cast("i"), untold.get(name, _NONE), first, len(self._tracker))
        kept = changes.select([*self._about, *self.fields])
        self._batches.append(kept)
        self._n_changes += n
        self._n_bytes += kept.nbytes
        if is_deferrable:
            self._check_rows(changes, ops, told, pa.Array.from_buffers(pa.int64(), n, [None, previous]))
        n_rows = len(self._tracker) - self._tracker.n_gone
        is_long = self._n_bytes > 2 * self._n_bytes_needed + _FEW_BYTES and self._n_changes > 2 * n_rows
        if is_long or self._n_changes > 4 * n_rows + _FEW_ROWS:
            self._compact()

    def _check_rows(self, changes: pa.RecordBatch, ops: pa.Array, told: Collection[str], previous: pa.Array) -> None:
        """Check that no two rows have the same key, unless changes were delivered again.

        Within a transaction, the row that a change finds must then have the former values that the change tells.
        """
        is_other = pc.less(previous, pa.scalar(-1, pa.int64()))
        change = pc.if_else(is_other, pc.subtract(pa.scalar(-2, pa.int64()), previous), unless_negative(previous))
        commits, lsns = (pa.chunked_array([batch[name] for batch in self._batches]) for name in _COMMIT)
        is_same = pc.equal(changes[_COMMIT[0]], commits.take(change).combine_chunks())
        is_later = pc.greater(changes[_COMMIT[1]], lsns.take(change).combine_chunks())
        is_wrong = pc.and_(is_other, pc.or_(is_same, is_later))
        at = pc.indices_nonzero(pc.and_(pc.invert(is_other), pc.fill_null(is_same, False))).cast(pa.int64())
        # Spark has only the key of the former rows.
        sent = {item.name for item in changes["_old"].type}
        names = [name for name in self.fields if name in told and name in sent and name not in self._places]
        if len(at):
            numbers = KeyNumbers([self.fields[name] for name in names])
            is_delete = pc.equal(ops.take(at), DELETE)
            olds = changes["_old"].take(at)
            former = [pc.if_else(is_delete, changes[name].take(at), pc.struct_field(olds, name)) for name in names]
            at_before = change.take(at)
            columns = (pa.chunked_array([batch[name] for batch in self._batches]) for name in names)
            values = [one_array(column.take(at_before)) for column in columns]
            found = numbers.numbered(former, len(at)), numbers.numbered(values, len(at))
            is_wrong = pc.or_(is_wrong, pc.is_in(_counted(len(ops)), at.filter(pc.not_equal(*found))))
        if pc.any(is_wrong).as_py():
            raise ValueError(
                f"position {changes['_position'][pc.index(is_wrong, True).as_py()]}: two rows have the same key "
                f"({listed(self.key)}), which is not unique any more, or not before a transaction ends (a deferrable "
                "key): leave out key, or name all columns in it, so that rows are found by all of them, and make net "
                "changes of earlier changes apart"
            )

    def _untold(self, changes: pa.RecordBatch, told: Collection[str]) -> dict[str, Any]:
        """For each column, the changes that do not tell it, as a memoryview of ascending int64."""
        found: dict[str, Any] = {}
        unchanged = changes["_unchanged"]
        names = unchanged.flatten()
        if len(names):
            names = names.dictionary_encode()
            rows = pc.list_parent_indices(unchanged).cast(pa.int64())
            groups, places = grouped(values_of(names.indices), memoryview(_up_to(len(names.dictionary))).cast("i"))
            for number, start, end in groups:
                at = pa.Array.from_buffers(pa.int64(), end - start, [None, places], offset=start)
                name = names.dictionary[number].as_py()
                found[name] = values_of(rows.take(at))
                if name in self.key:
                    raise ValueError(
                        f"position {changes['_position'][found[name][0]]}: the change does not tell the key: {name} is "
                        "an unchanged TOAST value without an old one"
                    )
        every = [name for name in self.fields if name not in told]
        found |= dict.fromkeys(every, memoryview(counted(0, len(unchanged))).cast("q") if every else None)
        return found

    # -- versions of the table -----------------------------------------------------------------------------------------

    def forget(self, name: str) -> None:
        """Note that no change tells the values that a column has now."""
        self._set_places(name, _UNKNOWN)

    def alter(self, name: str, change: TypeChange) -> None:
        """Keep the values of a column outside the key if PostgreSQL does when its type changes; else forget them."""
        if change.is_kept and change.is_same_text:
            return
        at = len(self._about) + [*self.fields].index(name)
        columns = [pa.chunked_array([batch.column(at)]) for batch in self._batches]
        if name in self._missing:
            columns.append(pa.chunked_array([pa.array([self._missing[name].as_py()], self.fields[name].type)]))
        found = [one_array(change.converted(column)) for column in columns] if change.is_kept else []
        if not change.is_kept or any(a.null_count > b.null_count for a, b in zip(found, columns, strict=True)):
            self.forget(name)
            return
        if name in self._missing:
            self._missing[name] = found.pop()[0]
        self._batches = [
            batch.set_column(at, batch.schema.field(at), column)
            for batch, column in zip(self._batches, found, strict=True)
        ]

    def set_missing(self, name: str, value: pa.Scalar | None) -> None:
        """Let all rows so far have a value of a column that was added. None is an unknown value."""
        if value is None:
            self.forget(name)
            return
        self._missing[name] = value
        self._set_places(name, _MISSING)

    def _set_places(self, name: str, code: int) -> None:
        codes = pa.repeat(pa.scalar(code, pa.int64()), len(self._tracker))
        self._places[name] = ValuePlaces(values_of(codes))

    def rename(self, names: Mapping[str, str], fields: Fields) -> None:
        """Give columns other names, types that have all values, and add columns."""
        self.key = tuple(names.get(name, name) for name in self.key)
        self._places = {names.get(name, name): places for name, places in self._places.items()}
        self._missing = {names.get(name, name): value for name, value in self._missing.items()}
        former = {names.get(name, name): item for name, item in self.fields.items()}
        keys = self._keys.schema
        self._keys.rename([names.get(name, name) for name in keys.names])
        if not len(self._tracker):
            self.fields = dict(fields)
            self.clear()
            return
        for name in fields:
            if name not in former:
                self.forget(name)
        rows = pa.Table.from_batches(self._batches, self._stored_schema())
        rows = rows.rename_columns([names.get(name, name) for name in rows.column_names])
        columns = [rows[name] for name in self._about]
        for name, item in fields.items():
            if name in former:
                columns.append(converted(rows[name], item.type))
            else:
                columns.append(null_array(len(rows), item.type))
        self.fields = dict(fields)
        self._batches = pa.table(columns, schema=self._stored_schema()).to_batches()
        if any(former[name].type != fields[name].type for name in self.key):
            self.identify(self.key, {}, -1, is_unique=self.is_unique)

    def identify(
        self,
        key: Sequence[str],
        changes: Mapping[str, TypeChange],
        position: int,
        *,
        is_unique: bool,
        added: Collection[str] = (),
    ) -> None:
        """Find rows by another key, or after the types of columns of the key have changed.

        Columns that were added may have the names of columns that the former key had. A row whose key is partly unknown
        is found by the other columns.
        """
        if not len(self):
            self.key, self.is_unique = tuple(key), is_unique
            self.clear()
            return
        rows = self._ordered()
        own, before, change, state = (column.take(rows) for column in self._columns())
        is_as_loaded = pc.and_(pc.less(change, self._tracker.n_loaded), pc.equal(state, LIVE))
        loaded = pc.if_else(is_as_loaded, rows, None)
        self._converted = {name: pc.fill_null(found.take(loaded), False) for name, found in self._converted.items()}
        former, keys = {*self.key} - {*added}, self._keys
        is_before = pc.greater_equal(before, 0)
        of_before = keys.values(pc.if_else(is_before, before, None))
        is_deleted = pc.equal(state, DELETED)
        of_own = keys.values(pc.if_else(is_deleted, None, own))
        self._take(rows)
        own_columns, before_columns = [], []
        is_unknown = {name: self._is_unknown(name) for name in key if name in self._places}
        for name in key:
            kind = self.fields[name].type
            if name in former:
                columns = [converted(table[name], kind) for table in (of_own, of_before)]
                if name in changes:
                    columns = self._altered(name, changes[name], columns, is_unknown, position)
            else:
                missing = self._missing.get(name)
                values = self._batches[0][name], null_array(len(rows), kind)
                if missing is not None:
                    values = values[0], pa.repeat(missing, len(rows))
                columns = [pa.chunked_array([items]) for items in values]
            own_columns.append(one_array(columns[0]))
            before_columns.append(one_array(columns[1]))
        values = self._batches[0].columns
        for name, column in zip(key, own_columns, strict=True):
            at = self._batches[0].schema.get_field_index(name)
            values[at] = pc.if_else(is_deleted, values[at], column)
        self._store(values)
        self.key, self.is_unique = tuple(key), is_unique
        self._keys = KeyNumbers([self.fields[name] for name in key])
        self._tracker = RowTracker(is_unique, self._has_before)
        new_own = self._keys.numbered(own_columns, len(rows))
        new_before = self._keys.numbered(before_columns, len(rows))
        new_before = pc.if_else(is_before, new_before, pa.scalar(-1, pa.int32()))
        is_live = pc.invert(is_deleted)
        unknown = {name: found for name, found in is_unknown.items() if pc.any(found).as_py()}
        is_converted = {name: found for name, found in self._converted.items() if name in key}
        self._others = OtherKeys(
            key, own_columns, is_live, unknown, is_converted, is_unique=is_unique, tracker=self._tracker
        )
        is_keyed = bytearray(b"\1") * len(rows)
        for row in self._others.unkeyed:
            is_keyed[row] = 0
        for name, found in unknown.items():
            self._note_unknown(name, found)
        self._tracker.load(values_of(new_own), values_of(new_before), values_of(state), is_keyed, len(self._keys))

    def _altered(
        self,
        name: str,
        change: TypeChange,
        columns: Sequence[pa.ChunkedArray],
        is_unknown: dict[str, pa.Array],
        position: int,
    ) -> list[pa.ChunkedArray]:
        """Convert the keys of rows, now and before all changes, as PostgreSQL does without USING."""
        own, before = columns
        found = [change.converted(own), change.converted(before)] if change.is_certain else None
        if found is None or found[1].null_count > before.null_count:
            if before.null_count < len(before):
                raise ValueError(
                    f"position {position}: the type of column {name!r} of the key is another from here on, and its "
                    "former values are not certain: make net changes of the changes before and after it apart"
                )
            if found is None:
                found = [pa.chunked_array([null_array(len(own), own.type)]), before]
        is_lost = one_array(pc.and_(found[0].is_null(), own.is_valid()))
        if pc.any(is_lost).as_py():
            is_unknown[name] = pc.or_(is_unknown[name], is_lost) if name in is_unknown else is_lost
        if not change.is_kept and not change.is_same_number:
            self._converted[name] = one_array(own.is_valid())
        return found

    def _note_unknown(self, name: str, is_unknown: pa.Array) -> None:
        """Note that the values of a column are unknown in some of the rows that `_take` has kept."""
        codes = self._codes(name) if name in self._places else _counted(len(is_unknown))
        self._places[name] = ValuePlaces(values_of(pc.if_else(is_unknown, pa.scalar(_UNKNOWN, pa.int64()), codes)))

    # -- the values of rows --------------------------------------------------------------------------------------------

    def _columns(self) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        """For each row: its key, the key before all changes or -1, its last change, and its state."""
        kinds = (pa.int32(), pa.int32(), pa.int64(), pa.uint8())
        found = zip(kinds, self._tracker.columns(), strict=True)
        own, before, change, state = (
            pa.Array.from_buffers(kind, len(self._tracker), [None, buffer]) for kind, buffer in found
        )
        return own, before, change, state

    def _codes(self, name: str) -> pa.Array:
        """For each row, the change with its value of a column that some changes do not tell."""
        codes = self._places[name].column()
        return pa.Array.from_buffers(pa.int64(), codes.size // 8, [None, codes])

    def _is_unknown(self, name: str) -> pa.Array:
        return pc.equal(self._codes(name), _UNKNOWN)

    def _values(self, name: str, rows: pa.Array, change: pa.Array) -> pa.Array | pa.ChunkedArray:
        """Collect the values of a column in rows, whose last changes are `change`."""
        codes = self._codes(name).take(rows) if name in self._places else change
        values = pa.chunked_array([batch[name] for batch in self._batches], self._field(name).type)
        if name not in self._places and len(change) == len(values) and _is_counted(change):
            return values
        if len(self._batches) > 1:
            values = values.combine_chunks()
        found = one_array(values.take(unless_negative(codes) if name in self._places else codes))
        if name in self._places and name in self._missing:
            found = pc.if_else(pc.fill_null(pc.equal(codes, _MISSING), False), self._missing[name], found)
        return found

    def _field(self, name: str) -> pa.Field:
        return self.fields[name] if name in self.fields else self._about[name]

    def _take(self, rows: pa.Array) -> None:
        """Keep the values of some rows, and forget all changes."""
        change = self._columns()[2].take(rows)
        columns, places = [], {}
        for name in (*self._about, *self.fields):
            columns.append(one_array(self._values(name, rows, change)))
            if name in self._places:
                codes = self._codes(name).take(rows)
                if pc.any(pc.less(codes, 0)).as_py():
                    codes = pc.if_else(pc.less(codes, 0), codes, _counted(len(codes)))
                    places[name] = ValuePlaces(values_of(codes))
        self._places = places
        self._store(columns)

    def _store(self, columns: Sequence[pa.Array]) -> None:
        """Keep the values of rows, with the number of the row as that of its last change."""
        self._batches = [pa.RecordBatch.from_arrays([*columns], schema=self._stored_schema())]
        self._n_changes = len(self._batches[0])
        self._n_bytes = self._n_bytes_needed = self._batches[0].nbytes

    def _compact(self) -> None:
        """Forget changes, and keys, that no row needs any more."""
        n_rows = len(self._tracker)
        if self._tracker.n_gone > _FEW_ROWS + n_rows // 2 or len(self._keys) > _FEW_ROWS + 4 * n_rows:
            self.identify(self.key, {}, -1, is_unique=self.is_unique)
            return
        needed = NeededChanges(self._n_changes)
        self._tracker.mark(needed)
        state = values_of(self._columns()[3]) if self._places else None
        for places in self._places.values():
            places.mark(state, needed)
        needed.count()
        self._tracker.move(needed)
        for places in self._places.values():
            places.move(needed)
        mask = pa.Array.from_buffers(pa.bool_(), self._n_changes, [None, needed.bitmap()])
        kept, first = [], 0
        for batch in self._batches:
            kept.append(batch.filter(mask.slice(first, len(batch))))
            first += len(batch)
        rows = (
            table_of([batch for batch in kept if len(batch)])
            if any(map(len, kept))
            else self._stored_schema().empty_table()
        )
        self._batches = rows.to_batches()
        self._n_changes = len(rows)
        self._n_bytes = self._n_bytes_needed = rows.nbytes

    def _stored_schema(self) -> pa.Schema:
        return pa.schema([*self._about.values(), *self.fields.values()])

    def _ordered(self) -> pa.Array:
        """List the rows that are not gone, in the order of their last changes."""
        ordered = self._tracker.in_order(self._n_changes)
        return pa.Array.from_buffers(pa.int32(), ordered.size // 4, [None, ordered])

    def live_table(self, labels: Mapping[str, str]) -> tuple[pa.Table, pa.Array]:
        """Return the rows that are there: the columns about their last changes, and some of the table; and `_unknown`.

        `labels` has these columns, and the name of each in `_unknown`, whose lists are sorted. The table may have a
        column `_unknown`, too.
        """
        self._compact()
        rows = self._ordered()
        _, _, change, state = (column.take(rows) for column in self._columns())
        is_live = pc.equal(state, LIVE)
        if not pc.all(is_live).as_py():
            rows, change, is_live = rows.filter(is_live), change.filter(is_live), is_live.filter(is_live)
        fields = [*self._about.values(), *(self.fields[name] for name in labels)]
        columns = [self._values(item.name, rows, change) for item in fields]
        unknown = self._unknown(dict(sorted(labels.items(), key=lambda item: item[1])), rows, is_live)
        return pa.table(columns, schema=pa.schema(fields)), unknown

    def net_table(self, names: Sequence[str], schema: pa.Schema, truncate: pa.RecordBatch | None) -> pa.Table:
        """Return the net changes with some columns of the table. `schema` is that of the changes."""
        schema = schema_with_key([self.fields[name] for name in names], self.key, schema)
        self._compact()
        rows = self._ordered()
        _, before, change, state = (column.take(rows) for column in self._columns())
        before, is_live = unless_negative(before), pc.equal(state, LIVE)
        is_deleted = pc.invert(is_live) if not pc.all(is_live).as_py() else None
        keys = self._keys.values(before) if before.null_count < len(before) else self._keys.schema.empty_table()
        kind = schema.field("_key_before").type
        parts = [
            one_array(converted(keys[item.name], item.type)) if len(keys) else null_array(len(rows), item.type)
            for item in kind
        ]
        struct = pa.StructArray.from_arrays(parts, fields=list(kind), mask=before.is_null())
        columns = [
            pc.if_else(is_live, "upsert", "delete"),
            struct,
            self._unknown({name: name for name in names}, rows, is_live),
        ]
        columns += (self._values(name, rows, change) for name in self._about)
        for name in names:
            values = self._values(name, rows, change)
            if is_deleted is not None:
                other = struct.field(self.key.index(name)) if name in self.key else pa.scalar(None, values.type)
                values = pc.if_else(is_deleted, other, values)
            columns.append(values)
        found = pa.table(columns, schema=schema)
        positions = found["_position"]
        if not pc.all(pc.less_equal(positions[:-1], positions[1:])).as_py():
            found = found.take(pc.sort_indices(positions))
        if truncate is None:
            return found
        nulls = {item.name: pa.nulls(1, item.type) for item in schema}
        nulls |= {"_action": pa.array(["truncate"]), UNKNOWN.name: pa.array([[]], UNKNOWN.type)}
        nulls |= {name: truncate[name] for name in self._about}
        return pa.concat_tables([pa.table([*nulls.values()], schema=schema), found])

    def _unknown(self, labels: Mapping[str, str], rows: pa.Array, is_live: pa.Array) -> pa.Array:
        """List the unknown columns of rows, by their labels."""
        lists: list[list[str]] = [[]]
        codes = pa.repeat(pa.scalar(0, pa.int32()), len(rows))
        for name, label in labels.items():
            if name in self._places:
                is_unknown = pc.and_(self._is_unknown(name).take(rows), is_live)
                pairs = pc.add(pc.multiply(codes, 2), is_unknown.cast(pa.int32())).dictionary_encode()
                lists = [lists[pair // 2] + [label] * (pair % 2) for pair in pairs.dictionary.to_pylist()]
                codes = pairs.indices
        return pa.array(lists, UNKNOWN.type).take(codes)


class OtherKeys:
    """Rows whose key is partly unknown, or was converted to another type.

    Parameters
    ----------
    key : sequence of str
    columns : sequence of pa.Array
        The keys of all rows.
    is_live : pa.Array
        Whether each row is there.
    is_unknown, is_converted : mapping of str to pa.Array
        For columns of the key, whether each row's value is.
    is_unique : bool
    tracker : RowTracker
        Has these rows.
    """

    def __init__(
        self,
        key: Sequence[str] = (),
        columns: Sequence[pa.Array] = (),
        is_live: Iterable[Any] = (),
        is_unknown: Mapping[str, pa.Array] | None = None,
        is_converted: Mapping[str, pa.Array] | None = None,
        *,
        is_unique: bool = False,
        tracker: RowTracker | None = None,
    ) -> None:
        self.key, self.is_unique = key, is_unique
        # Without rows, it is false.
        self.tracker = RowTracker(is_unique) if tracker is None else tracker
        # By the columns that are not certain, and by the values of the others: the rows.
        self._unknown: dict[frozenset[str], dict[Any, list[int]]] = {}
        self._converted: dict[frozenset[str], dict[Any, list[int]]] = {}
        self.unkeyed: list[int] = []
        self._next_keys: Callable[[], pa.Table] = lambda: pa.table({})
        self._positions: pa.Array = []
        self._wanted: list[tuple[Any, ...]] | None = None
        is_unknown = {name: found.to_pylist() for name, found in (is_unknown or {}).items() if pc.any(found).as_py()}
        is_converted = {name: found.to_pylist() for name, found in (is_converted or {}).items()}
        if not is_unknown and not is_converted:
            return
        values = zipped([plain_values(column) for column in columns], len(columns[0]))
        for row, (value, live) in enumerate(zip(values, pa.array(is_live).to_pylist(), strict=True)):
            unknown = frozenset(name for name, found in is_unknown.items() if found[row])
            other = unknown.union(name for name, found in is_converted.items() if found[row])
            if live and unknown:
                self.unkeyed.append(row)
                self._unknown.setdefault(unknown, defaultdict(list))[self._known(value, unknown)].append(row)
            if live and other > unknown:
                self._converted.setdefault(other, defaultdict(list))[self._known(value, other)].append(row)

    def __bool__(self) -> bool:
        return bool(self._unknown or self._converted)

    def _known(self, value: Sequence[Any], unknown: Collection[str]) -> tuple[Any, ...]:
        return tuple(item for name, item in zip(self.key, value, strict=True) if name not in unknown)

    def begin(self, keys: KeyNumbers, removed: pa.Array, positions: pa.Array) -> None:
        """Note the keys of the rows that the next changes remove."""
        self._next_keys, self._wanted, self._positions = lambda: keys.values(removed), None, positions

    def find(self, at: int) -> int:
        """Remove and return the row that a change may refer to, or return -1.

        Raises
        ------
        ValueError
            If it may refer to several rows.
        """
        if self._wanted is None:
            values = self._next_keys()
            self._wanted = zipped([plain_values(column) for column in values.columns], len(values))
        wanted, position = self._wanted[at], self._positions[at]
        found = [(unknown, rows[self._known(wanted, unknown)]) for unknown, rows in self._unknown.items()]
        found = [(unknown, rows) for unknown, rows in found if rows]
        if (self.is_unique and found) or len(found) > 1:
            name = min(name for unknown, _ in found for name in unknown)
            raise ValueError(
                f"position {position}: the changed row is not found by its replica identity: column {name!r} is "
                f"unknown in {sum(len(rows) for _, rows in found)} rows, which were written before it was added, "
                "renamed or altered"
            )
        if found:
            return found[0][1].pop()
        for names, rows in self._converted.items():
            n = sum(map(self.tracker.is_as_loaded, rows[self._known(wanted, names)]))
            if n:
                raise ValueError(
                    f"position {position}: the changed row is not found by its replica identity: column "
                    f"{min(names)!r} was written with another type in {n} rows, and ALTER COLUMN ... TYPE ... "
                    "USING may have computed other values"
                )
        return -1


def codes_of(changes: pa.RecordBatch) -> pa.Array:
    """Return what each change does: the codes of its `_op`."""
    op = changes["_op"]
    _, offsets, values = op.buffers()
    return pa.Array.from_buffers(pa.uint8(), len(op), [None, op_codes(len(op), offsets, values, op.offset)])


def converted(values: pa.ChunkedArray | pa.Array, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """Convert values to a type that has all of them."""
    if values.type == kind:
        return values
    if pa.types.is_boolean(values.type) and pa.types.is_string(kind):
        return pc.if_else(values, "t", "f")
    return values.cast(kind)


def one_array(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    if isinstance(values, pa.Array):
        return values
    if values.num_chunks == 1:
        return values.chunk(0)
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)


def _is_counted(values: pa.Array) -> bool:
    return len(values) == 0 or bool(pc.all(pc.equal(values, _counted(len(values)))).as_py())


def _counted(n: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), n, [None, counted(0, n)])


def _up_to(n: int) -> bytes:
    return array("i", range(n)).tobytes()
