"""The tables of a random scenario: their shapes, and SQL that writes values of every kind to them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

# By type: SQL expressions of `g`, the number of the row. Texts are difficult for parsers.
EXPRESSIONS = {
    "integer": ("g % 1000", "-g", "0", "NULL"),
    "bigint": ("g * 10000000000", "-1", "NULL"),
    "boolean": ("g % 2 = 0", "true", "NULL"),
    "numeric(10,2)": ("g * 1.5", "'NaN'", "NULL"),
    "double precision": ("g / 3.0", "'-Infinity'", "NULL"),
    "varchar(40)": ("'v' || g", "''", "NULL"),
    "text": (
        *("'x' || g", "''", "'null'", "NULL", "'unchanged-toast-datum'", "E'two\\nlines ' || g", "repeat('é', g % 40)"),
        *("'it''s \"quoted\" ' || g", "E'back\\\\slash'", "E'\\nCOMMIT 7\\n'", "' new-tuple: x[text]:1'"),
    ),
    "timestamptz": ("'2024-01-01 00:00:00+00'::timestamptz + g * interval '1 hour'", "'infinity'", "NULL"),
    "bytea": ("decode(md5(g::text), 'hex')", "''", "NULL"),
    "integer[]": ("ARRAY[g, NULL, -g]", "'{}'", "NULL"),
    "bit varying(8)": ("(g % 256)::bit(8)::varbit", "B''", "NULL"),
    "mood": ("'sad'", "'it''s fine'", "NULL"),
}
# Changes of type that keep the text of every value.
WIDER = {"integer": "bigint", "varchar(40)": "text"}
# Stored out of line and uncompressed (STORAGE EXTERNAL), so an update of another column does not send it.
LARGE = "repeat(md5(g::text), {0})"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Shape:
    """The parts of a table that DDL changes; `columns` has the types of the columns that its kind does not define."""

    namespace: str
    name: str
    identity: str
    columns: tuple[tuple[str, str], ...]
    exists: bool = True

    @property
    def sql(self) -> str:
        return f"{quoted(self.namespace)}.{quoted(self.name)}"


@dataclass(eq=False)
class Table:
    """A table, the holders of its locks, and all ids that were ever inserted."""

    kind: str
    shape: Shape
    index: str
    oid: int = 0
    ids: list[int] = field(default_factory=list)
    # Open transactions that have used it; the transaction with an exclusive lock; locked rows.
    users: set[Any] = field(default_factory=set)
    exclusive: Any = None
    locked_ids: dict[int, Any] = field(default_factory=dict)

    def may_be_used_by(self, owner: Any) -> bool:
        return self.shape.exists and self.exclusive in (None, owner)

    def may_be_locked_by(self, owner: Any) -> bool:
        return self.may_be_used_by(owner) and self.users <= {owner}

    def free_ids(self, owner: Any, rng: random.Random, count: int) -> list[int]:
        """Some of the latest ids that this transaction may write without waiting for another one."""
        recent = [number for number in self.ids[-300:] if self.locked_ids.get(number, owner) is owner]
        return rng.sample(recent, min(count, len(recent)))

    def sends_old_rows(self) -> bool:
        """Whether the server accepts updates and deletes of the table."""
        return self.shape.identity == "f" or (
            self.shape.identity != "n" and self.kind not in ("keyless", "full_keyless")
        )


# For each kind: its first columns, and its initial replica identity.
KINDS = {
    "keyed": ("id integer PRIMARY KEY", "d"),
    "full": ("id integer PRIMARY KEY", "f"),
    "full_keyless": ("id integer", "f"),
    "keyless": ("id integer", "d"),
    "indexed": ("id integer PRIMARY KEY, k varchar(40) NOT NULL", "i"),
    "long_key": ("id integer, k text PRIMARY KEY", "d"),
    "partitioned": ("id integer PRIMARY KEY", "d"),
}
IDENTITIES = {"keyed": "dfn", "full": "df", "full_keyless": "f", "keyless": "df", "indexed": "dif", "long_key": "df"}


def creation(table: Table) -> str:
    """CREATE TABLE and related statements. The two partitions of a partitioned table have another column order."""
    shape, sql = table.shape, table.shape.sql
    first, _ = KINDS[table.kind]
    others = [f"{quoted(name)} {type_name}" for name, type_name in shape.columns]
    if table.kind == "partitioned":
        leaves = [f"{quoted(shape.namespace)}.{quoted(name)}" for name in leaf_names(table)]
        return "; ".join(
            [
                f"CREATE TABLE {sql} ({', '.join([first, *others, 'big text'])}) PARTITION BY HASH (id)",
                f"CREATE TABLE {leaves[0]} PARTITION OF {sql} FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
                f"CREATE TABLE {leaves[1]} ({', '.join(['big text', *reversed(others), 'id integer NOT NULL'])})",
                f"ALTER TABLE {sql} ATTACH PARTITION {leaves[1]} FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
                *(f"ALTER TABLE {leaf} ALTER big SET STORAGE EXTERNAL" for leaf in leaves),
            ]
        )
    statements = [
        f"CREATE TABLE {sql} ({', '.join([first, *others, 'big text'])})",
        f"ALTER TABLE {sql} ALTER big SET STORAGE EXTERNAL",
    ]
    if table.kind == "indexed":
        statements.append(f"CREATE UNIQUE INDEX {quoted(table.index)} ON {sql} (k)")
    if table.kind == "long_key":
        statements.append(f"ALTER TABLE {sql} ALTER k SET STORAGE EXTERNAL")
    return "; ".join([*statements, identity_change(table, shape.identity)])


def leaf_names(table: Table) -> list[str]:
    return [f"{table.shape.name} leaf {number}" for number in (0, 1)]


def identity_change(table: Table, identity: str) -> str:
    words = {"d": "DEFAULT", "f": "FULL", "n": "NOTHING", "i": f"USING INDEX {quoted(table.index)}"}
    return f"ALTER TABLE {table.shape.sql} REPLICA IDENTITY {words[identity]}"


def random_value(rng: random.Random, type_name: str) -> str:
    return rng.choice(EXPRESSIONS[type_name])


def random_large(rng: random.Random) -> str:
    return rng.choice(("NULL", "'small ' || g", LARGE.format(rng.choice((80, 100, 250)))))


def key_of(table: Table, number: str) -> str | None:
    """The value of column k in a row, as SQL. A long key is stored out of line."""
    return {"indexed": f"'key ' || {number}", "long_key": f"{number} || repeat('k', 2400)"}.get(table.kind)


def insertion(table: Table, rng: random.Random, first: int, count: int) -> str:
    named = {"id": "g"}
    if key := key_of(table, "g"):
        named["k"] = key
    named |= {quoted(name): random_value(rng, type_name) for name, type_name in table.shape.columns}
    named["big"] = "NULL" if count > 20 else random_large(rng)
    return (
        f"INSERT INTO {table.shape.sql} ({', '.join(named)}) "
        f"SELECT {', '.join(named.values())} FROM generate_series({first}, {first + count - 1}) g"
    )


def update(table: Table, rng: random.Random, ids: list[int], fresh_id: int) -> str:
    """An update of some columns. For one row it sometimes changes key and id to those of `fresh_id`."""
    sets = {quoted(name): random_value(rng, type_name) for name, type_name in table.shape.columns if rng.random() < 0.5}
    if rng.random() < 0.2:
        sets["big"] = random_large(rng)
    if len(ids) == 1 and rng.random() < 0.3:
        sets["id"] = str(fresh_id)
        if key := key_of(table, str(fresh_id)):
            sets["k"] = key
    assigned = ", ".join(f"{name} = {value}" for name, value in (sets or {"id": "id"}).items())
    return f"UPDATE {table.shape.sql} t SET {assigned} FROM unnest(ARRAY{ids}) g WHERE t.id = g"


def with_column(shape: Shape, name: str, type_name: str) -> Shape:
    return replace(shape, columns=(*shape.columns, (name, type_name)))


def without_column(shape: Shape, at: int) -> Shape:
    return replace(shape, columns=shape.columns[:at] + shape.columns[at + 1 :])


def with_column_as(shape: Shape, at: int, name: str, type_name: str) -> Shape:
    return replace(shape, columns=(*shape.columns[:at], (name, type_name), *shape.columns[at + 1 :]))
