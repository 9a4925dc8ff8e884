"""The command `verify`: compares tables with those of the server, exactly at an LSN."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from pgdecode.capture import RequestError, StoppedError
from pgdecode.cli import parameters
from pgdecode.cli.capture_command import MISUSE, STOPPED, duration
from pgdecode.cli.terminal import counted, standard_output, warn
from pgdecode.files.envelope_text import printable
from pgdecode.lake.table_comparison import Difference
from pgdecode.lake.verify import TableResult, VerifyResult, verify
from pgdecode.protocol.lsn import lsn_to_text

DIFFERENT = 1


@click.command("verify", short_help="Compare tables with those of the server, while it goes on.")
@click.argument("dsn")
@click.argument("raw", type=parameters.path, metavar="RAW")
@parameters.compared
@click.option(
    "--connections",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Read each table over N connections.",
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
    help="How long to wait for another process that captures to RAW.",
)
@parameters.accept_gap
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def verify_command(dsn: str, raw: Any, *, no_capture: bool, as_json: bool, **given: Any) -> int:
    """Compare tables with those of the server DSN, in every row and column, while the server goes on.

    RAW is a folder of "pgdecode capture". Its tables are rebuilt as of the LSN at which a temporary slot exports a
    snapshot, and compared with the rows in the snapshot. If nobody captures to RAW, its own slot is captured up to that
    LSN first. Nothing else is written.

    A difference has the key of the row, the column, and both values, hashed. Tables without a key are compared as rows
    with multiplicity.

    Exit codes: 0 equal; 1 there are differences; 2 not possible as requested; 3 ended by the state of the server or of
    RAW.
    """
    try:
        result = verify(dsn, raw, capture=not no_capture, tables=given.pop("tables") or None, on_warning=warn, **given)
    except RequestError as error:
        click.echo(f"pgdecode: {printable(str(error))}", err=True)
        return MISUSE
    except StoppedError as error:
        click.echo(f"pgdecode: {printable(str(error))}", err=True)
        return STOPPED
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
        for note in table.notes:
            yield f"  {note}"
        for item in table.differences:
            yield f"  {_difference(item)}"
    is_equal = "equal" if result.is_equal else "NOT equal"
    yield (
        f"{counted(len(result.tables), 'table')} {is_equal} to the server's at {lsn_to_text(result.lsn)}, in "
        f"{result.seconds:.2f} s"
    )


def _summary(table: TableResult) -> str:
    if table.is_equal:
        return f"{counted(table.server_rows, 'row')}, equal"
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
