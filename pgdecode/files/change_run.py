"""A run of the local engine: decodes payload files to changes or tables, and leaves a manifest and a state."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pgdecode.changes.run_start import RunStart, options_to_json
from pgdecode.changes.stored_state import load_state
from pgdecode.files.atomic_output import check_target, clean, spill_folder, staged
from pgdecode.files.change_export import ChangeTotals, convert_changes
from pgdecode.files.change_reader import FileChangeOptions, FileChanges
from pgdecode.files.file_metadata import source_of
from pgdecode.files.ordered_files import OrderedFiles
from pgdecode.files.payload_files import BATCH_ROWS, PathError
from pgdecode.payloads.workers import Workers
from pgdecode.protocol.options import Format
from pgdecode.runs import generations
from pgdecode.runs.claim import claimed
from pgdecode.runs.digested_file import sync
from pgdecode.runs.generations import Generation, StateFolder
from pgdecode.runs.manifest import MANIFEST, Input, Manifest, read_manifest
from pgdecode.storage.object_path import FilePath, relative_name, size_of


@dataclass(frozen=True)
class RunRequest:
    """A run.

    Attributes
    ----------
    files : OrderedFiles
    source : Path or ObjectPath
        The path of the files.
    target : Path
        The output.
    relations : sequence of str
        Tables; if empty, the changes of all tables.
    as_file : bool
        Whether the target is a file.
    format : {"parquet", "jsonl", "csv"}
    options : FileChangeOptions
        `spill` and `stored` are set here.
    overwrite : bool
        Replace a former output.
    resume : Path, optional
        The folder of the run before.
    state : Path, optional
        A state folder. Without it, a target that is a folder has the state, and a target that is a file has none.
    batch_rows : int
    workers : int
        As in `convert_changes`.
    """

    files: OrderedFiles
    source: FilePath
    target: Path
    relations: Sequence[str]
    as_file: bool
    format: Format
    options: FileChangeOptions
    overwrite: bool = False
    resume: Path | None = None
    state: Path | None = None
    batch_rows: int = BATCH_ROWS
    workers: int = 1

    @property
    def local_source(self) -> Path | None:
        """The source if it is a local path."""
        return self.source if isinstance(self.source, Path) else None

    @property
    def manifest(self) -> Manifest:
        """What is known of the manifest before the run."""
        files, options = self.files, self.options
        first = next((file for file in files.files if file.n_rows), None)
        position = None if first is None or files.position is None else first.first_value(files.position)
        listed = [
            {"file": relative_name(file.path, self.source), "rows": file.n_rows, "bytes": size_of(file.path)}
            for file in files.files
        ]
        source = source_of(file.path for file in files.files)
        return Manifest(
            "local",
            list(self.relations) or ["changes"],
            {**options_to_json(options.change_options, options.value_options), "format": self.format},
            Input(files.n_rows, position, None, files.position is None, source, listed),
        )


def decode_changes(request: RunRequest, on_rows: Callable[[int], None] = lambda n_rows: None) -> ChangeTotals | None:
    """Decode payload files, after those of the run before, if any. The output appears when it is complete.

    An interrupted call leaves no output, or the complete output. The same call again makes it, or finds it complete.

    Parameters
    ----------
    request : RunRequest
    on_rows : callable
        As in `convert_changes`.

    Returns
    -------
    ChangeTotals or None
        None if the same run is complete already. That is known only with `resume` or `state`.

    Raises
    ------
    PathError, FileFault
        As in `check_target` and `convert_changes`.
    RunError
        If the files do not follow the run before, or another run continues it.
    RunFault
        If the state of the run before is damaged.
    """
    _check_folders(request)
    clean(request.target)
    with ExitStack() as stack:
        folder = None if request.state is None else stack.enter_context(generations.opened(request.state))
        manifest = request.manifest
        former = _former(request, folder)
        is_repeated = former is not None and _facts(former, "input") == _facts(manifest, "input")
        is_same = former is not None and _facts(former, *_ALL) == _facts(manifest, *_ALL)
        if is_same and not request.overwrite and _is_there(request, folder):
            return None
        check_target(request.target, request.local_source, overwrite=request.overwrite)
        before = request.resume
        if folder is not None:
            if is_repeated:
                folder.step_back()
            before = None if folder.current is None else folder.folder_of(folder.current)
        if folder is None and before is not None:
            stack.enter_context(claimed(before, read_manifest(before), request.target))
        with staged(request.target) as hidden, spill_folder(request.target) as spill:
            stored = None if before is None else load_state(before, spill)
            start = RunStart() if stored is None else RunStart.after(stored)
            start.check(manifest.input)
            totals, reader = convert_changes(
                replace(request.files, first_position=start.position, last_session=start.source.session),
                hidden,
                relations=request.relations,
                as_file=request.as_file,
                format=request.format,
                options=replace(request.options, spill=spill, stored=stored),
                batch_rows=request.batch_rows,
                workers=stack.enter_context(Workers(request.workers)),
                on_rows=on_rows,
            )
            generation = None
            if folder is not None or not request.as_file:
                generation = _write_state(request, manifest, hidden, totals, reader, folder)
        if folder is not None and generation is not None:
            folder.commit(generation)
    return totals


def _check_folders(request: RunRequest) -> None:
    """Check that the output, the run before and the state are apart."""
    target = request.target.resolve()
    for other, what in ((request.resume, "the run before"), (request.state, "the state folder")):
        place = None if other is None else other.resolve()
        if place is not None and (place == target or place in target.parents or target in place.parents):
            raise PathError(f"{request.target}: {what}, {other}, must be another folder")


def _write_state(
    request: RunRequest,
    manifest: Manifest,
    hidden: Path,
    totals: ChangeTotals,
    reader: FileChanges,
    folder: StateFolder | None,
) -> Generation | None:
    """Write the manifest and the state into the hidden output, if that is a folder, and into the state folder."""
    files = totals.files
    for item in files:
        sync(hidden if request.as_file else hidden / item.name)
    generation = None if folder is None else folder.begin()
    if request.as_file and generation is not None:
        # Names are relative to the folder of the manifest.
        name = Path(os.path.relpath(request.target.resolve(), generation.resolve())).as_posix()
        files = [replace(item, name=name) for item in files]
    complete = replace(manifest, rows=totals.changes, bad_rows=dict(sorted(totals.bad_rows.items())), files=files)
    if generation is None or folder is None:
        reader.decoder.commit(hidden, complete, reader.source, request.target)
        return None
    if request.as_file:
        written = reader.decoder.commit(generation, complete, reader.source)
    else:
        written = reader.decoder.commit(hidden, complete, reader.source, request.target)
        generations.copy_run(hidden, generation)
    return folder.seal(generation, request.target, written)


def _former(request: RunRequest, folder: StateFolder | None) -> Manifest | None:
    """Read the manifest of a complete run from the same state to the same output, if there is one."""
    if folder is not None:
        current = folder.current
        if current is None or folder.output_of(current).resolve() != request.target.resolve():
            return None
        return read_manifest(folder.folder_of(current))
    if request.resume is None or not (request.target / MANIFEST).exists():
        return None
    former = read_manifest(request.target)
    before = read_manifest(request.resume)
    return former if former.previous is not None and former.previous.manifest == before.sha256 else None


def _is_there(request: RunRequest, folder: StateFolder | None) -> bool:
    """Whether the output that `_former` has found is complete. It may have been removed or replaced."""
    return folder is None or (folder.current is not None and folder.has_output(folder.current))


_ALL = ("input", "what", "options", "engine")


def _facts(manifest: Manifest, *names: str) -> Any:
    """List what two runs must have in common to be the same run."""
    input = manifest.input
    # The first position of counted payloads depends on the run before.
    first = None if input.is_counted else input.first_position
    plain = {**vars(manifest), "input": (first, input.files)}
    return json.loads(json.dumps([plain[name] for name in names]))
