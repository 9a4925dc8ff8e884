"""A snapshot of a database at an LSN, in connections that read tables side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pgdecode.capture.connection import Connection
from pgdecode.capture.copy.published_tables import PublishedTable, published_tables
from pgdecode.capture.errors import RequestError, ServerError
from pgdecode.capture.options import quoted_text
from pgdecode.capture.server import create_slot
from pgdecode.protocol.encoder import EPOCH
from pgdecode.relations.table_names import quoted_name

# Without it, row-level security would leave out rows without an error.
_SETTINGS = {"row_security": "off"}
# Of connections that read rows. The table is locked already. So they wait only behind a lock that waits for that of the
# snapshot, and all would wait for ever.
_LOCK_TIMEOUT = "1s"
# The locks that connections which read rows take at once, so that such a lock does not keep them out. The server has
# memory for some thousand locks.
_MOST_LOCKS = 512
# Of connections that read ranges. An index of a column of a row filter would be read for each range, and compiling
# takes longer than it saves.
_PLANS = ("enable_indexscan", "enable_bitmapscan", "jit")
# SQLSTATE insufficient_privilege; undefined_table, undefined_column, invalid_schema_name and others of that class.
_NOT_PERMITTED = "42501"
_ALTERED = ("42P01", "42703", "3F000", "42883", "42704")


@dataclass(frozen=True)
class Source:
    """Where rows are read: a table alone, or a partitioned table with its partitions.

    Attributes
    ----------
    table : str
        After FROM.
    oid : int, optional
        The table that can be divided by pages; None if it cannot.
    condition : str, optional
        Of all rows that are read here.
    """

    table: str
    oid: int | None
    condition: str | None = None

    def rows(self, *conditions: str | None) -> str:
        """Write the clauses FROM and WHERE, with more conditions."""
        given = [f"({item})" for item in (self.condition, *conditions) if item]
        return f"FROM {self.table}" + (f" WHERE {' AND '.join(given)}" if given else "")


class Snapshot:
    """A snapshot that a temporary slot has exported, and the connections that have imported it.

    The slot is dropped as soon as they have, so no WAL is held any more.

    Parameters
    ----------
    dsn : str
        Connection string of libpq.
    publications : sequence of str
    n_readers : int
        Number of connections that read rows.
    encoding : str
        client_encoding of the connections that read rows, as of the capture.
    stopped : callable
        Whether to stop waiting for the server.
    on_wait : callable
        Called every second while the creation of the slot waits for older transactions, with the PID of the
        server's process.

    Attributes
    ----------
    lsn : int
        Everything that committed before this LSN is visible, and nothing else.
    time : datetime
        Time of the server.
    catalog : Connection
        Reads catalogs as of the snapshot, in UTF8.
    readers : list of Connection
    server_version : int
    encoding : str

    Raises
    ------
    RequestError
        If the slot cannot be created.
    ServerError
    """

    def __init__(
        self,
        dsn: str,
        publications: Sequence[str],
        *,
        n_readers: int = 1,
        encoding: str = "UTF8",
        stopped: Callable[[], bool] = lambda: False,
        on_wait: Callable[[int], None] = lambda pid: None,
    ) -> None:
        self._dsn = dsn
        self._publications = publications
        self.is_cancelled = False
        self._sources: dict[int, list[Source]] = {}
        self.encoding = encoding

        def is_stopped() -> bool:
            return self.is_cancelled or stopped()

        with contextlib.ExitStack() as closing:

            def connected(**more: str) -> Connection:
                connection = Connection(dsn, settings={**_SETTINGS, **more}, stopped=is_stopped)
                closing.callback(connection.close)
                return connection

            self.catalog = connected()
            self.readers = [connected(client_encoding=encoding, lock_timeout=_LOCK_TIMEOUT) for _ in range(n_readers)]
            self.server_version = self.catalog.server_version
            for name in _PLANS if n_readers > 1 and self.server_version >= 140000 else ():
                for reader in self.readers:
                    reader.rows(f"SET {name} = off")
            with contextlib.closing(Connection(dsn, replication=True, stopped=is_stopped)) as exporter:
                self.lsn, name = create_slot(
                    exporter,
                    f"pgdecode_copy_{exporter.pid}",
                    temporary=True,
                    exports=True,
                    on_wait=lambda: on_wait(exporter.pid),
                )
                for connection in (self.catalog, *self.readers):
                    connection.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    connection.rows(f"SET TRANSACTION SNAPSHOT {quoted_text(name)}")
                    connection.rows("SAVEPOINT pgdecode_copy")
            microseconds = self.catalog.value(
                "SELECT (extract(epoch FROM pg_catalog.now()) * 1000000)::int8 - 946684800000000"
            )
            self.time: datetime = EPOCH + timedelta(microseconds=int(microseconds or 0))
            self._closing = closing.pop_all()

    def close(self) -> None:
        """Close the connections, which releases the snapshot and all locks."""
        self._closing.close()

    def cancel(self) -> None:
        """Make all methods that wait for the server raise `StopRequestedError`."""
        self.is_cancelled = True

    def tables(self) -> list[PublishedTable]:
        """Read what the publications publish, as of the snapshot."""
        return published_tables(self.catalog, self._publications)

    def lock(self, tables: Sequence[PublishedTable], on_wait: Callable[[], None] = lambda: None) -> list[str]:
        """Lock tables until the snapshot is closed, so that nobody alters them (ACCESS SHARE).

        Parameters
        ----------
        tables : sequence of PublishedTable
            Of this snapshot.
        on_wait : callable
            Called every second while another transaction alters a table.

        Returns
        -------
        list of str
            Names of the tables that were altered, truncated or rewritten since the snapshot was made, or are published
            otherwise now: their rows cannot be read, and a new snapshot is needed.

        Raises
        ------
        RequestError
            If the role may not read all rows of a table.
        """
        changed = []
        n_locks = sum(len(table.leaves) for table in tables) * len(self.readers)
        connections = [self.catalog, *(self.readers if n_locks <= _MOST_LOCKS else ())]
        for table in tables:
            try:
                self._sources[table.oid] = self._locked(table, connections, on_wait)
                # From here on, `forget_locks` leaves these.
                for connection in connections:
                    connection.rows("RELEASE pgdecode_copy; SAVEPOINT pgdecode_copy")
            except ServerError as error:
                if error.sqlstate in _ALTERED:
                    for connection in connections:
                        forget_locks(connection)
                    changed.append(table.full_name)
                elif error.sqlstate == _NOT_PERMITTED:
                    raise RequestError(self._refusal(table, error)) from error
                else:
                    raise
        with contextlib.closing(Connection(self._dsn, stopped=lambda: self.is_cancelled)) as present:
            now = {table.oid: table for table in published_tables(present, self._publications)}
        return [table.full_name for table in tables if table.full_name in changed or now.get(table.oid) != table]

    def sources(self, table: PublishedTable) -> list[Source]:
        """Say from where the rows of a locked table are read."""
        return self._sources[table.oid]

    def _locked(
        self, table: PublishedTable, connections: Sequence[Connection], on_wait: Callable[[], None]
    ) -> list[Source]:
        """Choose from where rows are read, and lock that. The server checks the permissions."""
        oids = ",".join(str(leaf.oid) for leaf in table.leaves)
        may_read = self.catalog.value(
            "SELECT pg_catalog.bool_and(pg_catalog.has_table_privilege(c.oid, 'SELECT') "
            "AND pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE') "
            "AND NOT pg_catalog.row_security_active(c.oid)) "
            f"FROM pg_catalog.pg_class c WHERE c.oid = ANY ('{{{oids}}}'::oid[])"
        )
        if may_read == "t":
            sources = [Source(f"ONLY {leaf.sql}", leaf.oid) for leaf in table.leaves]
            statements = [f"LOCK TABLE {source.table} IN ACCESS SHARE MODE" for source in sources]
        else:
            # The role may be permitted to read some columns, of which ctid is none, or the root of the partitions. Rows
            # of partitions that are foreign tables are not published.
            is_plain = [leaf.oid for leaf in table.leaves] == [table.oid]
            condition = None if is_plain else f"tableoid = ANY ('{{{oids}}}'::oid[])"
            sources = [Source(f"{'ONLY ' * is_plain}{table.sql}", None, condition)] if table.leaves else []
            names = ", ".join(quoted_name(column.name) for column in table.columns)
            statements = [f"SELECT {names} {source.rows(table.row_filter)} LIMIT 0" for source in sources]
        for connection in connections:
            for statement in statements:
                connection.rows(statement, on_wait)
        return sources

    def _refusal(self, table: PublishedTable, error: ServerError) -> str:
        # The transaction has failed, so it does not answer.
        with contextlib.closing(Connection(self._dsn)) as present:
            role = present.value("SELECT pg_catalog.quote_ident(current_user)")
        if "row-level security" in str(error):
            remedy = f"ALTER ROLE {role} BYPASSRLS, or capture as the owner of the table"
        else:
            remedy = f"GRANT SELECT ON TABLE {table.sql} TO {role}"
            if "permission denied for schema" in str(error):
                remedy = f"GRANT USAGE ON SCHEMA {quoted_name(table.namespace)} TO {role}; {remedy}"
        return f"table {table.full_name} cannot be copied: {error}; {remedy}"


def forget_locks(connection: Connection) -> None:
    """Release the locks of tables and indexes that a connection of a snapshot has taken to read rows.

    The server has memory for some thousand locks, and a transaction would keep them until its end.
    """
    connection.rows("ROLLBACK TO pgdecode_copy")
