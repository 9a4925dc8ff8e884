"""Copies by `pgdecode capture --copy`: the rows that tables have already, between the commits before and after."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import Database

import pgdecode
from pgdecode.capture import Capture, CaptureResult
from pgdecode.capture.copy import Snapshot
from pgdecode.capture.journal import read_log
from pgdecode.envelope.decoder import decode
from support.generators.sequences import in_block


def captured(database: Database, folder: Path, copy: Any = True, **more: Any) -> CaptureResult:
    """Capture until now."""
    options = {"create_slot": True, "on_warning": lambda text: None, **more}
    return Capture(database.dsn, folder, slot=database.slot, publication="p", copy=copy, **options).run(until="now")


def rows_of(folder: Path, table: str, columns: str = "id,v") -> list[tuple[Any, ...]]:
    """The rows of a table from the files, sorted."""
    capture = pgdecode.read_capture(folder)
    decoder = pgdecode.ChangeDecoder(**capture.options)
    rows: dict[Any, tuple[Any, ...]] = {}
    is_copied = False
    for batch in capture.batches(1000):
        if batch.is_reconnected:
            decoder.reconnected()
        for change in decoder.decode(batch.payloads, batch.positions).to_pylist():
            if f"{change['namespace']}.{change['relation_name']}" != table:
                continue
            new, old = dict(change["new"] or ()), dict(change["old"] or ())
            is_copied |= change["xid"] == 0
            if not is_copied:
                continue  # of rows that may have been there before
            if change["op"] == "truncate":
                rows.clear()
            elif change["op"] == "delete":
                del rows[old["id"]]
            else:
                if change["op"] == "insert":
                    assert new["id"] not in rows, f"{new['id']} is inserted twice"
                else:
                    del rows[(old or new)["id"]]
                rows[new["id"]] = tuple(new[name] for name in columns.split(","))
    return sorted(rows.values())


def server_rows(database: Database, table: str, columns: str = "id,v") -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in database.execute(f"SELECT {columns} FROM {table}"))


def messages_of(folder: Path) -> list[tuple[int, bytes]]:
    return [
        (lsn, payload)
        for path in sorted(folder.glob("*.parquet"))
        for lsn, payload in zip(*pq.read_table(path).select(["lsn", "data"]).to_pydict().values(), strict=True)
    ]


def assert_in_order(folder: Path) -> list[int]:
    """Check that each copy stands between the commits before and after its LSN. Return the LSNs of copies."""
    last, copies = 0, []
    payloads = [payload for _, payload in messages_of(folder)]
    for at, payload in enumerate(payloads):
        if payload[:1] not in b"BcK":
            continue
        message: Any = decode(payload)
        if message.xid == 0:
            assert last < message.final_lsn
            assert not in_block(payloads, at)
            copies.append(message.final_lsn)
        else:
            lsn = message.lsn
            assert all(lsn >= copied for copied in copies)
            last = lsn
    return copies


def test_a_first_start_copies_a_later_one_adds_and_a_table_is_copied_again(database: Database, tmp_path: Path) -> None:
    database.execute("INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 2000) i; CREATE TABLE e (id int)")
    result = captured(database, tmp_path / "out")
    assert [(item.table, item.rows) for item in result.copies] == [("public.e", 0), ("public.t", 2000)]
    assert rows_of(tmp_path / "out", "public.t") == server_rows(database, "t")
    database.execute("UPDATE t SET v = 'x' WHERE id < 10; DELETE FROM t WHERE id = 11")
    # Rows of a table that was made later are in the slot too. The copy empties it first.
    database.execute("CREATE TABLE u (id int, v text); INSERT INTO u VALUES (1, 'a')")
    result = captured(database, tmp_path / "out")
    assert [(item.table, item.rows) for item in result.copies] == [("public.u", 1)]
    assert rows_of(tmp_path / "out", "public.t") == server_rows(database, "t")
    assert captured(database, tmp_path / "out").copies == ()
    database.execute("INSERT INTO u VALUES (2, 'b')")
    result = captured(database, tmp_path / "out", ["public.t", "u"])
    assert [item.table for item in result.copies] == ["public.t", "public.u"]
    for table in ("t", "u"):
        assert rows_of(tmp_path / "out", f"public.{table}") == server_rows(database, table)
    assert len(assert_in_order(tmp_path / "out")) == 5
    # What has been copied is known from the log, and without it from the footers.
    assert {item.table for item, _ in read_log(tmp_path / "out").copies.values()} == {
        "public.e",
        "public.t",
        "public.u",
    }
    (tmp_path / "out" / "_capture.jsonl").unlink()
    assert captured(database, tmp_path / "out").copies == ()


class Load:
    """Writes rows to tables until it is stopped, in several sessions."""

    def __init__(self, database: Database, tables: tuple[str, ...], n_sessions: int = 3) -> None:
        self._stopping = threading.Event()
        self.n_transactions = 0
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._write, args=(database, tables, number)) for number in range(n_sessions)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        assert self._failures == []

    def _write(self, database: Database, tables: tuple[str, ...], number: int) -> None:
        rng = random.Random(number)
        session = database.server.connect(database.name)
        serial = 10_000_000 * (number + 1)
        try:
            while not self._stopping.is_set():
                statements = []
                for _ in range(rng.randrange(1, 4)):
                    table = rng.choice(tables)
                    serial += 1
                    statements.append(f"INSERT INTO {table} VALUES ({serial}, 'w')")
                    statements.append(f"UPDATE {table} SET v = v || '.' WHERE id = {serial - rng.randrange(50)}")
                    statements.append(f"DELETE FROM {table} WHERE id = {serial - 50 - rng.randrange(50)}")
                session.execute(f"BEGIN; {'; '.join(statements)}; {rng.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))}")
                self.n_transactions += 1
        except BaseException as error:
            self._failures.append(error)
        finally:
            session.close()


@pytest.mark.full
def test_under_load_each_copy_is_the_state_of_the_server_at_its_lsn(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(
        "CREATE TABLE u (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'v' FROM generate_series(1, 5000) i"
    )
    in_snapshot: dict[int, dict[str, list[Any]]] = {}
    locked = Snapshot.lock

    def lock(self: Snapshot, tables: Any, *more: Any) -> list[str]:
        rows = {table.name: self.catalog.rows(f"SELECT id, v FROM {table.sql}") for table in tables}
        in_snapshot[self.lsn] = {name: sorted(map(tuple, found)) for name, found in rows.items()}
        return locked(self, tables, *more)

    monkeypatch.setattr(Snapshot, "lock", lock)
    with Load(database, ("t", "u")) as load:
        captured(database, tmp_path / "out", connections=2)
        for _ in range(2):
            captured(database, tmp_path / "out", ["t", "u"])
        n = load.n_transactions
    captured(database, tmp_path / "out")
    assert n > 10
    copies = assert_in_order(tmp_path / "out")
    assert len(copies) == 6
    for table in ("t", "u"):
        assert rows_of(tmp_path / "out", f"public.{table}") == server_rows(database, table)
        for lsn in set(copies):
            # As of the copy, and as of the commits before it.
            assert copied_rows(tmp_path / "out", f"public.{table}", lsn) == in_snapshot[lsn][table]
            if lsn != min(copies):
                assert rows_before(tmp_path / "out", f"public.{table}", lsn) == in_snapshot[lsn][table]


def copied_rows(folder: Path, table: str, lsn: int) -> list[Any]:
    changes = pgdecode.ChangeDecoder(mode="PERMISSIVE").decode([payload for _, payload in messages_of(folder)])
    return sorted(
        tuple(dict(change["new"]).values())
        for change in changes.to_pylist()
        if change["xid"] == 0
        and change["commit_lsn"] == lsn
        and change["op"] == "insert"
        and f"public.{change['relation_name']}" == table
    )


def rows_before(folder: Path, table: str, lsn: int) -> list[Any]:
    """The rows of a table after the commits before the first copy at an LSN."""
    rows: dict[str, tuple[str, ...]] = {}
    changes = pgdecode.ChangeDecoder(mode="PERMISSIVE").decode([payload for _, payload in messages_of(folder)])
    for change in changes.to_pylist():
        if change["commit_lsn"] >= lsn:
            break
        if f"public.{change['relation_name']}" != table:
            continue
        new, old = dict(change["new"] or ()), dict(change["old"] or ())
        if change["op"] == "truncate":
            rows.clear()
        elif change["op"] == "delete":
            rows.pop(old["id"], None)
        else:
            rows[new["id"]] = tuple(new.values())
    return sorted(rows.values())
