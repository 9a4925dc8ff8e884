"""The command `demo`: starts a server, captures a small shop, and shows its changes and tables."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from pgdecode import snapshot
from pgdecode.capture import Capture, CaptureError, RequestError, demo
from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.cli import parameters
from pgdecode.cli.tables import print_table
from pgdecode.cli.terminal import counted, table_console
from pgdecode.files.change_text import change_lines, table_lines
from pgdecode.files.envelope_text import printable
from pgdecode.files.file_metadata import types_of
from pgdecode.storage.errors import PathError

_STOPPED = 3


@click.command("demo", short_help="Start a server, capture a small shop, show its tables and changes.")
@click.argument("out", type=parameters.path, metavar="[OUT]", required=False)
def demo_command(out: Path | None) -> int:
    """Show all steps: a live server, captured files, changes and tables.

    Starts an embedded PostgreSQL (pip install 'pgdecode[demo]'), runs a small shop on it, captures the messages of its
    slot, decodes them, and prints the changes and the tables after them. Nothing remains except OUT, the folder of
    captured files, if it is given.
    """
    console = table_console()
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
    console.print()
    print_table(
        console,
        "changes",
        [json.loads(line) for line in change_lines(changes).to_pylist()],
        "The changes, by transaction (xid)",
    )
    for name in demo.TABLES:
        rows = snapshot(raw["data"], name, raw["seq"], types=types).sort_by("id")
        rows = rows.select([column for column in rows.schema.names if not column.startswith("_")])
        console.print()
        lines = (line for batch in rows.to_batches() for line in table_lines(batch).to_pylist())
        print_table(console, "table", [json.loads(line) for line in lines], f"{name} after them")
    console.print()
