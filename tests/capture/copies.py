"""Copies of tables while rows and tables change and the process is killed, and what the files then have."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from cluster import Cluster

import pgdecode
from pgdecode.envelope.decoder import decode
from servers.connection import Connection, ServerError

TABLES = ("t", "u", "w")
Rows = dict[Any, dict[str, Any]]


class Load:
    """Writes to tables in several sessions until it is stopped.

    With `varied`, there are also large transactions, truncates, new columns, and prepared transactions.
    """

    def __init__(
        self, cluster: Cluster, database: str, tables: tuple[str, ...], n_sessions: int = 3, *, varied: bool = False
    ) -> None:
        self._cluster, self._database, self._tables, self._varied = cluster, database, tables, varied
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self.n_transactions = 0
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(n_sessions)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        assert self._failures == []

    def _write(self, number: int) -> None:
        rng = random.Random(number)
        serial = 10_000_000 * (number + 1)
        with closing(self._cluster.connect(self._database)) as session:
            try:
                while not self._stopping.is_set():
                    serial += 100
                    # A session may lose a deadlock with ALTER TABLE.
                    with suppress(ServerError):
                        self._transaction(session, rng, serial)
                    session.execute("ROLLBACK")
                    self.n_transactions += 1
                    time.sleep(rng.random() * 0.01)
            except BaseException as error:
                self._failures.append(error)

    def _transaction(self, session: Connection, rng: random.Random, serial: int) -> None:
        table = rng.choice(self._tables)
        kind = rng.random() if self._varied else 1.0
        if kind < 0.02:
            session.execute(f"ALTER TABLE {table} ADD COLUMN c{serial} text")
        elif kind < 0.03 and self._cluster.major >= 11:  # published since PostgreSQL 11
            session.execute(f"TRUNCATE {table}")
        elif kind < 0.06:
            session.execute(
                f"INSERT INTO {table} (id, v) SELECT {serial} + i, repeat('x', 500) FROM generate_series(0, 99) i; "
                f"BEGIN; UPDATE {table} SET v = v || '+' WHERE id >= {serial - 10_000}; "
                f"SAVEPOINT s; DELETE FROM {table} WHERE id % 7 = 0; ROLLBACK TO s; COMMIT"
            )
        elif kind < 0.12:
            gid = f"{self._database} {serial}"
            session.execute(f"BEGIN; {self._statements(rng, serial)}; PREPARE TRANSACTION '{gid}'")
            time.sleep(rng.random() * 0.05)
            session.execute(f"{rng.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{gid}'")
        else:
            end = rng.choice(("COMMIT", "COMMIT", "ROLLBACK"))
            session.execute(f"BEGIN; {self._statements(rng, serial)}; {end}")

    def _statements(self, rng: random.Random, serial: int) -> str:
        statements = []
        for number in range(rng.randrange(1, 4)):
            table = rng.choice(self._tables)
            statements += [
                f"INSERT INTO {table} (id, v) VALUES ({serial + number}, 'w')",
                f"UPDATE {table} SET v = v || '.' WHERE id = {serial - 100 * rng.randrange(50)}",
                f"DELETE FROM {table} WHERE id = {serial - 100 * (50 + rng.randrange(50))}",
            ]
        return "; ".join(statements)


def tables_of(folder: Path) -> dict[str, Rows]:
    """The rows of all tables from the files, by id; from the first copy of a table on.

    Each change must be of a row that is there, and an insert of one that is not.
    """
    capture = pgdecode.read_capture(folder, accept_gap=True)
    decoder = pgdecode.ChangeDecoder(**capture.options)
    tables: dict[str, Rows] = {}
    for batch in capture.batches(10_000):
        if batch.is_reconnected:
            decoder.reconnected()
        for change in decoder.decode(batch.payloads, batch.positions).to_pylist():
            table = str(change["relation_name"])
            if change["xid"] == 0 and change["op"] == "truncate":
                tables[table] = {}
            elif table in tables:
                apply(tables[table], change)
    return tables


def apply(rows: Rows, change: dict[str, Any]) -> None:
    new, old = dict(change["new"] or ()), dict(change["old"] or ())
    if change["op"] == "truncate":
        rows.clear()
    elif change["op"] == "delete":
        del rows[old["id"]]
    else:
        before: dict[str, Any] = {}
        if change["op"] == "insert":
            assert new["id"] not in rows, f"{new['id']} is inserted twice"
        else:
            before = rows.pop((old or new)["id"])
        rows[new["id"]] = {**before, **new}


def server_tables(session: Connection, tables: tuple[str, ...]) -> dict[str, Rows]:
    """The rows of the server's tables."""
    found = {}
    for table in tables:
        names = [
            str(row[0])
            for row in session.execute(
                f"SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0 "
                "AND NOT attisdropped ORDER BY attnum"
            )
        ]
        rows = session.execute(f"SELECT {', '.join(names)} FROM {table}")
        found[table] = {row[0]: dict(zip(names, row, strict=True)) for row in rows}
    return found


def differences(folder: Path, session: Connection, tables: tuple[str, ...]) -> list[str]:
    """How the tables from the files differ from the server's."""
    wanted, found = server_tables(session, tables), tables_of(folder)
    problems = [f"{table} is not in the files" for table in wanted if table not in found]
    for table in set(wanted) & set(found):
        # A column that was added after a row was read is null in it.
        names = {name for row in wanted[table].values() for name in row}
        rows = {key: {name: row.get(name) for name in names} for key, row in found[table].items()}
        if rows != wanted[table]:
            missing, more = wanted[table].keys() - rows.keys(), rows.keys() - wanted[table].keys()
            others = [key for key in rows.keys() & wanted[table].keys() if rows[key] != wanted[table][key]]
            problems.append(
                f"{table}: {len(missing)} rows missing, {len(more)} too many, {len(others)} other values, "
                f"for example {sorted([*missing, *more, *others])[:3]}"
            )
    return problems


def messages_of(folder: Path) -> list[bytes]:
    paths = sorted(folder.glob("*.parquet"))
    return [payload for path in paths for payload in pq.read_table(path, columns=["data"])["data"].to_pylist()]


def copies_in_order(folder: Path) -> list[int]:
    """The LSN of each copy, after checking that it stands between the commits before and after it, outside blocks."""
    last, copies, is_open = 0, [], False
    for payload in messages_of(folder):
        tag = payload[:1]
        if tag in b"BcK":
            message: Any = decode(payload)
            if message.xid == 0:
                assert last < message.lsn, "a copy stands after a commit at or after its LSN"
                assert not is_open, "a copy stands inside a transaction"
                copies.append(message.lsn)
            else:
                last = message.lsn
                assert last >= max(copies, default=0), "a commit before the LSN of a copy stands after it"
        is_open = tag in b"BbS" or (is_open and tag not in b"CPE")
    return copies


def run(cluster: Cluster, seed: int, n_kills: int, folder: Path) -> tuple[list[str], Counter[str]]:
    """Copy tables on a first start, later and again, with kills at random moments; return differences and counts."""
    rng = random.Random(f"copies {seed}")
    database = f"copies_{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    out, log = folder / "out", folder / "log"
    counts: Counter[str] = Counter()
    with closing(cluster.connect()) as admin:
        admin.execute(f"CREATE DATABASE {database}")
    session = cluster.connect(database)
    session.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (LIKE t INCLUDING ALL); "
        "CREATE TABLE w (LIKE t INCLUDING ALL); CREATE PUBLICATION p FOR TABLE t, u;"
        f"INSERT INTO t SELECT i, repeat('v', i % 50) FROM generate_series(1, {rng.choice((1000, 100_000))}) i; "
        "INSERT INTO u SELECT i, 'v' FROM generate_series(1, 3000) i; INSERT INTO w SELECT * FROM u"
    )
    command = [sys.executable, "-m", "pgdecode", "capture", cluster.dsn(database), str(out), "--slot", database]
    command += ["--publication", "p", "--create-slot", "--until", "now", "--retry", "60s"]
    command += ["--file-size", rng.choice(("1MB", "256MB")), "--connections", rng.choice("123")]
    command += ["--streaming", "on"] * (cluster.major >= 14) + ["--two-phase"] * (cluster.major >= 15)
    command += ["--binary"] * (cluster.major >= 14 and rng.random() < 0.3)
    with Load(cluster, database, TABLES, varied=True):
        # First starts, copies of a table that is added later, and copies of tables that have been copied.
        for part, again in enumerate(([], [], ["t"], ["u", "public.w"])):
            if part == 1:
                session.execute("ALTER PUBLICATION p ADD TABLE w")
            for number in range(-(-n_kills // 4) + 1):
                with log.open("ab") as errors:
                    process = subprocess.Popen([*command, "--copy", *again], stdout=errors, stderr=errors)
                if number < -(-n_kills // 4):
                    counts[kill(process, out, rng)] += 1
                elif process.wait(200):
                    return [f"--copy {again} ended with {process.returncode}: {log.read_text()[-1500:]}"], counts
    with log.open("ab") as errors:
        code = subprocess.run(command, stdout=errors, stderr=errors, timeout=200).returncode
    if code:
        return [f"the last capture ended with {code}: {log.read_text()[-1500:]}"], counts
    problems = [f"{path.name} is left" for path in out.iterdir() if "partial" in path.name]
    try:
        counts["copies"] += len(copies_in_order(out))
        problems += differences(out, session, TABLES)
    except (AssertionError, KeyError, pgdecode.DecodeError) as error:
        problems.append(f"{type(error).__name__}: {error}")
    left = session.execute("SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'pgdecode_copy%'")
    problems += [f"slot {name} is left" for (name,) in left]
    session.execute(f"SELECT pg_drop_replication_slot('{database}')")
    session.close()
    with closing(cluster.connect()) as admin:
        admin.execute(f"DROP DATABASE {database}")
    return problems, counts


def kill(process: subprocess.Popen[bytes], out: Path, rng: random.Random) -> str:
    """Kill a capture at a random moment, and return how many files it had begun."""
    before = {path.name for path in out.glob("*")} if out.exists() else set()
    begun: set[str] = set()
    # It captures what has come, up to the LSN of the snapshot, then copies tables, and captures the rest.
    n_files = rng.choice((0, 1, 2, 2, 3, 3, 3, 4))
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline and len(begun) < n_files:
        begun |= {path.name.strip(".").removesuffix(".partial") for path in out.glob("*.parquet*")} - before
        begun |= {path.name[1:].removesuffix(".partial") for path in out.glob(".*.partial")} - before
        time.sleep(0.005)
    time.sleep((2.0 if n_files == 0 else rng.choice((0.0, 0.02, 0.3))) * rng.random())
    if process.poll() is not None:
        return "ended before the kill"
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    return f"kills after the beginning of {n_files} files"
