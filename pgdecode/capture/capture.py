"""`Capture`: writes the messages of a live slot to files. The command `pgdecode capture` uses it."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import pgdecode
from pgdecode.capture import server
from pgdecode.capture.catalog.file_catalog import CatalogContents
from pgdecode.capture.catalog.relation_facts import read_facts
from pgdecode.capture.catalog.user_types import read_types
from pgdecode.capture.channel import Channel, Session, SessionEnd
from pgdecode.capture.connection import Connection
from pgdecode.capture.copy import PublishedTable, Snapshot, TableRows, published_names, published_tables
from pgdecode.capture.errors import (
    LOCKED,
    UNDEFINED_OBJECT,
    CaptureError,
    GapError,
    RequestError,
    ServerError,
    StoppedError,
    StopRequestedError,
)
from pgdecode.capture.frames import CopiedPayloads, CopiedTable
from pgdecode.capture.journal import Journal, Log, metadata_of, origin_of
from pgdecode.capture.options import PluginOptions, quoted_text, seconds_from_text
from pgdecode.capture.receiver import Receiver
from pgdecode.capture.recorder import CaptureResult, CopyProgress, FileRules, Recorder, Target
from pgdecode.capture.retention import Retention, delete_old
from pgdecode.protocol.lsn import lsn_from_text, lsn_to_text
from pgdecode.protocol.messages import Relation
from pgdecode.relations.table_names import quoted_name
from pgdecode.storage.object_path import local_path
from pgdecode.types.encodings import CODECS, SQL_ASCII, encoding_name
from pgdecode.types.user_types import UserType

# Bytes of messages that may wait for the writer. Other buffers have their own limits.
QUEUE_BYTES = 32 * 2**20
# SQLSTATEs of text that the server cannot convert to client_encoding (character_not_in_repertoire,
# untranslatable_character).
_NOT_CONVERTIBLE = ("22021", "22P05")
# The class of SQLSTATEs of internal errors and damaged data.
_INTERNAL_ERRORS = "XX"
# Seconds for reading the user-defined types of the last file after a stop, and for a look at a silent server.
_STOP_SECONDS = 5.0
_PAGE = 8192
# Sizes in bytes of short and long WAL page headers, which may lie between the end of a record and the next record.
_PAGE_HEADERS = (24, 40)
# SQLSTATEs of a slot that another session holds (object_in_use), and of a server without a free slot
# (configuration_limit_exceeded).
_IN_USE, _NO_SLOT = "55006", "53400"
# How many times in a row tables may be altered after a snapshot was made.
_COPY_TRIES = 20


def _ignore_warning(text: str) -> None:
    pass


class Capture:
    """Writes the messages of a slot to Parquet files, with every committed change once.

    Parameters
    ----------
    dsn : str
        Connection string of libpq: a URI, a keyword string, or "" to use PG* variables. Service and password files
        apply.
    folder : path
        Folder of the files; created if its parent exists. Each slot needs its own folder.
    slot : str
    publication : str or sequence of str
    options : PluginOptions
        Options of pgoutput.
    create_slot : bool
        Create the slot if it does not exist, with `two_phase` as in `options`.
    temporary, failover : bool
        Properties of a created slot. The server drops a temporary slot with its connection, so a lost connection ends
        the run.
    copy : bool or sequence of str
        First copy the rows of these tables, by "schema.table"; True for all published tables that have not been copied.
        Each becomes a transaction between the commits before and after its snapshot. `run` copies once.
    connections : int
        Number of connections that read the rows of a table.
    accept_gap : bool
        Continue at the start of the slot even if changes before it are missing, or if it is another server. The gap is
        written to the log.
    change_publications : bool
        Continue without a publication that the folder had. Its later changes are passed over and confirmed. The log
        has from which LSN which publications count.
    encoding : str
        client_encoding of the session. It is in the footers, and readers use it. "UTF8" makes the server convert text;
        the encoding of the database, or "SQL_ASCII", makes it send the bytes that it has.
    rules : FileRules
        When files end.
    retention : Retention, optional
        Which recorded files may be deleted.
    retry_seconds : float
        How long to try to connect again after a connection is lost, or while another session holds the slot.
    check_seconds : float
        Interval between checks of the slot and the server.
    on_progress : callable
        Called several times a second by the thread that calls `run`, with the result so far.
    on_warning : callable
        Called with one line of text, by any thread.

    Attributes
    ----------
    log : Log
        That of the folder. Another capture to it may have it from this one, and need not read all of it again.
    """

    def __init__(
        self,
        dsn: str,
        folder: str | Path,
        *,
        slot: str,
        publication: str | Sequence[str],
        options: PluginOptions | None = None,
        create_slot: bool = False,
        temporary: bool = False,
        failover: bool = False,
        copy: bool | Sequence[str] = False,
        connections: int = 1,
        accept_gap: bool = False,
        change_publications: bool = False,
        encoding: str = "UTF8",
        rules: FileRules | None = None,
        retention: Retention | None = None,
        retry_seconds: float = 300.0,
        check_seconds: float = 30.0,
        on_progress: Callable[[CaptureResult], None] | None = None,
        on_warning: Callable[[str], None] = _ignore_warning,
    ) -> None:
        if (temporary or failover) and not create_slot:
            raise RequestError("temporary and failover require create_slot")
        if temporary and copy:
            raise RequestError("copy needs a slot that stays: a temporary one ends with each of its sessions")
        if connections < 1:
            raise RequestError(f"connections is at least 1, not {connections}")
        self._dsn = dsn
        self._folder = local_path(folder, "the folder of a capture")
        self.log = Log(self._folder)
        self._slot = slot
        self._publications = (publication,) if isinstance(publication, str) else tuple(publication)
        if not self._publications:
            raise RequestError("a publication is missing")
        self._options = options or PluginOptions()
        self._create_slot = create_slot
        self._temporary = temporary
        self._failover = failover
        self._copy = copy if isinstance(copy, bool) else tuple([copy] if isinstance(copy, str) else copy)
        self._n_connections = connections
        # What the parts of the run before the present one have received, and the metadata of the last session.
        self._before = CaptureResult()
        self._metadata: dict[str, Any] = {}
        self._accept_gap = accept_gap
        self._change_publications = change_publications
        try:
            self._encoding = encoding_name(encoding)
        except ValueError as error:
            raise RequestError(str(error)) from error
        self._rules = rules or FileRules()
        self._retention = retention
        self._retry_seconds = retry_seconds
        self._check_seconds = check_seconds
        self._on_progress = on_progress
        self._on_warning = on_warning
        self._warned: set[str] = set()
        self._creation_wait: set[str] = set()
        self._server_encoding = ""
        # Plain values: a signal handler may interrupt a thread that holds a lock, and an event has a lock too.
        self._stopping = False
        self._stopped_at = 0.0

    def stop(self) -> None:
        """Make `run` end: it completes the file at the last boundary and confirms it. Safe in a signal handler."""
        self._stopped_at = time.monotonic()
        self._stopping = True

    def run(self, *, until: str | int | float | None = None, max_messages: int | None = None) -> CaptureResult:
        """Capture until stopped, or until an end that is given.

        Parameters
        ----------
        until : "now", LSN or duration, optional
            "now": end after everything that was committed before the call. An LSN as text or int: end after everything
            that is complete at that LSN. A duration as text ("90s", "5min") or in seconds as float: end at the first
            boundary after it.
        max_messages : int, optional
            End at the first boundary after this many messages.

        Returns
        -------
        CaptureResult

        Raises
        ------
        RequestError
            If the request cannot be carried out.
        GapError
            If changes are missing between the folder and the slot, or it is another server.
        StoppedError
            If the state of the server or of the folder ends the capture. The files are complete.
        """
        start = time.monotonic()
        wants_now, target = _target(until, max_messages)
        self._before = CaptureResult()
        journal = Journal(self._folder, self.log)
        try:
            is_first = True
            if self._copy is True or self._copy:
                self._copy_tables(journal, start)
                is_first = not self._metadata
            return self._capture(journal, target, start, wants_now=wants_now, is_first=is_first)
        except StopRequestedError:
            if not self._before.received_messages:
                self._warn("stopped before the slot could be read: nothing was captured")
            seconds = time.monotonic() - start
            return replace(self._before, recorded=journal.contents.recorded or 0, seconds=seconds)
        except ServerError as error:
            raise RequestError(str(error)) from error
        finally:
            journal.close()

    def _capture(
        self, journal: Journal, target: Target, start: float, *, wants_now: bool = False, is_first: bool = False
    ) -> CaptureResult:
        """Capture until a target."""
        first = self._first_session(journal, is_first=is_first)
        try:
            if wants_now:
                target.lsn = self._lsn_now()
            return self._run(journal, first, target, start)
        finally:
            first.connection.close()

    def _recorder(
        self,
        channel: Channel,
        journal: Journal,
        target: Target,
        on_recorded: Callable[[], None] = lambda: None,
        on_finished: Callable[[], None] = lambda: None,
    ) -> Recorder:
        return Recorder(
            channel,
            journal,
            self._rules,
            target,
            self._retention,
            _prepared(journal),
            self._read_catalog,
            on_recorded,
            on_finished,
        )

    def _run(self, journal: Journal, first: Session, target: Target, start: float) -> CaptureResult:
        channel = Channel(QUEUE_BYTES)
        receiver: Receiver
        recorder = self._recorder(channel, journal, target, lambda: receiver.wake(), lambda: receiver.stop())
        receiver = Receiver(
            first,
            lambda: self._open_session(journal, is_first=False),
            channel,
            lambda: recorder.recorded,
            0.0 if self._temporary else self._retry_seconds,
            self._is_working,
            self._hint,
            self._warn,
        )
        recorder.start()
        receiver.start()
        try:
            self._watch(receiver, recorder, target, start)
        finally:
            receiver.stop()
            receiver.join()
            recorder.close()
            recorder.join()
            receiver.close()
        for failure in (recorder.failure, receiver.failure):
            if failure is not None:
                raise failure
        return self._result(recorder, start, reconnects=receiver.n_reconnects)

    def _watch(self, receiver: Receiver, recorder: Recorder, target: Target, start: float) -> None:
        """Monitor the threads and the slot, and report progress, until the receiver has ended."""
        next_check = time.monotonic()
        lag: int | None = None
        while receiver.is_alive():
            if self._stopping or recorder.failure is not None:
                receiver.stop()
            now = time.monotonic()
            if now >= next_check and not self._stopping:
                next_check = now + self._check_seconds
                lag = self._check(recorder.recorded)
            if target.lsn is not None:
                self._check_target(receiver, target)
            if self._on_progress is not None:
                self._on_progress(self._result(recorder, start, reconnects=receiver.n_reconnects, lag_bytes=lag))
            receiver.join(0.1)

    def _result(self, recorder: Recorder, start: float, **more: Any) -> CaptureResult:
        counts = replace(recorder.counts, recorded=recorder.recorded, seconds=time.monotonic() - start, **more)
        return counts.after(self._before)

    # The rows that tables have already.

    def _copy_tables(self, journal: Journal, start: float) -> None:
        """Copy tables between the commits before and after a snapshot."""
        done: set[int] = set()
        deadline, n_tries = time.monotonic() + self._retry_seconds, 0

        def is_left() -> bool:
            with self._catalog_connection() as catalog:
                return bool(self._tables_to_copy(published_tables(catalog, self._publications), journal, done))

        if not is_left() and not self._accept_gap:
            return
        # Later, little is left to capture up to the LSN of the snapshot. This also creates the slot. After a gap, all
        # tables are copied again.
        self._before = self._capture(journal, Target(), start, wants_now=True, is_first=True)
        self._check_stop()
        while is_left():
            try:
                altered = self._copy_snapshot(journal, start, done)
            except ServerError as error:
                self._check_stop()
                if error.sqlstate == LOCKED:
                    # Another transaction waits to alter the table. The next snapshot is made after it.
                    n_tries = self._again(n_tries, "a table")
                    continue
                if not error.may_pass or time.monotonic() >= deadline:
                    raise
                self._on_warning(f"the copy begins again: {error}")
                time.sleep(0.5)
                continue
            deadline = time.monotonic() + self._retry_seconds
            n_tries = self._again(n_tries, f"table {altered[0]}") if altered else 0

    def _again(self, n_tries: int, what: str) -> int:
        """Count an attempt to read tables that were altered, and refuse too many of them."""
        if n_tries + 1 == _COPY_TRIES:
            raise StoppedError(f"{what} is altered again and again: copy it later")
        return n_tries + 1

    def _tables_to_copy(
        self, published: Sequence[PublishedTable], journal: Journal, done: Container[int]
    ) -> list[PublishedTable]:
        if self._copy is True:
            return [table for table in published if table.oid not in done and table.oid not in journal.contents.copies]
        by_name = {table.full_name: table for table in published}
        names = published_names(self._copy or (), by_name)
        for name in names:
            if name not in by_name:
                raise RequestError(
                    f"table {name!r} cannot be copied: {_named(self._publications)} publish"
                    f"{'es' * (len(self._publications) == 1)} no table of this name"
                )
        return [by_name[name] for name in names if by_name[name].oid not in done]

    def _copy_snapshot(self, journal: Journal, start: float, done: set[int]) -> list[str]:
        """Copy tables from one snapshot, and return the names of those that were altered since it was made."""
        with contextlib.closing(self._snapshot()) as snapshot:
            tables = self._tables_to_copy(snapshot.tables(), journal, done)
            altered = snapshot.lock(tables, lambda: self._report_lock(snapshot.catalog.pid))
            tables = [table for table in tables if table.full_name not in altered]
            if tables:
                self._before = self._capture(journal, Target(lsn=snapshot.lsn, is_exact=True), start)
                self._check_stop()
                self._write_tables(snapshot, tables, journal, start, done)
        return altered

    def _snapshot(self) -> Snapshot:
        with self._catalog_connection() as catalog:
            try:
                return Snapshot(
                    self._dsn,
                    self._publications,
                    n_readers=self._n_connections,
                    encoding=self._encoding,
                    stopped=lambda: self._stopping,
                    on_wait=lambda pid: self._report_creation(catalog, pid, "the snapshot of the copy is being made"),
                )
            except RequestError as error:
                cause = error.__cause__
                if isinstance(cause, ServerError) and cause.sqlstate == _NO_SLOT:
                    raise RequestError(
                        f"the copy needs a free replication slot while its snapshot is made: {cause}; increase "
                        "max_replication_slots, or drop slots that nobody reads"
                    ) from error
                raise

    def _write_tables(
        self,
        snapshot: Snapshot,
        tables: Sequence[PublishedTable],
        journal: Journal,
        start: float,
        done: set[int],
    ) -> None:
        """Write the rows of tables, which stand in the files where the commits before the snapshot end."""
        channel = Channel(QUEUE_BYTES)
        recorder = self._recorder(channel, journal, Target())
        recorder.start()
        session = Session(snapshot.catalog, journal.contents.sessions + 1, 0.0, self._metadata)
        next_check = time.monotonic() + self._check_seconds

        def put(payloads: pa.Array, ended: CopiedTable | None = None) -> None:
            while not channel.offer(CopiedPayloads(payloads, snapshot.lsn, ended)):
                time.sleep(0.002)
            self._check_stop()

        try:
            channel.offer(session)
            try:
                for number, table in enumerate(tables, 1):
                    rows = TableRows(snapshot, table, binary=self._options.binary)
                    copied = CopiedTable(table.full_name, table.oid, rows.count, snapshot.lsn)
                    put(pa.array(rows.header_payloads(), pa.binary()))
                    n_rows, begun = 0, time.monotonic()
                    for batch in rows:
                        put(batch)
                        n_rows += len(batch)
                        if time.monotonic() >= next_check:
                            # The server keeps WAL meanwhile.
                            self._check(recorder.recorded)
                            next_check = time.monotonic() + self._check_seconds
                        if self._on_progress is not None:
                            seconds = time.monotonic() - begun
                            progress = CopyProgress(table.full_name, n_rows, rows.count, seconds, number, len(tables))
                            self._on_progress(self._result(recorder, start, copying=progress))
                    put(pa.array(rows.footer_payloads(), pa.binary()), copied)
            finally:
                # Complete tables stay.
                end = SessionEnd()
                channel.offer(end)
                end.done.wait()
        finally:
            recorder.close()
            recorder.join()
            done |= {item.oid for item in recorder.counts.copies}
            self._before = self._result(recorder, start)
            if recorder.failure is not None:
                raise recorder.failure

    def _check_stop(self) -> None:
        if self._stopping:
            raise StopRequestedError

    # Sessions.

    def _first_session(self, journal: Journal, *, is_first: bool) -> Session:
        """Connect, check and start. Wait if another session still holds the slot."""
        deadline = time.monotonic() + self._retry_seconds
        while True:
            try:
                return self._open_session(journal, is_first=is_first)
            except ServerError as error:
                if error.sqlstate != _IN_USE or time.monotonic() >= deadline:
                    raise
                self._warn(f"waiting up to {self._retry_seconds:,.0f} s for the slot: {error}")
                time.sleep(0.5)
                if self._stopping:
                    raise StopRequestedError from error

    def _open_session(self, journal: Journal, *, is_first: bool) -> Session:
        # All queries of the catalog use a second connection. Functions such as pg_get_publication_tables open tables
        # in their present state. A walsender would cache that state and then use it to decode older rows.
        with contextlib.ExitStack() as closing:
            connection = Connection(
                self._dsn,
                replication=True,
                settings={"client_encoding": self._encoding},
                stopped=lambda: self._stopping,
            )
            closing.callback(connection.close)
            catalog = closing.enter_context(self._catalog_connection())
            identity = server.identify(connection)
            self._options.check(identity.version)
            self._server_encoding = connection.server_encoding
            timeout = server.timeout_seconds(connection)
            is_created = False
            if is_first:
                for warning in server.publication_warnings(catalog, self._publications):
                    self._warn(warning)
                is_created = self._create_if_asked(connection, catalog, journal)
            state = server.usable_slot(catalog, self._slot, identity.database)
            if state.is_two_phase and not self._options.two_phase:
                self._warn(f"slot {self._slot!r} has two_phase, the capture does not")
            former = self._former_publications(journal)
            self._check_encoding(journal, connection)
            start, gap = self._continuation(journal, connection, catalog, identity, state, may_accept=is_first)
            # Asked before the stream begins, which counts as reading.
            was_read = journal.contents.origin is None and not is_created and server.was_read(catalog, state)
            number = journal.contents.sessions + 1
            options = self._options.as_dict(self._publications)
            given = ", ".join(f"{name} {quoted_text(value)}" for name, value in options.items())
            connection.start_copy(
                f"START_REPLICATION SLOT {quoted_name(self._slot)} LOGICAL {lsn_to_text(start)} ({given})"
            )
            # From here on, nobody else can advance the slot. Another session may have done so until now.
            held = server.usable_slot(catalog, self._slot, identity.database)
            if journal.contents.origin is None:
                start = max(start, held.confirmed)
                journal.begin(identity, self._slot, self._publications, start, self._encoding, was_read=was_read)
                if was_read:
                    self._warn(
                        f"slot {self._slot!r} was read or advanced before: {self._folder} begins at "
                        f"{lsn_to_text(start)}, and earlier changes of the slot are not in it"
                        + ("" if self._copy else "; copy=True adds the rows that its tables have")
                    )
            elif held.confirmed > start:
                raise ServerError("another session has advanced the slot", _IN_USE)
            if gap is not None:
                origin = origin_of(identity, self._slot, self._publications)
                journal.add_gap(journal.contents.recorded or 0, start, gap, origin)
            if set(former) != set(self._publications):
                names = list(self._publications)
                journal.append("publications", **{"from": lsn_to_text(start)}, publications=names, former=former)
            if journal.contents.encoding != self._encoding:
                journal.append("encoding", encoding=self._encoding)
            journal.append("session", session=number, start=lsn_to_text(start), timeline=identity.timeline)
            self._metadata = metadata = {
                "pgdecode": pgdecode.__version__,
                "origin": origin_of(identity, self._slot, self._publications),
                "server_version": identity.version,
                "options": options,
                "settings": connection.settings,
            }
            catalog.close()
            closing.pop_all()
            return Session(connection, number, timeout, metadata)

    def _create_if_asked(self, connection: Connection, catalog: Connection, journal: Journal) -> bool:
        """Create the slot if it is asked for and does not exist; return whether it was created."""
        if server.find_slot(catalog, self._slot) is not None:
            return False
        if journal.contents.origin is not None and not (self._create_slot and self._accept_gap):
            recorded = journal.contents.recorded or 0
            raise GapError(
                f"{self._folder}: recorded up to {lsn_to_text(recorded)}, and slot {self._slot!r} does not exist: "
                f"later changes are in no slot; {server.MISSING_SLOT}",
                recorded,
                recorded,
            )
        if not self._create_slot:
            return False  # `usable_slot` refuses it
        server.create_slot(
            connection,
            self._slot,
            temporary=self._temporary,
            two_phase=self._options.two_phase,
            failover=self._failover,
            on_wait=lambda: self._report_creation(catalog, connection.pid, f"the server creates slot {self._slot!r}"),
        )
        return True

    def _report_creation(self, catalog: Connection, pid: int, what: str) -> None:
        """Say what the creation of a slot, or a lock, waits for, each time that it is another transaction."""
        with contextlib.suppress(StopRequestedError):
            waiting = server.creation_wait(catalog, pid) or server.lock_wait(catalog, pid)
            key = re.sub(r"open for \d+", "", waiting or "")
            if waiting and key not in self._creation_wait:
                self._creation_wait.add(key)
                self._on_warning(f"{what}: {waiting}")

    def _report_lock(self, pid: int) -> None:
        with contextlib.suppress(ServerError), self._catalog_connection() as catalog:
            self._report_creation(catalog, pid, "the copy")

    def _former_publications(self, journal: Journal) -> list[str]:
        """Find the publications of the folder, and refuse to leave one out without a request."""
        origin = journal.contents.origin
        former: list[str] = list(self._publications if origin is None else origin["publications"])
        removed = [name for name in former if name not in self._publications]
        if removed and not self._change_publications:
            raise RequestError(
                f"{self._folder}: has changes of {_named(former)}, and this call names {_named(self._publications)}: "
                f"later changes of {_named(removed)} would be passed over and confirmed; change_publications does so"
            )
        return former

    def _check_encoding(self, journal: Journal, connection: Connection) -> None:
        """Refuse an encoding that readers could not use for all files of the folder."""
        contents = journal.contents
        if contents.origin is None or contents.encoding == self._encoding:
            return
        # A database without an encoding sends the same bytes for both, or an error for UTF8.
        if {contents.encoding, self._encoding} == {"UTF8", SQL_ASCII} and connection.server_encoding == SQL_ASCII:
            return
        raise RequestError(
            f"{self._folder}: has text in {contents.encoding}, and this call asks for {self._encoding}: capture to a "
            "new folder, which begins where this one ends"
        )

    def _continuation(
        self,
        journal: Journal,
        connection: Connection,
        catalog: Connection,
        identity: server.Identity,
        state: server.SlotState,
        *,
        may_accept: bool,
    ) -> tuple[int, str | None]:
        """Find the LSN to continue from: the recorded one, if nothing is missing between it and the slot.

        If something is missing and that is accepted, also return the reason.
        """
        contents = journal.contents
        if contents.origin is None:
            return state.confirmed, None
        recorded = contents.recorded or 0
        server_origin = origin_of(identity, self._slot, self._publications)
        left_at = _branch(contents.origin, server_origin, connection)
        if left_at is not None and max(left_at, contents.session_start) < state.confirmed <= recorded:
            # The last session has advanced this slot beyond the branch, so it followed the server's promotion: what is
            # recorded after the branch is of the new timeline.
            contents.origin["timeline"] = identity.timeline
        reason = _difference(contents.origin, server_origin, left_at, recorded)
        if reason is None and state.confirmed > recorded:
            reason = f"gap: {server.described_gap(recorded, state.confirmed)}"
        if reason is None and recorded > (present := server.current_lsn(catalog)):
            # For example, the server was restored from an earlier backup.
            reason = f"the server's WAL ends at {lsn_to_text(present)}, recorded is {lsn_to_text(recorded)}"
        if reason is None:
            return recorded, None
        if not (self._accept_gap and may_accept):
            raise GapError(f"{self._folder}: {reason}; {server.MISSING_CHANGES}", recorded, state.confirmed)
        self._warn(f"{reason}; accepted")
        # After a failover, the LSNs after the branch belong to other changes than those that are recorded.
        known = recorded if left_at is None else min(recorded, left_at)
        is_behind = contents.origin["system"] == identity.system and state.confirmed <= known
        return known if is_behind and known <= server.current_lsn(catalog) else state.confirmed, reason

    # Queries on another connection than the stream's.

    @contextlib.contextmanager
    def _catalog_connection(self, *, patience: float = 0.0, seconds: float = math.inf) -> Iterator[Connection]:
        """Open a connection for catalog queries. Timeouts keep them from waiting for locks.

        A stop ends it after some seconds of patience, and nothing is waited for longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        connection = Connection(
            self._dsn,
            settings={"statement_timeout": "30s", "lock_timeout": "2s"},
            stopped=lambda: time.monotonic() >= (self._stopped_at + patience if self._stopping else deadline),
        )
        try:
            yield connection
        finally:
            connection.close()

    def _check(self, recorded: int) -> int | None:
        """Warn about risks to the slot, and find the lag. The receiver handles an unreachable server."""
        with contextlib.suppress(ServerError), self._catalog_connection() as connection:
            for warning in server.server_warnings(connection):
                self._warn(warning)
            if (text := server.standby_warning(connection, self._slot)) is not None:
                self._warn(text)
            state = server.find_slot(connection, self._slot)
            for warning in () if state is None else state.warnings():
                self._warn(warning)
            return max(server.current_lsn(connection) - recorded, 0)
        return None

    def _lsn_now(self) -> int:
        with self._catalog_connection() as connection:
            lsn = server.current_lsn(connection)
        return lsn - lsn % _PAGE if lsn % _PAGE in _PAGE_HEADERS else lsn

    def _check_target(self, receiver: Receiver, target: Target) -> None:
        """Request a keepalive, and check whether the server has sent everything."""
        if target.idle_seen is None:
            with contextlib.suppress(ServerError), self._catalog_connection() as connection:
                at_target = target.lsn is not None and server.current_lsn(connection) >= target.lsn
                if at_target and server.waits_for_wal(connection, self._slot):
                    target.idle_seen = time.monotonic()
        receiver.ask()

    def _is_working(self, pid: int) -> bool:
        """Whether the server works on the stream of a silent connection. If it does not, its process is ended."""
        with contextlib.suppress(ServerError), self._catalog_connection(seconds=_STOP_SECONDS) as connection:
            return server.is_working(connection, self._slot, pid)
        return False

    def _hint(self, failure: ServerError) -> str:
        """Say what to do about an error that ended the stream; "" if it is not known."""
        if failure.sqlstate in _NOT_CONVERTIBLE:
            known = self._server_encoding if self._server_encoding in CODECS else SQL_ASCII
            return f"; encoding={known} captures text as the database has it"
        if failure.sqlstate == UNDEFINED_OBJECT and "publication" in str(failure):
            with contextlib.suppress(ServerError), self._catalog_connection() as connection:
                if server.has_publications(connection, self._publications):
                    return (
                        ", as of the changes that come next, although it exists now: the slot is older than it. "
                        f"Advance the slot (pg_replication_slot_advance) and accept_gap, or {server.NEW_SLOT}"
                    )
        if failure.sqlstate.startswith(_INTERNAL_ERRORS):
            return (
                "; this is an internal error of the server, which comes again where it decodes the same transaction. "
                f"A newer version may decode it. Or {server.NEW_SLOT}, and the tables are to be copied again"
            )
        return ""

    def _read_catalog(self, oids: set[int], relations: set[Relation]) -> CatalogContents:
        """Read the present types of columns, as far as their meaning depends on the database, and facts of tables."""
        types: tuple[UserType, ...] = ()
        try:
            with self._catalog_connection(patience=_STOP_SECONDS) as connection:
                types = read_types(connection, oids, self._slot) if oids else ()
                return CatalogContents(types, *read_facts(connection, relations, self._slot, self._publications))
        except CaptureError as error:
            self._warn(
                f"the catalog of the database cannot be read: {error}; values of types that no file describes are "
                "text, and binary ones need types=; what old rows have in columns that were added is not known"
            )
            return CatalogContents(types)

    def _warn(self, text: str) -> None:
        # A warning that only repeats with other sizes is not given again.
        kind = re.sub(r"\d[\d,]*", "", text)
        if kind not in self._warned:
            self._warned.add(kind)
            self._on_warning(text)


def _target(until: str | int | float | None, max_messages: int | None) -> tuple[bool, Target]:
    """Parse where a run ends: whether it is "now", and all other conditions."""
    target = Target(max_messages=max_messages)
    if until is None:
        return False, target
    if isinstance(until, str):
        if until == "now":
            return True, target
        seconds = seconds_from_text(until)
        if seconds is None:
            try:
                target.lsn = lsn_from_text(until)
            except ValueError:
                raise RequestError(
                    f'until is "now", an LSN such as "16/B374D848", or a duration such as "90s", not {until!r}'
                ) from None
            return False, target
        until = seconds
    if isinstance(until, float):
        target.deadline = time.monotonic() + until
    else:
        target.lsn = until
    return False, target


def _named(publications: Sequence[str]) -> str:
    return f"publication{'s' * (len(publications) > 1)} {', '.join(map(repr, publications))}"


def _branch(origin: dict[str, Any], server_origin: dict[str, Any], connection: Connection) -> int | None:
    """Find the LSN at which the server's timeline branched off from that of the folder; None if it is unknown."""
    if origin["timeline"] == server_origin["timeline"] or origin["system"] != server_origin["system"]:
        return None
    try:
        return server.timeline_start(connection, server_origin["timeline"], origin["timeline"])
    except ServerError:
        return None


def _difference(
    origin: dict[str, Any], server_origin: dict[str, Any], left_at: int | None, recorded: int
) -> str | None:
    """Describe how the server or the slot differs from that of the folder; None if it does not."""
    for name, what in (("system", "system identifier"), ("database", "database"), ("slot", "slot")):
        if origin[name] != server_origin[name]:
            return f"the folder belongs to {what} {origin[name]}, this is {server_origin[name]}"
    if origin["timeline"] == server_origin["timeline"]:
        return None
    text = f"the folder belongs to timeline {origin['timeline']}, the server is on {server_origin['timeline']}"
    if left_at is None:
        return text
    text += f", which branched off at {lsn_to_text(left_at)}; recorded is {lsn_to_text(recorded)}"
    return f"{text}: the folder has changes that the server lost" if recorded > left_at else text


def _prepared(journal: Journal) -> set[str]:
    """Find the prepared transactions without an outcome in the files of a folder."""
    last = next(reversed(journal.contents.files.values()), None)
    if last is None or not last.prepared:
        return set()
    return set(metadata_of(journal.folder / last.name).get("prepared", ()))


def delete_files(folder: str | Path, retention: Retention) -> None:
    """Delete old files of a folder to which no capture is writing.

    Raises
    ------
    RequestError
        If a capture is writing to it.
    StoppedError
        If a file cannot be deleted.
    """
    journal = Journal(local_path(folder, "the folder of a capture"))
    try:
        delete_old(journal, retention)
    finally:
        journal.close()


__all__ = ["Capture", "CaptureResult", "GapError", "StoppedError", "delete_files"]
