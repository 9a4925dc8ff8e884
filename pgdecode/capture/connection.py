"""Connections to a server: SQL, and libpq's replication protocol through psycopg."""

from __future__ import annotations

import contextlib
import re
import select
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pgdecode.capture.errors import CaptureError, RequestError, ServerError, StopRequestedError
from pgdecode.capture.options import quoted_text, session_settings
from pgdecode.types.encodings import CODECS

# Microseconds from 1970-01-01 to 2000-01-01, the epoch of PostgreSQL.
EPOCH_US = 946_684_800_000_000
_STATUS_UPDATE = struct.Struct("!cQQQqB")
_APPLICATION = "pgdecode capture"
# Refusals, for which libpq gives no SQLSTATE. In other languages, the connection itself seems to have failed.
_REFUSED = {
    # They do not pass by themselves: invalid_authorization_specification.
    "28000": "permission denied|not permitted to log in|authentication failed|no password supplied|"
    "no pg_hba.conf entry|must be superuser or replication role|"  # until PostgreSQL 15
    'rejects connection|(role|user|database) ".*" does not exist',
    # They pass: too_many_connections and cannot_connect_now.
    "53300": "too many (clients|connections)|connection slots are reserved",
    "57P03": "the database system is ",
}
# Seconds to wait for a server that does not answer, if connect_timeout is not set.
_CONNECT_SECONDS = 30.0
# Seconds to wait for the answer to a statement. Those that read catalogs have a shorter statement_timeout.
_ANSWER_SECONDS = 60.0
# Seconds between looks at what a long statement waits for.
_LOOK_SECONDS = 1.0
# Seconds until a server has cancelled a statement.
_CANCEL_SECONDS = 5.0
# Seconds between checks whether the capture was asked to stop.
_STOP_SECONDS = 0.2


def libpq() -> Any:
    """Import psycopg's wrapper of libpq.

    Raises
    ------
    RequestError
        If psycopg, or the libpq that it needs, is not installed.
    """
    try:
        from psycopg import pq
    except ImportError as error:
        raise RequestError("capturing needs psycopg 3 with libpq: pip install 'pgdecode[capture]'") from error
    return pq


def connection_text(dsn: str, **changes: str) -> str:
    """Add or replace parameters of a DSN, and return it as a keyword string of libpq.

    Raises
    ------
    RequestError
        If the DSN is not a connection string. The text does not contain it, because it may contain a password.
    """
    pq = libpq()
    try:
        parameters = {item.keyword.decode(): item.val.decode() for item in pq.Conninfo.parse(dsn.encode()) if item.val}
    except Exception as error:
        raise RequestError(
            "the DSN is neither a postgresql:// URI nor a keyword string of libpq (it is not shown here, because it "
            "may contain a password; characters such as @ and / in a URI's password are written %40 and %2F)"
        ) from error
    if "@" in parameters.get("host", ""):
        raise RequestError("the DSN's host name contains @: write it as %40 in a URI's password")
    if not parameters.get("application_name"):
        parameters["fallback_application_name"] = _APPLICATION
    # One of a replication connection does not run SQL.
    parameters.pop("replication", None)
    parameters |= changes
    return " ".join(f"{name}='{_escaped(value)}'" for name, value in parameters.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")


class Connection:
    """One connection to a server, for SQL and, with `replication`, for a slot's stream.

    Parameters
    ----------
    dsn : str
        Connection string of libpq: a URI, a keyword string, or "". PG* variables, service and password files apply.
    replication : bool
        Whether to connect to a walsender of the database.
    settings : mapping, optional
        Other values for pinned settings.
    stopped : callable, optional
        Whether to stop waiting for the server.

    Attributes
    ----------
    settings : dict
        The settings of the session that were set.

    Raises
    ------
    RequestError
        If the DSN cannot be read, or the server does not have pgoutput.
    ServerError
        If the connection cannot be made; `StopRequestedError`, also of methods, after `stopped`.
    """

    # libpq's own functions, called for each message of the stream. The first returns a length and a frame.
    next_frame: Callable[[int], tuple[int, memoryview]]
    read: Callable[[], None]

    def __init__(
        self,
        dsn: str,
        *,
        replication: bool = False,
        settings: Mapping[str, str] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pq = libpq()
        self._stopped = stopped
        # Of names in statements, once client_encoding is set.
        self._codec = "utf_8"
        changes = {"replication": "database"} if replication else {}
        self._conn: Any = self._pq.PGconn.connect_start(connection_text(dsn, **changes).encode())
        self._secrets = [secret for secret in (_password(self._pq, dsn),) if secret]
        self._connect()
        self._conn.notice_handler = self._take_notice
        # SQLSTATE and text of the last warning from the server, until the receiver resets it.
        self.warning: tuple[str, str] | None = None
        self.server_version: int = self._conn.server_version
        if self.server_version < 100000:
            self.close()
            raise RequestError("pgoutput needs PostgreSQL 10 or newer")
        self.settings = session_settings(self.server_version) | dict(settings or {})
        try:
            self._pin()
        except ServerError:
            self.close()
            raise

    def _pin(self) -> None:
        commands = [f"SET {name} TO {quoted_text(value)}" for name, value in self.settings.items()]
        # Before PostgreSQL 15, a walsender accepts only one statement at a time.
        for command in ["; ".join(commands)] if self.server_version >= 150000 else commands:
            self.rows(command)
        self._codec = CODECS[self.settings["client_encoding"]]

    def _connect(self) -> None:
        """Connect without blocking other threads."""
        poll, states = self._conn.connect_poll, self._pq.PollingStatus
        deadline: float | None = None
        state = states.WRITING
        while self._conn.status != self._pq.ConnStatus.BAD and state != states.OK:
            if deadline is None:
                given = next((item.val for item in self._conn.info if item.keyword == b"connect_timeout"), None)
                seconds = int(given or 0) if (given or b"").lstrip(b"-").isdigit() else 0
                deadline = time.monotonic() + (seconds if seconds > 0 else _CONNECT_SECONDS)
            while not self._is_ready(select.POLLIN if state == states.READING else select.POLLOUT):
                is_late = time.monotonic() >= deadline
                if is_late or self._stopped():
                    self._conn.finish()
                    raise ServerError("the server did not answer in time") if is_late else StopRequestedError()
            state = poll()
            if state == states.FAILED:
                break
        # After connecting, libpq also knows a password from the password file or the environment.
        password = None if self._conn.status == self._pq.ConnStatus.BAD else self._conn.password
        self._secrets += [password] if password else []
        if self._conn.status != self._pq.ConnStatus.OK:
            error = self.error(self._conn.error_message)
            self._conn.finish()
            states = (state for state, texts in _REFUSED.items() if re.search(texts, str(error)))
            raise ServerError(str(error), next(states, ""))

    def close(self) -> None:
        """Close the connection at once."""
        self._conn.finish()

    def _is_ready(self, event: int) -> bool:
        """Wait a short time until the socket can be read or written."""
        waiter = select.poll()
        waiter.register(self._conn.socket, event)
        return bool(waiter.poll(_STOP_SECONDS * 1000))

    def rows(self, sql: str, on_wait: Callable[[], None] | None = None) -> list[list[str | None]]:
        """Run one statement and return its rows as text.

        Parameters
        ----------
        sql : str
        on_wait : callable, optional
            Called every second of a statement that may take long. Without it, a late answer is an error.

        Raises
        ------
        ServerError
        """
        result = self._result(sql, on_wait)
        if result.status not in (self._pq.ExecStatus.TUPLES_OK, self._pq.ExecStatus.COMMAND_OK):
            raise self.error(result.error_message, result)
        return [
            [_decoded(result.get_value(row, column)) for column in range(result.nfields)]
            for row in range(result.ntuples)
        ]

    def _result(self, sql: str, on_wait: Callable[[], None] | None = None) -> Any:
        """Run a statement and return its last result. Waits without blocking other threads and signal handlers."""
        deadline = None if on_wait is not None else time.monotonic() + _ANSWER_SECONDS
        next_look = time.monotonic() + _LOOK_SECONDS
        is_cancelled = False
        last = None
        try:
            self._conn.send_query(sql.encode(self._codec))
            while True:
                while self._conn.is_busy():
                    if not self._is_ready(select.POLLIN):
                        if self._stopped() and not is_cancelled:
                            if on_wait is None:
                                raise StopRequestedError
                            is_cancelled, deadline = True, time.monotonic() + _CANCEL_SECONDS
                            self._cancel()
                        now = time.monotonic()
                        if deadline is not None and now >= deadline:
                            raise (
                                StopRequestedError if is_cancelled else ServerError("the server did not answer in time")
                            )
                        if on_wait is not None and not is_cancelled and now >= next_look:
                            on_wait()
                            next_look = time.monotonic() + _LOOK_SECONDS
                        continue
                    self._conn.consume_input()
                result = self._conn.get_result()
                if result is None:
                    return last
                last = result
                if result.status in (self._pq.ExecStatus.COPY_BOTH, self._pq.ExecStatus.COPY_OUT):
                    return last
                if is_cancelled and result.status == self._pq.ExecStatus.FATAL_ERROR:
                    raise StopRequestedError
        except CaptureError:
            raise
        except Exception as error:  # psycopg's own class, which is imported late
            raise self.lost(error) from error

    def _cancel(self) -> None:
        """Cancel the running statement. libpq makes a connection for it, which may block."""

        def cancel() -> None:
            with contextlib.suppress(Exception):
                self._conn.get_cancel().cancel()

        thread = threading.Thread(target=cancel, name="pgdecode-capture-cancel", daemon=True)
        thread.start()
        thread.join(_CANCEL_SECONDS)

    def value(self, sql: str) -> str | None:
        """Run a statement that returns one value or no row."""
        rows = self.rows(sql)
        return rows[0][0] if rows and rows[0] else None

    def row(self, sql: str, n_columns: int, on_wait: Callable[[], None] | None = None) -> list[str | None]:
        """Run a statement that returns one row of so many columns, or more in later versions.

        Raises
        ------
        ServerError
            Also if the answer is another one: a pooler may answer in place of the server.
        """
        rows = self.rows(sql, on_wait)
        if len(rows) != 1 or len(rows[0]) < n_columns:
            raise ServerError(
                f"the answer to {sql.partition(' ')[0]} is not that of PostgreSQL: connect to it directly"
            )
        return rows[0]

    def start_copy(self, command: str) -> None:
        """Begin the stream of a slot. Afterwards, only methods of the stream may be called.

        Raises
        ------
        ServerError
        """
        result = self._result(command)
        if result.status != self._pq.ExecStatus.COPY_BOTH:
            raise self.error(result.error_message, result)
        self._conn.nonblocking = 1
        self.next_frame = self._conn.get_copy_data
        self.read = self._conn.consume_input

    def copy_out(self, sql: str, n_bytes: int) -> Iterator[bytearray]:
        """Run COPY ... TO STDOUT, and yield its data in pieces of at least so many bytes, but for the last.

        Raises
        ------
        ServerError
        """
        result = self._result(sql, lambda: None)
        if result.status != self._pq.ExecStatus.COPY_OUT:
            raise self.error(result.error_message, result)
        take, content = self._conn.get_copy_data, bytearray()
        try:
            while True:
                length, row = take(1)
                if length > 0:
                    content += row
                    if len(content) >= n_bytes:
                        yield content
                        content = bytearray()
                elif length == 0:
                    while not self._is_ready(select.POLLIN):
                        if self._stopped():
                            self._cancel()
                            raise StopRequestedError
                    self._conn.consume_input()
                else:
                    break
            while (result := self._conn.get_result()) is not None:
                if result.status != self._pq.ExecStatus.COMMAND_OK:
                    raise self.error(result.error_message, result)
        except CaptureError:
            raise
        except Exception as error:  # as in `_result`
            raise self.lost(error) from error
        yield content

    def _take_notice(self, notice: Any) -> None:
        fields = self._pq.DiagnosticField
        if notice.error_field(fields.SEVERITY_NONLOCALIZED) == b"WARNING":
            found = [notice.error_field(field) for field in (fields.MESSAGE_PRIMARY, fields.MESSAGE_DETAIL)]
            text = ": ".join(_decoded(part) for part in found if part)
            self.warning = (_decoded(notice.error_field(fields.SQLSTATE)), text)

    @property
    def server_encoding(self) -> str:
        """Encoding of the database."""
        return str(_decoded(self._conn.parameter_status(b"server_encoding") or b""))

    @property
    def pid(self) -> int:
        """Process ID of the server's process for this connection."""
        return int(self._conn.backend_pid)

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return bool(self._conn.ssl_in_use)

    @property
    def socket(self) -> int:
        """File descriptor of the connection."""
        return int(self._conn.socket)

    def send_status(self, written: int, flushed: int, now_us: int, *, ask: bool = False) -> None:
        """Send a standby status update.

        Parameters
        ----------
        written, flushed : int
            LSNs up to which everything was received, and up to which everything was recorded durably.
        now_us : int
            Microseconds since 1970.
        ask : bool
            Request a keepalive in return.

        Raises
        ------
        ServerError
            If the connection is lost.
        """
        update = _STATUS_UPDATE.pack(b"r", max(written, flushed), flushed, flushed, now_us - EPOCH_US, ask)
        try:
            self._conn.put_copy_data(update)
            self._conn.flush()
        except Exception as error:
            raise self.lost(error) from error

    def end_copy(self) -> None:
        """End the stream (CopyDone)."""
        with contextlib.suppress(Exception):
            self._conn.put_copy_end()
            self._conn.flush()

    def copy_error(self) -> ServerError:
        """Make the error with which the stream ended."""
        with contextlib.suppress(Exception):
            self._conn.nonblocking = 0
        result = self._conn.get_result()
        if result is not None and result.status == self._pq.ExecStatus.FATAL_ERROR:
            return self.error(result.error_message, result)
        return ServerError("the server ended the stream")

    def lost(self, error: Exception) -> ServerError:
        """Make the error of a lost connection from libpq's text."""
        if isinstance(error, ServerError):
            return error
        return self.error(self._conn.error_message or str(error).encode())

    def error(self, message: bytes, result: Any = None) -> ServerError:
        """Make an error from libpq's text, in one line and without passwords."""
        state = result.error_field(self._pq.DiagnosticField.SQLSTATE) if result is not None else None
        if result is not None:
            message = result.error_field(self._pq.DiagnosticField.MESSAGE_PRIMARY) or message
        text = "; ".join(line.strip() for line in _decoded(message or b"connection lost").splitlines() if line.strip())
        for secret in self._secrets:
            text = text.replace(_decoded(secret), "***")
        return ServerError(text or "connection lost", _decoded(state) if state else "")


def _password(pq: Any, dsn: str) -> bytes | None:
    return next((item.val for item in pq.Conninfo.parse(dsn.encode()) if item.keyword == b"password"), None)


def _decoded(value: bytes | None) -> Any:
    return None if value is None else value.decode("utf-8", "replace")
