"""`Sync`: captures a slot until now, and applies what has come to targets, once or again and again."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgdecode.capture import Capture, CaptureError, CaptureResult, RequestError, drop_slot
from pgdecode.capture.connection import Connection
from pgdecode.capture.copy import published_names, published_tables
from pgdecode.capture.errors import UNDEFINED_OBJECT, FolderBusyError, ServerError
from pgdecode.capture.journal import Contents, Log, plugin_options, read_log
from pgdecode.capture.server import (
    SlotState,
    check_slot,
    create_publication,
    current_lsn,
    drop_publication,
    find_slot,
)
from pgdecode.capture.slot_status import Status, read_status
from pgdecode.datasets.errors import OtherWriter, RunError
from pgdecode.datasets.input_selection import IDENTITY
from pgdecode.lake.apply_run import ApplyResult, StaleTables, apply
from pgdecode.lake.reading.payload_source import PayloadSource
from pgdecode.lake.target import Target
from pgdecode.lake.targets import lake_target
from pgdecode.protocol.errors import did_you_mean
from pgdecode.protocol.lsn import lsn_from_text, lsn_to_text
from pgdecode.relations.table_names import name_parts, quoted_name
from pgdecode.storage.durable import locked, make_folders, write_durably
from pgdecode.storage.errors import StoreUnreachable

# The name of a slot and of a publication, unless the folder has others.
DEFAULT_NAME = "pgdecode"
LOCK_NAME, REPORT_NAME = "_sync.lock", "_sync.json"
# Seconds between looks at a request to stop, and before the next attempt after an error.
_LOOK_SECONDS, _RETRY_SECONDS = 0.2, 2.0
# What ends a cycle, or the part of it that is for one target.
_FAILURES = (CaptureError, ValueError, OSError, pa.ArrowException)


@dataclass
class TargetReport:
    """What a cycle has done in a target.

    Attributes
    ----------
    tables : dict of str to dict
        The counts of each table, by their names in `TableResult`.
    commit_lsn : int
        The greatest LSN of a commit that it has.
    last_success : float or None
        When the last cycle began whose changes it has, in seconds since 1970.
    error : str or None
    """

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    commit_lsn: int = -1
    last_success: float | None = None
    error: str | None = None


@dataclass
class Report:
    """What a cycle has done, and the state after it. `RAW/_sync.json` has that of the last cycle.

    Attributes
    ----------
    started, seconds : float
        When the cycle began, in seconds since 1970, and how long it took.
    messages, files : int
        Captured.
    copies : list of str
        Tables that were copied.
    recorded, current : int
        LSN up to which the folder has everything, and up to which the server has WAL.
    slot : dict
        The slot's row in pg_replication_slots.
    targets : dict of str to TargetReport
        By the URI, without passwords.
    error : str or None
        Why the capture failed.
    failures : int
        Number of cycles in a row that failed.
    created : dict of str to str
        The slot and the publication that were created on request.
    """

    started: float
    seconds: float = 0.0
    messages: int = 0
    files: int = 0
    copies: list[str] = field(default_factory=list)
    recorded: int = 0
    current: int = 0
    slot: dict[str, Any] = field(default_factory=dict)
    targets: dict[str, TargetReport] = field(default_factory=dict)
    error: str | None = None
    failures: int = 0
    created: dict[str, str] = field(default_factory=dict)

    @property
    def lag_bytes(self) -> int:
        """WAL that is not recorded."""
        return max(self.current - self.recorded, 0)

    @property
    def errors(self) -> list[str]:
        """The errors of the cycle."""
        found = [self.error, *(f"{name}: {item.error}" for name, item in self.targets.items() if item.error)]
        return [text for text in found if text]

    def as_dict(self) -> dict[str, Any]:
        """Convert it to JSON values, with LSNs in PostgreSQL's text form."""
        targets = {
            name: {**vars(item), "commit_lsn": None if item.commit_lsn < 0 else lsn_to_text(item.commit_lsn)}
            for name, item in self.targets.items()
        }
        lsns = {name: lsn_to_text(getattr(self, name)) for name in ("recorded", "current")}
        return {**vars(self), **lsns, "lag_bytes": self.lag_bytes, "targets": targets}


@dataclass
class Sync:
    """Makes targets equal to a server: captures its slot until now, then applies what has come.

    Parameters
    ----------
    dsn : str
        Connection string of libpq, as for `Capture`.
    targets : sequence of str
        URIs, as of `lake_target`.
    raw : path
        The folder of captured files.
    slot, publications : str, sequence of str
        Default: those of the folder, or else "pgdecode".
    tables, exclude : sequence of str
        The tables to apply, as "schema.table"; all but `exclude` if there are none.
    create_slot, create_publication : bool
        Create them if they do not exist. With `accept_gap` in `options`, a folder goes on with another slot, and all
        tables are copied again.
    copy_again : bool
        Copy tables again whose rows cannot be known from the changes (`StaleTables`). Otherwise they are an error.
    connections : int
        Number of connections that read the rows of a table which is copied.
    binary : bool or None
        Whether values are requested in binary form. None: as in the folder.
    retry_seconds : float
        How long to try again after errors that may pass.
    options : mapping
        Options of `apply`.
    storage_options : mapping, optional
        How to connect to object stores of targets.
    metrics : Path, optional
        A file for the metrics of each cycle, in the text format of Prometheus.
    on_warning : callable
        Called with one line of text, by any thread. A warning that the cycle before had too is left out.
    on_report : callable
        Called after each cycle.
    """

    dsn: str
    targets: Sequence[str]
    raw: Path
    slot: str | None = None
    publications: Sequence[str] = ()
    tables: Sequence[str] = ()
    exclude: Sequence[str] = ()
    create_slot: bool = False
    create_publication: bool = False
    copy_again: bool = False
    connections: int = 1
    binary: bool | None = None
    retry_seconds: float = 300.0
    options: Mapping[str, Any] = field(default_factory=dict)
    storage_options: Mapping[str, str] | None = None
    metrics: Path | None = None
    on_warning: Callable[[str], None] = lambda text: None
    on_report: Callable[[Report], None] = lambda report: None
    on_progress: Callable[[CaptureResult], None] | None = None

    def __post_init__(self) -> None:
        if not self.targets:
            raise RequestError("a target is missing")
        # Plain values: a signal handler may interrupt a thread that holds a lock.
        self._stopping = False
        self._running: Capture | None = None
        self._log = Log(self.raw)
        # The tables to apply, as far as the server was asked for them.
        self._names: list[str] | None = published_names(self.tables, ()) or None
        self._stale: dict[str, str] = {}  # tables to copy again, and the reasons
        self._n_cycles = 0
        self._warnings: dict[str, int] = {}  # with the number of the last cycle that had each
        self._shown = {
            target: lake_target(target, storage_options=self.storage_options).name for target in self.targets
        }

    def stop(self) -> None:
        """Make `run` end: a capture completes its file, changes that are being applied are committed.

        Safe in a signal handler.
        """
        self._stopping = True
        if self._running is not None:
            self._running.stop()

    def run(self, *, every: float | None = None) -> Report:
        """Run a cycle, or cycles that begin `every` so many seconds until `stop`.

        Returns
        -------
        Report
            Of the last cycle.

        Raises
        ------
        CaptureError, RunError, RunFault, ValueError, OSError
            The error of a cycle that does not pass, or has not passed in `retry_seconds`. With `every`, cycles go on
            while tables are stale: a copy of these tables mends them.
        """
        with self._locked():
            failing_since: float | None = None
            while True:
                start = time.monotonic()
                report, failures = self._cycle()
                self._write(report)
                self.on_report(report)
                again = self._to_copy_again(failures)
                new, self._stale = [name for name in again if name not in self._stale], again
                # While tables are stale, the others go on.
                failure = min(failures, key=lambda error: isinstance(error, StaleTables), default=None)
                if failure is None:
                    failing_since = None
                    if every is None or self._stopping:
                        return report
                    self._sleep(start + every)
                elif self._stopping:
                    return report
                elif new:
                    for name in new:
                        self._warn(f"table {name} is copied again: {again[name]}")
                else:
                    failing_since = failing_since or start
                    left = failing_since + self.retry_seconds - time.monotonic()
                    if every is not None and isinstance(failure, StaleTables):
                        # The other tables go on. A copy of these mends them.
                        failing_since = None
                        self._warn_of(failures)
                        self._sleep(start + every)
                        continue
                    self._warn_of(error for error in failures if error is not failure)
                    if not self._may_pass(failure) or left <= 0:
                        raise failure
                    self._warn(f"trying again for {math.ceil(left):,} s: {failure}")
                    self._sleep(time.monotonic() + min(_RETRY_SECONDS, left))
                if self._stopping:
                    return report

    def _to_copy_again(self, failures: Sequence[Exception]) -> dict[str, str]:
        """Return the stale tables that a copy mends, and the reasons."""
        stale = [error for error in failures if self.copy_again and isinstance(error, StaleTables)]
        return {name: error.tables[name] for error in stale for name in error.tables if name not in error.choices}

    def _may_pass(self, error: BaseException) -> bool:
        """Whether another attempt may succeed: the server or another process is in the way.

        A server that was never reached may have another name.
        """
        found: BaseException | None = error
        while found is not None:
            if isinstance(found, FolderBusyError | OtherWriter | StoreUnreachable):
                return True
            if isinstance(found, ServerError) and found.may_pass:
                return bool(found.sqlstate) or self._log.read().origin is not None
            found = found.__cause__
        return False

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self.on_warning(text)
        self._warnings[text] = self._n_cycles

    def _warn_of(self, failures: Iterable[Exception]) -> None:
        for line in (line for error in failures for line in str(error).splitlines()):
            self._warn(line)

    def _sleep(self, until: float) -> None:
        while not self._stopping and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        taken = RequestError(f"{self.raw}: another process syncs with this folder")
        try:
            make_folders(self.raw)
            with locked(self.raw / LOCK_NAME, taken, remove=True):
                yield
        finally:
            with contextlib.suppress(OSError):
                self.raw.rmdir()  # if nothing was captured

    # -- one cycle -----------------------------------------------------------------------------------------------------

    def _cycle(self) -> tuple[Report, list[Exception]]:
        """Capture, then apply to each target. Return the errors too."""
        self._warnings = {text: last for text, last in self._warnings.items() if last == self._n_cycles}
        self._n_cycles += 1
        before = read_report(self.raw)
        report = Report(time.time(), created=dict(before.get("created", {})))
        start = time.monotonic()
        failures: list[Exception] = []
        try:
            self._check_targets(before)
            self._capture(report)
        except _FAILURES as error:
            failures.append(error)
            report.error = str(error)
            # It may know more than the log has.
            self._log = Log(self.raw)
        has_raw = self._log.read().origin is not None
        for target, name in self._shown.items():
            item = report.targets[name] = TargetReport()
            known = before.get("targets", {}).get(name, {})
            item.last_success = known.get("last_success")
            item.commit_lsn = -1 if known.get("commit_lsn") is None else lsn_from_text(known["commit_lsn"])
            # What was captured before is applied also if the server cannot be reached.
            if self._stopping or not has_raw or (self.exclude and self._names is None):
                continue
            try:
                self._apply(target, item)
                item.last_success = report.started if report.error is None else item.last_success
            except _FAILURES as error:
                failures.append(error)
                item.error = str(error)
        report.failures = int(before.get("failures", 0)) + 1 if failures else 0
        report.seconds = time.monotonic() - start
        return report, failures

    def _check_targets(self, before: Mapping[str, Any]) -> None:
        """Check that what RAW gets can be applied, before the slot is read: it does not send that again.

        Parameters
        ----------
        before : mapping
            The report of the last cycle. A target that it has applied to is not checked.
        """
        has_files = bool(self._log.read().files)
        failures: list[Exception] = []
        for target, name in self._shown.items():
            if has_files and before.get("targets", {}).get(name, {}).get("last_success") is not None:
                continue
            destination = lake_target(target, storage_options=self.storage_options)
            try:
                with destination.opened():
                    self._check_follows(destination)
            except _FAILURES as error:
                if destination.applied or self._may_pass(error):
                    raise
                failures.append(error)
        # One that cannot be opened does not stop the others.
        if len(failures) == len(self._shown):
            raise failures[0]

    def _check_follows(self, target: Target) -> None:
        """Check that RAW has the payloads that a target was made from."""
        contents = self._log.read()
        known = [target.applied[name] for name in self._wanted([*target.applied]) if name in target.applied]
        if known and not contents.files:
            raise RunError(
                f"{self.raw}: has no captured files, but {target.name} has {known[0].payloads}: sync with the folder "
                "that it was made from, or delete the target, or use another one"
            )
        identity = {key: (contents.origin or {}).get(key) for key in IDENTITY}
        same = [item for item in known if identity == {key: (item.source or {}).get(key) for key in IDENTITY}]
        payloads = PayloadSource(self.raw)
        if same:
            payloads.find()
        for applied in same:
            payloads.check_follows(applied, target.name)

    def _capture(self, report: Report) -> None:
        contents = self._log.read()
        origin = contents.origin or {}
        slot = self.slot or origin.get("slot", DEFAULT_NAME)
        publications = tuple(self.publications) or tuple(origin.get("publications", (DEFAULT_NAME,)))
        sessions, n_gaps, made = contents.sessions, len(contents.gaps), list[str]()
        if self.create_publication:
            check_slot(self.dsn, slot, creates=self.create_slot)
            tables = [_as_sql(name) for name in self.tables]
            for name in publications:
                if create_publication(self.dsn, name, tables):
                    report.created["publication"] = name
                    made.append(name)
        has_slot = not self.create_slot or self._has_slot(slot)
        options = plugin_options(self.raw, contents)
        running = Capture(
            self.dsn,
            self.raw,
            slot=slot,
            publication=publications,
            options=options if self.binary is None else replace(options, binary=self.binary),
            create_slot=self.create_slot,
            accept_gap=self.create_slot and bool(self.options.get("accept_gap")),
            copy=self._tables_to_copy(publications, contents),
            connections=self.connections,
            encoding=contents.encoding,
            retry_seconds=self.retry_seconds,
            on_progress=self.on_progress,
            on_warning=self._warn,
        )
        self._running, running.log = running, self._log
        if self._stopping:
            running.stop()
        try:
            result = running.run(until="now")
            report.messages, report.files = report.messages + result.messages, report.files + result.files
            report.copies += [item.table for item in result.copies]
        finally:
            self._running = None
            if not has_slot and self._has_slot(slot):
                report.created["slot"] = slot
            elif self._log.read().sessions == sessions:
                # Nothing reads the publication. Without a key, the server refuses UPDATE and DELETE for its sake.
                with contextlib.suppress(CaptureError):
                    for name in made:
                        drop_publication(self.dsn, name)
                        report.created.pop("publication", None)
            with contextlib.suppress(CaptureError):
                self._read_slot(report, slot)
        if len(self._log.read().gaps) > n_gaps and not self._stopping:
            # A table that was chosen and copied before needs a new copy.
            self._capture(report)

    def _read_slot(self, report: Report, slot: str) -> None:
        """Take note of the state after a capture."""
        contents = self._log.read()
        if contents.origin is not None:
            with contextlib.closing(Connection(self.dsn)) as connection:
                state = find_slot(connection, slot)
                report.current = current_lsn(connection)
            report.recorded, report.slot = contents.recorded or 0, {} if state is None else state.columns

    def _has_slot(self, slot: str) -> bool:
        with contextlib.suppress(ServerError), contextlib.closing(Connection(self.dsn)) as connection:
            return find_slot(connection, slot) is not None
        return True

    def _tables_to_copy(self, publications: Sequence[str], contents: Contents) -> bool | list[str]:
        """Choose the tables that have not been copied."""
        if not self.tables and not self.exclude and not self._stale:
            return True
        try:
            with contextlib.closing(Connection(self.dsn)) as connection:
                published = published_tables(connection, publications)
        except ServerError as error:
            raise RequestError(str(error)) from error
        by_name = {item.full_name: item for item in published}
        given = published_names(self.tables, by_name)
        if unknown := next((name for name in given if name not in by_name), None):
            raise RequestError(f"table {unknown!r} is not published{did_you_mean(unknown, [*by_name])}")
        chosen = self._wanted([*by_name])
        if self.tables or self.exclude:
            self._names = chosen
        return [name for name in chosen if by_name[name].oid not in contents.copies or name in self._stale]

    def _wanted(self, names: Sequence[str]) -> list[str]:
        """List the tables of the call, which may be among these."""
        wanted = published_names(self.tables, names) or [*names]
        excluded = published_names(self.exclude, names)
        return [name for name in wanted if name not in excluded]

    def _apply(self, target: str, report: TargetReport) -> None:
        destination = lake_target(target, storage_options=self.storage_options)
        try:
            found = apply(self.raw, destination, tables=self._names, **self.options)
        except StaleTables as error:
            self._take(error.result, report)
            raise
        self._take(found, report)

    def _take(self, found: ApplyResult, report: TargetReport) -> None:
        report.commit_lsn = found.commit_lsn
        report.tables = {name: table.as_dict() for name, table in found.tables.items()}
        for note in found.notes:
            self._warn(note)

    # -- reports -------------------------------------------------------------------------------------------------------

    def _write(self, report: Report) -> None:
        if self.raw.is_dir():
            write_durably(self.raw / REPORT_NAME, json.dumps(report.as_dict()).encode())
        if self.metrics is not None:
            write_durably(self.metrics, metrics_of(report).encode())


def slot_of(raw: Path) -> str:
    """Return the slot of a folder: the default one, if nothing was captured to it."""
    with contextlib.suppress(CaptureError, OSError):
        return str((read_log(raw).origin or {}).get("slot", DEFAULT_NAME))
    return DEFAULT_NAME


def read_report(raw: Path) -> dict[str, Any]:
    """Read the report of the last cycle; empty without one."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((raw / REPORT_NAME).read_bytes())
        if isinstance(found, dict):
            return found
    return {}


def drop_created(dsn: str, raw: Path) -> list[str]:
    """Drop the slot and the publication that `Sync` has created for a folder, and say what was there.

    Raises
    ------
    RequestError
        If it has created none, or they cannot be dropped.
    """
    report = read_report(raw)
    created = dict(report.get("created", {}))
    if not created:
        raise RequestError(f"{raw}: sync has created neither a slot nor a publication for this folder")
    lines = []
    for what, drop in (("slot", drop_slot), ("publication", drop_publication)):
        if (name := created.pop(what, None)) is not None:
            done = "dropped"
            try:
                drop(dsn, name)
            except RequestError as error:
                if not isinstance(error.__cause__, ServerError) or error.__cause__.sqlstate != UNDEFINED_OBJECT:
                    raise
                done = "did not exist any more"
            lines.append(f"{what} {name}: {done}")
            write_durably(raw / REPORT_NAME, json.dumps({**report, "created": created}).encode())
    return lines


def read_sync_status(dsn: str, raw: Path, max_lag: float | None = None) -> tuple[Status, dict[str, Any], list[str]]:
    """Read the state of the slot and the report of the last cycle, and list what is wrong.

    Parameters
    ----------
    dsn, raw
        As of `Sync`.
    max_lag : float, optional
        Seconds that the last successful cycle of a target may be ago.

    Raises
    ------
    RequestError
        If nothing was captured to the folder, or the server cannot be reached.
    """
    contents = read_log(raw)
    report = read_report(raw)
    if contents.origin is None:
        reason = f": {report['error']}" if report.get("error") else ""
        raise RequestError(f"{raw}: no capture has written to it{reason}")
    status = read_status(dsn, raw, contents.origin["slot"])
    wrong = [] if status.obstacle is None else [status.obstacle]
    if not report:
        wrong.append("no cycle has ended")
    wrong += [report["error"]] if report.get("error") else []
    for name, target in report.get("targets", {}).items():
        wrong += [f"{name}: {line}" for line in (target.get("error") or "").splitlines()]
        seconds = None if target.get("last_success") is None else time.time() - target["last_success"]
        if max_lag is not None and (seconds is None or seconds > max_lag):
            ago = "no cycle was successful" if seconds is None else f"the last success is {seconds:,.0f} s ago"
            wrong.append(f"{name}: {ago}")
    return status, report, wrong


def metrics_of(report: Report) -> str:
    """Write a report in the text format of Prometheus."""
    now = time.time()
    slot = report.slot
    lines: dict[str, tuple[str, list[tuple[dict[str, str], float]]]] = {
        "up": ("Whether the last cycle was successful.", [({}, not report.errors)]),
        "cycle_timestamp_seconds": ("When the last cycle began.", [({}, report.started)]),
        "cycle_duration_seconds": ("How long the last cycle took.", [({}, report.seconds)]),
        "failed_cycles": ("Number of failed cycles in a row.", [({}, report.failures)]),
        "lag_bytes": ("WAL of the server that is not recorded.", [({}, report.lag_bytes)]),
        "captured_messages": ("Messages that the last cycle captured.", [({}, report.messages)]),
        "captured_files": ("Files that the last cycle captured.", [({}, report.files)]),
        "slot_active": ("Whether a session reads the slot.", [({}, bool(slot.get("active")))]),
        "slot_lost": ("Whether the server has invalidated the slot, or it does not exist.", [({}, _is_lost(slot))]),
        "slot_wal_status": (
            "State of the slot's WAL.",
            [({"status": str(slot["wal_status"])}, 1)] if slot.get("wal_status") else [],
        ),
        "slot_safe_wal_bytes": (
            "WAL until the slot is lost.",
            [] if slot.get("safe_wal_size") is None else [({}, slot["safe_wal_size"])],
        ),
        "last_error": ("The last error, if the last cycle failed.", [({"error": text}, 1) for text in report.errors]),
        "last_success_timestamp_seconds": ("When the last cycle began whose changes a target has.", []),
        "lag_seconds": ("Seconds since that cycle began.", []),
        "target_failed": ("Whether the last cycle failed in a target.", []),
        "upserted_rows": ("Rows that the last cycle inserted or updated.", []),
        "deleted_rows": ("Rows that the last cycle deleted.", []),
        "rows": ("Rows of a table.", []),
        "added_files": ("Files that the last cycle added to a table.", []),
        "added_bytes": ("Bytes that the last cycle added to a table.", []),
    }
    for name, target in report.targets.items():
        labels = {"target": name}
        lines["target_failed"][1].append((labels, target.error is not None))
        if target.last_success is not None:
            lines["last_success_timestamp_seconds"][1].append((labels, target.last_success))
            lines["lag_seconds"][1].append((labels, max(now - target.last_success, 0)))
        for table, counts in target.tables.items():
            for metric, count in _OF_TABLES.items():
                if isinstance(counts.get(count), int):
                    lines[metric][1].append(({**labels, "table": table}, counts[count]))
    return "".join(
        f"# HELP pgdecode_sync_{name} {text}\n# TYPE pgdecode_sync_{name} gauge\n"
        + "".join(f"pgdecode_sync_{name}{_labels(labels)} {float(value):.17g}\n" for labels, value in values)
        for name, (text, values) in lines.items()
        if values
    )


# By the names of metrics: the counts of a table.
_OF_TABLES = {
    "upserted_rows": "upserts",
    "deleted_rows": "deletes",
    "rows": "rows",
    "added_files": "files_added",
    "added_bytes": "bytes_added",
}


def _labels(labels: Mapping[str, str]) -> str:
    escaped = {
        name: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}" if escaped else ""


def _is_lost(slot: Mapping[str, Any]) -> bool:
    return not slot or bool(SlotState(dict(slot)).loss)


def _as_sql(name: str) -> str:
    return ".".join(map(quoted_name, name_parts(name) or ("public", name)))
