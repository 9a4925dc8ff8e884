"""The command `apply`: changes of payload files into the tables of a target."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from typing import Any, get_args

import click

from pgdecode.cli import parameters
from pgdecode.cli.main import DATA_FAULT, in_shell
from pgdecode.cli.report import size_text
from pgdecode.cli.terminal import counted, progress, standard_output, warn
from pgdecode.files.envelope_text import printable
from pgdecode.lake import StaleTables, TableResult, apply
from pgdecode.protocol.as_of import AsOf
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.protocol.options import SchemaChanges
from pgdecode.relations.table_names import normal_name


def keys_by_table(
    context: click.Context, option: click.Parameter, values: Sequence[str]
) -> Sequence[str] | dict[str, list[str]] | None:
    """Parse COLUMN,... or SCHEMA.TABLE=COLUMN,..."""
    if not values:
        return None
    by_table = [value.rpartition("=") for value in values]
    if not any(equals for _, equals, _ in by_table):
        return [name for value in values for name in value.split(",") if name]
    if not all(equals and table for table, equals, _ in by_table):
        raise click.BadParameter("is COLUMN,... for all tables, or SCHEMA.TABLE=COLUMN,... for each", context, option)
    return {normal_name(table): [name for name in names.split(",") if name] for table, _, names in by_table}


key = click.option(
    "--key",
    "key",
    multiple=True,
    metavar="[TABLE=]COLUMN,...",
    callback=keys_by_table,
    help="The columns that tell rows apart, for tables with REPLICA IDENTITY FULL, or for a table. Default: the "
    "primary key, if captured files have it; otherwise rows are compared whole. Repeatable.",
)
schema_changes = click.option(
    "--schema-changes",
    type=click.Choice(get_args(SchemaChanges)),
    default="evolve",
    show_default=True,
    help="If the columns of a table change: change those of the target; keep those of the target; stop.",
)


@click.command("apply", cls=parameters.GroupedCommand, short_help="Apply changes to tables in a lake.")
@click.argument("source_location", type=parameters.location, metavar="RAW")
@click.argument("target", metavar="TARGET")
@parameters.applied
@click.option(
    "--until",
    metavar="LSN|TIME|now",
    help="Apply the commits up to and including this LSN, or this time with a time zone. Default: now, all that there "
    "are.",
)
@key
@schema_changes
@parameters.payload
@parameters.unwrap
@parameters.transactions
@parameters.renames
@parameters.unrepresentable
@parameters.name_clash
@parameters.max_value_bytes
@parameters.workers
@parameters.accept_gap
@parameters.storage_options
@click.option("--dry-run", is_flag=True, help="Print what would be done, and write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def apply_command(source_location: str, target: str, *, as_json: bool, **given: Any) -> int:
    """Apply the changes in RAW to the tables of TARGET, so that they equal those of the server.

    RAW is a folder of "pgdecode capture", or any file or folder of messages that "pgdecode decode" reads.

    TARGET is parquet:FOLDER, delta:FOLDER, iceberg:CATALOG/NAMESPACE, duckdb:FILE or ducklake:CATALOG. FOLDER may be in
    an object store. TARGET has the position up to which changes are applied, in the commit of the data. So the same
    call again applies what has come to RAW since, also after it was killed.

    Exit codes: 0 done; 1 data cannot be read, or the rows of a table cannot be known: the other tables are applied; 2
    not possible as requested.
    """
    names = ("renames", "types")
    options: dict[str, Any] = {name: value or None if name in names else value for name, value in given.items()}
    options["tables"] = options["tables"] or None
    parameters.options_from(given)
    if given["until"] not in (None, "now"):
        try:
            AsOf.of(given["until"])
        except ValueError as error:
            raise click.UsageError(f"--until: {error}".replace("as_of is", "it is")) from error
    started = time.monotonic()
    stale: StaleTables | None = None
    try:
        result = apply(source_location, target, on_progress=progress, **options)
    except StaleTables as error:
        stale, result = error, error.result
    for note in result.notes:
        warn(note)
    if as_json:
        with standard_output() as write:
            reasons = {} if stale is None else stale.tables
            write(json.dumps({**result.as_dict(), "stale": reasons}, ensure_ascii=False) + "\n")
    else:
        for name, table in result.tables.items():
            click.echo(f"{printable(name)}: {_summary(table)}", err=True)
        until = f"applied up to {lsn_to_text(max(result.commit_lsn, 0))}"
        if result.is_dry_run:
            until = f"would be {until}: nothing is written"
        tables = counted(len(result.tables), "table")
        click.echo(f"{printable(target)}: {tables} {until}, in {time.monotonic() - started:.2f} s", err=True)
    return 0 if stale is None else print_stale(stale)


def print_stale(error: StaleTables) -> int:
    """Print why tables are stale, and the remedy. Return the exit code."""
    for name, reason in error.tables.items():
        text = f"table {name}: {in_shell(reason)}; {error.choices.get(name, '')}copy it again"
        remedy = f"pgdecode capture DSN RAW --until now --copy {shlex.quote(printable(name))}"
        click.echo(f"pgdecode: {printable(text)}: {remedy}", err=True)
    return DATA_FAULT


def _summary(table: TableResult) -> str:
    """Describe what was done to a table."""
    done = [
        counted(n, what)
        for n, what in ((table.truncates, "truncate"), (table.upserts, "upsert"), (table.deletes, "delete"))
        if n
    ]
    text = ", ".join(done) or "no changes"
    if table.files_added:
        files = f"{counted(table.files_added, 'file')} ({size_text(table.bytes_added)})"
        text += f"; {files} written, {table.files_removed:,} replaced"
    if table.missing:
        text += f"; {counted(table.missing, 'row')} to remove that the table did not have"
    return f"{text}; {counted(table.rows, 'row')} now"
