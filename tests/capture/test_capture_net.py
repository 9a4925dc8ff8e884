"""Net changes of captured files, and what their footers tell of columns: after each batch, the tables of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import Database

import pgdecode
from pgdecode import ChangeDecoder, net_changes
from pgdecode.capture import Capture
from support.net_batches import ABOUT
from support.oracles.net_fold import applied
from support.oracles.replay import UNKNOWN, Row

# Batches of statements: keys of two columns that swap, move and chain with TOAST values that stay; rows without a key
# with NaN, -0, NULL and json; columns that are added with a default which changes later, renamed, dropped and added.
BATCHES = [
    """
    CREATE TABLE a (k int, l text, v int, body text, PRIMARY KEY (k, l));
    ALTER TABLE a ALTER body SET STORAGE EXTERNAL;
    CREATE TABLE f (x float8, j json, s text); ALTER TABLE f ALTER s SET STORAGE EXTERNAL;
    ALTER TABLE f REPLICA IDENTITY FULL;
    INSERT INTO a SELECT g, 'l' || g % 3, g, repeat(g::text, 3000) FROM generate_series(1, 30) g;
    INSERT INTO f SELECT CASE g % 4 WHEN 0 THEN 'NaN'::float8 WHEN 1 THEN '-0'::float8 WHEN 2 THEN 0 END, '{"a": 1}',
    repeat('s', 3000) FROM generate_series(1, 20) g
    """,
    """
    BEGIN; UPDATE a SET k = -1 WHERE k = 1; UPDATE a SET k = 1, l = 'l1' WHERE k = 2;
    UPDATE a SET k = 2, l = 'l2' WHERE k = -1; COMMIT;
    UPDATE a SET k = k + 100 WHERE k > 20;
    BEGIN; DELETE FROM a WHERE k = 3; UPDATE a SET k = 3, l = 'l0' WHERE k = 4; INSERT INTO a VALUES (4, 'new', 4, 'x');
    INSERT INTO a VALUES (5, 'gone', 5, 'x'); DELETE FROM a WHERE l = 'gone'; COMMIT;
    UPDATE f SET j = '{"a":1}' WHERE ctid IN (SELECT ctid FROM f ORDER BY ctid LIMIT 6);
    DELETE FROM f WHERE ctid IN (SELECT ctid FROM f ORDER BY ctid DESC LIMIT 3); UPDATE f SET x = NULL WHERE x = 'NaN'
    """,
    """
    UPDATE a SET v = -1 WHERE k BETWEEN 5 AND 9;
    ALTER TABLE a ADD n int DEFAULT 11; ALTER TABLE a ALTER n SET DEFAULT 12; ALTER TABLE a ADD empty text;
    UPDATE a SET v = -2 WHERE k BETWEEN 8 AND 11; INSERT INTO a VALUES (50, 'l', 50, 'x');
    ALTER TABLE f ADD t text DEFAULT 'told'; DELETE FROM f WHERE ctid IN (SELECT ctid FROM f ORDER BY ctid LIMIT 2);
    UPDATE f SET x = 7 WHERE ctid IN (SELECT ctid FROM f ORDER BY ctid LIMIT 2)
    """,
    """
    UPDATE a SET v = -3 WHERE k = 12; ALTER TABLE a RENAME body TO text; ALTER TABLE a DROP v;
    ALTER TABLE a RENAME l TO v; ALTER TABLE a ADD body int;
    UPDATE a SET k = k + 500 WHERE k < 15; UPDATE a SET n = 0 WHERE k = 16
    """,
    """
    BEGIN; UPDATE a SET n = 1; TRUNCATE a, f; INSERT INTO a VALUES (1, 'v', 'text', 1, 'e', 2); COMMIT;
    INSERT INTO f VALUES ('NaN', NULL, 's', 't'), ('NaN', NULL, 's', 't');
    DELETE FROM f WHERE ctid = (SELECT min(ctid) FROM f)
    """,
]


def numbers_of(net: pa.Table) -> dict[str, int]:
    """The numbers of the columns of net changes, by their names."""
    return {field.name: int(field.metadata[b"pg:attnum"]) for field in net.schema if field.name not in ABOUT}


def server_rows(database: Database, table: str) -> tuple[dict[int, str | None], list[Row]]:
    """What older rows have in each column, and the rows of a table, by the numbers of columns."""
    columns = database.execute(
        "SELECT attnum, attmissingval, attname FROM pg_attribute "
        f"WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    missing = {int(number or 0): value and value.strip('{}"') for number, value, _ in columns}
    rows = database.execute(f"SELECT * FROM {table}")
    return missing, [dict(zip(missing, row, strict=True)) for row in rows]


@pytest.mark.full
def test_rows_before_a_batch_and_its_net_changes_are_the_rows_of_the_server(database: Database, tmp_path: Path) -> None:
    if database.server.major < 11:
        pytest.skip("PostgreSQL 10 has no attmissingval, and does not send TRUNCATE")
    database.create_slot()
    folder = tmp_path / "raw"
    targets: dict[str, list[Row]] = {"a": [], "f": []}
    first = 0
    for statements in BATCHES:
        for statement in statements.split(";"):
            database.execute(statement)
        Capture(database.dsn, folder, slot=database.slot, publication="p").run(until="now")
        raw = pgdecode.read_capture(folder)
        types = dict.fromkeys(("int4", "float8", "json", "text"), "text")
        new = [at for at, position in enumerate(raw.positions.to_pylist()) if position >= first]
        for table, rows in targets.items():
            missing, expected = server_rows(database, table)
            for start in {0, new[0]}:
                decoder = ChangeDecoder(**{**raw.options, "types": types})
                decoder.decode(raw.payloads[:start], raw.positions[:start])
                typed = decoder.table(raw.payloads[start:], f"public.{table}", raw.positions[start:])
                net = net_changes(typed)
                numbers = numbers_of(net)
                assert [*numbers.values()] == [*missing]
                before = [{n: row.get(n, missing[n]) for n in missing} for row in (rows if start else [])]
                key = [1, 2] if table == "a" else None
                left = applied(before, [by_number(item, numbers) for item in net.to_pylist()], key)
                assert not any(value is UNKNOWN for row in left for value in row.values())
                assert sorted(map(repr, left)) == sorted(map(repr, expected))
            targets[table] = left
        first = raw.positions[-1].as_py() + 1


def by_number(change: dict[str, Any], numbers: dict[str, int]) -> dict[Any, Any]:
    found: dict[Any, Any] = {name: change[name] for name in ABOUT}
    found["_unknown"] = [numbers[name] for name in change["_unknown"]]
    if change["_key_before"] is not None:
        found["_key_before"] = {numbers[name]: value for name, value in change["_key_before"].items()}
    return found | {numbers[name]: change[name] for name in numbers}
