"""A table as its changes leave it: the rows that are there at the end."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.changes.table_rows import VERSION
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.options import Empty, Mode, Start, UnrepresentableValues
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
    columns: Mapping[str, str] | None = None,
    unrepresentable: UnrepresentableValues = "error",
    encoding: str = "UTF8",
    datestyle: str = "ISO, MDY",
    limits: Limits = _LIMITS,
    strict_flags: bool = True,
    threads: int = 1,
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
    columns : mapping of a column's name to a PostgreSQL type, optional
        Types of columns of the table, before `types`, as for `decode_rows`.
    catalog, start, empty, drop_duplicates, types, unrepresentable, encoding, datestyle, limits, strict_flags, threads
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
    ValueError
        If an update or delete may be of several rows, since a column of its replica identity is not known of them.

    Notes
    -----
    Updates and deletes find their row by its replica identity. Rows that were there before the first payload come in
    with their first update. What is not in the payloads is not known: the value of a TOAST column that was not changed
    since before the first payload; of a column in the rows from before it was added or, by its default or expression,
    filled; of a renamed column in the rows from before, if it is the table's last. The values of a column whose type
    was altered are those that were sent.

    pgoutput does not say that a column was renamed. A column counts as renamed if the next version of the table has
    as many columns, its type at the same place under another name, and a later column that kept its name: a column
    that was dropped and added would be the last.
    """
    decoder = ChangeDecoder(
        catalog=catalog,
        mode=mode,
        start=start,
        empty=empty,
        drop_duplicates=drop_duplicates,
        types=types,
        columns=None if columns is None else {relation: columns},
        unrepresentable=unrepresentable,
        encoding=encoding,
        datestyle=datestyle,
        limits=limits,
        strict_flags=strict_flags,
        threads=threads,
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
        Of one relation, by their numbers, which ascend with the position. Each change names its own in `VERSION`.
    with_errors : bool
        Give bad changes as rows that say why in `_error`; else there are none.
    """

    def __init__(
        self, schema: pa.Schema, versions: Mapping[int, RelationVersion], *, with_errors: bool = False
    ) -> None:
        self.catalog = RelationCatalog(versions.values())
        last = self.catalog[next(iter(self.catalog)).relation_id]
        self.last_names = [item.name for item in last.columns]
        self.columns = _last_column_names(versions, schema)
        fields = {
            self.columns[number][item.name]: schema.field(item.name)
            for number, version in versions.items()
            for item in version.columns
        }
        self.names = list(fields)
        if "_unknown" in self.names:
            raise ValueError("the table has a column '_unknown', which is the name of one about the row")
        about = [schema.field(name) for name in ABOUT]
        self.kept = pa.schema([*about, _UNKNOWN, *(item.with_name(name) for name, item in fields.items())])
        self.with_errors = with_errors
        self.schema = snapshot_schema(schema, self.last_names, with_errors=with_errors)
        self.shapes = {number: self._shape(number, versions) for number in versions}
        self.bad: list[pa.RecordBatch] = []
        self.live = self.kept.empty_table()
        self.waiting: list[tuple[pa.RecordBatch, list[bool]]] = []
        self.n_waiting = 0

    def _shape(self, number: int, versions: Mapping[int, RelationVersion]) -> _Shape:
        version, columns = versions[number], self.columns[number]
        # A column that was dropped, and added again under its name, is another.
        after = [set(self.columns[other].values()) for other in versions if other > number]
        names = set(columns.values()).intersection(*after)
        identity = tuple(columns[item.name] for item in version.columns if item.flags & 1)
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
        self.waiting.append((self._with_last_names(changes), is_kept))
        self.n_waiting += len(changes)
        if self.n_waiting >= max(_CHANGES, len(self.live)):
            self._apply()

    def _with_last_names(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Bring the values of renamed columns together, under their last names."""
        if all(name == last for columns in self.columns.values() for name, last in columns.items()):
            return changes
        versions = changes[VERSION.name]
        old = changes["_old"]
        children = dict(zip([item.name for item in old.type], old.flatten(), strict=True))
        values = {name: self._under_last_name(name, versions, changes) for name in self.names}
        old_values = [self._under_last_name(name, versions, children) for name in self.names]
        unchanged = [
            [self.columns[version][name] for name in names or ()]
            for version, names in zip(versions.to_pylist(), changes["_unchanged"].to_pylist(), strict=True)
        ]
        given = set(self.names).union(*(columns.keys() for columns in self.columns.values()))
        kept = {name: changes[name] for name in changes.schema.names if name not in given}
        kept["_old"] = pa.StructArray.from_arrays(old_values, self.names, mask=old.is_null())
        kept["_unchanged"] = pa.array(unchanged, changes["_unchanged"].type)
        return pa.RecordBatch.from_pydict({**kept, **values})

    def _under_last_name(self, last: str, versions: pa.Array, columns: Any) -> pa.Array:
        """Give the values of a column, from the columns that had it in each version."""
        found = None
        for number, names in self.columns.items():
            name = next((name for name, item in names.items() if item == last), None)
            if name is not None and found is None:
                found = columns[name]
            elif name is not None and found is not columns[name]:
                found = pc.if_else(pc.equal(versions, number), columns[name], found)
        return found

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


def _last_column_names(versions: Mapping[int, RelationVersion], schema: pa.Schema) -> dict[int, dict[str, str]]:
    """Find what the columns of each version are called in the end, by the names that they had in that version."""
    found: dict[int, dict[str, str]] = {}
    after: RelationVersion | None = None
    later: dict[str, str] = {}
    for number in sorted(versions, reverse=True):
        version = versions[number]
        names = {item.name: item.name for item in version.columns}
        if after is not None:
            new_names = {**{name: name for name in names if name in later}, **_renamed(version, after, schema)}
            names = {name: later[new_name] for name, new_name in new_names.items()}
            for item in version.columns:
                if item.name not in names:
                    # The name of a dropped column may be another's since.
                    names[item.name] = _free_name(item.name, names.values())
        found[number], after, later = names, version, names
    return dict(sorted(found.items()))


def _renamed(before: RelationVersion, after: RelationVersion, schema: pa.Schema) -> dict[str, str]:
    """Find the columns that were renamed from one version to the next."""
    if len(before.columns) != len(after.columns):
        return {}
    pairs = list(zip(before.columns, after.columns, strict=True))
    kept = [place for place, (old, new) in enumerate(pairs) if old.name == new.name]
    names = {item.name for item in before.columns}, {item.name for item in after.columns}
    return {
        old.name: new.name
        for old, new in pairs[: kept[-1] if kept else 0]
        if old.name not in names[1]
        and new.name not in names[0]
        and (old.type_id, old.type_modifier) == (new.type_id, new.type_modifier)
        and schema.field(old.name).type == schema.field(new.name).type
    }


def _free_name(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "'"
    return name


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
                before = self._leave(old_keys[shape.identity][at], shape, at)
            elif op != "insert" or shape.is_key:
                # The database had no other row with the key of an insert: at most one that was given twice.
                before = self._leave(keys[number], shape, at, exactly=op == "insert")
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

    def _leave(self, key: Key, shape: _Shape, at: int, *, exactly: bool = False) -> _Row | None:
        """Take away the row with a key, if there is one; with `exactly`, not one of which a part of the key is unknown.

        Raises
        ------
        ValueError
            If it may be one of several.
        """
        rows = self.index.get(key)
        if rows:
            row = rows.pop()
            if not rows:
                del self.index[key]
            return row
        if exactly or not self.loose:
            return None
        wanted = dict(zip(shape.identity, key, strict=True))
        found = [
            place
            for place, row in enumerate(self.loose)
            if all(name in row.unknown or self._value(row, name) == value for name, value in wanted.items())
        ]
        if not found:
            return None
        unknown = {self.loose[place].unknown for place in found}
        # Rows that are the same in all columns of which something is known may stand for each other.
        if shape.is_key or len(unknown) > 1:
            names = sorted(name for name in shape.identity if any(name in item for item in unknown))
            position = self.changes["_position"][at].as_py()
            raise ValueError(
                f"position {position}: the changed row is not found by its replica identity: column {names[0]!r} is "
                f"unknown in {len(found)} rows, which were written before it was added or renamed"
            )
        return self.loose.pop(found[0])

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
