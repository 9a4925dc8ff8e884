"""A snapshot of a database at an LSN, in connections that read tables side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from pgdecode.capture.connection import Connection
from pgdecode.capture.copy.published_tables import PublishedTable, published_tables
from pgdecode.capture.options import quoted_text
from pgdecode.capture.server import create_slot
from pgdecode.protocol.encoder import EPOCH

# Without it, row-level security would leave out rows without an error.
_SETTINGS = {"row_security": "off"}


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
        self._stopped = stopped
        self.encoding = encoding
        with contextlib.ExitStack() as closing:
            self.catalog = closing.enter_context(
                contextlib.closing(Connection(dsn, settings=_SETTINGS, stopped=stopped))
            )
            settings = {**_SETTINGS, "client_encoding": encoding}
            self.readers = [
                closing.enter_context(contextlib.closing(Connection(dsn, settings=settings, stopped=stopped)))
                for _ in range(n_readers)
            ]
            with contextlib.closing(Connection(dsn, replication=True, stopped=stopped)) as exporter:
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
            self.server_version = self.catalog.server_version
            microseconds = self.catalog.value(
                "SELECT (extract(epoch FROM pg_catalog.now()) * 1000000)::int8 - 946684800000000"
            )
            self.time: datetime = EPOCH + timedelta(microseconds=int(microseconds or 0))
            self._closing = closing.pop_all()

    def close(self) -> None:
        """Close the connections, which releases the snapshot and all locks."""
        self._closing.close()

    def tables(self) -> list[PublishedTable]:
        """Read what the publications publish, as of the snapshot."""
        return published_tables(self.catalog, self._publications)

    def lock(self, tables: Sequence[PublishedTable], on_wait: Callable[[], None] = lambda: None) -> list[str]:
        """Lock tables until the end, so that nobody alters them (ACCESS SHARE).

        Returns
        -------
        list of str
            Names of the tables that were altered, truncated or rewritten, or are published otherwise, since the
            snapshot was made: their rows cannot be read. A new snapshot is needed.

        Raises
        ------
        RequestError
            If the role may not read a table.
        """
        for table in tables:
            for leaf in table.leaves:
                self.catalog.rows(f"LOCK TABLE ONLY {leaf.sql} IN ACCESS SHARE MODE", on_wait)
        with contextlib.closing(Connection(self._dsn, stopped=self._stopped)) as present:
            now = {table.oid: table for table in published_tables(present, self._publications)}
        return [table.full_name for table in tables if now.get(table.oid) != table]
