"""The command `sync`: captures a slot until now and applies it to targets, once or again and again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pgdecode.capture import CaptureError
from pgdecode.cli import parameters
from pgdecode.cli.capture_command import (
    STOPPED,
    Calls,
    drop_call,
    duration,
    fail,
    live_progress,
    slot_arguments,
    stopped_by_signals,
    with_flags,
)
from pgdecode.cli.lake.apply_command import key, print_stale, schema_changes
from pgdecode.cli.main import in_shell
from pgdecode.cli.report import size_text
from pgdecode.cli.terminal import counted, standard_output, warn
from pgdecode.files.envelope_text import printable
from pgdecode.lake import StaleTables
from pgdecode.lake.sync_run import Report, Sync, drop_created, read_sync_status, slot_of
from pgdecode.protocol.lsn import lsn_to_text

# The parameters that are options of `apply`.
_OF_APPLY = ("key", "schema_changes", "types", "unrepresentable", "accept_gap")


def _duration_or_none(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    return None if value is None else duration(context, option, value)


@click.command("sync", short_help="Make tables in a lake equal those of the server: capture, then apply.")
@click.argument("dsn")
@click.argument("targets", nargs=-1, metavar="TARGET...")
@click.option("--raw", type=parameters.path, required=True, metavar="RAW", help="The folder of captured files.")
@parameters.applied
@parameters.excluded
@click.option("--slot", metavar="NAME", help="The replication slot. Default: that of RAW, or else pgdecode.")
@click.option(
    "--publication",
    "publications",
    multiple=True,
    metavar="NAME",
    help="The publication. Repeatable. Default: those of RAW, or else pgdecode.",
)
@click.option("--create-slot", is_flag=True, help="Create the slot if it does not exist.")
@click.option(
    "--create-publication",
    is_flag=True,
    help="Create the publication if it does not exist: of the tables of --table, or of all tables.",
)
@click.option(
    "--copy-again",
    is_flag=True,
    help="Copy tables again whose rows cannot be known from the changes, such as after ALTER COLUMN TYPE with USING. "
    "Otherwise they are an error.",
)
@click.option("--drop", is_flag=True, help="Drop the slot and the publication that sync has created, and do no more.")
@click.option(
    "--every",
    callback=_duration_or_none,
    metavar="DURATION",
    help="Repeat after this time, such as 5min, until SIGINT or SIGTERM.",
)
@parameters.connections("Copy each table over N connections.")
@click.option(
    "--retry",
    "retry_seconds",
    default="5min",
    show_default=True,
    callback=duration,
    metavar="DURATION",
    help="How long to try again if the server or a target is not reached, or another process is in the way.",
)
@key
@schema_changes
@parameters.types
@parameters.unrepresentable
@parameters.accept_gap
@parameters.storage_options
@click.option("--metrics", type=parameters.path, metavar="FILE", help="Write metrics for Prometheus after each cycle.")
@click.option("--status", "as_status", is_flag=True, help="Check the slot and the last cycle, and do nothing else.")
@click.option(
    "--max-lag",
    callback=_duration_or_none,
    metavar="DURATION",
    help="With --status: how long ago the last success of each target may be.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each cycle, or for --status.")
def sync_command(
    dsn: str,
    targets: tuple[str, ...],
    raw: Path,
    *,
    drop: bool,
    every: float | None,
    as_status: bool,
    max_lag: float | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Make the tables of each TARGET equal those of the server DSN.

    DSN is a connection string of libpq, such as "host=db dbname=shop user=replicator". Keep passwords in a password
    file.

    Copies tables that were not copied yet, captures the changes until now to RAW, and applies what has come. TARGET is
    parquet:FOLDER, delta:FOLDER, iceberg:CATALOG/NAMESPACE, duckdb:FILE or ducklake:CATALOG. A target has the state of
    its tables: it may be deleted, restored from a copy, or added later, and is made from RAW.

    The slot and the publication are only created on request. A process at a time may sync with RAW.

    Exit codes: 0 done, or stopped by a signal; 1 data cannot be decoded or written; 2 not possible as requested; 3
    ended by the state of the server or of RAW, and with --status if something is wrong.
    """
    calls = _calls(raw, given)
    try:
        if drop:
            for line in drop_created(dsn, raw):
                click.echo(printable(line), err=True)
            return 0
        if as_status:
            return _print_status(dsn, raw, max_lag, calls, as_json=as_json)
        if max_lag is not None:
            raise click.UsageError("--max-lag needs --status")
        if not targets:
            raise click.UsageError("Missing argument 'TARGET...'.")
        options = {name: given.pop(name) for name in _OF_APPLY}
        options["types"] = options["types"] or None
        with nullcontext() if as_json else live_progress() as show:
            running = Sync(
                dsn,
                targets,
                raw,
                options=options,
                on_warning=lambda text: warn(with_flags(in_shell(text), calls)),
                on_report=_print_json if as_json else _print_report,
                on_progress=show,
                **given,
            )
            with stopped_by_signals(running):
                running.run(every=every)
    except StaleTables as error:
        return print_stale(error)
    except CaptureError as error:
        return fail(error, calls)
    return 0


def _calls(raw: Path, given: Mapping[str, Any]) -> Calls:
    names = slot_arguments(given["slot"], given["publications"])
    # Without the tables, the named call would copy others too, and a new publication would have all tables.
    for name, flag in (("tables", "--table"), ("exclude", "--exclude")):
        names += [text for table in given[name] for text in (flag, table)]
    # A publication that a refused call has created is gone again, so the named call has to create it too.
    new = ["--create-slot", *["--create-publication"] * given["create_publication"], "--accept-gap"]
    call = shlex.join(["pgdecode", "sync", "DSN", "TARGET", "--raw", str(raw), *names, *new])
    return Calls(drop_call(raw, given["slot"] or slot_of(raw)), call, call)


def _print_json(report: Report) -> None:
    with standard_output() as write:
        write(json.dumps(report.as_dict(), ensure_ascii=False) + "\n")


def _print_report(report: Report) -> None:
    for name in report.copies:
        click.echo(f"{printable(name)}: copied", err=True)
    # Otherwise the server was not reached, or nothing was ever captured.
    if report.current:
        click.echo(
            f"captured {counted(report.messages, 'message')} in {counted(report.files, 'file')}, up to "
            f"{lsn_to_text(report.recorded)}, lag {size_text(report.lag_bytes)}; {report.seconds:.2f} s",
            err=True,
        )
    for name, target in report.targets.items():
        for table, counts in target.tables.items():
            if any(counts.get(key) for key in ("upserts", "deletes", "truncates")):
                click.echo(
                    f"{printable(name)}: {printable(table)}: {counted(counts['upserts'], 'row')} inserted or "
                    f"updated, {counts['deletes']:,} "
                    f"deleted{', truncated' if counts.get('truncates') else ''}",
                    err=True,
                )
        if report.error is None and target.error is None and target.tables and target.commit_lsn >= 0:
            click.echo(f"{printable(name)}: up to the commit at {lsn_to_text(target.commit_lsn)}", err=True)


def _print_status(dsn: str, raw: Path, max_lag: float | None, calls: Calls, *, as_json: bool) -> int:
    status, report, wrong = read_sync_status(dsn, raw, max_lag)
    with standard_output() as write:
        if as_json:
            found = {"is_healthy": not wrong, "problems": wrong, "capture": status.as_dict(), "last_cycle": report}
            write(json.dumps(found, ensure_ascii=False, indent=2) + "\n")
            return STOPPED if wrong else 0
        lag = "unknown" if status.lag_bytes is None else size_text(status.lag_bytes)
        write(f"{printable(str(raw))}: lag {lag}\n")
        for name, target in report.get("targets", {}).items():
            last = target.get("last_success")
            when = "never" if last is None else datetime.fromtimestamp(last, UTC).isoformat(" ", "seconds")
            write(f"{printable(name)}: last success {when}, commit {target.get('commit_lsn') or 'none'}\n")
        for text in wrong:
            write(f"problem: {with_flags(in_shell(text), calls)}\n")
    return STOPPED if wrong else 0
