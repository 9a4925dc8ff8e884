"""The command `verify`: compares tables with those of the server, exactly at an LSN."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pgdecode.capture import CaptureError
from pgdecode.cli import parameters
from pgdecode.cli.capture_command import duration, fail
from pgdecode.cli.main import in_shell
from pgdecode.cli.terminal import counted, standard_output, warn
from pgdecode.files.envelope_text import printable
from pgdecode.lake.verification.table_comparison import Difference
from pgdecode.lake.verification.verify_run import TableResult, VerifyResult, is_target, verify
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.storage.object_path import local_path

DIFFERENT = 1


def _percent(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        found = float(value.removesuffix("%"))
    except ValueError:
        found = 0.0
    if not 0 < found <= 100:
        raise click.BadParameter(f"{value!r} is not a percentage such as 1%", context, option)
    return found


@click.command("verify", short_help="Compare tables with those of the server, while it goes on.")
@click.argument("dsn")
@click.argument("target", type=parameters.location, metavar="TARGET|RAW")
@click.option(
    "--raw",
    type=parameters.path,
    metavar="RAW",
    help="The folder of captured files from which TARGET was made. Default: the one that its state names.",
)
@parameters.compared
@parameters.connections("Read each table over N connections.")
@click.option(
    "--sample",
    callback=_percent,
    metavar="PERCENT",
    help="Compare about so many rows of tables with a key, such as 1%, and the number of all.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="Print at most N differences of each table.",
)
@click.option("--show-values", is_flag=True, help="Print values, in place of their hashes.")
@click.option("--no-capture", is_flag=True, help="If nobody captures to RAW, refuse, and do not capture up to the LSN.")
@click.option(
    "--wait",
    "wait_seconds",
    default="1min",
    show_default=True,
    callback=duration,
    metavar="DURATION",
    help="How long to wait for another process that captures to RAW or writes to TARGET.",
)
@parameters.types
@parameters.unrepresentable
@parameters.accept_gap
@parameters.storage_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def verify_command(dsn: str, target: str, *, no_capture: bool, as_json: bool, **given: Any) -> int:
    """Compare tables with those of the server DSN, in every row and column, while the server goes on.

    DSN is a connection string of libpq, such as "host=db dbname=shop user=replicator". Keep passwords in a password
    file.

    TARGET is one of "pgdecode apply" or "pgdecode sync". RAW is a folder of "pgdecode capture": its tables are
    rebuilt. A temporary slot exports a snapshot at an LSN. What the target does not have up to there is taken from RAW,
    in memory. If nobody captures to RAW, its own slot is captured up to that LSN first. The target is not changed.

    A difference has the key of the row, the column, and both values, hashed. Tables without a key are compared as rows
    with multiplicity.

    Exit codes: 0 equal; 1 there are differences; 2 not possible as requested; 3 ended by the state of the server or of
    RAW.
    """
    try:
        place: str | Path = target if is_target(target) else local_path(target, "RAW")
        result = verify(
            dsn, place, capture=not no_capture, tables=given.pop("tables") or None, on_warning=warn, **given
        )
    except CaptureError as error:
        return fail(error)
    with standard_output() as write:
        if as_json:
            write(json.dumps(_as_dict(result), ensure_ascii=False, indent=2) + "\n")
        else:
            write("".join(f"{printable(line)}\n" for line in _lines(result)))
    return 0 if result.is_equal else DIFFERENT


def _as_dict(result: VerifyResult) -> dict[str, Any]:
    tables = {name: {"is_equal": table.is_equal, **asdict(table)} for name, table in result.tables.items()}
    return {**vars(result), "lsn": lsn_to_text(result.lsn), "is_equal": result.is_equal, "tables": tables}


def _lines(result: VerifyResult) -> Iterator[str]:
    for name, table in result.tables.items():
        yield f"{name}: {_summary(table)}"
        for note in (*table.faults, *table.notes):
            yield f"  {in_shell(note)}"
        for item in table.differences:
            yield f"  {_difference(item)}"
    yield from result.notes
    n_different = sum(not table.is_equal for table in result.tables.values())
    tables = counted(len(result.tables), "table")
    is_equal = f"{n_different:,} of {tables} NOT equal" if n_different else f"{tables} equal"
    yield (
        f"{is_equal} to the server's at {lsn_to_text(result.lsn)}"
        f"{'' if result.sample is None else f', by a sample of {result.sample:g}%'}, in {result.seconds:.2f} s"
    )


def _summary(table: TableResult) -> str:
    if not table.n_different and table.is_counted:
        rows = "" if table.faults and not table.server_rows else f"{counted(table.server_rows, 'row')}, "
        return f"{rows}{'equal' if table.is_equal else 'NOT equal'}"
    least = "" if table.is_counted else "at least "
    return (
        f"{least}{counted(table.n_different, 'different row')}; {counted(table.server_rows, 'row')} on the server, "
        f"{table.compared_rows:,} compared"
    )


def _difference(item: Difference) -> str:
    key = ", ".join(f"{name}={'NULL' if value is None else value}" for name, value in item.key.items())
    if item.kind == "value":
        values = ["NULL" if value is None else value for value in (item.server, item.compared)]
        return f"{key}: {item.column} is {values[0]} on the server, {values[1]} here"
    times = f" ({item.count:,} times)" if item.count > 1 else ""
    return f"{key}: {'missing' if item.kind == 'missing' else 'not on the server'}{times}"
