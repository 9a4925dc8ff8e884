"""The command `demo`: starts a server, captures a small shop, and shows its changes and tables."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from pgdecode import snapshot
from pgdecode.capture import Capture, CaptureError, RequestError, demo
from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.cli import parameters
from pgdecode.cli.terminal import counted
from pgdecode.files.envelope_text import printable
from pgdecode.files.file_metadata import types_of
from pgdecode.files.payload_files import PathError

_STOPPED = 3


@click.command("demo", short_help="Start a server, capture a small shop, show its tables and changes.")
@click.argument("out", type=parameters.path, metavar="[OUT]", required=False)
def demo_command(out: Path | None) -> int:
    """Show all steps: a live server, captured files, changes and tables.

    Starts an embedded PostgreSQL (pip install 'pgdecode[demo]'), runs a small shop on it, captures the messages of its
    slot, decodes them, and prints the changes and the tables after them. Nothing remains except OUT, the folder of
    captured files, if it is given.
    """
    console = Console(highlight=False)
    try:
        with _folder(out) as folder, demo.server() as dsn:
            console.print("A server runs. Its shop opens: [bold]customers, products, orders[/bold].")
            demo.open_shop(dsn)
            capture = Capture(dsn, folder, slot=demo.SLOT, publication=demo.PUBLICATION, create_slot=True)
            capture.run(until="now")
            demo.run_shop(dsn)
            result = Capture(dsn, folder, slot=demo.SLOT, publication=demo.PUBLICATION).run(until="now")
            console.print(
                f"Captured {counted(result.messages, 'message')} in {counted(result.files, 'file')}, as "
                "[bold]pgdecode capture[/bold] does:"
            )
            show(console, folder)
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


@contextlib.contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        if os.path.lexists(out):
            raise PathError(f"{out}: exists already")
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="pgdecode-") as place:
        yield Path(place, "raw")


def show(console: Console, folder: Path) -> None:
    """Print the files, the changes, and the tables."""
    paths = sorted(folder.glob("*.parquet"))
    types = types_of(paths)
    raw = pa.concat_tables([pq.read_table(path) for path in paths])
    for path in paths:
        console.print(f"  {path.name}: {counted(pq.read_metadata(path).num_rows, 'message')}")
    changes = ChangeDecoder(types=types).decode(raw["data"], raw["seq"])
    table = Table(title="What changed", title_justify="left")
    for name in ("transaction", "change", "table", "row"):
        table.add_column(name)
    xid = None
    for change in changes.to_pylist():
        row = dict(change["new"] or change["old"] or ())
        before = dict(change["old"] or ()) if change["op"] == "update" else {}
        text = ", ".join(
            f"{name}: {before[name]} → {value}" if before.get(name, value) != value else f"{name}: {value}"
            for name, value in row.items()
        )
        table.add_row(
            "" if change["xid"] == xid else str(change["xid"]), change["op"], change["relation_name"], printable(text)
        )
        xid = change["xid"]
    console.print(table)
    for name in demo.TABLES:
        rows = snapshot(raw["data"], name, raw["seq"], types=types)
        shown = Table(title=name.partition(".")[2], title_justify="left")
        columns = [column for column in rows.schema.names if not column.startswith("_")]
        for column in columns:
            shown.add_column(column)
        for row in rows.sort_by("id").to_pylist():
            shown.add_row(*("" if row[column] is None else printable(str(row[column])) for column in columns))
        console.print(shown)
