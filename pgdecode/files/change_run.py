"""Runs that decode payload files to changes or tables, and leave a manifest and a state.

`run` does what all engines have in common: it finds and claims the run before, and commits the output, the state and
the manifest together. `decode_changes` is a run of the local engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from pgdecode.changes.run_start import RunStart, options_to_json
from pgdecode.changes.stored_state import StoredState, load_state
from pgdecode.files.change_export import ChangeTotals, LocalOutputs, bad_payloads, convert_changes
from pgdecode.files.change_reader import FileChangeOptions
from pgdecode.files.file_metadata import gaps_of, source_of
from pgdecode.files.ordered_files import OrderedFiles
from pgdecode.files.payload_file import BATCH_ROWS, PayloadFile
from pgdecode.files.writers import bad_payload_writer
from pgdecode.payloads.workers import Workers
from pgdecode.protocol.options import Format
from pgdecode.runs import generations
from pgdecode.runs.atomic_output import check_target, clean, spill_folder, staged
from pgdecode.runs.claim import claimed
from pgdecode.runs.generations import Generation, StateFolder
from pgdecode.runs.manifest import MANIFEST, Input, Manifest, read_manifest
from pgdecode.storage.durable import sync
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import FilePath, real_path, relative_name, size_of

Result = TypeVar("Result")


@dataclass(frozen=True)
class RunFolders:
    """Where a run reads and writes.

    Attributes
    ----------
    source : Path, ObjectPath or None
        The input; None if only Spark can read it.
    target : Path
        The output.
    as_file : bool
        Whether the target is a file.
    overwrite : bool
        Replace a former output.
    resume : Path, optional
        The folder of the run before.
    state : Path, optional
        A state folder. Without it, a target that is a folder has the state, and a target that is a file has none.
    """

    source: FilePath | None
    target: Path
    as_file: bool = False
    overwrite: bool = False
    resume: Path | None = None
    state: Path | None = None


@dataclass(frozen=True)
class StagedRun:
    """A run that has begun.

    Attributes
    ----------
    hidden : Path
        The hidden name of the output, which does not exist yet.
    spill : Path
        A temporary folder.
    stored : StoredState or None
        The state of the run before.
    """

    hidden: Path
    spill: Path
    stored: StoredState | None

    @property
    def start(self) -> RunStart:
        """Where the run begins."""
        return RunStart() if self.stored is None else RunStart.after(self.stored)


@dataclass(frozen=True)
class WrittenRun(Generic[Result]):
    """A run whose output is complete.

    Attributes
    ----------
    manifest : Manifest
        Without what `RunStart.commit` adds.
    commit : callable
        Write the state and the manifest into a folder, as `RunStart.commit` does. The arguments are the folder, the
        manifest, and the folder's name in the end, if it is renamed later.
    result : object
        For the caller.
    """

    manifest: Manifest
    commit: Callable[[Path, Manifest, Path | None], Manifest]
    result: Result


def run(
    folders: RunFolders,
    manifest: Manifest,
    write: Callable[[StagedRun], WrittenRun[Result]],
    *,
    with_spill: bool = True,
) -> tuple[Result | None, Manifest | None]:
    """Do a run. The output appears when it is complete.

    An interrupted call leaves no output, or the complete output. The same call again makes it, or finds it complete.

    Parameters
    ----------
    folders : RunFolders
    manifest : Manifest
        What is known of the manifest before the run.
    write : callable
        Writes the output.
    with_spill : bool
        Copy payloads of the run before to the `spill` folder when they are read.

    Returns
    -------
    result, manifest
        The result is None if the same run is complete already. That is known only with `resume` or `state`. The
        manifest is None for a file without a state folder.

    Raises
    ------
    PathError
        As in `check_target`, and if the output, the run before and the state are not apart.
    RunError
        If the input does not follow the run before, or another run continues it.
    RunFault
        If the state of the run before is damaged.
    """
    _check_folders(folders)
    clean(folders.target)
    with ExitStack() as stack:
        state = None if folders.state is None else stack.enter_context(generations.opened(folders.state))
        former = _former(folders, state)
        # Without a list of files, as of an object store, it is not known whether the input is the same.
        former = former if manifest.input.files else None
        is_repeated = former is not None and _facts(former, "input") == _facts(manifest, "input")
        is_same = former is not None and _facts(former, *_ALL) == _facts(manifest, *_ALL)
        if is_same and not folders.overwrite and _is_there(state):
            return None, former
        source = folders.source if isinstance(folders.source, Path) else None
        check_target(folders.target, source, overwrite=folders.overwrite)
        before = folders.resume
        if state is not None:
            if is_repeated:
                state.step_back()
            before = None if state.current is None else state.folder_of(state.current)
        if state is None and before is not None:
            stack.enter_context(claimed(before, read_manifest(before), folders.target))
        with staged(folders.target) as hidden, spill_folder(folders.target) as spill:
            stored = None if before is None else load_state(before, spill if with_spill else None)
            begun = StagedRun(hidden, spill, stored)
            begun.start.check(manifest.input)
            done = write(begun)
            written, generation = _commit(folders, hidden, done, state)
        if state is not None and generation is not None:
            state.commit(generation)
    return done.result, written


def _check_folders(folders: RunFolders) -> None:
    """Check that the output, the run before and the state are apart."""
    target = real_path(folders.target)
    for other, what in ((folders.resume, "the run before"), (folders.state, "the state folder")):
        place = None if other is None else real_path(other)
        if place is not None and (place == target or place in target.parents or target in place.parents):
            raise PathError(f"{folders.target}: {what}, {other}, must be another folder")


def _commit(
    folders: RunFolders, hidden: Path, done: WrittenRun[Any], state: StateFolder | None
) -> tuple[Manifest | None, Generation | None]:
    """Write the manifest and the state into the hidden output, if that is a folder, and into the state folder."""
    if folders.as_file and state is None:
        return None, None
    manifest = done.manifest
    for item in manifest.files:
        sync(hidden if folders.as_file else hidden / item.name)
    if state is None:
        return done.commit(hidden, manifest, folders.target), None
    generation = state.begin()
    if folders.as_file:
        # Names are relative to the folder of the manifest.
        name = Path(os.path.relpath(real_path(folders.target), real_path(generation))).as_posix()
        files = [replace(item, name=name) for item in manifest.files]
        written = done.commit(generation, replace(manifest, files=files), None)
    else:
        written = done.commit(hidden, manifest, folders.target)
        generations.copy_run(hidden, generation)
    return written, state.seal(generation, folders.target, written)


def _former(folders: RunFolders, state: StateFolder | None) -> Manifest | None:
    """Read the manifest of a complete run from the same state to the same output, if there is one."""
    if state is not None:
        current = state.current
        if current is None or real_path(state.output_of(current)) != real_path(folders.target):
            return None
        return read_manifest(state.folder_of(current))
    if folders.resume is None or not (folders.target / MANIFEST).exists():
        return None
    former = read_manifest(folders.target)
    before = read_manifest(folders.resume)
    return former if former.previous is not None and former.previous.manifest == before.sha256 else None


def _is_there(state: StateFolder | None) -> bool:
    """Whether the output that `_former` has found is complete. It may have been removed or replaced."""
    return state is None or (state.current is not None and state.has_output(state.current))


_ALL = ("input", "what", "options", "engine")


def _facts(manifest: Manifest, *names: str) -> Any:
    """List what two runs must have in common to be the same run."""
    input = manifest.input
    # The first position of counted payloads depends on the run before.
    first = None if input.is_counted else input.first_position
    plain = {**vars(manifest), "input": (first, input.files)}
    return json.loads(json.dumps([plain[name] for name in names]))


@dataclass(frozen=True)
class RunRequest:
    """A run.

    Attributes
    ----------
    files : OrderedFiles
    folders : RunFolders
    relations : sequence of str
        Tables; if empty, the changes of all tables.
    format : {"parquet", "jsonl", "csv"}
    options : FileChangeOptions
        `spill` and `stored` are set here.
    batch_rows : int
    workers : int
        As in `convert_changes`.
    bad : Path, optional
        A file for bad payloads, as `writers.BAD_PAYLOADS`. It is replaced if it exists.
    is_snapshot : bool
        Write the rows of the tables at the end, in place of their changes.
    """

    files: OrderedFiles
    folders: RunFolders
    relations: Sequence[str]
    format: Format
    options: FileChangeOptions
    batch_rows: int = BATCH_ROWS
    workers: int = 1
    bad: Path | None = None
    is_snapshot: bool = False

    @property
    def manifest(self) -> Manifest:
        """What is known of the manifest before the run."""
        options = options_to_json(self.options.options, self.options.options)
        snapshot = {"snapshot": True} if self.is_snapshot else {}
        return Manifest(
            "local",
            list(self.relations) or ["changes"],
            {**options, "format": self.format, **snapshot},
            input_of(self.files.files, self.files.position, self.folders.source),
        )


def input_of(files: Sequence[PayloadFile], position: str | None, source: FilePath | None) -> Input:
    """Describe the input of a run: files in the order of their first positions."""
    first = next((file for file in files if file.n_rows), None)
    first_position = None if first is None or position is None else first.first_value(position)
    listed = [
        {
            "file": file.path.name if source is None else relative_name(file.path, source),
            "rows": file.n_rows,
            "bytes": size_of(file.path),
        }
        for file in files
    ]
    n_rows = sum(file.n_rows for file in files)
    last_position = None if position is None else _dense_end(files, position)
    gaps = [gap.as_dict(source) for gap in gaps_of(files)]
    return Input(n_rows, first_position, last_position, position is None, source_of(files), listed, gaps)


def _dense_end(files: Sequence[PayloadFile], position: str) -> int | None:
    """Return the last position if the files' statistics say that none is missing, so that a gap is found at once."""
    end: int | None = None
    for group in (group for file in files for group in file.groups):
        first = group.counted_from(position)
        if first is None or end not in (None, first):
            return None
        end = first + group.n_rows
    return None if end is None else end - 1


def decode_changes(request: RunRequest, on_rows: Callable[[int], None] = lambda n_rows: None) -> ChangeTotals | None:
    """Decode payload files, after those of the run before, if any.

    Parameters
    ----------
    request : RunRequest
    on_rows : callable
        As in `convert_changes`.

    Returns
    -------
    ChangeTotals or None
        None if the same run is complete already, see `run`.

    Raises
    ------
    PathError, FileFault
        As in `run` and `convert_changes`.
    RunError, RunFault
        As in `run`.
    """
    known = request.manifest

    def write(begun: StagedRun) -> WrittenRun[ChangeTotals]:
        start = begun.start
        files = replace(request.files, first_position=start.position, last_session=start.source.session)
        outputs = LocalOutputs(begun.hidden, request.format, as_file=request.folders.as_file)
        with Workers(request.workers) as workers:
            totals, reader = convert_changes(
                files,
                outputs,
                relations=request.relations,
                is_snapshot=request.is_snapshot,
                as_file=request.folders.as_file,
                format=request.format,
                options=replace(
                    request.options, spill=begun.spill, stored=begun.stored, keep_errors=request.bad is not None
                ),
                batch_rows=request.batch_rows,
                workers=workers,
                on_rows=on_rows,
            )
            if request.bad is not None:
                with staged(request.bad) as hidden, bad_payload_writer(hidden) as write_bad:
                    for found in bad_payloads(files, reader.errors, workers):
                        write_bad(found)
        bad_rows = dict(sorted(totals.bad_rows.items()))
        manifest = replace(known, rows=totals.changes, bad_rows=bad_rows, files=outputs.output_files(totals.files))
        return WrittenRun(
            manifest,
            lambda folder, manifest, target: reader.commit(folder, manifest, target),
            totals,
        )

    return run(request.folders, known, write)[0]
