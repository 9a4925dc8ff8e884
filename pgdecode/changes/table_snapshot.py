"""A table as its changes leave it: the rows that are there at the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.change_decoder import ChangeDecoder, Mode
from pgdecode.changes.replication_state import Empty, Start
from pgdecode.changes.table_rows import VERSION
from pgdecode.protocol.limits import Limits
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.relation_version import RelationVersion

_LIMITS = Limits()
_UNKNOWN = pa.field("_unknown", pa.list_(pa.string()))
_ERROR = pa.field("_error", pa.string())
ABOUT = ("_position", "_commit_position", "_commit_timestamp")
# Changes that are applied at a time, at least: to begin costs as much as the rows that are there.
_CHANGES = 262_144
_BATCH_ROWS = 65_536

Key = tuple[Any, ...]


def snapshot(
    payloads: Any,
    relation: str,
    position: Any = None,
    *,
    catalog: RelationCatalog | None = None,
    mode: Mode = "FAILFAST",
    start: Start = "transaction",
    empty: Empty = "null",
    drop_duplicates: bool = False,
    types: Mapping[str | int, str] | None = None,
    unrepresentable: str = "error",
    encoding: str = "UTF8",
    datestyle: str = "ISO, MDY",
    limits: Limits = _LIMITS,
    strict_flags: bool = True,
) -> pa.Table:
    """Apply the committed changes of a table; give the rows that are there in the end.

    Parameters
    ----------
    payloads : column of payloads, as `decode_messages` takes them
        All of them, in slot order.
    relation : str
        "schema.table", as the table is called in the end; changes from under former names count.
    position : column of ascending integers, optional
        As of `ChangeDecoder.decode`.
    mode : {"FAILFAST", "PERMISSIVE", "DROPMALFORMED"}
        Raise on the first bad payload; or keep it as a row that says why in a further column, `_error`; or leave it
        out. A bad change is not applied.
    catalog, start, empty, drop_duplicates, types, unrepresentable, encoding, datestyle, limits, strict_flags
        As of `ChangeDecoder`.

    Returns
    -------
    pa.Table
        `_position`, `_commit_position` and `_commit_timestamp` of the change that wrote each row last, `_unknown`, and
        the columns that the table has in the end, as `ChangeDecoder.table` types them. `_unknown` names the columns of
        a row whose values no payload has told: they are null, without being NULL in the database. The schema's
        metadata count what is not in the table: `pgdecode:bad_rows` (JSON, by error code), `pgdecode:skipped` and
        `pgdecode:undecided` (transactions).

    Raises
    ------
    DecodeError
        As of `ChangeDecoder.table`.
    KeyError
        If no payload has described the table, or it has another name in the end.

    Notes
    -----
    Updates and deletes find their row by its replica identity. Rows that were there before the first payload come in
    with their first update. What is not in the payloads is not known: the value of a TOAST column that was not changed
    since before the first payload; of a column in the rows from before it was added, renamed or, by its default or
    expression, filled. The values of a column whose type was altered are those that were sent.
    """
    decoder = ChangeDecoder(
        catalog=catalog,
        mode=mode,
        start=start,
        empty=empty,
        drop_duplicates=drop_duplicates,
        types=types,
        unrepresentable=unrepresentable,
        encoding=encoding,
        datestyle=datestyle,
        limits=limits,
        strict_flags=strict_flags,
    )
    decoder.follow(payloads, position)
    relation_id = last_named(decoder.shape_catalog, relation)
    rows = Rows(decoder.table_schema(relation_id), decoder.versions_of(relation_id), with_errors=mode == "PERMISSIVE")
    second = decoder.again()
    for batch in second.table_batches(payloads, relation_id, position, max_rows=_BATCH_ROWS, with_version=True):
        rows.take(batch)
    counts = {"bad_rows": json.dumps(second.bad_rows), "skipped": second.skipped, "undecided": second.n_undecided}
    return rows.table().replace_schema_metadata({f"pgdecode:{name}": str(count) for name, count in counts.items()})


def last_named(catalog: RelationCatalog, relation: str) -> int:
    """Find the OID of the table that bears a name in the end; the catalog has the versions of the tables' shapes.

    Raises
    ------
    KeyError
        If none does.
    """
    relation_id = catalog[relation].relation_id
    last = catalog[relation_id]
    if last.qualified_name != relation:
        raise KeyError(f"{relation!r} has become {last.qualified_name!r}")
    return relation_id


def snapshot_schema(schema: pa.Schema, names: Iterable[str], *, with_errors: bool = False) -> pa.Schema:
    """Give the schema of rows with some of a table's columns, by that of its changes."""
    about = [schema.field(name) for name in ABOUT]
    errors = [_ERROR] if with_errors else []
    return pa.schema([*about, _UNKNOWN, *errors, *(schema.field(name) for name in names)])


@dataclass(frozen=True)
class _Shape:
    """What the rows of a version tell."""

    identity: tuple[str, ...]  # columns by which a row finds its former version
    is_key: bool  # no two rows have the same
    untold: frozenset[str]  # columns of the table of which it tells nothing


@dataclass(slots=True)
class _Row:
    """A row: where its values are, by the change that they came with."""

    change: int
    unknown: frozenset[str]
    carried: dict[str, int] = field(default_factory=dict)


class Rows:
    """Rows of a table, written by changes in the order in which to apply them.

    Parameters
    ----------
    schema : pa.Schema
        Of the changes.
    versions : mapping of int to RelationVersion
        Of one relation, by their numbers, which ascend with the position; each change names its own in the column `VERSION`.
    with_errors : bool
        Give bad changes as rows that say why in `_error`; else there are none.
    """

    def __init__(
        self, schema: pa.Schema, versions: Mapping[int, RelationVersion], *, with_errors: bool = False
    ) -> None:
        self.catalog = RelationCatalog(versions.values())
        last = self.catalog[next(iter(self.catalog)).relation_id]
        self.names = list(dict.fromkeys(column.name for item in self.catalog for column in item.columns))
        if "_unknown" in self.names:
            raise ValueError("the table has a column '_unknown', which is the name of one about the row")
        self.kept = snapshot_schema(schema, self.names)
        self.last_names = [item.name for item in last.columns]
        self.with_errors = with_errors
        self.schema = snapshot_schema(schema, self.last_names, with_errors=with_errors)
        self.shapes = {number: self._shape(number, versions) for number in versions}
        self.bad: list[pa.RecordBatch] = []
        self.live = self.kept.empty_table()
        self.waiting: list[tuple[pa.RecordBatch, list[bool]]] = []
        self.n_waiting = 0

    def _shape(self, number: int, versions: Mapping[int, RelationVersion]) -> _Shape:
        version = versions[number]
        # A column that went, and came again under its name, is another.
        after = [item for other, item in versions.items() if other > number]
        names = {item.name for item in version.columns}.intersection(
            *({column.name for column in item.columns} for item in after)
        )
        identity = tuple(item.name for item in version.columns if item.flags & 1)
        return _Shape(identity, version.replica_identity != "f" and identity != (), frozenset(self.names) - names)

    def take(self, changes: pa.RecordBatch, is_kept: list[bool] | None = None) -> None:
        """Take up the next changes, as `ChangeDecoder.table` gives them; whose new row is to be kept, if not all."""
        is_kept = [True] * len(changes) if is_kept is None else is_kept
        errors = changes.column("_error") if self.with_errors else pa.nulls(len(changes), pa.string())
        if errors.null_count < len(errors):
            is_good = errors.is_null()
            is_first = pc.and_(pc.invert(is_good), pa.array(is_kept, pa.bool_()))
            self.bad.append(changes.filter(is_first))
            changes = changes.filter(is_good)
            is_kept = [kept for kept, good in zip(is_kept, is_good.to_pylist(), strict=True) if good]
        self.waiting.append((changes, is_kept))
        self.n_waiting += len(changes)
        if self.n_waiting >= max(_CHANGES, len(self.live)):
            self._apply()

    def table(self) -> pa.Table:
        """Give the rows that are there now."""
        self._apply()
        last = set(self.last_names)
        unknown = [[name for name in names if name in last] for names in self.live["_unknown"].to_pylist()]
        found = self.live.set_column(len(ABOUT), _UNKNOWN, pa.array(unknown, _UNKNOWN.type))
        if not self.with_errors:
            return found.select(self.schema.names)
        found = found.append_column(_ERROR, pa.nulls(len(found), pa.string()))
        bad = [item.append_column(_UNKNOWN, pa.array([[]] * len(item), _UNKNOWN.type)) for item in self.bad]
        parts = [pa.Table.from_batches([item]).select(self.schema.names).cast(self.schema) for item in bad]
        return pa.concat_tables([found.select(self.schema.names).cast(self.schema), *parts])

    def _apply(self) -> None:
        if self.waiting:
            batches, is_kept = zip(*self.waiting, strict=True)
            fold = _Fold(self, self.live, pa.Table.from_batches(batches), list(chain.from_iterable(is_kept)))
            self.waiting, self.n_waiting = [], 0
            self.live = fold.run()


class _Fold:
    """Some changes applied to the rows that are there.

    Rows are known by numbers: first those that are there, then those that the changes bring.
    """

    def __init__(self, rows: Rows, live: pa.Table, changes: pa.Table, is_kept: list[bool]) -> None:
        self.rows = rows
        self.changes = changes
        self.versions = changes[VERSION.name].to_pylist() if len(rows.shapes) > 1 else []
        self.is_kept = is_kept
        self.n_live = len(live)
        names = [name for name in rows.kept.names if name != "_unknown"]
        self.all = pa.concat_tables([live.select(names), changes.select(names)]).combine_chunks()
        self.identity: tuple[str, ...] | None = None
        self.index: dict[Key, list[_Row]] = {}
        # Rows of which a column of the identity is unknown.
        self.loose: list[_Row] = [
            _Row(number, frozenset(unknown)) for number, unknown in enumerate(live["_unknown"].to_pylist())
        ]
        self.values: dict[str, list[Any]] = {}
        self.keys: dict[tuple[str, ...], list[Key]] = {}

    def run(self) -> pa.Table:
        """Apply all; give the rows that are there then."""
        changes = self.changes
        told = [changes[name].to_pylist() for name in ("_op", "_old_type", "_unchanged")]
        old_keys: dict[tuple[str, ...], list[Key]] = {}
        keys: list[Key] = []
        for at, (op, old_type, unchanged) in enumerate(zip(*told, strict=True)):
            if op == "truncate":
                self.index, self.loose = {}, []
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
                before = self._leave(old_keys[shape.identity][at])
            elif op != "insert" or shape.is_key:
                # The database had no other row with the key of an insert: at most one that was given twice.
                before = self._leave(keys[number], exactly=op == "insert")
            if op != "delete" and self.is_kept[at]:
                self._enter(_written(number, shape, unchanged, before if op == "update" else None))
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
        """Keys of the rows as they came, what was not sent left aside."""
        if identity not in self.keys:
            self.keys[identity] = _zipped([self._column(name) for name in identity], len(self.all))
        return self.keys[identity]

    def _value(self, row: _Row, name: str) -> Any:
        return self._column(name)[row.carried.get(name, row.change)]

    def _identify(self, identity: tuple[str, ...]) -> None:
        """Find rows by other columns from now on."""
        there = [*(row for rows in self.index.values() for row in rows), *self.loose]
        self.identity, self.index, self.loose = identity, {}, []
        for row in sorted(there, key=lambda row: row.change):
            self._enter(row)

    def _enter(self, row: _Row) -> None:
        identity = self.identity or ()
        if row.unknown and not row.unknown.isdisjoint(identity):
            self.loose.append(row)
        else:
            key = self._keys(identity)[row.change]
            if row.carried:
                key = tuple(self._value(row, name) for name in identity)
            self.index.setdefault(key, []).append(row)

    def _leave(self, key: Key, *, exactly: bool = False) -> _Row | None:
        """Take away the row with a key, if there is one; an unknown value may be any, unless exactly that is asked."""
        rows = self.index.get(key)
        if rows:
            row = rows.pop()
            if not rows:
                del self.index[key]
            return row
        if exactly:
            return None
        wanted = dict(zip(self.identity or (), key, strict=True))
        for place, row in enumerate(self.loose):
            if all(name in row.unknown or self._value(row, name) == value for name, value in wanted.items()):
                return self.loose.pop(place)
        return None

    # -- the result --------------------------------------------------------------------------------------------------

    def _table(self) -> pa.Table:
        there = [*(row for rows in self.index.values() for row in rows), *self.loose]
        there.sort(key=lambda row: row.change)
        numbers = pa.array([row.change for row in there], pa.int64())
        touched = {name for row in there for name in (*row.carried, *row.unknown)}
        columns = {}
        for name in self.all.column_names:
            places = numbers
            if name in touched:
                places = pa.array(
                    [None if name in row.unknown else row.carried.get(name, row.change) for row in there], pa.int64()
                )
            columns[name] = self.all[name].take(places)
        columns["_unknown"] = pa.array([sorted(row.unknown) for row in there], _UNKNOWN.type)
        return pa.table([columns[name] for name in self.rows.kept.names], schema=self.rows.kept)


def _written(number: int, shape: _Shape, unchanged: Sequence[str], before: _Row | None) -> _Row:
    """Write a row as a change leaves it; what the change does not tell comes from the row before."""
    if not unchanged:
        return _Row(number, shape.untold)
    unknown = shape.untold.union(name for name in unchanged if before is None or name in before.unknown)
    if before is None:
        return _Row(number, unknown)
    carried = {name: before.carried.get(name, before.change) for name in unchanged if name not in unknown}
    return _Row(number, unknown, carried)


def _old_keys(old: pa.ChunkedArray, identity: tuple[str, ...]) -> list[Key]:
    struct = old.combine_chunks()
    if isinstance(struct, pa.ChunkedArray):
        struct = pa.concat_arrays(struct.chunks)
    return _zipped([plain_values(struct.field(name)) for name in identity], len(struct))


def _zipped(columns: list[list[Any]], n: int) -> list[Key]:
    return list(zip(*columns, strict=True)) if columns else [()] * n


def plain_values(array: pa.Array) -> list[Any]:
    """Values that can be keys of a dict, equal exactly where the array's are: NaN is, and 0.0 is not -0.0."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    kind = array.type
    if pa.types.is_temporal(kind) or pa.types.is_floating(kind):
        # Python has not all their values.
        array = array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    elif pa.types.is_struct(kind):
        children = [plain_values(child) for child in array.flatten()]
        found = _zipped(children, len(array))
        return [item if there else None for item, there in zip(found, array.is_valid().to_pylist(), strict=True)]
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        items: list[Any]
        if pa.types.is_map(kind):
            items = _zipped([plain_values(array.keys), plain_values(array.items)], len(array.keys))
        else:
            items = plain_values(array.values)
        ends = array.offsets.to_pylist()
        there = array.is_valid().to_pylist()
        return [tuple(items[ends[i] : ends[i + 1]]) if valid else None for i, valid in enumerate(there)]
    values: list[Any] = array.to_pylist()
    return values
