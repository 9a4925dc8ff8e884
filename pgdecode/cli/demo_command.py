"""The command `demo`: starts a server, captures a small shop, and shows its changes and tables."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import pyarrow.parquet as pq
from rich.console import Console

from pgdecode import ChangeDecoder, read_capture, snapshot
from pgdecode.capture import Capture, CaptureError, RequestError, demo
from pgdecode.cli import parameters
from pgdecode.cli.tables import print_table
from pgdecode.cli.terminal import counted, table_console
from pgdecode.files.change_text import change_lines, table_lines
from pgdecode.files.envelope_text import printable
from pgdecode.lake import Sync, verify
from pgdecode.storage.errors import PathError

_STOPPED = 3
_NAMES = f"--slot {demo.SLOT} --publication {demo.PUBLICATION}"


@click.command("demo", short_help="Start a server, capture a small shop, show its tables and changes.")
@click.argument("out", type=parameters.path, metavar="[OUT]", required=False)
def demo_command(out: Path | None) -> int:
    """Show all steps: a live server, copied tables, captured changes, and the tables after them.

    Starts an embedded PostgreSQL (pip install 'pgdecode[demo]') with a small shop, copies the rows of its tables,
    captures a day of changes, decodes the files, and compares the tables with those of the server. Then it syncs the
    tables into DuckDB, or Parquet files without DuckDB, and verifies them. Nothing remains except OUT, the folder of
    captured files, if it is given.
    """
    console = table_console()
    try:
        with _folder(out) as folder, demo.server() as dsn:
            console.print("A server runs, with the tables of a shop: [bold]customers, products, orders[/bold].")
            demo.open_shop(dsn)
            _print_command(console, f"capture DSN RAW {_NAMES} --create-slot --copy --until now")
            new = partial(Capture, dsn, folder, slot=demo.SLOT, publication=demo.PUBLICATION)
            new(create_slot=True, copy=True).run(until="now")
            console.print("Their rows were copied to files, as [bold]pgdecode capture --copy[/bold] does.")
            demo.run_shop(dsn)
            _print_command(console, f"capture DSN RAW {_NAMES} --until now")
            result = new().run(until="now")
            console.print(
                f"Then the shop was open for a day: captured {counted(result.messages, 'message')} in "
                f"{counted(result.files, 'file')}."
            )
            if not show(console, folder, dsn) or not sync_and_verify(console, folder, dsn):
                return 1
            if out is not None:
                console.print(f"The files are in {printable(str(out))}. Next steps:")
                console.print(f"  pgdecode inspect {printable(str(out))}", markup=False)
                console.print(f"  pgdecode cat {printable(str(out))} --changes", markup=False)
    except RequestError as error:
        raise click.UsageError(printable(str(error))) from error
    except CaptureError as error:
        click.echo(f"pgdecode: {printable(str(error))}", err=True)
        return _STOPPED
    return 0


def sync_and_verify(console: Console, folder: Path, dsn: str) -> bool:
    """Make the tables of a target equal those of the server, after more changes, and verify that."""
    with tempfile.TemporaryDirectory(prefix="pgdecode-") as temporary:
        has_duckdb = importlib.util.find_spec("duckdb") is not None
        target = f"duckdb:{temporary}/shop.duckdb" if has_duckdb else f"parquet:{temporary}/lake"
        shown = "duckdb:shop.duckdb" if has_duckdb else "parquet:lake"
        demo.run_evening(dsn)
        _print_command(console, f"sync DSN {shown} --raw RAW")
        report = Sync(dsn, [target], folder).run()
        for name, counts in report.targets[target].tables.items():
            console.print(
                f"  {name}: {counted(counts['upserts'], 'row')} inserted or updated, {counts['deletes']:,} deleted",
                markup=False,
            )
        _print_command(console, f"verify DSN {shown}")
        result = verify(dsn, target)
        for name, table in result.tables.items():
            equal = "equal to" if table.is_equal else "NOT"
            console.print(f"  {name}: {counted(table.server_rows, 'row')}, {equal} the server's", markup=False)
        console.print()
        return result.is_equal


def _print_command(console: Console, words: str) -> None:
    console.print(f"$ pgdecode {words}", style="cyan", markup=False, highlight=False)


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        if os.path.lexists(out):
            raise PathError(f"{out}: exists already")
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="pgdecode-") as place:
        yield Path(place, "raw")


def show(console: Console, folder: Path, dsn: str) -> bool:
    """Print the files, the changes and the tables, and whether these are those of the server."""
    for path in sorted(folder.glob("*.parquet")):
        console.print(f"  {path.name}: {counted(pq.read_metadata(path).num_rows, 'message')}")
    raw = read_capture(folder)
    changes = ChangeDecoder(**raw.options).decode(raw.payloads, raw.positions)
    console.print()
    lines = change_lines(changes).to_pylist()
    print_table(console, "changes", [*map(json.loads, lines)], "The changes, by transaction (xid); 0 is the copy")
    is_equal = True
    for name in demo.TABLES:
        rows = snapshot(raw.payloads, name, raw.positions, **raw.options).sort_by("id")
        rows = rows.select([column for column in rows.schema.names if not column.startswith("_")])
        objects = [json.loads(line) for batch in rows.to_batches() for line in table_lines(batch).to_pylist()]
        same = [*map(demo.as_text, objects)] == demo.table_rows(dsn, name)
        is_equal = is_equal and same
        console.print()
        print_table(console, "table", objects, f"{name} after them: {'equal to' if same else 'NOT'} the server's")
    console.print()
    return is_equal
