"""Outputs of the local engine in an object store: decoded to temporary files here, then copied and committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pgdecode.files.change_export import ChangeTotals, LocalOutputs, convert_changes, table_file_name
from pgdecode.files.change_run import RunRequest
from pgdecode.files.file_metadata import gaps_of
from pgdecode.files.message_export import Totals, convert
from pgdecode.files.payload_file import PayloadFile
from pgdecode.payloads.workers import Workers
from pgdecode.protocol.options import Format
from pgdecode.relations.column_history import NO_RENAMES, rename_events
from pgdecode.runs.atomic_output import scratch_folder
from pgdecode.runs.manifest import Input, Manifest
from pgdecode.runs.object_run import check_apart, object_run
from pgdecode.storage.object_path import FilePath, ObjectPath, relative_name, size_of


def write_messages(
    files: Sequence[PayloadFile],
    source: FilePath,
    target: ObjectPath,
    *,
    format: Format,
    overwrite: bool,
    on_rows: Callable[[int], None],
    **options: Any,
) -> Totals:
    """Decode files to messages, as `convert` does, one object for each file."""
    check_apart(source, target)
    with object_run(target, overwrite=overwrite) as run, scratch_folder() as folder:
        totals = convert(files, source, folder, as_file=False, format=format, on_rows=on_rows, **options)
        written = [
            run.upload(number, folder / name, "", format, n_rows) for number, (name, n_rows) in enumerate(totals.files)
        ]
        listed = [
            {"file": relative_name(file.path, source), "rows": file.n_rows, "bytes": size_of(file.path)}
            for file in files
        ]
        n_rows = sum(file.rows for file in written)
        gaps = [gap.as_dict(source) for gap in gaps_of(files)]
        input = Input(totals.rows, files=listed, gaps=gaps)
        bad_rows = dict(sorted(totals.bad_rows.items()))
        run.commit(Manifest("local", ["messages"], {}, input, rows=n_rows, bad_rows=bad_rows, files=written))
    return totals


def write_changes(request: RunRequest, target: ObjectPath, on_rows: Callable[[int], None]) -> ChangeTotals:
    """Decode files to changes or tables, without a state for a next run. The target in `request` is not used."""
    folders = request.folders
    if folders.source is not None:
        check_apart(folders.source, target)
    with (
        object_run(target, overwrite=folders.overwrite) as run,
        scratch_folder() as folder,
        Workers(request.workers) as workers,
    ):
        outputs = LocalOutputs(folder / "out", request.format, as_file=False)
        totals, reader = convert_changes(
            request.files,
            outputs,
            relations=request.relations,
            is_snapshot=request.is_snapshot,
            format=request.format,
            options=replace(request.options, spill=folder),
            batch_rows=request.batch_rows,
            workers=workers,
            on_rows=on_rows,
        )
        has_folders = len(request.relations) > 1
        written = [
            run.upload(
                0,
                folder / "out" / file.name,
                table_file_name(item.table) if has_folders else "",
                request.format,
                file.rows,
            )
            for item, file in zip(totals.files, outputs.output_files(totals.files), strict=True)
        ]
        complete = replace(
            request.manifest,
            rows=totals.changes,
            bad_rows=dict(sorted(totals.bad_rows.items())),
            skipped=totals.skipped,
            undecided=totals.undecided,
            files=written,
            renames=rename_events(reader.engine.layout_catalog, request.options.value_options.renames or NO_RENAMES),
        )
        run.commit(complete)
    return totals
