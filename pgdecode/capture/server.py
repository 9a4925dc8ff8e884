"""Queries about a server, its slots and its publications, and warnings about risks to a capture."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pgdecode.capture.connection import Connection
from pgdecode.capture.errors import RequestError, ServerError, StoppedError, StopRequestedError
from pgdecode.capture.options import quoted_text, seconds_from_text
from pgdecode.protocol.lsn import lsn_from_text, lsn_to_text
from pgdecode.relations.table_names import quoted_name

_SHOWN = 5
# The ways out of the loss of a slot. The command line replaces the names of arguments by commands.
NEW_SLOT = "drop_slot, and then create_slot with accept_gap, continue with a new slot and a gap"
MISSING_SLOT = "create_slot with accept_gap continues with a new slot and a gap"
MISSING_CHANGES = "accept_gap continues behind the gap"
# SQLSTATE of a slot that another session uses (object_in_use).
_SLOT_IN_USE = "55006"
_OPERATIONS = {"pubinsert": "insert", "pubupdate": "update", "pubdelete": "delete", "pubtruncate": "truncate"}
# Seconds. A shorter wal_sender_timeout would end the session whenever the capture is busy.
_LEAST_TIMEOUT = 1
# Most bytes of a record of running transactions and a page header.
_RUNNING_XACTS_BYTES = 512
# Warn if fewer bytes of WAL are left until a slot is lost.
_LITTLE_WAL = 2**30


@dataclass(frozen=True)
class Identity:
    """The identity of a server and of its WAL history.

    Attributes
    ----------
    system : str
        The system identifier of the cluster.
    timeline : int
    database : str
    version : int
        `server_version_num`.
    """

    system: str
    timeline: int
    database: str
    version: int


def identify(replication: Connection) -> Identity:
    """Identify the server of a replication connection."""
    system, timeline, _, database, *_ = replication.row("IDENTIFY_SYSTEM", 4)
    return Identity(str(system), int(timeline or 0), str(database), replication.server_version)


def timeline_start(replication: Connection, timeline: int, former: int) -> int | None:
    """Find the LSN at which a timeline branched off from a former one; None if the former is not in its history."""
    _, content, *_ = replication.row(f"TIMELINE_HISTORY {timeline}", 2)
    text = content or ""
    # Before PostgreSQL 15, the content is declared as bytea, but it is also plain text.
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) >= 2 and fields[0].strip() == str(former):
            return lsn_from_text(fields[1].strip())
    return None


@dataclass(frozen=True)
class SlotState:
    """A row of pg_replication_slots, with the columns that the server has."""

    columns: dict[str, Any]

    @property
    def confirmed(self) -> int:
        """The last confirmed LSN."""
        return lsn_from_text(self.columns["confirmed_flush_lsn"])

    @property
    def is_two_phase(self) -> bool:
        """Whether prepared transactions are decoded when they are prepared."""
        return bool(self.columns.get("two_phase"))

    @property
    def loss(self) -> str | None:
        """Why the slot can no longer be read; None if it can."""
        reason = self.columns.get("invalidation_reason")
        if reason:
            return f"was invalidated by the server ({reason})"
        if self.columns.get("wal_status") == "lost":
            return "was invalidated by the server: WAL that it needs was removed (wal_status lost)"
        if self.columns.get("conflicting"):
            return "was invalidated by the server (conflicting with recovery)"
        return None

    def warnings(self) -> Iterator[str]:
        """Yield warnings about present risks to the slot."""
        status = self.columns.get("wal_status")
        if status == "unreserved":
            yield "the slot's WAL may be removed at the next checkpoint (wal_status unreserved)"
        elif status == "extended":
            yield "the slot holds more WAL than max_wal_size (wal_status extended)"
        left = self.columns.get("safe_wal_size")
        if left is not None and left < _LITTLE_WAL:
            yield f"the slot will be lost after {max(left, 0):,} more bytes of WAL (safe_wal_size)"


def find_slot(connection: Connection, slot: str) -> SlotState | None:
    """Read a slot's row; None if the slot does not exist."""
    row = connection.value(
        f"SELECT row_to_json(s)::text FROM pg_catalog.pg_replication_slots s WHERE slot_name = {quoted_text(slot)}"
    )
    return None if row is None else SlotState(json.loads(row))


def was_read(connection: Connection, state: SlotState) -> bool:
    """Whether a slot was read or advanced since it was made, as far as the server tells.

    A new slot has confirmed what ends with the record at its restart_lsn, unless transactions were running then.
    """
    if connection.server_version >= 140000:
        sent = connection.value(
            "SELECT total_txns FROM pg_catalog.pg_stat_replication_slots "
            f"WHERE slot_name = {quoted_text(state.columns['slot_name'])}"
        )
        if int(sent or 0) > 0:
            return True
    restart = state.columns.get("restart_lsn")
    return restart is not None and state.confirmed - lsn_from_text(restart) > _RUNNING_XACTS_BYTES


def usable_slot(connection: Connection, slot: str, database: str) -> SlotState:
    """Read the row of a slot, and check that the slot can be captured.

    Raises
    ------
    RequestError
        If the slot does not exist, does not use pgoutput, or belongs to another database.
    StoppedError
        If the server has invalidated it.
    ServerError
        With the SQLSTATE of a slot that is in use, if it is still being created.
    """
    state = find_slot(connection, slot)
    if state is None:
        raise RequestError(f"slot {slot!r} does not exist; create_slot makes it")
    if state.columns["slot_type"] != "logical" or state.columns["plugin"] != "pgoutput":
        kind = state.columns["plugin"] or state.columns["slot_type"]
        raise RequestError(f"slot {slot!r} uses {kind}, not pgoutput")
    if state.columns["database"] != database:
        raise RequestError(f"slot {slot!r} belongs to database {state.columns['database']!r}, not {database!r}")
    if state.loss:
        raise StoppedError(f"slot {slot!r} {state.loss}; {NEW_SLOT}")
    if state.columns["confirmed_flush_lsn"] is None:
        pid = state.columns.get("active_pid")
        waiting = None if pid is None else creation_wait(connection, int(pid))
        by = "" if pid is None else f" by PID {pid}"
        raise ServerError(f"slot {slot!r} is still being created{by}{f': {waiting}' if waiting else ''}", _SLOT_IN_USE)
    return state


def check_slot(dsn: str, slot: str, *, creates: bool) -> None:
    """Check before anything is created that a slot can be captured, or created if it does not exist.

    Raises
    ------
    RequestError, StoppedError
        As `usable_slot`, or if the server is not set up for slots or cannot be reached.
    """
    try:
        with contextlib.closing(Connection(dsn)) as connection:
            if creates and find_slot(connection, slot) is None:
                _check_wal_level(connection)
            else:
                usable_slot(connection, slot, str(connection.value("SELECT pg_catalog.current_database()")))
    except ServerError as error:
        raise RequestError(str(error)) from error


def _check_wal_level(connection: Connection) -> None:
    # From PostgreSQL 19, the first logical slot makes the server write what it needs.
    level = setting(connection, "wal_level")
    if level != "logical" and connection.server_version < 190000:
        raise RequestError(
            f"the server has wal_level = {level}, and slots need logical: set wal_level = logical in postgresql.conf, "
            "and restart the server"
        )


def creation_wait(connection: Connection, pid: int) -> str | None:
    """Describe what the creation of a slot by a process of the server waits for; None if it is nothing known."""
    rows = connection.rows(
        "SELECT a.pid, a.application_name, a.datname, "
        "extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared))::bigint, x.gid, x.database "
        "FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.backend_xid = l.transactionid "
        "LEFT JOIN pg_catalog.pg_prepared_xacts x ON x.transaction = l.transactionid "
        f"WHERE l.pid = {pid} AND l.locktype = 'transactionid' AND NOT l.granted"
    )
    for holder, application, database, seconds, gid, prepared_in in rows:
        what = _transaction(holder, application, database or prepared_in, seconds, gid)
        return f"it waits for older transactions to end; now for {what}"
    if connection.value("SELECT pg_catalog.pg_is_in_recovery()") == "t":
        return "it waits for the primary to log its transactions; SELECT pg_log_standby_snapshot() there does so now"
    return None


def lock_wait(connection: Connection, pid: int) -> str | None:
    """Describe which transactions keep a process of the server from locking a table; None if it is none."""
    rows = connection.rows(
        "SELECT l.relation::pg_catalog.regclass, b.pid, a.application_name, pg_catalog.current_database(), "
        "extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, x.prepared))::bigint, x.gid "
        "FROM pg_catalog.pg_locks l CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(l.pid)) b (pid) "
        "LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid "
        "LEFT JOIN pg_catalog.pg_prepared_xacts x ON b.pid = 0 AND EXISTS (SELECT FROM pg_catalog.pg_locks h "
        "JOIN pg_catalog.pg_locks own ON own.virtualtransaction = h.virtualtransaction AND own.pid IS NULL "
        "WHERE h.relation = l.relation AND h.pid IS NULL AND own.transactionid = x.transaction) "
        f"WHERE l.pid = {pid} AND l.locktype = 'relation' AND NOT l.granted"
    )
    return f"it waits to lock table {rows[0][0]}, for {_transaction(*rows[0][1:])}" if rows else None


def _transaction(
    pid: str | None, application: str | None, database: str | None, seconds: str | None, gid: str | None
) -> str:
    what = f"PID {pid}, application {application or ''!r}" if gid is None else f"prepared transaction {gid!r}"
    age = "" if seconds is None else f", open for {seconds} s"
    return f"{what}, database {database!r}{age}"


def create_slot(
    replication: Connection,
    slot: str,
    *,
    temporary: bool = False,
    two_phase: bool = False,
    failover: bool = False,
    exports: bool = False,
    on_wait: Callable[[], None] | None = None,
) -> tuple[int, str]:
    """Create a slot on a replication connection, and return the LSN at which it begins, and the name of its snapshot.

    With `exports`, other connections can import the snapshot until the next command of this one; otherwise, the name is
    empty. `on_wait` is called every second while the server waits for older transactions.

    Raises
    ------
    RequestError
        If the server does not support or cannot create the slot.
    """
    major = replication.server_version // 10000
    if failover and major < 17:
        raise RequestError(f"failover needs PostgreSQL 17, the server is {major}")
    if two_phase and major < 15:
        raise RequestError(f"two_phase needs PostgreSQL 15, the server is {major}")
    _check_wal_level(replication)
    command = f"CREATE_REPLICATION_SLOT {quoted_name(slot)}{' TEMPORARY' if temporary else ''} LOGICAL pgoutput"
    if major >= 15:
        options = [
            f"SNAPSHOT '{'export' if exports else 'nothing'}'",
            *(["TWO_PHASE"] if two_phase else []),
            *(["FAILOVER"] if failover else []),
        ]
        command += f" ({', '.join(options)})"
    else:
        command += " EXPORT_SNAPSHOT" if exports else " NOEXPORT_SNAPSHOT"
    try:
        _, start, snapshot, *_ = replication.row(command, 3, on_wait)
    except StopRequestedError:
        raise
    except ServerError as error:
        raise RequestError(f"slot {slot!r} cannot be created: {error}") from error
    return lsn_from_text(str(start)), snapshot or ""


def drop_slot(dsn: str, slot: str) -> None:
    """Drop a slot.

    Raises
    ------
    RequestError
        If the slot does not exist or is in use, or the server cannot be reached.
    """
    try:
        with contextlib.closing(Connection(dsn)) as connection:
            connection.rows(f"SELECT pg_catalog.pg_drop_replication_slot({quoted_text(slot)})")
    except ServerError as error:
        raise RequestError(f"slot {slot!r} cannot be dropped: {error}") from error


def create_publication(dsn: str, name: str, tables: Sequence[str] = ()) -> bool:
    """Create a publication of tables, or of all tables, unless it exists; return whether it was created.

    Parameters
    ----------
    dsn, name : str
    tables : sequence of str
        Names as SQL.

    Raises
    ------
    RequestError
        If it cannot be created.
    """
    try:
        with contextlib.closing(Connection(dsn)) as connection:
            if has_publications(connection, [name]):
                return False
            what = f"TABLE {', '.join(tables)}" if tables else "ALL TABLES"
            connection.rows(f"CREATE PUBLICATION {quoted_name(name)} FOR {what}")
    except ServerError as error:
        raise RequestError(f"publication {name!r} cannot be created: {error}") from error
    return True


def drop_publication(dsn: str, name: str) -> None:
    """Drop a publication.

    Raises
    ------
    RequestError
        If it does not exist, or the server cannot be reached.
    """
    try:
        with contextlib.closing(Connection(dsn)) as connection:
            connection.rows(f"DROP PUBLICATION {quoted_name(name)}")
    except ServerError as error:
        raise RequestError(f"publication {name!r} cannot be dropped: {error}") from error


def server_warnings(connection: Connection) -> Iterator[str]:
    """Yield warnings about settings that may invalidate slots, or change what is sent."""
    limit = setting(connection, "max_slot_wal_keep_size")
    if limit not in (None, "-1"):
        yield f"the server invalidates slots that hold more than max_slot_wal_keep_size = {limit}"
    idle = setting(connection, "idle_replication_slot_timeout")
    if idle not in (None, "0"):
        yield f"the server invalidates slots that nobody reads for idle_replication_slot_timeout = {idle}"
    money = connection.value(
        "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'lc_monetary' "
        "AND source IN ('user', 'database user', 'client')"
    )
    if money is not None:
        yield f"lc_monetary = {money} is set for the role of the capture: money is sent with its decimal places"


def standby_warning(connection: Connection, slot: str) -> str | None:
    """Say that the capture of a slot is, or may become, a synchronous standby; None if it is not."""
    standbys = setting(connection, "synchronous_standby_names")
    if not standbys:
        return None
    rows = connection.rows(
        "SELECT r.sync_priority, a.application_name FROM pg_catalog.pg_replication_slots s "
        "JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid "
        "LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid "
        f"WHERE s.slot_name = {quoted_text(slot)}"
    )
    for priority, application in rows:
        # A role without pg_read_all_stats does not see the priority. Names are compared without case.
        names = {name.strip('" ').lower() for name in re.split(r"[(),]", standbys)}
        is_named = priority is None and bool(names & {"*", (application or "").lower()})
        if is_named or (priority or "0") != "0":
            return (
                f"the capture is a synchronous standby (synchronous_standby_names = {standbys}): commits wait until "
                "its files are complete. Name other standbys there, or let files end early (max_seconds)"
            )
    return None


def publication_warnings(connection: Connection, publications: Sequence[str]) -> Iterator[str]:
    """Yield warnings about what publications leave out, and about tables without a replica identity.

    Raises
    ------
    RequestError
        If a publication does not exist.
    """
    names = ", ".join(map(quoted_text, publications))
    texts = connection.rows(
        f"SELECT row_to_json(p)::text FROM pg_catalog.pg_publication p WHERE pubname IN ({names}) ORDER BY pubname"
    )
    rows = [json.loads(row[0] or "{}") for row in texts]
    for name in publications:
        if name not in {row["pubname"] for row in rows}:
            raise RequestError(
                f"publication {name!r} does not exist in this database: CREATE PUBLICATION ... FOR ALL TABLES makes one"
            )
    with_tables = _with_tables(connection)
    for row in rows:
        # PostgreSQL 10 does not publish truncates and has no column for them.
        left_out = [word for column, word in _OPERATIONS.items() if row.get(column) is False]
        if not row["puballtables"] and row["pubname"] not in with_tables:
            yield f"publication {row['pubname']!r} publishes no table: nothing of it is sent"
        if left_out:
            yield f"publication {row['pubname']!r} leaves out {', '.join(left_out)}"
    if connection.server_version < 110000:
        yield "PostgreSQL 10 does not publish TRUNCATE: captured tables keep the rows that it removes"
    yield from _identity_warnings(connection, [row["pubname"] for row in rows if row["pubupdate"] or row["pubdelete"]])
    yield from _generated_warnings(
        connection, publications, [row["pubname"] for row in rows if row.get("pubgencols") != "s"]
    )


def _with_tables(connection: Connection) -> set[str | None]:
    by_schema = (
        " UNION SELECT p.pubname FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_namespace s "
        "ON s.pnpubid = p.oid JOIN pg_catalog.pg_class c ON c.relnamespace = s.pnnspid AND c.relkind IN ('r', 'p')"
    )
    rows = connection.rows(
        "SELECT p.pubname FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid"
        + (by_schema if connection.server_version >= 150000 else "")
    )
    return {row[0] for row in rows}


def _published(connection: Connection, publications: Sequence[str]) -> str:
    """Write the condition that publications publish a table c, of the schema n, or a table of which it is a partition.

    It reads only catalogs: pg_publication_tables locks each table, and so waits while a table is altered.
    """
    names = ", ".join(map(quoted_text, publications))
    version = connection.server_version
    # Partitioned tables can be published since PostgreSQL 13.
    tables = "(SELECT c.oid UNION SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid))"
    published = [
        f"EXISTS (SELECT FROM pg_catalog.pg_publication p WHERE p.puballtables AND p.pubname IN ({names}))",
        "EXISTS (SELECT FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid "
        f"WHERE (r.prrelid = c.oid{f' OR c.relispartition AND r.prrelid IN {tables}' if version >= 130000 else ''}) "
        f"AND p.pubname IN ({names}))",
    ]
    if version >= 150000:
        published.append(
            "EXISTS (SELECT FROM pg_catalog.pg_publication_namespace s JOIN pg_catalog.pg_publication p "
            "ON p.oid = s.pnpubid JOIN pg_catalog.pg_class t ON t.relnamespace = s.pnnspid WHERE (t.oid = c.oid "
            f"OR c.relispartition AND t.oid IN {tables}) AND p.pubname IN ({names}))"
        )
    return f"c.relkind = 'r' AND c.relpersistence = 'p' AND c.oid >= 16384 AND ({' OR '.join(published)})"


def _listed(names: Sequence[str | None]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(map(str, names[:_SHOWN]))}{more}"


def _identity_warnings(connection: Connection, publications: Sequence[str]) -> Iterator[str]:
    if not publications:
        return
    rows = connection.rows(
        "SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_class c "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE (c.relreplident = 'n' OR c.relreplident IN ('d', 'i') AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i "
        "WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END)) "
        f"AND {_published(connection, publications)} ORDER BY 1"
    )
    if rows:
        yield (
            "tables without a replica identity, on which the server refuses UPDATE and DELETE: "
            f"{_listed([row[0] for row in rows])}"
        )


def _generated_warnings(
    connection: Connection, publications: Sequence[str], without_stored: Sequence[str]
) -> Iterator[str]:
    if connection.server_version < 120000:
        return
    conditions = [f"a.attgenerated = 'v' AND {_published(connection, publications)}"]
    if without_stored:
        conditions.append(_published(connection, without_stored))
    names = ", ".join(map(quoted_text, publications))
    # Since PostgreSQL 18, a list of columns may have them.
    in_list = (
        "AND NOT EXISTS (SELECT FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p "
        f"ON p.oid = r.prpubid WHERE r.prrelid = c.oid AND p.pubname IN ({names}) AND a.attnum = ANY (r.prattrs)) "
    )
    is_new = connection.server_version >= 180000
    rows = connection.rows(
        "SELECT n.nspname || '.' || c.relname || '.' || a.attname FROM pg_catalog.pg_attribute a "
        "JOIN pg_catalog.pg_class c ON c.oid = a.attrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE a.attgenerated <> '' AND a.attnum > 0 AND NOT a.attisdropped "
        f"{in_list if is_new else ''}AND ({' OR '.join(conditions)}) ORDER BY 1"
    )
    if rows:
        remedy = "; publish_generated_columns = stored sends stored ones" if is_new else ""
        yield f"generated columns are left out: {_listed([row[0] for row in rows])}{remedy}"


def has_publications(connection: Connection, names: Sequence[str]) -> bool:
    """Whether all publications exist now."""
    quoted = ", ".join(map(quoted_text, names))
    rows = connection.rows(f"SELECT pubname FROM pg_catalog.pg_publication WHERE pubname IN ({quoted})")
    return {row[0] for row in rows} == set(names)


def setting(connection: Connection, name: str) -> str | None:
    """Read a setting as SHOW prints it; None if the server does not have it."""
    return connection.value(f"SELECT pg_catalog.current_setting({quoted_text(name)}, true)")


def current_lsn(connection: Connection) -> int:
    """Read the LSN up to which the server's WAL is on disk, or on a standby, replayed."""
    text = connection.value(
        "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() "
        "ELSE pg_catalog.pg_current_wal_flush_lsn() END"
    )
    return lsn_from_text(text or "0/0")


def waits_for_wal(connection: Connection, slot: str) -> bool:
    """Whether the walsender of a slot has sent everything and waits for more WAL."""
    event = connection.value(
        "SELECT a.wait_event FROM pg_catalog.pg_replication_slots s "
        f"JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = {quoted_text(slot)}"
    )
    # The event is WalSenderWaitForWAL up to PostgreSQL 16, WalSenderWaitForWal later. WalSenderMain may come before it.
    return (event or "").lower() == "walsenderwaitforwal"


def is_working(connection: Connection, slot: str, pid: int) -> bool:
    """Whether the walsender of a slot decodes, as it does in a transaction of which nothing is published.

    Otherwise, it waits for a client that it does not reach, and holds the slot. It is ended then.
    """
    rows = connection.rows(
        "SELECT a.wait_event_type FROM pg_catalog.pg_replication_slots s "
        "JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid "
        f"WHERE s.slot_name = {quoted_text(slot)} AND a.pid = {pid}"
    )
    if rows and rows[0][0] in ("Activity", "Client"):
        connection.rows(f"SELECT pg_catalog.pg_terminate_backend({pid})")
        return False
    return bool(rows)


def timeout_seconds(replication: Connection) -> float:
    """Read wal_sender_timeout in seconds; 0 if it is disabled. A timeout that no client can meet is made longer."""
    seconds = seconds_from_text(replication.value("SHOW wal_sender_timeout") or "") or 0.0
    # Since PostgreSQL 12, a role can set it.
    if 0 < seconds < _LEAST_TIMEOUT and replication.server_version >= 120000:
        replication.rows(f"SET wal_sender_timeout TO '{_LEAST_TIMEOUT}s'")
        seconds = float(_LEAST_TIMEOUT)
    return seconds


def described_gap(recorded: int | None, confirmed: int) -> str:
    """Describe a gap between two LSNs."""
    return f"recorded up to {lsn_to_text(recorded or 0)}, the slot begins at {lsn_to_text(confirmed)}"
