"""A capture of thousands of tables with user-defined types: what it reads of the catalogs, and the size of footers.

Source: https://github.com/debezium/debezium/pull/7462, https://github.com/elixir-ecto/postgrex/pull/320
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from cluster import Cluster

from pgdecode import ChangeDecoder
from pgdecode.capture import Capture, FileRules, PluginOptions, receiver
from pgdecode.capture.catalog.user_types import read_user_types
from pgdecode.capture.connection import Connection
from pgdecode.files.file_metadata import CATALOG_KEY, TYPES_KEY, catalog_of
from servers.connection import Connection as Session
from support.footers import types_of

# Tables in one transaction, because each takes several locks.
_STEP = 250


def run(cluster: Cluster, n_tables: int, folder: Path) -> list[str]:
    """Capture a row of each of many tables, then single rows, and return the differences from what is expected."""
    name = f"tables_{n_tables}"
    with closing(cluster.connect()) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        try:
            with closing(cluster.connect(name)) as session:
                return _problems(cluster, session, name, n_tables, folder)
        finally:
            admin.execute(f"SELECT pg_drop_replication_slot('{name}')")
            admin.execute(f"DROP DATABASE {name}")


def _problems(cluster: Cluster, session: Session, name: str, n_tables: int, folder: Path) -> list[str]:
    columns = ", ".join(f"column_{number} text" for number in range(25))
    session.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TYPE pair AS (m mood, n int)")
    # Each has a type of its own, and shares two others.
    _of_each(session, n_tables, "CREATE DOMAIN domain_{i} AS int")
    _of_each(
        session,
        n_tables,
        f"CREATE TABLE tenant_{{i}} (id int PRIMARY KEY, m mood[], p pair, d domain_{{i}}, {columns})",
    )
    session.execute("CREATE PUBLICATION p FOR ALL TABLES")
    session.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    _of_each(session, n_tables, "INSERT INTO tenant_{i} VALUES (1, ''{{sad}}'', ''(ok,1)'', {i})")
    for number in range(3):
        session.execute(f"UPDATE tenant_{number} SET d = 7")
    binary = cluster.major >= 14
    receiver.CHUNK_ROWS, before = 1000, receiver.CHUNK_ROWS
    try:
        options = PluginOptions(binary=binary)
        rules = FileRules(max_bytes=1)
        Capture(cluster.dsn(name), folder, slot=name, publication="p", options=options, rules=rules).run(until="now")
    finally:
        receiver.CHUNK_ROWS = before
    return _wrong(cluster, session, name, n_tables, folder)


def _wrong(cluster: Cluster, session: Session, name: str, n_tables: int, folder: Path) -> list[str]:
    found = []
    paths = sorted(folder.glob("*.parquet"))
    rows = [pq.read_metadata(path).num_rows for path in paths]
    for path, n_rows in zip(paths, rows, strict=True):
        metadata = pq.read_metadata(path).metadata
        n_bytes = sum(len(metadata.get(key, b"")) for key in (CATALOG_KEY, TYPES_KEY))
        # Of a relation with 29 columns that the file does not describe, and of three types for each.
        if n_bytes > 3000 * n_rows:
            found.append(f"{path.name} has {n_rows} messages and {n_bytes} bytes of relations and types")
    payloads = pa.concat_tables([pq.read_table(path) for path in paths])
    decoder = ChangeDecoder(types=types_of(paths), catalog=catalog_of(paths))
    last = f"public.tenant_{n_tables - 1}"
    changes = decoder.table(payloads["data"], last, payloads["seq"]).to_pylist()
    values = [(row["m"], row["p"], row["d"]) for row in changes]
    if values != [(["sad"], {"m": "ok", "n": 1}, n_tables - 1)]:
        found.append(f"{last} has {values}")
    count = ChangeDecoder(catalog=catalog_of(paths), types=types_of(paths)).decode(payloads["data"]).num_rows
    if count != n_tables + 3:
        found.append(f"{count} changes are captured, expected {n_tables + 3}")
    # The last files have single rows. Each is read without the others.
    alone = ChangeDecoder(catalog=catalog_of(paths[-1:]), types=types_of(paths[-1:]))
    if not alone.decode(pq.read_table(paths[-1])["data"]).num_rows:
        found.append(f"{paths[-1].name} has no changes")
    found += _of_types(cluster, session, name, n_tables)
    return found


def _of_types(cluster: Cluster, session: Session, name: str, n_tables: int) -> list[str]:
    """Compare the types of the last table, before and after ANALYZE, with the catalog."""
    found = []
    query = (
        f"SELECT atttypid FROM pg_attribute WHERE attrelid = 'tenant_{n_tables - 1}'::regclass AND atttypid >= 10000"
    )
    oids = [int(oid) for [oid] in session.execute(query)]
    for _ in range(2):
        with closing(Connection(cluster.dsn(name))) as connection:
            names = {item.key for item in read_user_types(connection, oids, name)}
        if names != {"public.mood[]", "public.mood", "public.pair", f"public.domain_{n_tables - 1}"}:
            found.append(f"the types of a table are {sorted(names)}")
        session.execute("ANALYZE")
    return found


def _of_each(session: Session, n_tables: int, sql: str) -> None:
    for first in range(0, n_tables, _STEP):
        last = min(first + _STEP, n_tables) - 1
        statement = sql.replace("{{", "{").replace("}}", "}").replace("{i}", "%s")
        values = ", ".join(["i"] * sql.count("{i}"))
        session.execute(
            f"DO $$ BEGIN FOR i IN {first}..{last} LOOP EXECUTE format('{statement}', {values}); END LOOP; END $$"
        )
