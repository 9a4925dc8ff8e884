"""The command `inspect`: describes payload files, or the state of a data set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group

from pgdecode.changes.stored_state import replication_of
from pgdecode.cli import parameters
from pgdecode.cli.main import in_shell
from pgdecode.cli.report import plain_table, printed, report_text, safe_text
from pgdecode.cli.schema_changes import schema_changes, schema_changes_text
from pgdecode.cli.terminal import counted, progress, standard_output
from pgdecode.datasets.single_file import staged
from pgdecode.datasets.target import target_at
from pgdecode.files.envelope_batches import DecodedBatch, MessageOptions, prepared_batches
from pgdecode.files.envelope_text import printable
from pgdecode.files.file_metadata import gaps_of, notes_of, user_types_of
from pgdecode.files.message_statistics import FIELDS, MessageStatistics
from pgdecode.files.ordered_files import ordered_files
from pgdecode.files.payload_file import FileFault, PayloadFile
from pgdecode.files.transaction_statistics import ControlMessages, TransactionStatistics
from pgdecode.payloads.unwrap import hint
from pgdecode.payloads.workers import Workers, all_cores
from pgdecode.protocol.lsn import lsn_to_text
from pgdecode.protocol.options import Unwrap, limits_with
from pgdecode.relations.relation_json import version_to_json
from pgdecode.relations.relation_version import BEFORE
from pgdecode.relations.table_names import qualified_name
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import FilePath, file_path

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
@click.option(
    "--schema-changes",
    "of_schema",
    is_flag=True,
    help="Print only what changed in the tables, and from which position on: columns, types, keys and names.",
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
    of_schema: bool,
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
        of_messages = [
            "of_schema",
            "payload",
            "unwrap",
            "in_stream",
            "position",
            "workers",
            "max_value_bytes",
            "write_catalog",
        ]
        parameters.refuse(click.get_current_context(), of_messages, "messages")
        found_state = _state_figures(path)
        with standard_output() as write:
            write(_json(found_state, len(found_state["relations"])) if as_json else _state_text(found_state, Console()))
        return
    if of_schema and in_stream != "ordered":
        raise click.UsageError("--schema-changes is for --in-stream ordered: otherwise, messages have no order")
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
            MessageOptions(FIELDS, parameters.IN_STREAM[in_stream], "PERMISSIVE", limits=limits_with(max_value_bytes)),
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
    user_types = user_types_of(files.files)
    figures = {
        "path": printable(str(path)),
        "files": len(files.files),
        "gaps": [gap.as_dict(path) for gap in gaps_of(files.files)],
        "notes": notes_of(files.files),
        **message_statistics.as_dict(transaction_statistics, user_types),
    }
    if figures["order"]["fault"]:
        figures["order"]["fault"] = in_shell(figures["order"]["fault"])
    with standard_output() as write:
        if of_schema and transaction_statistics is not None:
            if not transaction_statistics.complete:
                raise FileFault(f"{path}: the order of the messages is wrong: {figures['order']['fault']}")
            changes = schema_changes(transaction_statistics.catalog, transaction_statistics.time_of, user_types)
            write(_json(changes, len(changes)) if as_json else schema_changes_text(changes))
        elif as_json:
            write(_json(figures, len(figures["relations"])))
        else:
            title = str(path) if files.files[0].path == path else f"{path}: {counted(len(files.files), 'file')}"
            write(report_text(figures, title, Console()))
    if form and not message_statistics.messages:
        raise FileFault(f"{path}: no row is a pgoutput message{form}")


def _json(figures: Any, n_items: int) -> str:
    # Indented JSON takes several times as long. Nobody reads that of hundreds of tables.
    indent = 2 if n_items <= _INDENTED else None
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


def _state_figures(path: FilePath) -> dict[str, Any]:
    """Collect the figures of the state of a data set as JSON values.

    Raises
    ------
    RunFault
        If it is not a data set, or is damaged.
    """
    target = target_at(path)
    *_, manifest = target.manifests()
    stored = target.state(manifest)
    state, files = replication_of(stored), len(stored.files)
    undecided = [
        {
            "xid": item.xid,
            "gid": item.gid,
            "begin_position": item.begin_position,
            "changes": sum(payloads.rows for payloads in stored.payloads.get(item.begin_position, ())),
        }
        for item in state.undecided
    ]
    return {
        "path": printable(str(path)),
        "engine": manifest.engine,
        "what": list(manifest.what),
        "runs": manifest.number,
        "input_files": files,
        "next_position": state.position,
        "last_lsn": None if state.last_lsn < 0 else lsn_to_text(state.last_lsn),
        "undecided": undecided,
        "relations": [version_to_json(item) for item in state.relations.versions],
    }


def _state_text(figures: dict[str, Any], console: Console) -> str:
    """Format figures of `state_figures` for the width and the colours of the console."""
    return printed(_state_parts(figures), console)


def _state_parts(figures: dict[str, Any]) -> Iterator[Any]:
    what = f" of {', '.join(figures['what'])}" if figures["what"] else ""
    yield Group(
        safe_text(figures["path"], "bold"),
        safe_text(f"run {figures['runs']:,}{what} by the engine {figures['engine']}"),
        safe_text(f"next position {figures['next_position']}, last commit {figures['last_lsn'] or 'none'}"),
    )
    undecided = plain_table("undecided transaction", "gid", "#began at", "#changes")
    for item in figures["undecided"]:
        gid = safe_text(item["gid"] or "-")
        undecided.add_row(str(item["xid"]), gid, str(item["begin_position"]), f"{item['changes']:,}")
    if figures["undecided"]:
        yield undecided
    relations = plain_table("relation", "#oid", "#at", "columns")
    for version in figures["relations"]:
        relation = version["relation"]
        name = safe_text(qualified_name(relation["namespace"] or "pg_catalog", relation["name"]))
        columns = safe_text(", ".join(column["name"] for column in relation["columns"]) or "no columns")
        at = ("before" if version["position"] == BEFORE else str(version["position"])) + (
            "" if version["visible_from"] is not None else " (not committed)"
        )
        relations.add_row(name, str(relation["relation_id"]), at, columns)
    yield relations
