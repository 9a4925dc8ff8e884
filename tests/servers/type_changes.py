"""Columns whose type ALTER TABLE changes on a server, and the rows that `snapshot` rebuilds from the changes."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgdecode import DecodeError, RelationCatalog, snapshot
from pgdecode.types.pgtypes import NAME_BY_OID
from pgdecode.types.type_changes import CASTS, ColumnType, TypeChange
from servers.__main__ import MAJORS, found
from servers.connection import Connection, ServerError
from servers.server import Server, running
from support.oracles import replay

# As captures do: before PostgreSQL 12, floats are not exact otherwise.
_SETTINGS = "SET extra_float_digits = 3"
Rebuild = Callable[..., pa.Table]
# The digits of money, which payloads do not have.
TYPES: dict[str | int, str] = {"money": "money(2)"}
# For each type, values of the server's text form that are difficult for casts.
VALUES: dict[str, tuple[str, ...]] = {
    "int2": ("0", "-7", "12345", "32767"),
    "int4": ("0", "-7", "123456", "2147483647"),
    "int8": ("0", "-7", "123456", "9007199254740993"),
    "numeric": ("0", "-1.50", "2.5", "3.4999", "-0.4", "120", "NaN"),
    "numeric(10,2)": ("0.00", "-1.50", "2.50", "3.49", "-0.40", "120.00"),
    "numeric(12,4)": ("0.0000", "-1.5050", "2.4950", "3.4949", "-0.0040", "120.0000"),
    "float4": ("0", "-7", "0.1", "2.5", "123456", "3.7"),
    "float8": ("0", "-7", "0.1", "2.6", "123456", "3.7", "1234567.875"),
    "oid": ("0", "7", "4000000000"),
    "bool": ("t", "f"),
    "text": ("", "a", "b ", "ab", "é'\"x"),
    "varchar(10)": ("", "a", "b ", "ab", "é'\"x"),
    "char(5)": ("a", "ab", "abc", "é", "12345"),
    "name": ("a", "ab", "é"),
    "uuid": ("6f9619ff-8b86-d011-b42d-00c04fc964ff", "00000000-0000-0000-0000-000000000000"),
    "json": ('{"b": 1, "a": [1.50]}', "1"),
    "jsonb": ('{"b": 1, "a": [1.50]}', "1"),
    "xml": ("<a>1</a>", "<b/>"),
    "inet": ("10.0.0.1", "10.0.0.0/8", "10.0.0.1/24", "::1", "fe80::/10"),
    "cidr": ("10.0.0.1/32", "10.0.0.0/8", "::1/128", "fe80::/10"),
    "macaddr": ("08:00:2b:01:02:03", "00:00:00:00:00:00"),
    "macaddr8": ("08:00:2b:ff:fe:01:02:03", "00:00:00:ff:fe:00:00:00"),
    "bit(5)": ("10101", "00000"),
    "varbit(5)": ("10101", "00001"),
    "pg_lsn": ("0/16B3748", "16/B374D848"),
    "tid": ("(0,1)", "(5,7)"),
    "xid": ("7", "9"),
    "date": ("2024-02-29", "0044-03-15 BC", "infinity", "10000-01-01"),
    "time": ("00:00:00", "12:34:56.789", "23:59:59.5"),
    "timetz": ("00:00:00+00", "12:34:56.789+05:30"),
    "timestamp": ("2024-02-29 00:00:00", "2024-02-29 12:34:56.789", "1999-12-31 23:59:59.5", "0044-03-15 01:02:03 BC"),
    "timestamptz": ("2024-02-29 00:00:00+00", "2024-02-29 12:34:56.789+00", "1999-12-31 23:59:59.5+00"),
    "interval": ("1 day", "00:00:01.5"),
    "tsvector": ("'a':1 'b':2", "'é'"),
    "tsquery": ("'a' & 'b'", "'c'"),
    "jsonpath": ('$."a"', "$"),
    "int4range": ("[1,5)", "empty"),
    "int8range": ("[1,5)", "(,7)"),
    "mood": ("sad", "it's fine"),
    "plain": ("7", "-7"),
    "money": ("$1.50", "-$2.00"),
}
for _name in ("int2", "int4", "int8", "numeric", "oid", "bool", "uuid", "text", "varchar", "int4range"):
    _values = VALUES.get(_name, ("a", "b c"))
    VALUES[f"{_name}[]"] = ("{}", *(f'{{"{value}"}}' for value in _values if '"' not in value), "{NULL}")
_SINCE = {"jsonpath": 12, "macaddr8": 10}


@dataclass(frozen=True)
class Alteration:
    """A change of type. `using` is the expression, `values` those to insert, `later` those to insert afterwards."""

    before: str
    after: str
    using: str = ""
    values: tuple[str, ...] = ()
    later: tuple[str, ...] = ()

    @property
    def inserted(self) -> tuple[str, ...]:
        return self.values or VALUES[self.before]

    def __str__(self) -> str:
        return f"{self.before} {self.sql}"

    @property
    def sql(self) -> str:
        return f"TYPE {self.after}" + (f" USING {self.using}" if self.using else "")


_DIGITS = ("1", "2", "30", "4")
# Those of the reports of users, and others: risingwavelabs/risingwave#22368, PostHog/posthog#86510.
ALTERATIONS = (
    Alteration("int4", "int8"),
    Alteration("int8", "int4", values=_DIGITS),
    Alteration("int4", "numeric(10,2)", values=_DIGITS),
    Alteration("int4", "numeric"),
    Alteration("int4", "text"),
    Alteration("int4", "varchar(20)"),
    Alteration("int4", "float8"),
    Alteration("numeric", "numeric(10,2)"),
    Alteration("numeric(10,2)", "numeric(12,2)"),
    Alteration("numeric(10,2)", "numeric(12,4)"),
    Alteration("numeric(12,4)", "numeric(10,2)"),
    Alteration("numeric(10,2)", "numeric"),
    Alteration("numeric", "int4", values=("0", "1.4", "2.5", "-3.5", "10")),
    Alteration("float4", "float8"),
    Alteration("float8", "float4", values=("0", "0.5", "2.25", "7")),
    Alteration("float8", "numeric"),
    Alteration("float4", "numeric"),
    Alteration("float8", "int4", values=("0", "1.2", "7", "-3.7")),
    Alteration("varchar(10)", "varchar(20)"),
    Alteration("varchar(10)", "text"),
    Alteration("text", "varchar(20)"),
    Alteration("varchar(10)", "varchar(5)"),
    Alteration("varchar(10)", "char(5)"),
    Alteration("text", "char(5)", values=("a", "ab", "é", "12345")),
    Alteration("char(5)", "text"),
    Alteration("char(5)", "varchar(10)"),
    Alteration("char(5)", "char(8)"),
    Alteration("uuid", "text"),
    Alteration("jsonb", "json"),
    Alteration("jsonb", "text"),
    Alteration("json", "jsonb"),
    Alteration("json", "text"),
    Alteration("xml", "text"),
    Alteration("mood", "text"),
    Alteration("mood", "plain_text", values=("sad", "it's fine")),
    Alteration("inet", "text"),
    Alteration("inet", "cidr", values=("10.0.0.1", "10.0.0.0/8", "::1")),
    Alteration("cidr", "inet"),
    Alteration("macaddr", "macaddr8"),
    Alteration("bit(5)", "varbit"),
    Alteration("varbit(5)", "bit(5)", values=("10101", "00001")),
    Alteration("bool", "text"),
    Alteration("date", "timestamp"),
    Alteration("date", "timestamptz", values=("2024-02-29", "infinity")),
    Alteration("date", "text"),
    Alteration("timestamp", "date"),
    Alteration("timestamp", "timestamptz"),
    Alteration("timestamp", "time", values=("2024-02-29 00:00:00", "2024-02-29 12:34:56.789")),
    Alteration("timestamp", "timestamp(0)"),
    Alteration(
        *("timestamp", "timestamp(0)"),
        values=("2024-02-29 00:00:00", "2024-02-29 12:34:56.789", "1999-12-31 23:59:57.5", "2001-01-01 00:00:00.5"),
    ),
    Alteration("timestamp(0)", "timestamp(3)", values=("2024-02-29 00:00:00", "2024-02-29 12:34:56")),
    Alteration("timestamptz", "timestamp"),
    Alteration("timestamptz", "date"),
    Alteration("time", "time(0)"),
    Alteration("time", "interval"),
    Alteration("timetz", "time"),
    Alteration("interval", "time"),
    Alteration("interval", "interval(0)"),
    Alteration("money", "numeric"),
    Alteration("int4", "oid", values=("0", "7", "-7")),
    Alteration("oid", "int8"),
    Alteration("int4[]", "int8[]"),
    Alteration("int4[]", "text"),
    Alteration("int4[]", "numeric(10,2)[]", values=("{}", "{7}", "{-7,NULL}")),
    Alteration("text[]", "varchar[]"),
    Alteration("int4", "plain", values=("1", "7")),
    Alteration("plain", "int8"),
    Alteration("int4", "price", values=("1", "7")),
    Alteration("numeric(10,2)", "price"),
    # With USING, which the wire does not tell.
    Alteration("text", "int4", "c::int4", _DIGITS),
    Alteration("text", "int4", "c::int4 * 10", _DIGITS),
    Alteration("int4", "int8", "c::int8", _DIGITS),
    Alteration("int4", "numeric(10,2)", "c::numeric * 10", _DIGITS),
    Alteration("int4", "text", "'k' || c::text", _DIGITS),
    Alteration("text", "uuid", "c::uuid", ("6F9619FF-8B86-D011-B42D-00C04FC964FF", "0" * 32, "1" * 32)),
    Alteration("text", "mood", "c::mood", ("sad", "it's fine")),
    Alteration("text", "jsonb", "c::jsonb", ('{"b":1}', "1")),
    Alteration("text", "date", "c::date", ("2024-02-29", "2024-3-1")),
    Alteration("text", "int4[]", "string_to_array(c, ',')::int4[]", ("1,2", "3", "4,5")),
    Alteration("bool", "int4", "c::int4"),
    Alteration("int4", "bool", "c > 1", _DIGITS[:2]),
    Alteration("mood", "mood2", "c::text::mood2"),
    Alteration("text", "bytea", "c::bytea", ("a", "b")),
)


def prepare(connection: Connection) -> None:
    """Create the user-defined types of the alterations."""
    connection.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'it''s fine'); CREATE TYPE mood2 AS ENUM ('it''s fine', 'sad')"
    )
    connection.execute("CREATE DOMAIN plain AS int4; CREATE DOMAIN price AS numeric(12,3)")
    connection.execute("CREATE DOMAIN plain_text AS text")


# -- the table of casts ----------------------------------------------------------------------------------------------


def wrong_casts(server: Server, connection: Connection) -> list[str]:
    """Differences between the declared casts and modifiers, and what ALTER COLUMN ... TYPE does on the server."""
    kinds = kinds_of(server, connection)
    found = []
    for before, after in itertools.permutations(kinds, 2):
        change = TypeChange(kinds[before], kinds[after])
        if change.is_certain and before in VALUES:
            found += wrong_values(connection, change, before, after)
    tried = {(kinds[before].name, kinds[after].name) for before, after in itertools.permutations(kinds, 2)}
    return found + [f"{before} to {after}: not tried" for before, after in CASTS.keys() - tried if server.major == 18]


def kinds_of(server: Server, connection: Connection) -> dict[str, ColumnType]:
    """The types of `VALUES` and some more, as a Relation message describes them."""
    more = (
        "varchar",
        "varchar[]",
        "bpchar",
        "varbit",
        "timestamp(0)",
        "time(0)",
        "char(8)",
        "varchar(5)",
        "varchar(20)",
    )
    names = [name for name in dict.fromkeys([*VALUES, *more]) if name not in ("mood", "plain", "money")]
    names = [name for name in names if _SINCE.get(name, 0) <= server.major]
    connection.execute("CREATE TABLE kinds ({})".format(", ".join(f"c{at} {name}" for at, name in enumerate(names))))
    rows = connection.execute(
        "SELECT atttypid, atttypmod FROM pg_attribute WHERE attrelid = 'kinds'::regclass AND attnum > 0 ORDER BY attnum"
    )
    connection.execute("DROP TABLE kinds")
    found = {}
    for name, row in zip(names, rows, strict=True):
        oid, typmod = (int(item or 0) for item in row)
        found[name] = ColumnType(NAME_BY_OID[oid], typmod, oid)
    return found


def wrong_values(connection: Connection, change: TypeChange, before: str, after: str) -> Iterator[str]:
    """Alter a table with each value, and compare the value with the declared one."""
    for value in VALUES[before]:
        connection.execute(
            f"CREATE TABLE v (c {before}); INSERT INTO v VALUES ('{value.replace(chr(39), chr(39) * 2)}')"
        )
        try:
            former = connection.value("SELECT c FROM v")
            node = connection.value("SELECT pg_relation_filenode('v')")
            connection.execute(f"ALTER TABLE v ALTER c TYPE {after}")
            theirs = connection.value("SELECT c FROM v")
            is_rewritten = connection.value("SELECT pg_relation_filenode('v')") != node
            [ours] = change.converted(pa.chunked_array([[former]], pa.string())).to_pylist()
            if ours not in (None, theirs):
                yield f"{before} to {after}: {value} is {theirs}, not {ours}"
            if change.is_kept and is_rewritten:
                yield f"{before} to {after}: the table is rewritten"
        except ServerError as error:
            if error.sqlstate in ("42804", "42846"):
                yield f"{before} to {after}: there is no such cast"
                return
        finally:
            connection.execute("DROP TABLE v")


# -- histories -------------------------------------------------------------------------------------------------------

# The replica identity, by a letter: the column; with another column; the whole row; the whole row of this column alone,
# or another column.
IDENTITIES = ("key", "pair", "full", "alone", "other")


@dataclass(frozen=True)
class History:
    """What a slot sent about one table that was altered, and the rows of the server at the end."""

    alteration: Alteration
    identity: str
    payloads: tuple[list[bytes], ...]  # in text, and in binary where the server has it
    columns: list[str]
    rows: list[list[str | None]]


def read(server: Server, sql: str) -> list[list[str | None]]:
    """Execute a query in a session of its own: PostgreSQL 10 ends a session that has begun to decode ten times."""
    with contextlib.closing(server.connect()) as connection:
        connection.execute(_SETTINGS)
        return connection.execute(sql)


def record(server: Server, connection: Connection, alteration: Alteration, identity: str) -> History | None:
    """Alter a table between changes. None if the server refuses it, or its type cannot be a key."""
    names = ["c", "v"] if identity == "alone" else ["n", "c", "v"]
    kinds = {"n": "int", "c": alteration.before, "v": "text"}
    key = {"key": ", PRIMARY KEY (c)", "pair": ", PRIMARY KEY (n, c)", "other": ", PRIMARY KEY (n)"}.get(identity, "")
    values = [*alteration.inserted] if identity == "key" else [*alteration.inserted, *alteration.inserted]
    try:
        connection.execute(f"CREATE TABLE t ({', '.join(f'{name} {kinds[name]}' for name in names)}{key})")
        if identity in ("full", "alone"):
            connection.execute("ALTER TABLE t REPLICA IDENTITY FULL")
        # Not FOR ALL TABLES, with which PostgreSQL 10 sends the rewritten rows as another table's.
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        connection.execute("SELECT pg_create_logical_replication_slot('types', 'pgoutput')")
        for number, value in enumerate(values):
            row = {"n": str(number), "c": "'" + value.replace("'", "''") + "'", "v": f"'v{number}'"}
            connection.execute(f"INSERT INTO t VALUES ({', '.join(row[name] for name in names)})")
        connection.execute("UPDATE t SET v = 'again' WHERE v = 'v1'")
        connection.execute(f"ALTER TABLE t ALTER c {alteration.sql}")
        connection.execute("UPDATE t SET v = 'changed' WHERE v = 'v0'; DELETE FROM t WHERE v = 'again'")
        connection.execute("UPDATE t SET v = 'changed again' WHERE v = 'changed'")
        if identity != "key":
            connection.execute("UPDATE t SET v = 'moved', c = (SELECT c FROM t WHERE v = 'v3') WHERE v = 'v2'")
        # The rows at the end are sent once more, as a table without a history.
        connection.execute("CREATE TABLE t_end (LIKE t); ALTER PUBLICATION p ADD TABLE t_end")
        connection.execute("INSERT INTO t_end SELECT * FROM t")
        rows = connection.execute("SELECT * FROM t")
        payloads = []
        for binary in ("", ", 'binary', 'true'") if server.major >= 14 else ("",):
            sent = read(
                server,
                "SELECT encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes('types', NULL, NULL, "
                f"'proto_version', '1', 'publication_names', 'p'{binary})",
            )
            payloads.append([bytes.fromhex(row[0] or "") for row in sent])
        return History(alteration, identity, tuple(payloads), names, rows)
    except ServerError as error:
        # There is no such cast, no such key, or two values become one.
        if error.sqlstate in ("42804", "42846", "42704", "23505", "42883"):
            return None
        raise
    finally:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'types'"
        )
        connection.execute("DROP PUBLICATION IF EXISTS p; DROP TABLE IF EXISTS t, t_end")


def problems(history: History, rebuild: Rebuild = snapshot) -> Iterator[str]:
    """Compare the rows that are rebuilt with those of the server. An error must name the position."""
    for number, payloads in enumerate(history.payloads):
        about = f"{history.alteration} of {history.identity}, {'binary' if number else 'text'}"
        catalog = RelationCatalog.from_messages(payloads)
        types: dict[str | int, str] = {column.type_id: "text" for item in catalog for column in item.columns}
        if number == 0:
            for problem in _problems(history, payloads, history.rows, types, rebuild):
                yield f"{about}: {problem}"
        try:
            end = snapshot(payloads, "public.t_end", types=TYPES)
            for problem in _problems(history, payloads, None, TYPES, rebuild, end):
                yield f"{about}, typed: {problem}"
        except DecodeError:
            continue  # a value that Arrow cannot represent


def _problems(
    history: History,
    payloads: list[bytes],
    texts: list[list[str | None]] | None,
    types: dict[str | int, str],
    rebuild: Rebuild,
    end: pa.Table | None = None,
) -> Iterator[str]:
    try:
        found = rebuild(payloads, "public.t", types=types)
    except DecodeError:
        raise
    except ValueError as error:
        if not re.match(r"position \d+: the changed row is not found", str(error)):
            yield f"raises {error}"
        return
    names, unknown = history.columns, replay.UNKNOWN
    theirs: list[list[Any]] = texts or []
    if end is not None:
        # A column of several types is in text.
        columns = [
            [row[at] for row in history.rows]
            if found[name].type != end[name].type and found[name].type == pa.string()
            else _plain(end[name])
            for at, name in enumerate(names)
        ]
        theirs = [list(row) for row in zip(*columns, strict=True)]
    lists = found["_unknown"].to_pylist()
    ours = [list(row) for row in zip(*(_plain(found[name]) for name in names), strict=True)]
    ours = [
        [unknown if name in listed else value for name, value in zip(names, row, strict=True)]
        for row, listed in zip(ours, lists, strict=True)
    ]
    missed = replay.unmatched(ours, theirs)
    if len(ours) != len(theirs) or missed:
        yield f"{len(ours)} rows, of which the server does not have {missed}: {ours}; the server has {theirs}"


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """Values that Python can hash; times as numbers, because Python cannot represent all their values."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    values = column.to_pylist()
    return [tuple(item) if isinstance(item, list) else str(item) if isinstance(item, dict) else item for item in values]


def outcome(history: History) -> str:
    """Say in a word what the snapshot knows: everything, not everything, or nothing, which is an error."""
    try:
        rows = snapshot(history.payloads[0], "public.t", types=TYPES, unrepresentable="text")
    except ValueError:
        return "error"
    return "unknown" if any(rows["_unknown"].to_pylist()) else "known"


def main() -> int:
    """Try all casts and alterations on servers, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--majors", type=int, nargs="+", default=list(MAJORS), metavar="N")
    parser.add_argument("--servers", type=Path, metavar="FOLDER", help="the folder of `python -m servers --install`")
    arguments = parser.parse_args()
    programs = found(arguments.servers)
    n_wrong = 0
    for major in arguments.majors:
        if major not in programs:
            print(f"PostgreSQL {major}: there is no server with test_decoding here")
            continue
        with running(programs[major]) as server:
            connection = server.connect()
            prepare(connection)
            wrong = wrong_casts(server, connection)
            outcomes: Counter[str] = Counter()
            for alteration, identity in itertools.product(ALTERATIONS, IDENTITIES):
                history = record(server, connection, alteration, identity)
                if history is not None:
                    outcomes[outcome(history)] += 1
                    wrong += problems(history)
        n_wrong += len(wrong)
        print(f"PostgreSQL {major}: {outcomes.total()} histories, {dict(outcomes)}; {len(wrong)} are wrong", flush=True)
        print("\n".join(wrong))
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
