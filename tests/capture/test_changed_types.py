"""User-defined types that change, are renamed, dropped and made again while they are captured.

Every value has the text that the server sent. A column has the same type from text and from binary tuples.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import many_tables
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cluster import Cluster
from conftest import Database

from pgdecode import ChangeDecoder
from pgdecode.capture import Capture, FileRules, PluginOptions, receiver
from pgdecode.capture import capture as capture_module
from pgdecode.capture.catalog.user_types import read_types, read_user_types, types_query
from pgdecode.capture.connection import Connection
from pgdecode.capture.errors import ServerError
from pgdecode.files.file_metadata import CATALOG_KEY, catalog_of, user_types_of
from pgdecode.types.user_types import UserType
from support.footers import types_of
from support.tiers import full

ADDRESS = "CREATE TYPE addr AS (street text, zip int)"
TABLE = "CREATE TABLE c (id int PRIMARY KEY, a addr, b addr[])"
FIRST = "INSERT INTO c VALUES (1, '(x,1)', '{\"(x,1)\"}')"
TEXTS = [("(x,1)", ["(x,1)"]), ("(y,2)", ["(y,2)"])]
STRUCT = pa.struct([("street", pa.string()), ("zip", pa.int32())])


@dataclass(frozen=True)
class Case:
    """SQL before the capture, and in steps; the rows of columns a and b, as the server sends them."""

    setup: tuple[str, ...]
    steps: tuple[tuple[str, ...], ...]
    rows: Sequence[tuple[Any, ...]]
    types: tuple[pa.DataType, ...] | None = (pa.string(), pa.list_(pa.string()))


ADDED = Case(
    # Source: https://github.com/Snowflake-Labs/pg_lake/pull/501
    (ADDRESS, TABLE),
    (
        (FIRST,),
        (
            "ALTER TYPE addr ADD ATTRIBUTE country text",
            "INSERT INTO c VALUES (2, '(y,2,NL)', '{\"(y,2,NL)\"}')",
        ),
    ),
    [TEXTS[0], ("(y,2,NL)", ["(y,2,NL)"])],
)
REPLACED = Case(
    (ADDRESS, TABLE),
    (
        (FIRST,),
        (
            "ALTER TYPE addr DROP ATTRIBUTE zip",
            "ALTER TYPE addr ADD ATTRIBUTE number int",
            "INSERT INTO c VALUES (2, '(y,2)', '{\"(y,2)\"}')",
        ),
    ),
    TEXTS,
)
RENAMED_ATTRIBUTE = Case(
    (ADDRESS, TABLE),
    (
        (FIRST,),
        ("ALTER TYPE addr RENAME ATTRIBUTE zip TO code", "INSERT INTO c VALUES (2, '(y,2)', '{\"(y,2)\"}')"),
    ),
    TEXTS,
)
ALTERED_ATTRIBUTE = Case(
    (ADDRESS, TABLE),
    (
        (FIRST,),
        (
            "ALTER TABLE c DROP a, DROP b",
            "ALTER TYPE addr ALTER ATTRIBUTE zip TYPE text",
            "ALTER TABLE c ADD a addr, ADD b addr[]",
            "INSERT INTO c VALUES (2, '(y,2)', '{\"(y,2)\"}')",
        ),
    ),
    TEXTS,
)
MADE_AGAIN = Case(
    # Source: https://github.com/risingwavelabs/risingwave/issues/16880
    (ADDRESS, TABLE),
    (
        (FIRST,),
        (
            "DROP TYPE addr CASCADE",
            "CREATE TYPE addr AS (zip text, street text)",
            "ALTER TABLE c ADD a addr, ADD b addr[]",
            "INSERT INTO c VALUES (2, '(y,2)', '{\"(y,2)\"}')",
        ),
    ),
    [("(x,1)", '{"(x,1)"}'), ("(y,2)", '{"(y,2)"}')],
    (pa.string(), pa.string()),
)
RENAMED = Case(
    # Source: https://github.com/Pogchamp-company/alembic-postgresql-enum/issues/115
    ("CREATE TYPE mood AS ENUM ('sad', 'ok')", ADDRESS, "CREATE TABLE c (id int PRIMARY KEY, a addr, b mood[])"),
    (
        ("INSERT INTO c VALUES (1, '(x,1)', '{sad,ok}')",),
        (
            "ALTER TYPE mood RENAME TO feeling",
            "ALTER TYPE addr RENAME TO address",
            "ALTER TYPE feeling ADD VALUE 'new'",
            "INSERT INTO c VALUES (2, '(y,2)', '{new}')",
        ),
    ),
    [({"street": "x", "zip": 1}, ["sad", "ok"]), ({"street": "y", "zip": 2}, ["new"])],
    (STRUCT, pa.list_(pa.string())),
)
MIGRATED = Case(
    ("CREATE TYPE mood AS ENUM ('sad', 'ok')", "CREATE TABLE c (id int PRIMARY KEY, a mood, b mood[])"),
    (
        ("INSERT INTO c VALUES (1, 'sad', '{sad,ok}')",),
        (
            "ALTER TYPE mood RENAME TO mood_old",
            "CREATE TYPE mood AS ENUM ('sad', 'ok', 'new')",
            "ALTER TABLE c ALTER a TYPE mood USING a::text::mood, ALTER b TYPE mood[] USING b::text[]::mood[]",
            "DROP TYPE mood_old",
            "INSERT INTO c VALUES (2, 'new', '{ok}')",
        ),
    ),
    [("sad", ["sad", "ok"]), ("new", ["ok"])],
)
UNDERSCORE = Case(
    (
        "CREATE TYPE _mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE mood AS ENUM ('x', 'y')",
        "CREATE TABLE c (id int PRIMARY KEY, a _mood, b mood[])",
    ),
    (("INSERT INTO c VALUES (1, 'sad', '{x,y}')",), ("INSERT INTO c VALUES (2, 'ok', '{y}')",)),
    [("sad", ["x", "y"]), ("ok", ["y"])],
)
TABLE_TYPE = Case(
    ("CREATE TABLE r (x int PRIMARY KEY, y text)", "CREATE TABLE c (id int PRIMARY KEY, a r, b r[])"),
    (
        ("INSERT INTO c VALUES (1, '(1,x)', '{\"(1,x)\"}')",),
        ("ALTER TABLE r ADD z int", "INSERT INTO c VALUES (2, '(2,y,3)', '{\"(2,y,3)\"}')"),
    ),
    [("(1,x)", ["(1,x)"]), ("(2,y,3)", ["(2,y,3)"])],
)
INNER = Case(
    (
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE inside AS (m mood, n int)",
        "CREATE TYPE outside AS (s text, i inside)",
        "CREATE TABLE c (id int PRIMARY KEY, a outside, b inside[])",
    ),
    (
        ("""INSERT INTO c VALUES (1, '(x,"(sad,1)")', '{"(ok,1)"}')""",),
        (
            "ALTER TYPE inside ADD ATTRIBUTE k mood",
            """INSERT INTO c VALUES (2, '(y,"(sad,2,ok)")', '{"(ok,2,sad)"}')""",
        ),
    ),
    [({"s": "x", "i": "(sad,1)"}, ["(ok,1)"]), ({"s": "y", "i": "(sad,2,ok)"}, ["(ok,2,sad)"])],
    (pa.struct([("s", pa.string()), ("i", pa.string())]), pa.list_(pa.string())),
)
STANDARD = Case(
    # Types of information_schema have OIDs below those of users, and differ from server to server.
    ("CREATE TABLE c (id int PRIMARY KEY, a information_schema.cardinal_number, b information_schema.yes_or_no[])",),
    (("INSERT INTO c VALUES (1, 5, '{YES,NO}')",),),
    [(5, ["YES", "NO"])],
    (pa.int32(), pa.list_(pa.string())),
)
RANGES = Case(
    (
        "CREATE DOMAIN price AS numeric(12,2)",
        "CREATE TYPE span AS RANGE (subtype = price)",
        "CREATE TABLE c (id int PRIMARY KEY, a span, b span[])",
    ),
    (
        ("INSERT INTO c VALUES (1, '[1,2)', '{empty}')",),
        ("ALTER TYPE span RENAME TO spans", "ALTER DOMAIN price RENAME TO prices", "INSERT INTO c VALUES (2)"),
    ),
    [],
    None,
)
CASES = {name.lower(): case for name, case in list(globals().items()) if isinstance(case, Case)}


def captured(database: Database, folder: Path, case: Case, *, binary: bool, is_timely: bool) -> pa.Table:
    """Capture the steps of a case, each in a run of its own or all at the end, and decode its table."""
    database.create_slot()
    database.execute("DROP TABLE t")
    for sql in case.setup:
        database.execute(sql)
    for number, step in enumerate(case.steps, 1):
        for sql in step:
            database.execute(sql)
        if is_timely or number == len(case.steps):
            options = PluginOptions(binary=binary)
            Capture(database.dsn, folder, slot=database.slot, publication="p", options=options).run(until="now")
    paths = sorted(folder.glob("*.parquet"))
    assert len(paths) == (len(case.steps) if is_timely else 1)
    payloads = pa.concat_tables([pq.read_table(path) for path in paths])
    decoder = ChangeDecoder(types=types_of(paths), catalog=catalog_of(paths))
    return pa.table(decoder.table(payloads["data"], "public.c", payloads["seq"]))


@pytest.mark.parametrize(
    ("binary", "is_timely"),
    [
        pytest.param(False, True, id="text in time"),
        full(False, False, id="text afterwards"),
        full(True, True, id="binary in time"),
        full(True, False, id="binary afterwards"),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_values_of_changed_types_are_those_that_the_server_sent(
    database: Database, tmp_path: Path, name: str, *, binary: bool, is_timely: bool
) -> None:
    case = CASES[name]
    found = captured(database, tmp_path / "raw", case, binary=binary, is_timely=is_timely)
    if case.types is not None:
        assert tuple(found.schema.field(name).type for name in ("a", "b")) == case.types
        assert [(row["a"], row["b"]) for row in found.to_pylist()] == list(case.rows)
    else:
        bounds = found.schema.field("a").type.field("lower").type
        assert bounds == pa.decimal128(12, 2)
        assert found["a"].to_pylist()[0]["upper"] == 2


@pytest.mark.parametrize("is_timely", [full(True), False], ids=["in time", "afterwards"])
def test_a_type_that_was_dropped_before_the_capture_is_text_without_a_struct(
    database: Database, tmp_path: Path, *, is_timely: bool
) -> None:
    case = Case(
        (ADDRESS, TABLE),
        ((FIRST,), ("DROP TYPE addr CASCADE", "INSERT INTO c VALUES (2)")),
        [],
    )
    found = captured(database, tmp_path / "raw", case, binary=False, is_timely=is_timely)
    assert found.schema.field("a").type == (STRUCT if is_timely else pa.string())
    assert found["a"].to_pylist() == [{"street": "x", "zip": 1} if is_timely else "(x,1)", None]


def test_a_footer_has_the_types_that_its_file_needs(database: Database, tmp_path: Path) -> None:
    case = Case(
        (
            "CREATE TYPE mood AS ENUM ('sad', 'ok')",
            "CREATE TYPE unused AS ENUM ('x')",
            "CREATE DOMAIN feeling AS mood",
            "CREATE TYPE outside AS (s text, f feeling[])",
            "CREATE TABLE c (id int PRIMARY KEY, a outside, b int)",
            "CREATE TABLE other (u unused)",
        ),
        (("INSERT INTO c VALUES (1, '(x,{sad})', 1)",), ("INSERT INTO other VALUES ('x')",)),
        [],
    )
    captured(database, tmp_path / "raw", case, binary=False, is_timely=True)
    first, second = (
        {str(key).lstrip("=") for key in types_of([path]) or {} if isinstance(key, str)}
        for path in sorted((tmp_path / "raw").glob("*.parquet"))
    )
    assert first == {"public.outside", "public.feeling[]", "public.feeling", "public.mood"}
    assert second == {"public.unused"}


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_money_has_the_digits_of_the_server(database: Database, tmp_path: Path, *, binary: bool) -> None:
    case = Case(
        ("CREATE DOMAIN fee AS money", "CREATE TABLE c (id int PRIMARY KEY, a money, b money[], f fee)"),
        (("INSERT INTO c VALUES (1, -12.5, '{1,2.25}', 3)",),),
        [],
    )
    found = captured(database, tmp_path / "raw", case, binary=binary, is_timely=False)
    assert found.schema.field("a").type == pa.decimal128(19, 2)
    [row] = found.to_pylist()
    assert [str(row["a"]), [*map(str, row["b"])], str(row["f"])] == ["-12.50", ["1.00", "2.25"], "3.00"]
    paths = sorted((tmp_path / "raw").glob("*.parquet"))
    changes = ChangeDecoder(types=types_of(paths)).decode(pq.read_table(paths[0])["data"])
    # Maps have the text that the server sent. The binary form has no currency.
    new = dict(changes["new"][0].as_py())
    expected = ("-12.50", "{1.00,2.25}", "3.00") if binary else ("-$12.50", "{$1.00,$2.25}", "$3.00")
    assert (new["a"], new["b"], new["f"]) == expected


@pytest.mark.full
def test_the_command_counts_columns_that_are_text_because_their_type_was_altered(
    database: Database, tmp_path: Path
) -> None:
    captured(database, tmp_path / "raw", ADDED, binary=True, is_timely=False)
    command = [sys.executable, "-m", "pgdecode", "decode", str(tmp_path / "raw"), str(tmp_path / "c.parquet")]
    done = subprocess.run([*command, "--table", "public.c"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 columns as text, because types were altered (public.addr)" in done.stderr
    found = pq.read_table(tmp_path / "c.parquet")
    assert found["a"].to_pylist() == ["(x,1)", "(y,2,NL)"]
    assert found.schema.field("a").metadata[b"pg:form"] == b"text"


def test_a_type_that_is_dropped_while_its_file_is_written_is_described(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = threading.Semaphore(0)

    def counted(*arguments: Any) -> tuple[UserType, ...]:
        found = read_types(*arguments)
        calls.release()
        return found

    monkeypatch.setattr(capture_module, "read_types", counted)
    database.create_slot()
    database.execute(f"DROP TABLE t; {ADDRESS}; CREATE TYPE mood AS ENUM ('sad')")
    database.execute("CREATE TABLE c (id int PRIMARY KEY, a addr, m mood)")
    folder = tmp_path / "raw"
    capture = Capture(database.dsn, folder, slot=database.slot, publication="p", rules=FileRules(max_seconds=600))
    thread = threading.Thread(target=capture.run)
    thread.start()
    try:
        database.execute("INSERT INTO c VALUES (1, '(x,1)', 'sad')")
        assert calls.acquire(timeout=30)
        database.execute("DROP TYPE mood CASCADE; ALTER TYPE addr ADD ATTRIBUTE country text")
        database.execute("INSERT INTO c VALUES (2, '(y,2,NL)')")
    finally:
        capture.stop()
        thread.join()
    Capture(database.dsn, folder, slot=database.slot, publication="p").run(until="now")
    paths = sorted(folder.glob("*.parquet"))
    declarations = {item.key: item.declaration for item in user_types_of(paths[:1])}
    assert declarations["public.mood"] == "enum"
    assert declarations["public.addr"] == "record"


def test_a_capture_without_an_answer_about_types_warns(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.create_slot()
    database.execute(f"DROP TABLE t; {ADDRESS}; {TABLE}; {FIRST}")
    folder = tmp_path / "raw"
    warnings: list[str] = []

    def failing(*arguments: Any) -> tuple[UserType, ...]:
        raise ServerError("canceling statement due to statement timeout")

    monkeypatch.setattr(capture_module, "read_types", failing)
    Capture(database.dsn, folder, slot=database.slot, publication="p", on_warning=warnings.append).run(until="now")
    [warning] = [text for text in warnings if "types" in text]
    assert warning == (
        "the catalog of the database cannot be read: canceling statement due to statement timeout; values of types "
        "that no file describes are text, and binary ones need types=; what old rows have in columns that were added "
        "is not known"
    )
    assert types_of(folder.glob("*.parquet")) is None
    monkeypatch.setattr(capture_module, "read_types", read_types)
    database.execute("INSERT INTO c VALUES (2, '(y,2)')")
    Capture(database.dsn, folder, slot=database.slot, publication="p").run(until="now")
    # The next file describes the types of both.
    paths = sorted(folder.glob("*.parquet"))
    payloads = pa.concat_tables([pq.read_table(path) for path in paths])
    found = ChangeDecoder(types=types_of(paths)).table(payloads["data"], "public.c", payloads["seq"])
    assert found["a"].to_pylist() == [{"street": "x", "zip": 1}, {"street": "y", "zip": 2}]


def make_tables(database: Database, names: Sequence[str]) -> None:
    columns = ", ".join(f"column_{number} text" for number in range(25))
    database.execute("; ".join(f"CREATE TABLE {name} (id int PRIMARY KEY, m mood, {columns})" for name in names))


@pytest.mark.full
def test_a_footer_has_only_the_relations_that_its_file_uses(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Source: https://github.com/debezium/debezium/pull/7462, with fewer tables.
    monkeypatch.setattr(receiver, "CHUNK_ROWS", 4)
    database.create_slot()
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    names = [f"tenant_{number}" for number in range(100)]
    make_tables(database, names)
    database.execute("BEGIN; " + "".join(f"INSERT INTO {name} VALUES (1, 'sad'); " for name in names) + "COMMIT")
    database.execute("UPDATE tenant_7 SET m = 'ok'")
    database.execute("TRUNCATE tenant_8, tenant_9")
    database.execute("INSERT INTO tenant_7 VALUES (2)")
    folder, rules = tmp_path / "raw", FileRules(max_bytes=1)
    Capture(database.dsn, folder, slot=database.slot, publication="p", rules=rules).run(until="now")
    first, *rest = sorted(folder.glob("*.parquet"))
    found = [() if (catalog := catalog_of([path])) is None else catalog.names for path in (first, *rest)]
    assert found == [(), ("public.tenant_7",), ("public.tenant_8", "public.tenant_9"), ("public.tenant_7",)]
    assert all(len(pq.read_metadata(path).metadata[CATALOG_KEY]) < 8000 for path in rest)
    alone = ChangeDecoder(catalog=catalog_of(rest[1:])).decode(pq.read_table(rest[2])["data"])
    assert alone["op"].to_pylist() == ["insert"]
    catalog = catalog_of(rest)
    assert catalog is not None
    assert sorted(catalog.names) == ["public.tenant_7", "public.tenant_8", "public.tenant_9"]


@pytest.mark.full
def test_many_tables_with_types_of_their_own_are_captured(postgres: Cluster, tmp_path: Path) -> None:
    assert many_tables.run(postgres, 50, tmp_path / "raw") == []


def rows_read(plan: dict[str, Any]) -> int:
    """Count the rows that the scans of a plan have read."""
    n = sum(rows_read(part) for part in plan.get("Plans", ()))
    if "Scan" in plan["Node Type"]:
        n += (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return int(n)


def test_the_rows_read_for_types_do_not_depend_on_the_number_of_tables(database: Database) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (m mood[], n int)")
    [[pair]] = database.execute("SELECT 'pair'::regtype::oid")
    counts = []
    with closing(Connection(database.dsn)) as connection:
        for n_tables in (1, 100):
            make_tables(database, [f"many_{n_tables}_{number}" for number in range(n_tables)])
            assert len(read_user_types(connection, [int(pair or 0)], database.slot)) == 3
            query = types_query(connection.server_version, [int(pair or 0)], database.slot)
            plan = connection.value(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}")
            counts.append(rows_read(json.loads(plan or "")[0]["Plan"]))
    assert counts[0] == counts[1]
