"""Streams into tables of Delta and Iceberg: while a server alters the tables, and killed at random times."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from spark.lake.lake_cases import columns_of, write_files
from spark.lake.lake_session import Lake, as_rows, rows_of_reader

from pgdecode import snapshot
from servers.database import Database, database, postgres
from spark_udfs import apply_stream
from support import captures

__all__ = ["database", "postgres"]

N_KILLS = int(os.environ.get("PGDECODE_TEST_KILLS", "3"))


def captured(database: Database, raw: Path, *options: str) -> None:
    words = ["capture", database.dsn, str(raw), "--slot", database.slot, "--publication", "p", "--until", "now"]
    subprocess.run([sys.executable, "-m", "pgdecode", *words, *options], check=True, capture_output=True, timeout=120)


def check(database: Database, lake: Lake, name: str, table: str) -> None:
    """Compare a table with that of the server, in all columns."""
    columns = lake.spark.table(lake.name(name)).columns
    sql = f"SELECT {', '.join(f'{column}::text' for column in columns)} FROM {table}"
    [[on_server]] = database.execute(
        f"SELECT string_agg(attname, ' ' ORDER BY attname) FROM pg_attribute "
        f"WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    assert sorted(columns) == str(on_server).split(), columns
    texts = [[None if value is None else str(value) for value in row.values()] for row in lake.rows(name)]
    assert sorted(texts, key=repr) == sorted(database.execute(sql), key=repr)
    assert lake.rows_of_reader(name) == lake.rows(name)


FIRST = (
    "CREATE TABLE w (id int PRIMARY KEY, a text, n int, price numeric(10,2), gone text)",
    "ALTER TABLE w ALTER a SET STORAGE EXTERNAL",
    "INSERT INTO w SELECT i, repeat('long', 1000 * (i % 2)) || i, i, i + 0.25, 'x' FROM generate_series(1, 5) AS i",
    "INSERT INTO t VALUES (1, 'one')",
)
# Each is captured before the next one, so that the catalog tells of all versions.
STEPS = (
    "ALTER TABLE w ADD COLUMN five int DEFAULT 5; ALTER TABLE w RENAME a TO b; ALTER TABLE w DROP COLUMN gone; "
    "UPDATE w SET n = -1 WHERE id = 1; UPDATE w SET b = 'short' WHERE id = 5; INSERT INTO w (id) VALUES (7)",
    "ALTER TABLE w ALTER n TYPE bigint; UPDATE w SET id = 20, n = 2 ^ 40 WHERE id = 2",
    # Values that were written before in the same transaction get the new type with the others.
    "BEGIN; INSERT INTO w VALUES (6, 'six', 6, 6.25, 6); UPDATE w SET n = n + 1 WHERE id = 3; "
    "ALTER TABLE w ALTER n TYPE text; UPDATE w SET id = 60 WHERE id = 6; INSERT INTO w VALUES (8, 'b', 'word'); COMMIT",
    "ALTER TABLE w ALTER price TYPE numeric(6,1); UPDATE w SET b = 'again' WHERE id = 20; INSERT INTO t VALUES (2)",
)


def test_columns_that_are_altered_while_a_stream_runs_are_those_of_the_server(
    lake: Lake, database: Database, tmp_path: Path
) -> None:
    raw, targets = tmp_path / "raw", {"public.w": lake.name("w"), "public.t": lake.name("t")}

    def run(checkpoint: str = "checkpoint", **options: str) -> None:
        apply_stream(lake.spark, raw, targets, checkpoint=tmp_path / checkpoint, **options).awaitTermination()

    database.create_slot()
    database.execute("; ".join(FIRST))
    captured(database, raw)
    run()
    check(database, lake, "w", "w")
    # One micro-batch has all versions.
    for step in STEPS:
        database.execute(step)
        captured(database, raw)
    run()
    for name in ("w", "t"):
        check(database, lake, name, name)
    commits = [lake.n_commits(name) for name in ("w", "t")]
    run("another")
    assert [lake.n_commits(name) for name in ("w", "t")] == commits
    # USING is not in the WAL: the table stays, and the others go on.
    before = lake.rows("w")
    database.execute("ALTER TABLE w ALTER n TYPE int USING length(n); UPDATE w SET n = 5 WHERE id = 1")
    database.execute("UPDATE t SET v = 'new' WHERE id = 1")
    captured(database, raw)
    message = r"the type of column 'n' was changed, and the new values of older rows are not known\. Copy the table"
    for _ in range(2):
        with pytest.raises(PySparkException, match=message):
            run()
        assert lake.rows("w") == before
        check(database, lake, "t", "t")
    captured(database, raw, "--copy", "w")
    run("third")
    for name in ("w", "t"):
        check(database, lake, name, name)


def test_a_table_that_is_renamed_or_made_anew_is_an_error_with_the_remedy(
    lake: Lake, database: Database, tmp_path: Path
) -> None:
    raw = tmp_path / "raw"
    names = {"t": lake.name("others"), "r": lake.name("renamed"), "new": lake.name("anew")}

    def run(tables: str, checkpoint: str = "checkpoint") -> None:
        """Apply tables, such as "t r=x": the table x to the one for r."""
        parts = [item.partition("=") for item in tables.split()]
        targets = {f"public.{name or own}": names[own] for own, _, name in parts}
        apply_stream(lake.spark, raw, targets, checkpoint=tmp_path / checkpoint).awaitTermination()

    database.create_slot()
    database.execute("CREATE TABLE r (id int PRIMARY KEY, v text); INSERT INTO r VALUES (1, 'a'), (2, 'b')")
    database.execute("INSERT INTO t VALUES (1, 'one')")
    captured(database, raw)
    run("t r")
    # In one transaction, and with another table that gets the name.
    database.execute(
        "BEGIN; UPDATE r SET v = 'c' WHERE id = 1; ALTER TABLE r RENAME TO x; DELETE FROM x WHERE id = 2; COMMIT; "
        "INSERT INTO x VALUES (3, 'x'); INSERT INTO t VALUES (2, 'two'); "
        "CREATE TABLE made (id int PRIMARY KEY, n int); INSERT INTO made VALUES (1, 1); "
        "ALTER TABLE made RENAME TO r; INSERT INTO r VALUES (2, 2)"
    )
    captured(database, raw)
    pass_new = re.escape(f"{{'public.x': '{names['r']}'}} in tables, and the same checkpoint")
    message = rf"public\.r has the name public\.x from position \d+ on.*{pass_new}"
    for _ in range(2):
        with pytest.raises(PySparkException, match=message):
            run("t r")
        assert lake.rows("renamed") == [{"id": 1, "v": "c"}, {"id": 2, "v": "b"}]
        check(database, lake, "others", "t")
    for _ in range(2):
        run("t r=x new=r")
        check(database, lake, "renamed", "x")
        check(database, lake, "anew", "r")
    database.execute("UPDATE x SET v = 'y'; UPDATE r SET n = 3; CREATE TABLE late (id int PRIMARY KEY, n int)")
    database.execute("INSERT INTO late VALUES (1, 1)")
    captured(database, raw)
    run("t r=x new=r")
    check(database, lake, "renamed", "x")
    check(database, lake, "anew", "r")
    database.execute("DROP TABLE r; ALTER TABLE late RENAME TO r; INSERT INTO r VALUES (2, 2)")
    captured(database, raw)
    with pytest.raises(PySparkException, match=r"changes are those of another table .*: drop the table"):
        run("t r=x new=r")
    lake.spark.sql(f"DROP TABLE {names['new']}")
    with pytest.raises(PySparkException, match=r"public\.r had the name public\.late before.* Pass a new checkpoint"):
        run("t r=x new=r")
    run("t r=x new=r", "another")
    for name, table in (("renamed", "x"), ("anew", "r"), ("others", "t")):
        check(database, lake, name, table)


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_stream_that_is_killed_at_random_times_leaves_the_rows_of_the_server(
    format: str, tmp_path: Path, rng: random.Random
) -> None:
    tables = ["b", "full_", "idx", "nokey"]
    payloads = captures.capture("18.txns.v2").payloads
    source, folder = tmp_path / "payloads", tmp_path / "lake"
    for path in (source, folder):
        path.mkdir()
    half, n = len(payloads) // 2, len(payloads)  # the first file describes all tables
    write_files(source, payloads, [half, *sorted(rng.sample(range(half + 1, n), 2)), n])
    command = [sys.executable, str(Path(__file__).with_name("killed_stream.py")), format, str(folder), str(source)]
    n_kills, is_killed, is_done = 0, True, False
    while is_killed and not is_done:
        with subprocess.Popen(
            [*command, *tables], stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            is_killed = n_kills < N_KILLS
            if is_killed:
                time.sleep(rng.uniform(0, 20))
                n_kills += process.poll() is None
                os.killpg(process.pid, signal.SIGKILL)
            is_done = process.stdout.read().endswith("done\n")
    assert is_done
    assert n_kills
    for table in tables:
        expected = snapshot(payloads, f"public.{table}")
        columns = [item for item in expected.column_names if item[0] != "_"]
        found = columns_of(rows_of_reader(format, folder, table), columns)
        assert found == as_rows(expected.select(columns)), table
