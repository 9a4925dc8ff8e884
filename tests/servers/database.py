"""Fixtures of live servers with databases; without a server, their tests are skipped."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgdecode.capture import RequestError, demo
from servers.server import Cluster, find_server, running_cluster

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed")
    try:
        asked = os.environ.get("PGDECODE_TEST_PGBIN")
        programs: Path | None = Path(asked) if asked else demo.programs()
    except RequestError:
        programs = find_server()
    if programs is None:
        pytest.skip("no PostgreSQL server: neither of pip install 'pgdecode[demo]' nor of the system")
    with running_cluster(programs, wal_sender_timeout="2s", max_replication_slots="100") as found:
        yield found


@pytest.fixture
def database(postgres: Cluster) -> Iterator[Database]:
    found = Database(postgres, f"capture_{next(_numbers)}")
    yield found
    found.close()


class Warnings(list[str]):
    """Warnings of a capture, without one that each capture of PostgreSQL 10 has."""

    def append(self, text: str) -> None:
        if not text.startswith("PostgreSQL 10 does not publish TRUNCATE"):
            super().append(text)


class Database:
    """A database with a publication of all tables, and a session in it."""

    def __init__(self, server: Cluster, name: str, more: str = "") -> None:
        self.server = server
        self.name = name
        with_admin(server, f"CREATE DATABASE {name} {more}")
        self.session = server.connect(name)
        self.slot = f"{name}_slot"
        self.dsn = server.dsn(name)
        self.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR ALL TABLES")

    def execute(self, sql: str) -> list[list[str | None]]:
        return self.session.execute(sql)

    def create_slot(self) -> None:
        self.execute(f"SELECT pg_create_logical_replication_slot('{self.slot}', 'pgoutput')")

    def slot_lsn(self, column: str = "confirmed_flush_lsn") -> int:
        sql = f"SELECT ({column} - '0/0'::pg_lsn)::bigint FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        return int(self.session.value(sql))

    def close(self) -> None:
        self.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
            f"WHERE active_pid IS NOT NULL AND database = '{self.name}'"
        )
        for _ in range(50):
            slots = f"FROM pg_replication_slots WHERE database = '{self.name}'"
            [[left]] = self.execute(f"SELECT count(*) {slots} AND active")
            if left == "0":
                break
            self.execute("SELECT pg_sleep(0.1)")
        self.execute(f"SELECT pg_drop_replication_slot(slot_name) {slots}")
        self.session.close()
        with_admin(self.server, f"DROP DATABASE {self.name}")


def with_admin(server: Cluster, sql: str) -> None:
    session = server.connect()
    session.execute(sql)
    session.close()
