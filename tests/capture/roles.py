"""Captures by a role whose settings are all hostile, compared with those of a role without settings."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq
from cluster import Cluster
from conftest import Warnings

from pgdecode.capture import Capture, CaptureError
from pgdecode.capture.options import PINNED

# A value of each pinned setting that would change the capture, hide a warning, or end the session. The timeouts leave
# time to set others after connecting.
HOSTILE = {
    "statement_timeout": "200ms",
    "transaction_timeout": "200ms",
    "idle_in_transaction_session_timeout": "200ms",
    "idle_session_timeout": "200ms",
    "lock_timeout": "1ms",
    "tcp_user_timeout": "1ms",
    "exit_on_error": "on",
    "client_min_messages": "error",
    "role": "nobody",
    "standard_conforming_strings": "off",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "client_encoding": "LATIN1",
    "datestyle": "German, DMY",
    "timezone": "Asia/Kolkata",
    "intervalstyle": "sql_standard",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "quote_all_identifiers": "on",
    "search_path": "odd, public",
}
# Not pinned to one value: a role can only make it longer than a second.
SENDER_TIMEOUT = ("wal_sender_timeout", "1ms")
_SCHEMA = (
    "CREATE SCHEMA odd; GRANT USAGE ON SCHEMA odd TO PUBLIC",
    "CREATE TYPE odd.mood AS ENUM ('glad')",
    r'CREATE TABLE odd."back\slash" (id int PRIMARY KEY)',
    "CREATE TABLE odd.v (id int PRIMARY KEY, d date, s timestamp, z timestamptz, i interval, f float8, r float4, "
    "b bytea, c regclass, y regtype, t text, m odd.mood, a timestamptz[])",
    r'CREATE PUBLICATION "p\q" FOR ALL TABLES',
)
_ROWS = (
    "INSERT INTO odd.v SELECT n, '2020-02-01', '2020-02-01 04:05', '2020-02-01 04:05+00', '-1 day 2:03', "
    "0.12345678901234567, 1e-6, "
    r"'\x00ff', 'odd.v', 'odd.mood', U&'caf\00e9', 'glad', ARRAY['2020-02-01 04:05+00'::timestamptz] "
    "FROM generate_series(1, 40000) n",
    r'INSERT INTO odd."back\slash" VALUES (1)',
)


def hostile_settings(major: int) -> dict[str, str]:
    """The hostile settings that a server has."""
    found = {setting.name: HOSTILE[setting.name] for setting in PINNED if major >= setting.since}
    return found | (dict([SENDER_TIMEOUT]) if major >= 12 else {})


_numbers = itertools.count()


class RolesDatabase:
    """A database with rows of all types that settings change, a role `plain`, and a role `careless` with settings."""

    def __init__(self, server: Cluster) -> None:
        self.server = server
        self.name = f"roles_{next(_numbers)}"
        with contextlib.closing(server.connect()) as admin:
            admin.execute(f"CREATE DATABASE {self.name}")
            # These captures do not connect again. On a busy machine, they may answer later than the 2 s of this server.
            if server.major >= 12:
                admin.execute(f"ALTER DATABASE {self.name} SET wal_sender_timeout = '1min'")
            for role in ("nobody", "careless", "plain"):
                if not admin.execute(f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'"):
                    admin.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
            admin.execute("ALTER ROLE nobody NOREPLICATION; GRANT nobody TO careless")
        self.execute(*_SCHEMA)
        for role in ("plain", "careless"):
            self.execute(f"SELECT pg_create_logical_replication_slot('{self.name}_{role}', 'pgoutput')")
        self.execute(*_ROWS)

    def execute(self, *statements: str) -> None:
        with contextlib.closing(self.server.connect(self.name)) as session:
            for statement in statements:
                session.execute(statement)

    def set_role(self, settings: Mapping[str, str]) -> None:
        """Give the role `careless` exactly these settings."""
        self.execute("ALTER ROLE careless RESET ALL")
        for name, value in settings.items():
            # A list is not one name with a comma.
            quoted = value if name == "search_path" else f"'{value}'"
            self.execute(f"ALTER ROLE careless SET {name} = {quoted}")

    def captured(self, role: str, folder: Path) -> tuple[list[bytes], str]:
        """Capture the slot of a role until now, and return the payloads and the types in the footer."""
        warnings = Warnings()
        made = Capture(
            self.server.dsn(self.name, user=role),
            folder,
            slot=f"{self.name}_{role}",
            publication=r"p\q",
            retry_seconds=0,
            on_warning=warnings.append,
        )
        made.run(until="now")
        paths = sorted(folder.glob("*.parquet"))
        payloads = [payload for path in paths for payload in pq.read_table(path)["data"].to_pylist()]
        return payloads, "".join(warnings) + str(pq.read_metadata(paths[-1]).metadata[b"pgdecode.types"])

    def close(self) -> None:
        self.set_role({})
        with contextlib.closing(self.server.connect()) as admin:
            for role in ("plain", "careless"):
                slot = f"{self.name}_{role}"
                for _ in range(100):
                    if admin.execute(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND NOT active"):
                        break
                    admin.execute("SELECT pg_sleep(0.1)")
                admin.execute(f"SELECT pg_drop_replication_slot('{slot}')")
            admin.execute(f"DROP DATABASE {self.name}")


@contextlib.contextmanager
def database(server: Cluster) -> Iterator[RolesDatabase]:
    found = RolesDatabase(server)
    try:
        yield found
    finally:
        found.close()


def problems(found: RolesDatabase, settings: Mapping[str, str], folder: Path) -> list[str]:
    """Compare a capture by a role with these settings with that by a role without settings."""
    found.set_role(settings)
    try:
        hostile = found.captured("careless", folder / "hostile")
        plain = found.captured("plain", folder / "plain")
    except CaptureError as error:
        return [f"{', '.join(settings)}: {error}"]
    return [
        f"{', '.join(settings)}: {what} differ"
        for what, left, right in zip(("payloads", "warnings or types"), hostile, plain, strict=True)
        if left != right
    ]
