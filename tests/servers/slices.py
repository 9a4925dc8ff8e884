"""Record the slices that the benchmarks repeat, as files of benchmarks/data.

In the folder tests: python -m servers.slices FOLDER, on the server that PGDECODE_TEST_PGBIN names or the first one
found. The same statements give the same payloads except for OIDs, xids, LSNs and times.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from servers.connection import Connection
from servers.server import Server, find_server, running

COLUMNS = 1600  # the server's maximum

Connect = Callable[[], Connection]


def documents(connect: Connect) -> None:
    """Large values that most updates leave unchanged."""
    connection = connect()
    connection.execute("CREATE TABLE document (id int PRIMARY KEY, title text, revision int, body text, notes text)")
    connection.execute("ALTER TABLE document ALTER body SET STORAGE EXTERNAL, ALTER notes SET STORAGE EXTERNAL")
    connection.execute(
        "INSERT INTO document SELECT i, 'document ' || i, 0, repeat(md5(i::text), 200), repeat(md5((-i)::text), 80) "
        "FROM generate_series(1, 100) AS i"
    )
    for revision in range(1, 20):
        connection.execute(f"UPDATE document SET revision = {revision} WHERE id % 2 = {revision % 2}")
    connection.execute("UPDATE document SET body = repeat(md5(title), 210) WHERE id % 2 = 0")
    connection.execute("DELETE FROM document WHERE id % 10 = 0")


def columns(connect: Connect) -> None:
    """The maximum number of columns; one value in eight is null."""
    connection = connect()
    names = [f"c{number:04}" for number in range(COLUMNS)]
    defined = ", ".join(f"{name} int{' PRIMARY KEY' if name == names[0] else ''}" for name in names)
    connection.execute(f"CREATE TABLE columns ({defined})")
    values = ["i"] + [f"CASE WHEN (i + {n}) % 8 > 0 THEN i * {n} % 10007 END" for n in range(1, COLUMNS)]
    connection.execute(f"INSERT INTO columns SELECT {', '.join(values)} FROM generate_series(1, 120) AS i")
    connection.execute(f"UPDATE columns SET {names[-1]} = 1 WHERE c0000 % 3 = 0")
    connection.execute("DELETE FROM columns WHERE c0000 % 10 = 0")


def ticks(connect: Connect) -> None:
    """The smallest possible rows."""
    connection = connect()
    connection.execute("CREATE TABLE tick (up bool)")
    for _ in range(4):
        connection.execute("INSERT INTO tick SELECT i % 3 > 0 FROM generate_series(1, 2500) AS i")


def streams(connect: Connect) -> None:
    """Three large transactions at once; one of them rolls back to a savepoint."""
    sessions = [connect() for _ in range(3)]
    sessions[0].execute(
        "CREATE TABLE payment (id int PRIMARY KEY, payer text, amount numeric(12,2), paid timestamp, note text)"
    )
    for session in sessions:
        session.execute("BEGIN")
    for step in range(8):
        for number, session in enumerate(sessions):
            first = (step * 3 + number) * 400
            session.execute("SAVEPOINT piece")
            session.execute(
                "INSERT INTO payment SELECT i, 'payer ' || i % 97, i * 0.07, timestamp '2026-01-01' + i * interval "
                f"'1 min', CASE WHEN i % 4 > 0 THEN 'note ' || i END FROM generate_series({first}, {first + 399}) AS i"
            )
            if step == 5 and number == 1:
                session.execute("ROLLBACK TO piece")
            session.execute(f"UPDATE payment SET amount = amount + 1 WHERE id >= {first} AND id % 2 = 0")
    for session in sessions:
        session.execute("COMMIT")


SLICES: dict[str, tuple[Callable[[Connect], None], dict[str, str]]] = {
    "toast.text": (documents, {"proto_version": "1"}),
    "columns.text": (columns, {"proto_version": "1"}),
    "tiny.text": (ticks, {"proto_version": "1"}),
    "streamed.text": (streams, {"proto_version": "2", "streaming": "on"}),
}


def recorded(server: Server, name: str) -> list[bytes]:
    """Run the transactions of a slice in a new database; return the payloads of its slot."""
    work, options = SLICES[name]
    database = name.partition(".")[0]
    server.connect().execute(f"CREATE DATABASE {database}")
    connection = server.connect(database)
    connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    connection.execute(f"SELECT pg_create_logical_replication_slot('{database}', 'pgoutput')")
    work(lambda: server.connect(database))
    asked = ", ".join(f"'{part}'" for item in {**options, "publication_names": "everything"}.items() for part in item)
    rows = connection.execute(
        f"SELECT encode(data, 'hex') FROM pg_logical_slot_get_binary_changes('{database}', NULL, NULL, {asked})"
    )
    connection.execute(f"SELECT pg_drop_replication_slot('{database}')")
    return [bytes.fromhex(data or "") for [data] in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    programs = find_server()
    if programs is None:
        parser.error("no PostgreSQL server was found; name one in PGDECODE_TEST_PGBIN")
    with running(programs) as server:
        for name in SLICES:
            payloads = recorded(server, name)
            table = pa.table(
                {"seq": pa.array(range(len(payloads)), pa.int64()), "data": pa.array(payloads, pa.binary())}
            )
            path = folder / f"{name}.parquet"
            pq.write_table(table, path, compression="zstd", compression_level=19, write_statistics=False)
            size = sum(map(len, payloads))
            print(
                f"{path}: {len(payloads)} messages of {size / len(payloads):.0f} bytes, {path.stat().st_size} on disk"
            )


if __name__ == "__main__":
    main()
