"""The command `capture`: writes the messages of a live slot to payload files."""

from __future__ import annotations

import json
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, Protocol

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pgdecode.capture import (
    Capture,
    CaptureError,
    CaptureResult,
    FileRules,
    PluginOptions,
    RequestError,
    Retention,
    drop_slot,
)
from pgdecode.capture.capture import delete_files
from pgdecode.capture.journal import read_log
from pgdecode.capture.options import bytes_from_text, seconds_from_text
from pgdecode.capture.recorder import CopyProgress
from pgdecode.capture.server import MISSING_CHANGES, MISSING_SLOT, NEW_SLOT
from pgdecode.capture.slot_status import Status, read_status
from pgdecode.cli import parameters
from pgdecode.cli.main import SignalExit
from pgdecode.cli.report import size_text
from pgdecode.cli.terminal import counted, standard_output, warn
from pgdecode.files.envelope_text import printable
from pgdecode.protocol.lsn import lsn_from_text, lsn_to_text

STOPPED, MISUSE = 3, 2
# Seconds between two lines of progress: in a log, and on a terminal.
_LOG_SECONDS, _LIVE_SECONDS = 60.0, 0.5
# The columns of pg_replication_slots that a status shows.
_SLOT_COLUMNS = (
    "active",
    "restart_lsn",
    "confirmed_flush_lsn",
    "wal_status",
    "safe_wal_size",
    "invalidation_reason",
    "two_phase",
    "failover",
    "inactive_since",
)
_FLAGS = {
    "two_phase": "--two-phase",
    "create_slot makes it": "--create-slot makes it",
    "; encoding=": "; --encoding ",
    "(pg_replication_slot_advance) and accept_gap": "(pg_replication_slot_advance) and --accept-gap",
    "change_publications does so": "--change-publications does so",
    "copy needs a slot that stays: a temporary one": "--copy needs a slot that stays: that of --temporary",
    "; copy=True adds": "; --copy adds",
    "let files end early (max_seconds)": "let files end early (--file-time)",
    "temporary and failover require create_slot": "--temporary and --failover require --create-slot",
}


def _until(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is None or value == "now" or seconds_from_text(value) is not None:
        return value
    try:
        lsn_from_text(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not now, an LSN such as 16/B374D848, or a duration such as 90s, 5min or 1h",
            context,
            option,
        ) from None
    return value


def _retention(context: click.Context, option: click.Parameter, value: str | None) -> Retention | None:
    if value is None:
        return None
    # A number without a unit is bytes.
    seconds, n_bytes = seconds_from_text(value), bytes_from_text(value)
    if seconds is None and n_bytes is None:
        raise click.BadParameter(
            f"{value!r} is neither a duration such as 7d nor a size such as 500GB", context, option
        )
    return Retention(seconds=seconds, bytes=None if seconds is not None else n_bytes)


def duration(context: click.Context, option: click.Parameter, value: str) -> float:
    """Parse a duration, in seconds."""
    found = seconds_from_text(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is not a duration such as 30s, 5min or 1h", context, option)
    return found


def _bytes(context: click.Context, option: click.Parameter, value: str) -> int:
    found = bytes_from_text(value)
    if not found:
        raise click.BadParameter(f"{value!r} is not a size such as 64MB", context, option)
    return found


@click.command(short_help="Capture the messages of a live slot to Parquet files.")
@click.argument("dsn")
@click.argument("out", type=parameters.path, metavar="OUT")
@click.argument("tables", nargs=-1, metavar="")
@click.option("--slot", metavar="NAME", help="The slot to read. Default: that of OUT, but for --drop-slot.")
@click.option(
    "--publication",
    multiple=True,
    metavar="NAME",
    help="The publication whose tables are sent. Repeatable. Default: those of OUT.",
)
@click.option(
    "--protocol",
    type=click.IntRange(1, 4),
    metavar="VERSION",
    help="Version of the protocol. Default: the lowest that the other options need.",
)
@click.option(
    "--streaming",
    type=click.Choice(["off", "on", "parallel"]),
    default="off",
    show_default=True,
    help="Request large transactions before they commit.",
)
@click.option("--two-phase", is_flag=True, help="Request prepared transactions when they are prepared.")
@click.option("--binary", is_flag=True, help="Request values in binary form if their type has one.")
@click.option("--messages", is_flag=True, help="Request also the messages of pg_logical_emit_message.")
@click.option("--origin", type=click.Choice(["any", "none"]), help="none: leave out changes replicated to the server.")
@click.option("--create-slot", is_flag=True, help="Create the slot if it does not exist.")
@click.option("--temporary", is_flag=True, help="With --create-slot: drop the slot when this capture disconnects.")
@click.option("--failover", is_flag=True, help="With --create-slot: synchronise the slot to standbys.")
@click.option("--drop-slot", "drop", is_flag=True, help="Drop the slot, and do nothing else.")
@click.option(
    "--until",
    callback=_until,
    metavar="now|LSN|DURATION",
    help="Stop when all changes committed until now or up to an LSN are captured, or after a time such as 10min. "
    "Default: continue until SIGINT or SIGTERM.",
)
@click.option(
    "--max-messages",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after N messages, at the end of the transaction.",
)
@click.option(
    "--copy",
    "as_copy",
    is_flag=True,
    help="First copy the rows of the TABLEs that follow; without one, of all published tables that OUT lacks.",
)
@parameters.connections("With --copy: read each table over N connections.")
@click.option("--accept-gap", is_flag=True, help="Continue although changes are missing. The log of OUT records this.")
@click.option(
    "--change-publications",
    is_flag=True,
    help="Continue without a publication that OUT had: its changes are passed over. The log of OUT records this.",
)
@click.option(
    "--encoding",
    default="UTF8",
    show_default=True,
    metavar="NAME",
    help="client_encoding of the session. Readers of OUT use it. If the text of the database cannot be converted to "
    "UTF8: the encoding of the database, such as SQL_ASCII.",
)
@click.option(
    "--file-size",
    default="256MB",
    show_default=True,
    callback=_bytes,
    metavar="SIZE",
    help="Begin a new file after this size of messages.",
)
@click.option(
    "--file-time",
    default="30s",
    show_default=True,
    callback=duration,
    metavar="DURATION",
    help="Begin a new file after this time. Messages in complete files are confirmed to the server.",
)
@click.option(
    "--retain",
    "retention",
    callback=_retention,
    metavar="DURATION|SIZE",
    help="Delete confirmed files that are older than this, or the oldest if all are larger than this.",
)
@click.option(
    "--retry",
    "retry_seconds",
    default="5min",
    show_default=True,
    callback=duration,
    metavar="DURATION",
    help="How long to try to reconnect after the connection is lost.",
)
@click.option("--status", "as_status", is_flag=True, help="Print the status of OUT and the slot, and do nothing else.")
@click.option("--json", "as_json", is_flag=True, help="With --status: print a JSON object instead of a table.")
def capture(
    dsn: str,
    out: Path,
    tables: tuple[str, ...],
    slot: str | None,
    as_copy: bool,
    drop: bool,
    as_status: bool,
    as_json: bool,
    until: str | None,
    max_messages: int | None,
    file_size: int,
    file_time: float,
    retention: Retention | None,
    **given: Any,
) -> int:
    """Write the messages of slot NAME on the server DSN to OUT, a folder of Parquet files: each committed change once.

    With --copy [TABLE ...], the rows that tables have already are written first: each table as one transaction that
    empties it and inserts its rows, between the commits before and after. It may be copied again at any time.

    DSN is a URI or keyword string of libpq, or "" if PG* variables have all parameters. Keep passwords in a password
    file. Files have the columns seq, lsn, received and data; "pgdecode decode" reads OUT as IN. A file appears when it
    is complete and on disk. Only then may the server discard its messages. However a capture was interrupted, the next
    one continues where OUT ends.

    The slot is never created, dropped or advanced without request. If changes are missing between OUT and the slot, or
    the server is another one, nothing is captured without --accept-gap.

    Exit codes: 0 done; 2 not possible as requested; 3 refused, or ended by the state of the server or of OUT, and with
    --status if a capture would be refused.
    """
    calls = _CALLS
    try:
        if as_json and not as_status:
            raise click.UsageError("--json needs --status")
        if tables and not as_copy:
            raise click.UsageError(f"Got unexpected extra argument ({tables[0]}); tables need --copy")
        if given["connections"] > 1 and not as_copy:
            raise click.UsageError("--connections needs --copy")
        # Another server may have a slot of the same name: one is only dropped by name.
        is_complete = drop or (slot and given["publication"])
        origin = ({} if is_complete else read_log(out).origin) or {}
        slot = slot or origin.get("slot")
        if slot is None:
            raise click.UsageError("Missing option '--slot'.")
        given["publication"] = given["publication"] or tuple(origin.get("publications", ()))
        calls = _calls(out, slot, given["publication"], until)
        if drop:
            drop_slot(dsn, slot)
            click.echo(f"slot {printable(slot)}: dropped", err=True)
            return 0
        if as_status:
            status = read_status(dsn, out, slot)
            _print_status(status, calls, as_json=as_json)
            return 0 if status.obstacle is None else STOPPED
        if not given["publication"]:
            raise click.UsageError("Missing option '--publication'.")
        with live_progress() as show:
            # The parameters have the names of those of `Capture` and `PluginOptions`.
            plugin = {item.name: given.pop(item.name) for item in fields(PluginOptions)}
            running = Capture(
                dsn,
                out,
                slot=slot,
                options=PluginOptions(**plugin),
                rules=FileRules(max_bytes=file_size, max_seconds=file_time),
                retention=retention,
                copy=(tables or True) if as_copy else False,
                on_progress=show,
                on_warning=lambda text: warn(with_flags(text, calls)),
                **given,
            )
            with stopped_by_signals(running):
                result = running.run(until=until, max_messages=max_messages)
        _print_result(out, result, is_copied=as_copy)
        if retention is not None:
            delete_files(out, retention)
    except CaptureError as error:
        return fail(error, calls)
    return 0


def drop_call(folder: Path, slot: str) -> str:
    """Return the command that drops a slot."""
    return shlex.join(["pgdecode", "capture", "DSN", str(folder), "--slot", slot, "--drop-slot"])


def slot_arguments(slot: str | None, publications: Sequence[str]) -> list[str]:
    """Return the arguments that name a slot and publications."""
    names = [("--slot", slot)] if slot else []
    return [text for item in [*names, *(("--publication", name) for name in publications)] for text in item]


class Calls(NamedTuple):
    """The commands that continue after changes or a slot were lost, as they can be pasted."""

    drop_slot: str = "pgdecode capture DSN RAW --slot NAME --drop-slot"
    new_slot: str = "pgdecode capture DSN RAW --create-slot --accept-gap"
    accept_gap: str = "pgdecode capture DSN RAW --accept-gap"


_CALLS = Calls()


def _calls(out: Path, slot: str, publications: Sequence[str], until: str | None) -> Calls:
    names = slot_arguments(slot, publications)
    call = shlex.join(["pgdecode", "capture", "DSN", str(out), *names, *(["--until", until] if until else [])])
    return Calls(drop_call(out, slot), f"{call} --create-slot --accept-gap", f"{call} --accept-gap")


def fail(error: CaptureError, calls: Calls = _CALLS) -> int:
    """Print an error of a capture, and return the exit code."""
    click.echo(f"pgdecode: {with_flags(str(error), calls)}", err=True)
    return MISUSE if isinstance(error, RequestError) else STOPPED


def with_flags(text: str, calls: Calls = _CALLS) -> str:
    """Replace parameters of functions, which a text of a capture names, by options of commands."""
    commands = {
        NEW_SLOT: f"this continues with a new slot and a gap: {calls.drop_slot} && {calls.new_slot}",
        MISSING_SLOT: f"this continues with a new slot and a gap: {calls.new_slot}",
        MISSING_CHANGES: f"this continues behind the gap: {calls.accept_gap}",
    }
    for words, flags in {**commands, **_FLAGS}.items():
        text = text.replace(words, flags)
    return printable(text)


class Stoppable(Protocol):
    """What can be stopped by a signal handler."""

    def stop(self) -> None:
        """Request the end."""


@contextmanager
def stopped_by_signals(running: Stoppable) -> Iterator[None]:
    """Make SIGINT and SIGTERM stop it cleanly. A second signal ends the process."""
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    former: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}

    def stop(number: int, frame: FrameType | None) -> None:
        running.stop()
        signal.signal(number, former[number])

    try:
        for number, handler in former.items():
            signal.signal(number, stop)
            if isinstance(handler, SignalExit):
                handler.repeat()
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextmanager
def live_progress() -> Iterator[Callable[[CaptureResult], None]]:
    """Show the progress of captures: on a terminal in one line, else in a line of the log every minute.

    Yield the function to call with it, several times a second.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Rates(_LOG_SECONDS, _log).add
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield _Rates(_LIVE_SECONDS, lambda line: live.update(Text(line))).add


def _log(line: str) -> None:
    click.echo(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {line}", err=True)


class _Rates:
    """Describes the progress of captures, with the rates since the line before, at intervals.

    Parameters
    ----------
    interval : float
        Seconds from one line to the next.
    write : callable
        Takes a line.
    """

    def __init__(self, interval: float, write: Callable[[str], None]) -> None:
        self._interval, self._write = interval, write
        self._last = CaptureResult()

    def add(self, now: CaptureResult) -> None:
        """Write a line, if it is time."""
        before = self._last
        seconds = now.seconds - before.seconds
        if seconds < 0 or now.received_messages < before.received_messages:
            # The capture after a copy, or the next one of a sync.
            self._last = CaptureResult(seconds=now.seconds)
        elif seconds >= self._interval:
            self._last = now
            self._write(_copy_text(now.copying) if now.copying is not None else _text(now, before, seconds))


def _text(now: CaptureResult, before: CaptureResult, seconds: float) -> str:
    rate = (now.received_messages - before.received_messages) / seconds
    speed = (now.received_bytes - before.received_bytes) / seconds / 1e6
    lag = "unknown" if now.lag_bytes is None else size_text(now.lag_bytes)
    return (
        f"{now.received_messages:,} messages, {rate:,.0f}/s, {speed:,.1f} MB/s; "
        f"{counted(now.files, 'file')}, recorded up to {lsn_to_text(now.recorded)}, lag {lag}"
    )


def _copy_text(copying: CopyProgress) -> str:
    left = "" if copying.seconds_left is None else f", {timedelta(seconds=round(copying.seconds_left))} left"
    return (
        f"copying {printable(copying.table)} ({copying.number} of {copying.n_tables}): {copying.rows:,} of "
        f"{counted(copying.total, 'row')}, {copying.rate:,.0f}/s{left}"
    )


def _print_result(out: Path, result: CaptureResult, *, is_copied: bool) -> None:
    for item in result.copies:
        click.echo(f"{printable(item.table)}: {counted(item.rows, 'row')} copied at {lsn_to_text(item.lsn)}", err=True)
    if is_copied and not result.copies:
        click.echo("no table was copied: no published table is left to copy", err=True)
    reconnects = f", {counted(result.reconnects, 'reconnect')}" if result.reconnects else ""
    click.echo(
        f"{printable(str(out))}: {counted(result.messages, 'message')} ({size_text(result.payload_bytes)}) in "
        f"{result.seconds:.2f} s, {counted(result.files, 'file')} ({size_text(result.file_bytes)}); recorded up to "
        f"{lsn_to_text(result.recorded)}{reconnects}",
        err=True,
    )


def _print_status(status: Status, calls: Calls, *, as_json: bool) -> None:
    with standard_output() as write:
        if as_json:
            write(json.dumps(status.as_dict(), ensure_ascii=False, indent=2) + "\n")
            return
        table = Table.grid(padding=(0, 2))
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in _status_rows(status, calls):
            table.add_row(name, Text(printable(value), "yellow" if name == "warning" else ""))
        console = Console()
        with console.capture() as captured:
            console.print(table)
        write(captured.get())


def _status_rows(status: Status, calls: Calls) -> Iterator[tuple[str, str]]:
    yield "recorded up to", "nothing" if status.recorded is None else lsn_to_text(status.recorded)
    yield "server's WAL", lsn_to_text(status.current)
    yield "lag", "unknown" if status.lag_bytes is None else f"{size_text(status.lag_bytes)} of WAL"
    yield "lag in time", "unknown" if status.lag_seconds is None else f"{status.lag_seconds:,.1f} s"
    yield "files", f"{status.files:,} ({size_text(status.bytes)}), {counted(status.rows, 'message')}"
    if status.last_sealed_us is not None:
        moment = datetime.fromtimestamp(status.last_sealed_us / 1e6, UTC)
        yield "last file", moment.isoformat(sep=" ", timespec="seconds")
    if status.deleted_files:
        yield "deleted", f"{counted(status.deleted_files, 'file')} ({size_text(status.deleted_bytes)})"
    for name in _SLOT_COLUMNS:
        value = status.slot.get(name)
        if value is not None:
            yield f"slot {name}", {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    yield "publications", ", ".join(status.publications)
    for change in status.publication_changes:
        names = [", ".join(change[key]) for key in ("former", "publications")]
        yield "publications changed", f"from {change['from']}: {names[0]} to {names[1]}"
    for gap in status.gaps:
        yield "accepted gap", f"{gap['from']} to {gap['to']}: {gap['reason']}"
    for text in status.warnings:
        yield "warning", with_flags(text, calls)
