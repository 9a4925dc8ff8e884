"""Net changes of a table: one row for each row that the changes touched, as it is after them."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgdecode.arrow.batch_sizes import table_of
from pgdecode.arrow.null_arrays import null_array
from pgdecode.changes.table_rows import META, META_BEHIND
from pgdecode.net.fold import DELETE, DELETED, GONE, INSERT, LIVE, UPDATE, KeyNumbers, RowTracker
from pgdecode.net.history import TableHistory
from pgdecode.net.schema import ABOUT, UNKNOWN, key_of, schema_with_key
from pgdecode.protocol.errors import listed
from pgdecode.relations.schema_metadata import described_in
from pgdecode.rows.own_names import OWN_NAMES
from pgdecode.types.type_changes import TypeChange

# How many changes, or bytes of them, to apply at once. Each time takes as long as all rows that were touched.
_CHANGES = 1 << 18
_BYTES = 1 << 26
# The value of a column is in no change; it is the one that PostgreSQL has for rows from before the column was added.
_UNKNOWN, _MISSING = -1, -2
_OPS = {"insert": INSERT, "update": UPDATE, "delete": DELETE}
_NEEDED = pa.schema(
    [(name, kind) for name, kind in (*META, *META_BEHIND) if name in {"_op", "_old_type", "_unchanged", "_error"}]
)


def net_changes(changes: Any, *, key: Sequence[str] | None = None) -> pa.Table:
    """Fold the changes of a table into one row for each row that they touched, as it is after them.

    Parameters
    ----------
    changes : table, record batch, stream of batches, path of a Parquet file, or an iterable of these
        What `ChangeDecoder.table` returns, in order.
    key : sequence of str, optional
        The columns that tell the rows of the table apart, such as the primary key, if the replica identity is FULL. By
        default they are the columns of the replica identity, or with FULL, all columns: then rows may be equal.

    Returns
    -------
    pa.Table
        The columns of `net_schema`, ascending by `_position`, that of the last change of the row. `_action` is

        - "upsert": the row is there. `_key_before` has the key that it had before the changes, null if they inserted
          it. `_unknown` lists the columns that no change told: TOAST values that did not change, and columns that were
          added or altered later. They are null here.
        - "delete": the row with `_key_before` is not there any more. Columns outside the key are null.
        - "truncate": the first row, if the table was truncated. Changes from before it are left out.

        A row that was inserted and deleted is left out.

    Raises
    ------
    ValueError
        If the key is not known, or a change does not tell it; if a change has an error; if changes are not in order; if
        the key, its type or the table itself becomes another one between changes, so that rows cannot be followed.

    Notes
    -----
    To apply net changes to a table: empty it if the first row is a truncate. Remove the rows with the keys in
    `_key_before`, and, to be safe, those with the keys of upserts. Then add the upserts, with unknown columns from the
    removed row of `_key_before`.

    Examples
    --------
    >>> capture = pq.read_table("tests/data/16.shop.v1.parquet")
    >>> changes = pgdecode.ChangeDecoder().table(capture["data"], "public.products", capture["seq"])
    >>> net = pgdecode.net_changes(changes)
    >>> len(changes), len(net), net.select(["_action", "_key_before", "sku"]).slice(0, 1).to_pylist()
    (96, 60, [{'_action': 'upsert', '_key_before': None, 'sku': 'SKU-00001'}])
    """
    found = NetChanges(key)
    for batch in _batches(changes):
        found.add(batch)
    return found.table()


class NetChanges:
    """Folds the changes of a table batch by batch, as `net_changes` does at once.

    It needs memory for the keys that the changes touched, not for all changes.

    Parameters
    ----------
    key : sequence of str, optional
        As in `net_changes`.

    Examples
    --------
    >>> capture = pq.read_table("tests/data/16.shop.v1.parquet")
    >>> decoder, net = pgdecode.ChangeDecoder(), pgdecode.NetChanges(key=["id"])
    >>> for part in (capture.slice(0, 500), capture.slice(500)):
    ...     net.add(decoder.table(part["data"], "public.orders", part["seq"]))
    >>> net.table().num_rows
    114
    """

    def __init__(self, key: Sequence[str] | None = None) -> None:
        if isinstance(key, str):
            raise TypeError(f"key is a sequence of columns' names: pass key=[{key!r}]")
        self._given_key = None if key is None else tuple(key)
        self._schema: pa.Schema | None = None  # of the last batch, with the names that its columns have now
        self._sent_schema: pa.Schema | None = None
        self._history = TableHistory()
        self._version = -1  # the number of the last version that a change used
        self._key: tuple[str, ...] = ()
        self._is_unique = False
        self._fields: dict[str, pa.Field] = {}  # of the table's columns, by their last names
        self._waiting: list[pa.RecordBatch] = []
        self._n_waiting = self._bytes_waiting = 0
        self._last = (-1, -1)
        self._truncate: pa.Table | None = None
        self._missing: dict[str, pa.Scalar] = {}
        self._clear()

    def _clear(self) -> None:
        self._keys = KeyNumbers([self._fields[name] for name in self._key])
        self._tracker = RowTracker(self._is_unique)
        self._rows = pa.schema([*ABOUT, *self._fields.values()]).empty_table()
        # For columns that a change has not told: the change with the value of each row.
        self._changes_of: dict[str, array[int]] = {}

    def add(self, changes: Any) -> None:
        """Add the next changes.

        Parameters
        ----------
        changes
            As in `net_changes`.
        """
        for batch in _batches(changes):
            self._add(batch)

    def table(self) -> pa.Table:
        """Return the net changes so far.

        Returns
        -------
        pa.Table
            As `net_changes` returns it.

        Raises
        ------
        ValueError
            If there were no batches, so that the columns are not known.
        """
        self._apply_waiting()
        if self._schema is None:
            raise ValueError("there are no changes: pass at least one batch, which may have no rows, for its columns")
        if self._history.versions:
            self._advance(len(self._history.versions) - 1)
        return self._net_table()

    # -- input ---------------------------------------------------------------------------------------------------------

    def _add(self, batch: pa.RecordBatch) -> None:
        if self._sent_schema is None or not batch.schema.equals(self._sent_schema, check_metadata=True):
            self._apply_waiting()
            self._adopt(batch.schema)
        if not len(batch):
            return
        self._waiting.append(batch)
        self._n_waiting += len(batch)
        self._bytes_waiting += batch.nbytes
        if self._n_waiting >= max(_CHANGES, len(self._tracker)) or self._bytes_waiting >= max(
            _BYTES, self._rows.nbytes
        ):
            self._apply_waiting()

    def _adopt(self, schema: pa.Schema) -> None:
        """Follow the table to the columns of another schema."""
        _check_columns(schema)
        described = described_in(schema)
        history = self._history.with_versions(described)
        own = TableHistory(*described).last_names(history)
        former = self._history.last_names(history)
        if self._version >= 0:
            [self._version] = [
                at for at, item in enumerate(history.versions) if item == self._history.versions[self._version]
            ] or [0]
        names = {**_by_number(self._fields, schema), **former}
        self._history, self._sent_schema = history, schema
        self._schema = pa.schema(
            [item.with_name(own.get(item.name, item.name)) for item in schema], metadata=schema.metadata
        )
        key = key_of(self._schema, self._given_key)
        fields = {names.get(name, name): item for name, item in self._fields.items()}
        added = {item.name: item for item in self._schema if item.name not in OWN_NAMES}
        if not self._key:
            self._key = key
            self._is_unique = self._given_key is not None or len(key) < len(added)
            self._fields = added
            self._clear()
            return
        self._key = tuple(names.get(name, name) for name in self._key)
        self._convert(
            names, {name: added.get(name, item.with_name(name)) for name, item in {**fields, **added}.items()}
        )

    def _convert(self, names: Mapping[str, str], fields: dict[str, pa.Field]) -> None:
        """Give the rows so far the names and types of other fields."""
        self._changes_of = {names.get(name, name): changes for name, changes in self._changes_of.items()}
        self._missing = {names.get(name, name): value for name, value in self._missing.items()}
        rows = self._rows.rename_columns([names.get(name, name) for name in self._rows.column_names])
        columns = {item.name: rows[item.name] for item in ABOUT}
        for name, item in fields.items():
            if name not in rows.column_names:
                columns[name] = pa.chunked_array([null_array(len(rows), item.type)])
                self._changes_of[name] = array("q", [_UNKNOWN]) * len(self._tracker)
            elif rows[name].type != item.type:
                columns[name] = self._as_type(name, rows[name], item.type)
            else:
                columns[name] = rows[name]
        self._keys.convert([names.get(item.name, item.name) for item in self._keys.schema], fields)
        self._fields = fields
        self._rows = pa.table(list(columns.values()), schema=pa.schema([*ABOUT, *fields.values()]))

    def _as_type(self, name: str, values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
        return _converted(values, kind)

    # -- changes -------------------------------------------------------------------------------------------------------

    def _apply_waiting(self) -> None:
        if not self._waiting or self._schema is None:
            return
        changes = table_of(self._waiting).rename_columns(self._schema.names)
        self._waiting, self._n_waiting, self._bytes_waiting = [], 0, 0
        self._check(changes)
        truncates = pc.indices_nonzero(pc.equal(changes["_op"], "truncate"))
        if len(truncates):
            at = truncates[-1].as_py()
            self._truncate = changes.slice(at, 1).select([item.name for item in ABOUT])
            self._clear()
            changes = changes.slice(at + 1)
        if not self._history.versions:
            self._apply(changes, None)
            return
        for first, n, version in self._history.runs(changes["_position"]) if len(changes) else ():
            self._advance(version)
            self._apply(changes.slice(first, n), version)
        if len(self._rows) > 2 * len(self._tracker) + _CHANGES or self._rows.nbytes > 4 * _BYTES:
            self._compact()

    def _check(self, changes: pa.Table) -> None:
        """Check that changes are good and in order."""
        errors = pc.indices_nonzero(pc.or_kleene(changes["_error"].is_valid(), changes["_op"].is_null()))
        if len(errors):
            position = changes["_position"][errors[0].as_py()]
            raise ValueError(f"position {position}: the change has an error: decode with mode='FAILFAST' to see it")
        commits, positions = changes["_commit_position"].combine_chunks(), changes["_position"].combine_chunks()
        last = pa.array([self._last[0]]), pa.array([self._last[1]])
        before, at = pa.concat_arrays([last[0], commits[:-1]]), pa.concat_arrays([last[1], positions[:-1]])
        is_behind = pc.or_(pc.less(commits, before), pc.and_(pc.equal(commits, before), pc.less_equal(positions, at)))
        if pc.any(is_behind).as_py():
            position = positions[pc.index(is_behind, True).as_py()]
            raise ValueError(f"position {position}: changes are not in the order of _commit_position and _position")
        self._last = commits[-1].as_py(), positions[-1].as_py()

    def _apply(self, changes: pa.Table, version: int | None) -> None:
        """Apply changes of one version."""
        n = len(changes)
        if not n:
            return
        ops = [_OPS[op] for op in changes["_op"].to_pylist()]
        unchanged = changes["_unchanged"].combine_chunks()
        told = set(self._fields) if version is None else set(self._history.columns(version))
        self._check_key(changes, version, told)
        own = self._keys.numbered([changes[name] for name in self._key], n)
        removed = array("i", own)
        is_moved = pc.and_(pc.equal(changes["_op"], "update"), changes["_old_type"].is_valid())
        moved = pc.indices_nonzero(is_moved)
        if len(moved):
            columns = [pc.struct_field(changes["_old"], name).take(moved) for name in self._key]
            for row, number in zip(moved.to_pylist(), self._keys.numbered(columns, len(moved)), strict=True):
                removed[row] = number
        self._tracker.reserve(len(self._keys))
        missing: dict[str, Collection[int]] = {}
        parents = pc.list_parent_indices(unchanged).to_pylist()
        for name, row in zip(unchanged.flatten().to_pylist(), parents, strict=True):
            missing[name] = {*missing.get(name, ()), row}
        missing.update((name, range(n)) for name in self._fields if name not in told)
        for name in missing:
            if name not in self._changes_of:
                self._changes_of[name] = array("q", self._tracker.change)
        first = len(self._rows)
        rows = self._tracker.apply(ops, own, removed, first)
        for name, changes_of in self._changes_of.items():
            changes_of.extend([_UNKNOWN] * (len(self._tracker) - len(changes_of)))
            untold = missing.get(name, ())
            for at, row in enumerate(rows):
                if ops[at] != DELETE and at not in untold:
                    changes_of[row] = first + at
        self._rows = pa.concat_tables([self._rows, changes.select(self._rows.column_names).cast(self._rows.schema)])

    def _check_key(self, changes: pa.Table, version: int | None, told: set[str]) -> None:
        """Check that changes tell the key, before and after them."""
        unsent = pc.is_in(pc.list_flatten(changes["_unchanged"]), pa.array(self._key, pa.string()))
        if pc.any(unsent).as_py():
            lists = changes["_unchanged"].combine_chunks()
            at = pc.list_parent_indices(lists)[pc.index(unsent, True).as_py()].as_py()
            raise ValueError(
                f"position {changes['_position'][at]}: the change does not tell the key: one of {listed(self._key)} is "
                "an unchanged TOAST value without an old one"
            )
        absent = [name for name in self._key if name not in told]
        if absent:
            raise ValueError(
                f"position {changes['_position'][0]}: the change does not tell column {absent[0]!r} of the key"
            )
        if self._given_key is None:
            return
        identity, is_unique = self._history.key(version) if version is not None else ((), False)
        if is_unique and set(identity) == set(self._key):
            return
        without = pc.and_(
            pc.not_equal(changes["_op"], "insert"), pc.not_equal(pc.fill_null(changes["_old_type"], ""), "O")
        )
        if pc.any(without).as_py():
            at = pc.index(without, True).as_py()
            raise ValueError(
                f"position {changes['_position'][at]}: the change does not tell the former values of the key "
                f"{listed(self._key)}, which is not the replica identity: use the replica identity as the key, or "
                "ALTER TABLE ... REPLICA IDENTITY FULL"
            )

    # -- versions ------------------------------------------------------------------------------------------------------

    def _advance(self, version: int) -> None:
        """Follow the rows so far to a later version of the table."""
        first, self._version = self._version, max(version, self._version)
        if first < 0:
            self._identify(version, {})
            return
        for at in range(first + 1, version + 1):
            before, after = self._history.versions[at - 1 : at + 1]
            if len(self._tracker) and before.relation_id != after.relation_id:
                raise ValueError(
                    f"position {after.position}: the table is another one from here on (OID {after.relation_id}, "
                    f"before {before.relation_id}): make net changes of the changes before and after it apart"
                )
            changes = self._history.type_changes(at - 1, at)
            for name, change in changes.items():
                if name not in self._key and not change.is_kept:
                    self._forget(name)
            self._identify(at, {name: change for name, change in changes.items() if name in self._key})

    def _forget(self, name: str, code: int = _UNKNOWN) -> None:
        """Note that no change tells the values of a column in the rows so far."""
        self._changes_of[name] = array("q", [code]) * len(self._tracker)

    def _identify(self, version: int, changes: Mapping[str, TypeChange]) -> None:
        """Find rows by the key of a version."""
        key, is_unique = self._history.key(version)
        if self._given_key is not None:
            key, is_unique = self._given_key, True
        elif self._is_unique and not is_unique and len(self._tracker) and {*self._key} <= {*key}:
            key, is_unique = self._key, True  # a whole row has the former key, too
        if key == self._key and is_unique == self._is_unique and all(item.is_same_text for item in changes.values()):
            return
        if not len(self._tracker):
            self._key, self._is_unique = key, is_unique
            self._clear()
            return
        position = self._history.versions[version].position
        for name, change in changes.items():
            if not change.is_certain:
                raise ValueError(
                    f"position {position}: the type of column {name!r} of the key changes from here on, and its former "
                    "values are not certain: make net changes of the changes before and after it apart"
                )
        self._compact(key, is_unique, changes, position)

    # -- the result ----------------------------------------------------------------------------------------------------

    def _compact(
        self,
        key: tuple[str, ...] | None = None,
        is_unique: bool | None = None,
        changes: Mapping[str, TypeChange] | None = None,
        position: int = -1,
    ) -> None:
        """Forget changes that no row needs any more, and find rows by another key."""
        tracker, keys, changes_of = self._tracker, self._keys, self._changes_of
        rows = [row for row in range(len(tracker)) if tracker.state[row] != GONE]
        key = self._key if key is None else key
        own = keys.values(pa.array([tracker.own[row] for row in rows], pa.int32()))
        is_before = [tracker.before[row] >= 0 for row in rows]
        before = keys.values(pa.array([max(tracker.before[row], 0) for row in rows], pa.int32()))
        if not set(key) <= set(self._key):
            unknown = {name for name in key if name in changes_of and any(changes_of[name][row] < 0 for row in rows)}
            if any(is_before) or unknown:
                raise ValueError(
                    f"position {position}: the key of the table becomes {listed(key)} from here on, and was "
                    f"{listed(self._key)}: make net changes of the changes before and after it apart"
                )
        self._rows = self._taken(rows)
        if not set(key) <= set(self._key):
            own = before = self._rows
        for name, change in (changes or {}).items():
            values = [change.converted(table[name]) for table in (own, before)]
            if any(
                found.null_count > table[name].null_count for found, table in zip(values, (own, before), strict=True)
            ):
                raise ValueError(
                    f"position {position}: the type of column {name!r} of the key changes from here on, and its former "
                    "values are not certain: make net changes of the changes before and after it apart"
                )
            own, before = (
                table.set_column(table.schema.get_field_index(name), table.field(name), found)
                for table, found in zip((own, before), values, strict=True)
            )
            if name in self._rows.column_names:
                at = self._rows.schema.get_field_index(name)
                self._rows = self._rows.set_column(at, self._rows.field(at), change.converted(self._rows[name]))
        self._key, self._is_unique = key, self._is_unique if is_unique is None else is_unique
        self._keys = KeyNumbers([self._fields[name] for name in key])
        self._tracker = RowTracker(self._is_unique)
        own_numbers, before_numbers = (
            self._keys.numbered([table[name] for name in key], len(rows)) for table in (own, before)
        )
        self._tracker.reserve(len(self._keys))
        for at, row in enumerate(rows):
            self._tracker.add(own_numbers[at], before_numbers[at] if is_before[at] else -1, at, tracker.state[row])
        self._changes_of = {
            name: array("q", [at if items[row] >= 0 else items[row] for at, row in enumerate(rows)])
            for name, items in changes_of.items()
        }

    def _taken(self, rows: list[int]) -> pa.Table:
        """Collect the values of rows."""
        tracker = self._tracker
        last = pa.array([tracker.change[row] for row in rows], pa.int64())
        columns = []
        for item in self._rows.schema:
            changes_of, places = self._changes_of.get(item.name), last
            if changes_of is not None:
                found = [changes_of[row] for row in rows]
                places = pa.array([None if change < 0 else change for change in found], pa.int64())
            values = self._rows[item.name].take(places)
            if changes_of is not None and _MISSING in found:
                is_missing = pa.array([change == _MISSING for change in found])
                values = pc.if_else(is_missing, self._missing[item.name], values)
            columns.append(values)
        return pa.table(columns, schema=self._rows.schema)

    def _net_table(self) -> pa.Table:
        tracker = self._tracker
        names = [*self._fields]
        if self._history.versions:
            last = {*self._history.columns(len(self._history.versions) - 1)}
            names = [name for name in names if name in last]
        schema = schema_with_key([self._fields[name] for name in names], self._key, self._schema)
        found = []
        if self._truncate is not None:
            found.append(self._part(schema, "truncate", self._truncate, [], {}))
        for state, action in ((LIVE, "upsert"), (DELETED, "delete")):
            rows = [row for row in range(len(tracker)) if tracker.state[row] == state]
            if state == LIVE:
                values = self._taken(rows)
            else:
                values = self._rows.select([item.name for item in ABOUT]).take(
                    pa.array([tracker.change[row] for row in rows], pa.int64())
                )
            found.append(self._part(schema, action, values, rows, {}))
        table = pa.concat_tables(found)
        return table.take(pc.sort_indices(table["_position"])).combine_chunks()

    def _part(self, schema: pa.Schema, action: str, values: pa.Table, rows: list[int], unknown: Any) -> pa.Table:
        n, tracker = len(values), self._tracker
        before = pa.array([tracker.before[row] if tracker.before[row] >= 0 else None for row in rows], pa.int32())
        keys = self._keys.values(before) if rows else schema.empty_table()
        columns: dict[str, Any] = {"_action": pa.array([action] * n, pa.string())}
        kind = schema.field("_key_before").type
        if rows:
            parts = [keys[item.name].combine_chunks().cast(item.type) for item in kind]
            columns["_key_before"] = pa.StructArray.from_arrays(parts, fields=list(kind), mask=before.is_null())
        else:
            columns["_key_before"] = pa.nulls(n, kind)
        names = schema.names[3 + len(ABOUT) :]
        if action == "upsert":
            lists: list[list[str]] = [[] for _ in rows]
            for name in names:
                for at, row in enumerate(rows if name in self._changes_of else ()):
                    if self._changes_of[name][row] == _UNKNOWN:
                        lists[at].append(name)
            columns[UNKNOWN.name] = pa.array(lists, UNKNOWN.type)
        else:
            columns[UNKNOWN.name] = pa.array([[]] * n, UNKNOWN.type)
        for name in (*(item.name for item in ABOUT), *names):
            if name in values.column_names and (action != "delete" or name not in names):
                columns[name] = values[name]
            elif action == "delete" and name in self._key:
                columns[name] = keys[name]
            else:
                columns[name] = pa.nulls(n, schema.field(name).type)
        return pa.table(columns).cast(schema)


def _check_columns(schema: pa.Schema) -> None:
    missing = [name for name in (*_NEEDED.names, *(item.name for item in ABOUT), "_old") if name not in schema.names]
    if missing:
        raise ValueError(
            f"the columns {listed(map(repr, missing))} are missing: net changes are made of what ChangeDecoder.table "
            "returns, or `pgdecode decode` with a table"
        )


def _by_number(fields: Mapping[str, pa.Field], schema: pa.Schema) -> dict[str, str]:
    """Map names of columns to those in another schema, by the numbers that the server's catalog gives to columns."""
    numbers = {item.metadata[b"pg:attnum"]: item.name for item in schema if b"pg:attnum" in (item.metadata or {})}
    return {
        name: numbers[item.metadata[b"pg:attnum"]]
        for name, item in fields.items()
        if (item.metadata or {}).get(b"pg:attnum") in numbers
    }


def _converted(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_boolean(values.type) and pa.types.is_string(kind):
        return pc.if_else(values, "t", "f")
    return values.cast(kind)


def _batches(changes: Any) -> Iterator[pa.RecordBatch]:
    """Read changes from what the caller passes."""
    if isinstance(changes, pa.RecordBatch):
        yield changes
    elif isinstance(changes, str | Path):
        with pq.ParquetFile(changes) as file:
            schema = file.schema_arrow
            yield pa.RecordBatch.from_pylist([], schema=schema)
            yield from file.iter_batches()
    elif isinstance(changes, pa.Table):
        yield from changes.to_batches() or [pa.RecordBatch.from_pylist([], schema=changes.schema)]
    elif isinstance(changes, pa.RecordBatchReader):
        yield pa.RecordBatch.from_pylist([], schema=changes.schema)
        yield from changes
    elif hasattr(changes, "__arrow_c_stream__"):
        yield from _batches(pa.RecordBatchReader.from_stream(changes))
    elif isinstance(changes, Iterable):
        for item in changes:
            yield from _batches(item)
    else:
        raise TypeError(f"changes is a table, batches or paths of Parquet files, not {type(changes).__name__}")
