"""Tables compared with those of a live server, exactly at an LSN."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from pgdecode.capture import Capture, FileRules, RequestError, StoppedError
from pgdecode.capture.copy import snapshot
from pgdecode.lake.apply_run import apply
from pgdecode.lake.targets import lake_target
from pgdecode.lake.verification import verify_run
from pgdecode.lake.verification.table_comparison import compare_tables
from pgdecode.lake.verification.verify_run import verify
from servers.database import Database
from support.shell import Shell
from support.tiers import full

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE kinds (id int PRIMARY KEY, f float8, r real, n numeric(12,2), u numeric, b bool, j json, jb jsonb,
    d date, ts timestamp, tz timestamptz, ti time, iv interval, ba bytea, ia int[], ra int4range, m mood, ch char(5));
CREATE TABLE bare (f float8, j json, s text); ALTER TABLE bare REPLICA IDENTITY FULL;
CREATE TABLE empty (a int PRIMARY KEY, _op text)
"""
ROWS = """
INSERT INTO kinds SELECT g, (ARRAY['NaN', '-0', '0', 'Infinity', '1e-300'])[g % 5 + 1]::float8, g * 1.1, g / 3.0,
    'NaN', g % 2 = 0, '{"a":  1}', '{"b": 2, "a": 1}', date '2020-01-01' + g,
    timestamp '2020-01-01' + g * interval '1h',
    timestamptz '2020-01-01 00:00:00+00' + g * interval '1h', time '12:00:00.5' + g * interval '1s',
    g * interval '1 day 1 us', decode(lpad(to_hex(g), 4, '0'), 'hex'), ARRAY[g, NULL], int4range(g, g + 5), 'ok', 'x'
    FROM generate_series(1, 50) g;
INSERT INTO kinds (id) VALUES (1000);
INSERT INTO bare SELECT CASE g % 3 WHEN 0 THEN 'NaN'::float8 WHEN 1 THEN '-0' END, '{"a": 1}', 's' || g % 2
    FROM generate_series(1, 20) g;
INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 500) g
"""
LATER = """
UPDATE t SET v = 'later' WHERE id BETWEEN 20 AND 30; UPDATE t SET id = id + 1000 WHERE id BETWEEN 25 AND 35;
DELETE FROM t WHERE id = 40; INSERT INTO t VALUES (5000, NULL); UPDATE kinds SET j = '[1]' WHERE id % 3 = 0;
UPDATE bare SET s = 'later' WHERE ctid IN ('(0,5)', '(0,6)'); DELETE FROM bare WHERE ctid = '(0,7)';
ALTER TABLE kinds ADD more int DEFAULT 5; UPDATE kinds SET more = 6 WHERE id = 7; INSERT INTO empty VALUES (1, 'x');
TRUNCATE empty; INSERT INTO empty VALUES (2, 'y')
"""
# Changes that no slot sends, so that only the server has them.
HIDDEN = """
BEGIN; ALTER PUBLICATION p SET (publish = 'insert'); UPDATE t SET v = 'planted' WHERE id = 77;
DELETE FROM t WHERE id = 78; UPDATE kinds SET f = '0' WHERE f = '-0' AND id = 1;
UPDATE bare SET s = 'q' WHERE ctid = '(0,1)';
ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate'); COMMIT
"""


def captured(database: Database, folder: Path) -> Path:
    for statements in (TABLES, ROWS):
        for statement in statements.split(";"):
            database.execute(statement)
    new = Capture(database.dsn, folder, slot=database.slot, publication="p", create_slot=True, copy=True)
    new.run(until="now")
    return folder


def test_tables_of_captured_files_equal_those_of_the_server_until_it_has_a_change_of_its_own(
    database: Database, tmp_path: Path, run: Shell
) -> None:
    raw = captured(database, tmp_path / "raw")
    database.execute("UPDATE t SET v = 'new' WHERE id < 10; DELETE FROM bare WHERE ctid IN ('(0,2)', '(0,3)')")
    done = run("verify", database.dsn, str(raw))
    assert done.code == 0, done
    assert "public.kinds: 51 rows, equal" in done.out
    assert "4 tables equal to the server's" in done.out

    database.execute(HIDDEN)
    done = run("verify", database.dsn, str(raw), "--json", "--show-values")
    assert done.code == 1
    tables = json.loads(done.out)["tables"]
    assert tables["public.t"]["differences"] == [
        {"kind": "value", "key": {"id": "77"}, "column": "v", "server": "planted", "compared": "v77", "count": 1},
        {"kind": "extra", "key": {"id": "78"}, "column": None, "server": None, "compared": None, "count": 1},
    ]
    assert [(item["column"], item["server"], item["compared"]) for item in tables["public.kinds"]["differences"]] == [
        ("f", "0.0", "-0.0")
    ]
    assert {(item["kind"], item["key"]["s"]) for item in tables["public.bare"]["differences"]} == {
        ("missing", "q"),
        ("extra", "s1"),
    }
    assert tables["public.empty"]["is_equal"]
    text = run("verify", database.dsn, str(raw), "--table", "t").out
    assert "id=77: v is" in text
    assert "planted" not in text


@pytest.mark.full
def test_a_target_is_compared_with_the_names_and_types_that_its_options_give(
    database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE o (_op timestamptz PRIMARY KEY, _action timestamptz, at timestamptz)")
    database.execute("INSERT INTO o VALUES ('2026-11-28', now(), now()), ('2026-11-29', 'infinity', NULL)")
    oid = database.execute("SELECT 'o'::regclass::oid")[0][0]
    raw, text = captured(database, tmp_path / "raw"), {"_op": "text", "_action": "text", "at": "text"}
    for number, options in enumerate(
        [
            {"columns": {"public.o": text}},
            {"columns": {int(oid or 0): text}},
            {"columns": {"public.o": text}, "name_clash": "rename"},
            {"columns": {"public.o": {"_op_": "text", "_action": "text"}}, "name_clash": "rename"},
        ]
    ):
        target = f"parquet:{tmp_path / str(number)}"
        apply(raw, target, tables="public.o", **options)
        database.execute("UPDATE o SET at = now(), _action = now()")
        found = verify(database.dsn, target, tables=["o"])
        assert found.is_equal, found
        assert not found.tables["public.o"].notes


def test_verify_refuses_what_it_cannot_compare(database: Database, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no capture has written to it"):
        verify(database.dsn, tmp_path / "nothing")
    raw = captured(database, tmp_path / "raw")
    with pytest.raises(RequestError, match=r"table 'public.nope' is not published"):
        verify(database.dsn, raw, tables=["nope"])
    with pytest.raises(StoppedError, match="nobody captures: run pgdecode capture or pgdecode sync meanwhile"):
        verify(database.dsn, raw, capture=False)
    with pytest.raises(RequestError, match="belongs to database"):
        verify(database.server.dsn(), raw)


@pytest.mark.parametrize("most_locks", [pytest.param(512, id="locked"), full(0, id="not locked")])
def test_a_transaction_that_waits_to_truncate_a_table_does_not_end_a_verify(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_locks: int
) -> None:
    database.execute("INSERT INTO t VALUES (1, 'one')")
    Capture(database.dsn, tmp_path / "raw", slot=database.slot, publication="p", create_slot=True, copy=True).run(
        until="now"
    )
    threads: list[threading.Thread] = []
    usual = verify_run.Wait.run

    def truncate() -> None:
        session = database.server.connect(database.name)
        session.execute("TRUNCATE t")
        session.close()

    def run(wait: verify_run.Wait, *, captures: bool) -> None:
        usual(wait, captures=captures)
        if not threads:
            threads.append(threading.Thread(target=truncate))
            threads[0].start()
            while database.execute("SELECT count(*) FROM pg_locks WHERE NOT granted") == [["0"]]:
                time.sleep(0.01)

    monkeypatch.setattr(verify_run.Wait, "run", run)
    monkeypatch.setattr(snapshot, "_MOST_LOCKS", most_locks)
    warnings: list[str] = []
    result = verify(database.dsn, tmp_path / "raw", on_warning=warnings.append)
    threads[0].join(60)
    assert result.is_equal, result
    # Whoever waits behind the TRUNCATE for a second begins again after it.
    assert result.tables["public.t"].server_rows == (1 if most_locks else 0)
    assert len(warnings) == (0 if most_locks else 1), warnings


@pytest.mark.full
def test_there_are_no_differences_while_the_server_and_a_capture_go_on(database: Database, tmp_path: Path) -> None:
    raw = captured(database, tmp_path / "raw")
    rules = FileRules(max_seconds=0.3)
    running = Capture(database.dsn, raw, slot=database.slot, publication="p", rules=rules)
    writer = database.server.connect(database.name)
    is_over = threading.Event()

    def write() -> None:
        n = 1000
        while not is_over.is_set():
            n += 1
            writer.execute(f"UPDATE t SET v = 'u{n}' WHERE id % 7 = {n % 7}; INSERT INTO t VALUES ({n}, 'n')")
            writer.execute(f"DELETE FROM t WHERE id = {n - 5}; UPDATE bare SET s = 'x{n % 3}' WHERE f IS NULL")

    threads = [threading.Thread(target=write), threading.Thread(target=running.run)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            result = verify(database.dsn, raw, wait_seconds=120)
            assert result.is_equal, result
    finally:
        is_over.set()
        running.stop()
        for thread in threads:
            thread.join()
        writer.close()


def test_one_value_in_many_rows_is_seen() -> None:
    n = 200_000
    rows = pa.table({"id": pa.array(range(n)), "f": pa.array([float("nan"), -0.0] * (n // 2)), "s": ["x"] * n})
    other = rows.set_column(2, "s", [["x"] * 150_000 + ["y"] + ["x"] * (n - 150_001)])

    def compare(one: pa.Table, two: pa.Table, key: list[str]) -> list[tuple[str, str | None, int]]:
        found = compare_tables(lambda: one.to_batches(1000), lambda: two.to_batches(7000), one.schema.names, key)
        assert (found.server_rows, found.compared_rows) == (len(one), len(two))
        return [(item.kind, item.column, item.count) for item in found.differences]

    assert compare(rows, rows, ["id"]) == []
    assert compare(rows, rows.take(list(range(n - 1, -1, -1))), ["id"]) == []
    assert compare(rows, other, ["id"]) == [("value", "s", 1)]
    assert compare(rows, rows.slice(1), ["id"]) == [("missing", None, 1)]
    assert compare(rows.slice(1), rows, []) == [("extra", None, 1)]
    zero = rows.set_column(1, "f", [[float("nan"), 0.0] + [float("nan"), -0.0] * (n // 2 - 1)])
    assert compare(rows, zero, ["id"]) == [("value", "f", 1)]
    repeated = pa.concat_tables([rows, rows.slice(5, 1), rows.slice(5, 1)])
    assert compare(rows, repeated, []) == [("extra", None, 2)]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["parquet", "duckdb", "delta", "iceberg"])
def test_a_target_is_compared_as_it_is_after_what_it_lacks(
    kind: str, database: Database, tmp_path: Path, run: Shell
) -> None:
    target = target_of(kind, tmp_path)
    raw = captured(database, tmp_path / "raw")
    apply(raw, target)
    done = run("verify", database.dsn, target)
    assert (done.code, done.err) == (0, ""), done
    # What the target does not have yet: changed, moved, removed and new rows, an added column, a truncated table.
    for statement in LATER.split(";"):
        database.execute(statement)
    before = lake_target(target)
    with before.opened():
        positions = {name: item.position for name, item in before.applied.items()}
    for words in ([], ["--connections", "3"], ["--sample", "30%"]):
        done = run("verify", database.dsn, target, "--raw", str(raw), *words)
        assert done.code == 0, done
    assert "by a sample of 30%" in done.out
    with before.opened():
        assert positions == {name: item.position for name, item in before.applied.items()}
    apply(raw, target)
    assert run("verify", database.dsn, target).code == 0
    database.execute(HIDDEN)
    done = run("verify", database.dsn, target, "--json")
    assert done.code == 1
    tables = json.loads(done.out)["tables"]
    assert [(item["kind"], item["key"]) for item in tables["public.t"]["differences"]] == [
        ("value", {"id": "77"}),
        ("extra", {"id": "78"}),
    ]
    assert [name for name, table in tables.items() if not table["is_equal"]] == [
        "public.bare",
        "public.kinds",
        "public.t",
    ]


def target_of(kind: str, folder: Path) -> str:
    package = {"duckdb": "duckdb", "delta": "deltalake", "iceberg": "pyiceberg"}.get(kind)
    if package is not None:
        pytest.importorskip(package)
        pytest.importorskip(f"pgdecode.lake.{kind}", exc_type=ModuleNotFoundError)
    return f"{kind}:{folder / 'lake'}"
