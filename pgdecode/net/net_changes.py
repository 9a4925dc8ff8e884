"""Net changes of a table: one row for each row that the changes touched, as it is after them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pgdecode._native.changes.row_tracker import INSERT, NO_CHANGE, TRUNCATE
from pgdecode.arrow.null_arrays import null_array
from pgdecode.changes.table_rows import META, META_BEHIND
from pgdecode.net.history import TableHistory
from pgdecode.net.schema import ABOUT, key_of
from pgdecode.net.table_fold import TableFold
from pgdecode.net.touched_rows import TouchedRows, codes_of, converted
from pgdecode.protocol.errors import listed
from pgdecode.relations.schema_metadata import described_in
from pgdecode.rows.own_names import OWN_NAMES

# How many changes, or bytes of small batches, to apply at once.
_CHANGES = 1 << 15
_BYTES = 1 << 26
_SENT = {name: kind for name, kind in (*META, *META_BEHIND) if name in {"_op", "_old_type", "_unchanged", "_error"}}
_SENT |= {item.name: item.type for item in ABOUT}


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

    If the table was renamed, `ChangeDecoder.table` returns the changes under one name. Pass the OID of the table to it
    to get all changes.

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


class NetChanges(TableFold):
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
        super().__init__(TableHistory())
        self._given_key = None if key is None else tuple(key)
        self._sent_schema: pa.Schema | None = None  # of the last batch
        self._schema = pa.schema([])  # the same with the names that its columns have now
        self._rows: TouchedRows | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._n_waiting = self._waiting_bytes = 0
        self._last = (-1, -1)
        self._truncate: pa.RecordBatch | None = None

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
        rows = self._rows
        if rows is None:
            raise ValueError("there are no changes: pass at least one batch, which may have no rows, for its columns")
        names = [*rows.fields]
        if self._history.versions:
            last = len(self._history.versions) - 1
            self._advance(rows, last)
            names = [name for name in names if name in self._history.columns(last)]
        return rows.net_table(names, self._schema, self._truncate)

    @property
    def nbytes(self) -> int:
        """Bytes of the changes and keys in memory, about. `table` needs as much again."""
        return self._waiting_bytes + (0 if self._rows is None else self._rows.nbytes)

    # -- input ---------------------------------------------------------------------------------------------------------

    def _add(self, batch: pa.RecordBatch) -> None:
        if self._sent_schema is None or not batch.schema.equals(self._sent_schema, check_metadata=True):
            self._apply_waiting()
            self._adopt(batch.schema)
        if len(batch):
            self._waiting.append(_as_sent(batch))
            self._n_waiting += len(batch)
            self._waiting_bytes += self._waiting[-1].nbytes
        if self._n_waiting >= _CHANGES or (len(self._waiting) > 1 and self._waiting_bytes >= _BYTES):
            self._apply_waiting()

    def _adopt(self, schema: pa.Schema) -> None:
        """Follow the table to the columns of another schema."""
        _check_columns(schema)
        described = described_in(schema)
        history = self._history.with_versions(described)
        own = TableHistory(*described).last_names(history)
        names = {} if self._rows is None else _by_number(self._rows.fields, schema)
        names |= self._history.last_names(history)
        if self._version >= 0:
            self._version = history.number_of(self._history.versions[self._version])
        self._history, self._sent_schema = history, schema
        self._schema = pa.schema(
            [item.with_name(own.get(item.name, item.name)) for item in schema], metadata=schema.metadata
        )
        fields = {item.name: item for item in self._schema if item.name not in OWN_NAMES}
        key = key_of(self._schema, self._given_key)
        if self._rows is None:
            is_unique = self._given_key is not None or len(key) < len(fields)
            self._rows = TouchedRows(fields, key, is_unique=is_unique)
            return
        former = {names.get(name, name): item for name, item in self._rows.fields.items()}
        every = {name: fields.get(name) or item.with_name(name) for name, item in {**former, **fields}.items()}
        self._rows.rename(names, every)

    # -- changes -------------------------------------------------------------------------------------------------------

    def _apply_waiting(self) -> None:
        if not self._waiting or self._rows is None:
            return
        changes = self._waiting[0]
        if len(self._waiting) > 1:
            changes = pa.Table.from_batches(self._waiting).combine_chunks().to_batches()[0]
        self._waiting, self._n_waiting, self._waiting_bytes = [], 0, 0
        ops = codes_of(changes)
        self._check(changes, ops)
        rows = self._rows
        changes = changes.rename_columns(self._schema.names)
        truncates = pc.indices_nonzero(pc.equal(ops, TRUNCATE))
        if len(truncates):
            at = truncates[-1].as_py()
            self._truncate = changes.slice(at, 1)
            rows.clear()
            changes, ops = changes.slice(at + 1), ops.slice(at + 1)
        changes = changes.select([name for name in changes.schema.names if name not in ("_op", "_xid", "_error")])
        changes = _with_columns(changes, rows.fields)
        if not self._history.versions:
            is_deferrable = self._check_key(rows, changes, ops, None)
            rows.apply(changes, ops, set(rows.fields), is_deferrable=is_deferrable)
        for first, n, version in self._history.runs(changes["_position"]) if len(changes) else ():
            self._advance(rows, version)
            run = changes.slice(first, n), ops.slice(first, n)
            told = self._told(rows, run[0], version)
            rows.apply(*run, told, is_deferrable=self._check_key(rows, *run, version))

    def _check(self, changes: pa.RecordBatch, ops: pa.Array) -> None:
        """Check that changes are good and in order."""
        commits, positions = changes["_commit_position"], changes["_position"]
        if changes["_error"].null_count < len(changes) or pc.max(ops).as_py() == NO_CHANGE:
            at = pc.index(pc.or_(changes["_error"].is_valid(), pc.equal(ops, NO_CHANGE)), True).as_py()
            raise ValueError(
                f"position {positions[at]}: the change has an error: decode with mode='FAILFAST', or leave it out with "
                "mode='DROPMALFORMED'"
            )
        last_commit, last = (pa.array([value], pa.int64()) for value in self._last)
        before, at = pa.concat_arrays([last_commit, commits[:-1]]), pa.concat_arrays([last, positions[:-1]])
        is_next = pc.or_(pc.greater(commits, before), pc.and_(pc.equal(commits, before), pc.greater(positions, at)))
        if not pc.all(is_next).as_py():
            position = positions[pc.index(is_next, False).as_py()]
            raise ValueError(f"position {position}: changes are not in the order of _commit_position and _position")
        self._last = commits[-1].as_py(), positions[-1].as_py()

    def _check_key(self, rows: TouchedRows, changes: pa.RecordBatch, ops: pa.Array, version: int | None) -> bool:
        """Check that changes tell the key before them. Return whether it may be deferrable."""
        key = rows.key
        identity, is_unique = self._history.key(version) if version is not None else ((), False)
        is_identity = is_unique and set(identity) == set(key)
        if is_identity or not rows.is_unique or (self._given_key is None and version is None):
            return False
        is_full = pc.equal(pc.fill_null(changes["_old_type"], ""), "O")
        is_told = pc.or_(pc.equal(ops, INSERT), is_full)
        if not pc.all(is_told).as_py():
            raise ValueError(
                f"position {changes['_position'][pc.index(is_told, False).as_py()]}: the change does not tell the "
                f"former values of the key {listed(key)}, which is not the replica identity: use the replica identity "
                "as the key, or ALTER TABLE ... REPLICA IDENTITY FULL"
            )
        return True

    # -- versions ------------------------------------------------------------------------------------------------------

    def _key_of(self, rows: TouchedRows, version: int) -> tuple[tuple[str, ...], bool]:
        """Return the key of rows from a version on, and whether it is unique."""
        if self._given_key is not None:
            return self._given_key, True
        key, is_unique = self._history.key(version)
        if rows.is_unique and not is_unique and len(rows) and {*rows.key} <= {*key}:
            now = self._history.versions[version]
            names = self._history.names[version]
            if now.facts is None or {names[name] for name in now.primary_key} == {*rows.key}:
                return rows.key, True  # a whole row has the former key, too, unless that is certainly gone
        return key, is_unique


def _check_columns(schema: pa.Schema) -> None:
    missing = [name for name in (*_SENT, "_old") if name not in schema.names]
    if missing:
        raise ValueError(
            f"the columns {listed(map(repr, missing))} are missing: net changes are made of what ChangeDecoder.table "
            "returns, or of files with it"
        )


def _as_sent(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give the columns that typed tables add the types that they have there."""
    for name, kind in _SENT.items():
        if batch.schema.field(name).type != kind:
            at = batch.schema.get_field_index(name)
            batch = batch.set_column(at, batch.schema.field(at).with_type(kind), batch[name].cast(kind))
    return batch


def _with_columns(changes: pa.RecordBatch, fields: Mapping[str, pa.Field]) -> pa.RecordBatch:
    """Add columns that a table had before, and convert others to the types of `fields`."""
    names = changes.schema.names
    if all(name in names and changes.schema.field(name).type == item.type for name, item in fields.items()):
        return changes
    old = changes["_old"]
    olds = dict(zip([item.name for item in old.type], old.flatten(), strict=True))
    columns = {name: changes[name] for name in names if name not in fields and name != "_old"}
    children = []
    for name, item in fields.items():
        if name in names:
            columns[name] = converted(changes[name], item.type)
            children.append(converted(olds[name], item.type))
        else:
            columns[name] = null_array(len(changes), item.type)
            children.append(columns[name])
    columns["_old"] = pa.StructArray.from_arrays(children, [*fields], mask=old.is_null())
    return pa.RecordBatch.from_pydict(columns)


def _by_number(fields: Mapping[str, pa.Field], schema: pa.Schema) -> dict[str, str]:
    """Map names of columns to those in another schema, by the numbers that the server's catalog gives to columns."""
    numbers = {item.metadata[b"pg:attnum"]: item.name for item in schema if b"pg:attnum" in (item.metadata or {})}
    return {
        name: numbers[item.metadata[b"pg:attnum"]]
        for name, item in fields.items()
        if (item.metadata or {}).get(b"pg:attnum") in numbers
    }


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
