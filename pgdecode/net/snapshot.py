"""The rows that a table has after changes: its net changes, with nothing before them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.changes.row_tracker import TRUNCATE
from pgdecode.arrow.batch_sizes import table_of
from pgdecode.changes.change_engine import ChangeEngine
from pgdecode.changes.record_batches import LimitedBuilder
from pgdecode.changes.table_rows import VERSION, TableOutput
from pgdecode.net.history import TableHistory
from pgdecode.net.schema import ABOUT as OF_NET_CHANGES
from pgdecode.net.schema import UNKNOWN
from pgdecode.net.table_fold import TableFold
from pgdecode.net.touched_rows import TouchedRows, codes_of
from pgdecode.payloads.commits import until
from pgdecode.payloads.payload_input import payload_array
from pgdecode.protocol.options import NameClash
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.column_history import NO_RENAMES, ColumnHistory, Renames, check_renames, histories, last_version
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.table_names import named
from pgdecode.rows.options import Options, SnapshotKeywords, with_options
from pgdecode.rows.own_names import output_names

_ERROR = pa.field("_error", pa.string())
_KEPT = pa.field("_pgdecode_kept", pa.bool_())
ABOUT = tuple(item.name for item in OF_NET_CHANGES if item.name != "_commit_lsn")
# How many changes, or bytes of them, to apply at once; how many payloads to process, and changes to build, at once, so
# that what that needs stays in the processor's cache.
_CHANGES = 1 << 15
_BYTES = 1 << 26
_PAYLOADS = 1 << 18
_BATCH_ROWS = 1 << 16


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
    column, position = until(payload_array(payloads), position, given.as_of)
    payloads = pa.chunked_array(
        [chunk.slice(first, _PAYLOADS) for chunk in column.chunks for first in range(0, max(len(chunk), 1), _PAYLOADS)],
        column.type,
    )
    output = _LastTable(relation, given)
    engine = ChangeEngine(of_changes, catalog=catalog, threads=threads)
    try:
        _apply(engine, payloads, position, output)
    except _RenamedTable:
        engine = ChangeEngine(of_changes, catalog=catalog, threads=threads)
        _apply(engine, payloads, position, output)
    return output.rows.counted_table(engine.counts.bad_rows, engine.state.skipped.count, engine.state.n_undecided)


def _apply(engine: ChangeEngine, payloads: pa.ChunkedArray, position: Any, output: _LastTable) -> None:
    with engine.call() as call:
        for _, batch in engine.batches(call, payloads, position, output, _BATCH_ROWS):
            output.rows.apply(batch)


class _RenamedTable(Exception):
    """Some versions of the table have another name, so that changes are missing that were selected by its last one."""


class _LastTable:
    """The changes of the table that has a name at the end, for `ChangeEngine.batches`.

    Attributes
    ----------
    tables : list of str or int
        Its name; its OID, if it had other names.
    rows : SnapshotRows
        For the changes. All versions of the table are known before the first one.
    """

    rows: SnapshotRows

    def __init__(self, relation: str, options: Options) -> None:
        self.relation, self.options = relation, options
        self.tables: list[str | int] = [relation]

    def builders(self, engine: ChangeEngine) -> list[tuple[str | int, LimitedBuilder]]:
        """Make the builder of the table.

        Raises
        ------
        KeyError
            If no payload has described the table, or its last name is another.
        _RenamedTable
            If it had other names, and this is the first call.
        """
        relation_id, relations = last_named(engine.layout_catalog, self.relation), engine.state.relations
        names = {
            relations.versions[number].qualified_name for number in relations.numbers_of(relation_id, everything=True)
        }
        if len(names) > 1 and self.tables != [relation_id]:
            self.tables = [relation_id]
            raise _RenamedTable
        versions, stated = engine.versions_of(relation_id), self.options.renames or NO_RENAMES
        check_renames(histories(versions, stated), is_complete=True)
        builder = TableOutput([relation_id], with_version=True, known={relation_id: versions}).builder(
            engine, relation_id
        )
        self.rows = SnapshotRows(
            builder.table.schema,
            versions,
            stated,
            with_errors=self.options.mode == "PERMISSIVE",
            name_clash=self.options.name_clash,
        )
        return [(relation_id, builder)]


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
    about = [*(schema.field(name) for name in ABOUT), UNKNOWN, *([_ERROR] if with_errors else [])]
    output = output_names(versions, {item.name for item in about}, name_clash)
    return pa.schema([*about, *(schema.field(name).with_name(output.get(name, name)) for name in names)])


class SnapshotRows(TableFold):
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
        order = ColumnHistory(versions).numbers
        super().__init__(TableHistory([versions[number] for number in order], renames))
        history = self._history
        self.last_names = history.columns(len(order) - 1)
        self.with_errors = with_errors
        self.schema = snapshot_schema(
            schema, versions.values(), self.last_names, with_errors=with_errors, name_clash=name_clash
        )
        # Each transaction in a stream sends its relations again. Equal versions in a row have the place of the first.
        firsts = [0]
        for at in range(1, len(order)):
            firsts.append(firsts[-1] if history.is_same(at) else at)
        self.numbers, self.places = pa.array(order, VERSION.type), pa.array(firsts, pa.int32())
        present = {name for names in history.names for name in names.values()}
        self.rows = TouchedRows(
            {item.name: item for item in schema if item.name in present},
            (),
            is_unique=False,
            has_before=False,
            about=[schema.field(name) for name in ABOUT],
        )
        self.bad: list[pa.RecordBatch] = []
        self.waiting: list[pa.RecordBatch] = []

    def _key_of(self, rows: TouchedRows, version: int) -> tuple[tuple[str, ...], bool]:
        key = self._history.identity(version)
        return key, self._history.versions[version].replica_identity != "f" and key != ()

    def apply(self, changes: pa.RecordBatch, is_kept: pa.Array | None = None) -> None:
        """Apply the next changes of `ChangeDecoder.table`. `is_kept` is whether to keep each change's new row.

        Raises
        ------
        ValueError
            If a change may be of several rows, or does not tell the replica identity.
        """
        if is_kept is not None:
            changes = changes.append_column(_KEPT, is_kept)
        if self.with_errors and changes["_error"].null_count < len(changes):
            is_good = changes["_error"].is_null()
            is_bad = pc.invert(is_good)
            self.bad.append(changes.filter(is_bad if is_kept is None else pc.and_(is_bad, is_kept)))
            changes = changes.filter(is_good)
        self.waiting.append(changes)
        if sum(map(len, self.waiting)) >= _CHANGES or sum(batch.nbytes for batch in self.waiting[1:]) >= _BYTES:
            self._apply_waiting()

    def _apply_waiting(self) -> None:
        """Apply changes of equal versions together."""
        batches = [batch for batch in self.waiting if len(batch)]
        self.waiting = []
        if not batches:
            return
        [changes] = table_of(batches).combine_chunks().to_batches() if len(batches) > 1 else batches
        first = 0
        for end, version in self._runs(changes[VERSION.name]):
            self._advance(self.rows, version)
            self._apply_run(changes.slice(first, end - first), version)
            first = end

    def _runs(self, versions: pa.Array) -> Iterable[tuple[int, int]]:
        """Divide changes by their versions: the end of each run, and the place of its version."""
        if self.places[-1].as_py() == 0:
            return [(len(versions), 0)]
        # A change without a version does not depend on one.
        numbers = pc.fill_null_backward(pc.fill_null_forward(versions))
        runs = pc.run_end_encode(self.places.take(pc.index_in(numbers, self.numbers)))
        return zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True)

    def _apply_run(self, changes: pa.RecordBatch, version: int) -> None:
        rows = self.rows
        self._identify(rows, version, {})  # a stream may use an earlier version than the last one
        ops = codes_of(changes)
        truncates = pc.indices_nonzero(pc.equal(ops, TRUNCATE)).to_pylist()
        if truncates and rows.has_other_keys:
            # A change before it may be of several rows, which is an error.
            self._apply_rows(changes.slice(0, truncates[0]), ops.slice(0, truncates[0]), version)
        if truncates:
            rows.clear()
            changes, ops = changes.slice(truncates[-1] + 1), ops.slice(truncates[-1] + 1)
        self._apply_rows(changes, ops, version)

    def _apply_rows(self, changes: pa.RecordBatch, ops: pa.Array, version: int) -> None:
        is_kept = changes[_KEPT.name] if _KEPT.name in changes.schema.names else None
        self.rows.apply(changes, ops, self._told(self.rows, changes, version), is_kept)

    def table(self) -> pa.Table:
        """Return the present rows."""
        self._apply_waiting()
        self._advance(self.rows, len(self._history.versions) - 1)
        names = self.schema.names[len(self.schema) - len(self.last_names) :]
        rows, unknown = self.rows.live_table(dict(zip(self.last_names, names, strict=True)))
        found = [self._output(rows, unknown, pa.nulls(len(rows), pa.string()))]
        found += (self._output(item, pa.array([[]] * len(item), UNKNOWN.type), item["_error"]) for item in self.bad)
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
