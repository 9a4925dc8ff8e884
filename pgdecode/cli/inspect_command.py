"""The command `inspect`: describes payload files, or the state of a data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from pgdecode.cli import parameters
from pgdecode.cli.main import in_shell
from pgdecode.cli.report import report_text
from pgdecode.cli.state_report import state_figures, state_text
from pgdecode.cli.terminal import counted, progress, standard_output
from pgdecode.datasets.single_file import staged
from pgdecode.files.envelope_batches import DecodedBatch, prepared_batches
from pgdecode.files.envelope_text import printable
from pgdecode.files.file_metadata import gaps_of, notes_of
from pgdecode.files.message_statistics import FIELDS, MessageStatistics
from pgdecode.files.ordered_files import ordered_files
from pgdecode.files.payload_file import FileFault, PayloadFile
from pgdecode.files.transaction_statistics import ControlMessages, TransactionStatistics
from pgdecode.payloads.unwrap import hint
from pgdecode.payloads.workers import Workers, all_cores
from pgdecode.protocol.options import Unwrap, limits_with
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import file_path

# The greatest number of tables for which JSON is indented.
_INDENTED = 100


@click.command(short_help="Describe the messages in a file or folder.")
@click.argument("location", type=parameters.location, metavar="PATH")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of tables.")
@click.option(
    "--catalog",
    "of_state",
    is_flag=True,
    help="PATH is an output folder of 'decode'. Describe the state in it: the relations, and the transactions without "
    "an outcome.",
)
@parameters.payload
@parameters.unwrap
@parameters.in_stream
@parameters.position
@parameters.storage_options
@parameters.workers
@parameters.max_value_bytes
@click.option(
    "--write-catalog",
    type=parameters.path,
    metavar="FILE",
    help="Write the relations with all their versions to a file, for --catalog of other commands. It must not exist.",
)
def inspect(
    location: str,
    as_json: bool,
    of_state: bool,
    payload: str,
    unwrap: Unwrap,
    in_stream: str,
    position: str | None,
    storage_options: dict[str, str],
    workers: int | None,
    max_value_bytes: int,
    write_catalog: Path | None,
) -> None:
    """Describe the messages in PATH, a Parquet file or a folder of them; also s3://, gs://, az:// or abfss://.

    The report has messages by kind, transactions, the range of LSNs, protocol features, and relations with their
    columns, versions and changes. Messages that cannot be decoded are part of the report. The exit code is 0, but 1 if
    no row is a pgoutput message and the rows have another known format, such as JSON. If the messages are in slot
    order, the report also has transactions without an outcome, and the position from which each version of a relation
    applies.
    """
    path = file_path(location, storage_options)
    if of_state:
        if isinstance(path, Path) and path.is_file():
            raise click.UsageError(f"--catalog is for an output folder of decode; {path} is a file")
        of_messages = ["payload", "unwrap", "in_stream", "position", "workers", "max_value_bytes", "write_catalog"]
        parameters.refuse(click.get_current_context(), of_messages, "messages")
        found_state = state_figures(path)
        with standard_output() as write:
            write(_json(found_state) if as_json else state_text(found_state, Console()))
        return
    files = ordered_files(path, payload, position, unwrap=unwrap)
    if write_catalog is not None and write_catalog.exists():
        raise PathError(f"{write_catalog}: exists already")
    message_statistics = MessageStatistics()
    form = ""
    transaction_statistics = TransactionStatistics(files) if in_stream == "ordered" else None

    def described_batch(file: PayloadFile, batch: DecodedBatch) -> tuple[MessageStatistics, ControlMessages | None]:
        messages = None
        if transaction_statistics is not None:
            messages = ControlMessages.of(batch.envelope, batch.source.column(file.payload))
        return MessageStatistics.of(batch, file.path, file.payload), messages

    with Workers(workers or all_cores()) as threads, progress(files.n_rows) as on_rows:
        found = prepared_batches(
            files.files,
            described_batch,
            FIELDS,
            parameters.IN_STREAM[in_stream],
            "PERMISSIVE",
            limits=limits_with(max_value_bytes),
            workers=threads,
            kind_codes=True,
        )
        for file, batch, (statistics, messages) in found:
            message_statistics.merge(statistics)
            if batch.n_bad and not form:
                bad = batch.envelope.column("error").is_valid().index(True).as_py()
                form = hint(batch.source.column(file.payload)[bad].as_py())
            if transaction_statistics is not None and messages is not None:
                transaction_statistics.add(file, batch, messages)
            on_rows(batch.n_read)
    if write_catalog is not None:
        _write_catalog(write_catalog, transaction_statistics)
    figures = {
        "path": printable(str(path)),
        "files": len(files.files),
        "gaps": [gap.as_dict(path) for gap in gaps_of(files.files)],
        "notes": notes_of(files.files),
        **message_statistics.as_dict(transaction_statistics),
    }
    if figures["order"]["fault"]:
        figures["order"]["fault"] = in_shell(figures["order"]["fault"])
    with standard_output() as write:
        if as_json:
            write(_json(figures))
        else:
            title = str(path) if files.files[0].path == path else f"{path}: {counted(len(files.files), 'file')}"
            write(report_text(figures, title, Console()))
    if form and not message_statistics.messages:
        raise FileFault(f"{path}: no row is a pgoutput message{form}")


def _json(figures: dict[str, Any]) -> str:
    # Indented JSON takes several times as long. Nobody reads that of hundreds of tables.
    indent = 2 if len(figures.get("relations", ())) <= _INDENTED else None
    return json.dumps(figures, ensure_ascii=False, indent=indent) + "\n"


def _write_catalog(target: Path, transaction_statistics: TransactionStatistics | None) -> None:
    if transaction_statistics is None or not transaction_statistics.complete:
        why = (
            "with this --in-stream, messages have no order"
            if transaction_statistics is None
            else transaction_statistics.fault
        )
        raise FileFault(f"{target}: not written: {why}")
    with staged(target) as hidden:
        hidden.write_text(transaction_statistics.catalog.to_json(), encoding="utf-8")
