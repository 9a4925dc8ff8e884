"""A table of DuckDB, which is changed by SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.datasets.errors import RunError
from pgdecode.lake.target import ColumnSource, MissingRow, TableCounts
from pgdecode.net.schema import parts_of, without_truncate
from pgdecode.relations.schema_metadata import KEY, REPLICA_IDENTITY
from pgdecode.relations.table_names import quoted_name as quoted

if TYPE_CHECKING:
    from pgdecode.lake.duckdb.database import DuckDbTarget

CATALOG = "pgdecode"  # the name under which the database is attached
_NEW_TABLE = "_pgdecode_new"
# The order of types in which DuckDB converts values without loss.
_WIDER = [("SMALLINT", "INTEGER", "BIGINT"), ("FLOAT", "DOUBLE")]


def literal(text: str) -> str:
    """Write a text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def sql_name(schema: str, table: str) -> str:
    """Write the name of a table in SQL."""
    return f"{CATALOG}.{quoted(schema)}.{quoted(table)}"


def folded(name: str) -> str:
    """Return the name as DuckDB compares it: it ignores the case of ASCII letters."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


class DuckDbTable:
    """A table of DuckDB, with changes that are not committed yet.

    Parameters
    ----------
    target : DuckDbTarget
    name : str
    parts : tuple of str
        Schema and name.
    """

    def __init__(self, target: DuckDbTarget, name: str, parts: tuple[str, str]) -> None:
        self._target, self._name, self._parts = target, name, parts
        self._table = sql_name(*parts)
        self.discard()

    # -- commits -------------------------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Take the state of the last commit."""
        n_rows = 0
        if self._name in self._target.applied:
            with self._target.errors(self._name):
                ((n_rows,),) = self._target.run(f"SELECT count(*) FROM {self._table}")
        self._reset(n_rows)

    def set_committed(self) -> None:
        """Take note that the changes were committed."""
        self._reset(self.counts.rows)

    def _reset(self, n_rows: int) -> None:
        self.counts = TableCounts(rows=n_rows)
        self._is_new = False  # made after the last commit
        self._has_deleted = False  # rows that were committed

    # -- columns -------------------------------------------------------------------------------------------------------

    def create(self, schema: pa.Schema) -> None:
        """Make the table empty, with these columns, whether it exists or not."""
        with self._target.errors(self._name):
            self._target.begin()
            self._target.run(f"CREATE SCHEMA IF NOT EXISTS {CATALOG}.{quoted(self._parts[0])}")
            self._create(self._table, schema)
            self._comment(schema)
        self.counts.rows = 0
        self._is_new = True

    def _create(self, table: str, schema: pa.Schema) -> None:
        not_null = _not_null(schema)
        columns = [
            f"{quoted(name)} {kind}{' NOT NULL' if name in not_null else ''}"
            for name, kind in self._sql_types(schema).items()
        ]
        self._target.run(f"CREATE OR REPLACE TABLE {table} ({', '.join(columns)})")

    def _sql_types(self, schema: pa.Schema) -> dict[str, str]:
        """Return DuckDB's type of each column."""
        names: dict[str, str] = {}
        for name in schema.names:
            other = names.setdefault(folded(name), name)
            if other != name:
                raise RunError(
                    f"{self._target.name}: {self._name}: the columns {other!r} and {name!r} differ in the case of "
                    "letters only, and would be one column of DuckDB: rename one of them, or choose another target"
                )
        if not names:
            raise RunError(f"{self._target.name}: {self._name} has no columns; a table of DuckDB has at least one")
        rows = self._target.run("DESCRIBE FROM pgdecode_input", schema.empty_table())
        return {row[0]: row[1] for row in rows}

    def _comment(self, schema: pa.Schema) -> None:
        """Name the types of PostgreSQL in the comments of columns."""
        for item in schema:
            kind = (item.metadata or {}).get(b"pg:type")
            if kind is not None:
                comment = literal(kind.decode())
                self._target.run(f"COMMENT ON COLUMN {self._table}.{quoted(item.name)} IS {comment}")

    def evolve(self, schema: pa.Schema, columns: Mapping[str, ColumnSource]) -> None:
        """Give the table other columns, by ALTER TABLE where that is exact."""
        with self._target.errors(self._name):
            self._target.begin()
            change = _ColumnChange(self._target, self._table, schema, columns, self._sql_types(schema))
            # DuckDB cannot commit an ALTER TABLE that comes after a DELETE of committed rows.
            if change.is_simple() and (self._target.is_lake or not self._has_deleted):
                change.alter()
            else:
                new = sql_name(self._parts[0], _NEW_TABLE)
                self._create(new, schema)
                change.copy_rows(new)
                self._target.run(f"DROP TABLE {self._table}")
                self._target.run(f"ALTER TABLE {new} RENAME TO {quoted(self._parts[1])}")
                self._is_new, self._has_deleted = True, False
            self._comment(schema)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def apply(self, net: pa.Table) -> None:
        """Apply net changes."""
        with self._target.errors(self._name):
            self._target.begin()
            is_truncated, net = without_truncate(net)
            if is_truncated:
                self._delete(f"DELETE FROM {self._table}")
                self.counts.truncates += 1
            if net.num_rows:
                self._replace(_FlatChanges(net, has_negative_zeros=not self._target.is_lake))

    def _replace(self, changes: _FlatChanges) -> None:
        target, net = self._target, changes.table
        old = target.query(changes.removed_rows(self._table), net)
        ((n_found,),) = target.run("SELECT count(DISTINCT n) FROM pgdecode_old WHERE is_before", None, old)
        lost = target.run(
            "SELECT position FROM pgdecode_input WHERE is_upsert AND len(unknown) > 0 "
            "AND n NOT IN (SELECT n FROM pgdecode_old WHERE is_before) ORDER BY n LIMIT 1",
            net,
            old,
        )
        if lost:
            raise MissingRow(lost[0][0])
        if old.num_rows:
            self._delete(f"DELETE FROM {self._table} WHERE rowid IN (SELECT id FROM pgdecode_old)", old)
        ((n_upserts,),) = target.run(changes.insert(self._table), net, old)
        self.counts.rows += n_upserts
        self.counts.upserts += n_upserts
        self.counts.deletes += net.num_rows - n_upserts
        self.counts.missing += changes.n_before - n_found

    def _delete(self, sql: str, old: pa.Table | None = None) -> None:
        ((n,),) = self._target.run(sql, None, old)
        self.counts.rows -= n
        self._has_deleted |= n > 0 and not self._is_new


class _FlatChanges:
    """Net changes as the table pgdecode_input: columns of its own, k0... of the key before, c0... of the table."""

    def __init__(self, net: pa.Table, has_negative_zeros: bool) -> None:
        self._has_negative_zeros = has_negative_zeros
        added, of_table = parts_of(net)
        before, unknown = added["_key_before"], added["_unknown"]
        is_upsert = pc.equal(added["_action"], "upsert")
        self.columns = [*of_table.schema]
        self._key = [*before.type]
        self.n_before = len(before) - before.null_count
        # Otherwise rows may be equal.
        self.has_key = len(self._key) < len(self.columns)
        names = [item.name for item in self.columns]
        self._key_numbers = [names.index(item.name) for item in self._key]
        some = set(pc.unique(pc.list_flatten(unknown)).to_pylist())
        self._unknown = [i for i, name in enumerate(names) if name in some]
        keys = [pc.struct_field(before, i) for i in range(len(self._key))]
        # Rows that are not upserts have nulls.
        own = of_table.filter(is_upsert)
        self._is_nullable = [
            column.null_count > before.null_count or own[item.name].null_count > 0
            for item, column in zip(self._key, keys, strict=True)
        ]
        self.table = pa.table(
            {
                "n": pa.array(range(net.num_rows), pa.int64()),
                "position": added["_position"],
                "is_upsert": is_upsert,
                "has_before": before.is_valid(),
                "unknown": unknown,
                **{f"k{i}": column for i, column in enumerate(keys)},
                **{f"c{i}": of_table[name] for i, name in enumerate(names)},
            }
        )

    @staticmethod
    def _equal(left: str, right: str, kind: pa.DataType, is_nullable: bool) -> str:
        """Compare two values. NaN equals NaN, and 0.0 equals -0.0: where values repeat, DuckDB stores one for both."""
        # DuckDB compares an equality with the bounds of row groups.
        return f"{left} {'IS NOT DISTINCT FROM' if is_nullable or pa.types.is_nested(kind) else '='} {right}"

    def _keys_to_remove(self) -> str:
        """Select the keys to remove. Equal rows without a key are number i of group g."""
        keys = [f"k{i}" for i in range(len(self._key))]
        own = [f"c{number}" for number in self._key_numbers]
        if self.has_key:
            before, after = ", ".join(keys), ", ".join(own)
            return (
                f"SELECT n, TRUE AS is_before, {before} FROM pgdecode_input WHERE has_before UNION ALL "
                f"SELECT n, FALSE, {after} FROM pgdecode_input "
                f"WHERE is_upsert AND (NOT has_before OR ROW({before}) IS DISTINCT FROM ROW({after}))"
            )
        names = ", ".join(keys)
        return (
            f"SELECT n, min(n) OVER equal AS g, row_number() OVER (equal ORDER BY n) AS i, {names} "
            f"FROM pgdecode_input WHERE has_before WINDOW equal AS (PARTITION BY {names})"
        )

    def removed_rows(self, table: str) -> str:
        """Select pgdecode_old: rows to remove, with what upserts need of them."""
        matches = " AND ".join(
            self._equal(f"r.{quoted(item.name)}", f"k.k{i}", item.type, self._is_nullable[i])
            for i, item in enumerate(self._key)
        )
        values = "".join(f", r.{quoted(self.columns[i].name)} AS u{i}" for i in self._unknown)
        keys = f"WITH keys AS MATERIALIZED ({self._keys_to_remove()})"
        if self.has_key:
            return f"{keys} SELECT k.n, k.is_before, r.rowid AS id{values} FROM {table} r JOIN keys k ON {matches}"
        return (
            f"{keys}, numbered AS (SELECT k.g, r.rowid AS id, row_number() OVER (PARTITION BY k.g) AS i "
            f"FROM {table} r JOIN (FROM keys WHERE i = 1) k ON {matches}) "
            f"SELECT k.n, TRUE AS is_before, m.id{values} FROM numbered m JOIN keys k "
            "ON m.g = k.g AND m.i = k.i" + (f" JOIN {table} r ON r.rowid = m.id" if values else "")
        )

    def insert(self, table: str) -> str:
        """Add the upserts."""
        names = ", ".join(quoted(item.name) for item in self.columns)
        values = ", ".join(
            f"CASE WHEN list_contains(unknown, {literal(item.name)}) THEN u{i} ELSE c{i} END"
            if i in self._unknown
            else (f"c{i}" if self._has_negative_zeros else _without_negative_zeros(f"c{i}", item.type))
            for i, item in enumerate(self.columns)
        )
        old = " LEFT JOIN (FROM pgdecode_old WHERE is_before) o ON o.n = pgdecode_input.n" if self._unknown else ""
        return f"INSERT INTO {table} ({names}) SELECT {values} FROM pgdecode_input{old} WHERE is_upsert"


class _ColumnChange:
    """Other columns of a table, and where their values are from."""

    def __init__(
        self,
        target: DuckDbTarget,
        table: str,
        schema: pa.Schema,
        columns: Mapping[str, ColumnSource],
        kinds: dict[str, str],
    ) -> None:
        self._target, self._table, self._schema = target, table, schema
        self._sources = {name: columns[name] for name in schema.names}
        self._kinds = kinds
        self._former = {str(row[0]): str(row[1]) for row in target.run(f"DESCRIBE {table}")}
        nullable = {str(row[0]): row[2] == "YES" for row in target.run(f"DESCRIBE {table}")}
        self._was_nullable = nullable

    def is_simple(self) -> bool:
        """Whether ALTER TABLE makes the columns, in the same order."""
        present = [source.name for source in self._sources.values() if source.name is not None]
        added = [source.name is None for source in self._sources.values()]
        return (
            bool(present)
            and present == [name for name in self._former if name in present]
            and added == sorted(added)
            and all(self._is_simple(name, source) for name, source in self._sources.items())
        )

    def _is_simple(self, name: str, source: ColumnSource) -> bool:
        kind = self._kinds[name]
        if source.name is None:
            # DuckDB reads the text of other values.
            return source.missing is None or not source.missing.is_valid or not pa.types.is_nested(source.missing.type)
        former = self._former[source.name]
        is_wider = any(former in kinds and kind in kinds[kinds.index(former) :] for kinds in _WIDER)
        return source.convert is None and (former == kind or is_wider)

    def alter(self) -> None:
        """Run ALTER TABLE."""
        sources = {source.name: name for name, source in self._sources.items() if source.name is not None}
        not_null = _not_null(self._schema)
        for name in self._former:
            if name not in sources:
                self._alter(f"DROP COLUMN {quoted(name)}")
        renamed = {former: name for former, name in sources.items() if former != name}
        # Two columns may change their names.
        for i, former in enumerate(renamed):
            self._alter(f"RENAME COLUMN {quoted(former)} TO {quoted(f'_pgdecode_{i}')}")
        for i, name in enumerate(renamed.values()):
            self._alter(f"RENAME COLUMN {quoted(f'_pgdecode_{i}')} TO {quoted(name)}")
        for former, name in sources.items():
            if self._was_nullable[former] != (name not in not_null):
                self._alter(f"ALTER COLUMN {quoted(name)} {'SET' if name in not_null else 'DROP'} NOT NULL")
            if self._former[former] != self._kinds[name]:
                self._alter(f"ALTER COLUMN {quoted(name)} SET DATA TYPE {self._kinds[name]}")
        for name, source in self._sources.items():
            if source.name is None:
                missing = self._missing_text(source)
                self._alter(f"ADD COLUMN {quoted(name)} {self._kinds[name]}{missing and f' DEFAULT {missing}'}")
                if missing:
                    self._alter(f"ALTER COLUMN {quoted(name)} DROP DEFAULT")
                if name in not_null:
                    self._alter(f"ALTER COLUMN {quoted(name)} SET NOT NULL")

    def _alter(self, action: str) -> None:
        self._target.run(f"ALTER TABLE {self._table} {action}")

    def _missing_text(self, source: ColumnSource) -> str:
        if source.missing is None or not source.missing.is_valid:
            return ""
        value = _missing_array(source, source.missing.type)
        ((text,),) = self._target.run("SELECT value::VARCHAR FROM pgdecode_input", pa.table({"value": value}))
        return literal(text)

    def copy_rows(self, new: str) -> None:
        """Copy the rows to a table with the other columns."""
        values, missing = [], {"n": pa.array([0])}
        with ExitStack() as stack:
            for i, (name, source) in enumerate(self._sources.items()):
                kind = self._schema.field(name).type
                if source.name is None:
                    missing[f"m{i}"] = _missing_array(source, kind)
                    values.append(f"m{i}")
                elif source.convert is None and self._former[source.name] == self._kinds[name]:
                    values.append(f"r.{quoted(source.name)}")
                else:
                    make = partial(_converted, source.convert, kind)
                    function = f"pgdecode_convert_{i}"
                    stack.enter_context(
                        self._target.function(function, make, self._former[source.name], self._kinds[name])
                    )
                    values.append(f"{function}(r.{quoted(source.name)})")
            insert = f"INSERT INTO {new} SELECT {', '.join(values)} FROM {self._table} r, pgdecode_input"
            self._target.run(insert, pa.table(missing))


def _converted(
    convert: Callable[[pa.ChunkedArray], pa.ChunkedArray] | None, kind: pa.DataType, column: pa.ChunkedArray
) -> pa.ChunkedArray:
    typed = column.cast(_plain_type(column.type))
    return (typed if convert is None else convert(typed)).cast(kind)


def _missing_array(source: ColumnSource, kind: pa.DataType) -> pa.Array:
    if source.missing is None or not source.missing.is_valid:
        return pa.nulls(1, kind)
    return pa.repeat(source.missing, 1).cast(kind)


def _not_null(schema: pa.Schema) -> set[str]:
    """Return the columns of the key, which are not null if it is an index."""
    key = {item.name for item in schema if KEY in (item.metadata or {})}
    identity = (schema.metadata or {}).get(REPLICA_IDENTITY, b"d")
    return key if identity in (b"d", b"i") and len(key) < len(schema) else set()


def _has_floats(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or any(_has_floats(kind.field(i).type) for i in range(kind.num_fields))


def _without_negative_zeros(value: str, kind: pa.DataType, depth: int = 0) -> str:
    """Make 0.0 of -0.0. DuckDB's files of Parquet have the same for both, that which comes first."""
    if pa.types.is_floating(kind):
        return f"{value} + 0::{'DOUBLE' if kind == pa.float64() else 'FLOAT'}"
    if not _has_floats(kind):
        return value
    if pa.types.is_list(kind):
        item = f"x{depth}"
        return f"list_transform({value}, lambda {item}: {_without_negative_zeros(item, kind.value_type, depth + 1)})"
    if pa.types.is_struct(kind):
        parts = {item.name: f"struct_extract({value}, {literal(item.name)})" for item in kind}
        items = [
            f"{quoted(item.name)} := {_without_negative_zeros(parts[item.name], item.type, depth + 1)}" for item in kind
        ]
        return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({', '.join(items)}) END"
    return value


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of typed tables for a type that DuckDB returns."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp("us", "UTC")
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(item.name, _plain_type(item.type)) for item in kind])
    return kind
