"""Runs of the local engine: what has come since the last run is decoded, and appended to the data set."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.changes.stored_state import StoredState, renames_since, replication_of, with_replication
from pgdecode.datasets.manifest import Manifest, OutputFile
from pgdecode.datasets.new_files import NewOutput
from pgdecode.datasets.run import Run, Target
from pgdecode.datasets.single_file import staged
from pgdecode.files import change_export
from pgdecode.files.change_export import bad_payloads, convert_changes, table_file_name
from pgdecode.files.change_reader import FileChangeOptions
from pgdecode.files.envelope_batches import FileEnd
from pgdecode.files.file_metadata import accepted_gaps, notes_of
from pgdecode.files.payload_file import BATCH_ROWS, PayloadFile
from pgdecode.files.writers import BAD_PAYLOADS, WriteBatch
from pgdecode.jobs.message_export import convert_messages
from pgdecode.jobs.new_input import NewInput, check_all_there, new_changes, new_messages
from pgdecode.payloads.workers import Workers
from pgdecode.protocol.options import Format, InStream, Unwrap, options_of
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.rows.options import Options
from pgdecode.storage.errors import TargetExists
from pgdecode.storage.object_path import FilePath, real_path, relative_name
from pgdecode.storage.parquet_input import PARQUET_ERRORS

MESSAGES, CHANGES = "messages", "changes"
# The key in the footer of a file of bad payloads.
_BAD_KEY = b"pgdecode.bad"


@dataclass(frozen=True)
class DecodeJob:
    """A call of the local engine.

    Attributes
    ----------
    source : Path or ObjectPath
    target : Target
    what : tuple of str
        "messages", "changes", or tables as "schema.table".
    format : {"parquet", "jsonl", "csv"}
    payload, unwrap, position, session
        As in `ordered_files`.
    options : Options
    is_snapshot : bool
        Write the rows of the tables at the end, in place of their changes.
    is_net : bool
        Write the net changes of the tables.
    key : tuple of str
        As in `net_changes`; empty for the replica identity.
    catalog : RelationCatalog, optional
        Relations that the first payloads do not describe.
    keep, fields, in_stream
        For messages, as in `convert_messages`.
    accept_gap, overwrite : bool
    bad : Path, optional
        A file for bad payloads, as `writers.BAD_PAYLOADS`.
    batch_rows, workers : int
    """

    source: FilePath
    target: Target
    what: tuple[str, ...]
    format: Format = "parquet"
    payload: str = "data"
    unwrap: Unwrap = "auto"
    position: str | None = None
    session: str | None = None
    options: Options = field(default_factory=Options)
    is_snapshot: bool = False
    is_net: bool = False
    key: tuple[str, ...] = ()
    catalog: RelationCatalog | None = None
    keep: tuple[str, ...] = ()
    fields: tuple[str, ...] | None = None
    in_stream: InStream | bool = "ordered"
    accept_gap: bool = False
    overwrite: bool = False
    bad: Path | None = None
    batch_rows: int = BATCH_ROWS
    workers: int = 1

    @property
    def in_manifest(self) -> dict[str, Any]:
        """The options that change the rows."""
        if self.what == (MESSAGES,):
            of_messages = {"fields": self.fields, "keep": self.keep, "in_stream": self.in_stream}
            return {"mode": self.options.mode, "empty": self.options.empty, "format": self.format, **of_messages}
        what = {"snapshot": self.is_snapshot, "net": self.is_net, **({"key": self.key} if self.is_net else {})}
        return {**options_of(self.options), "format": self.format, **what}


@dataclass
class Decoded:
    """What a call has done.

    Attributes
    ----------
    manifest : Manifest or None
        Of the run; None if nothing has come since the last one.
    payload_bytes : int
    repeated : int
        Transactions whose commit LSN is not greater than that of all before.
    empty_payloads : int
    text_columns : int
        Columns of tables with composites whose type was altered: `altered_types`.
    altered_types : sequence of str
    """

    manifest: Manifest | None = None
    payload_bytes: int = 0
    repeated: int = 0
    empty_payloads: int = 0
    text_columns: int = 0
    altered_types: Sequence[str] = ()


# Called with the number of all rows of a run. Yields a function that is called with the number of rows of each batch;
# if files are read again, it is negative.
Progress = Callable[[int], AbstractContextManager[Callable[[int], None]]]


def _no_progress(n_rows: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda n_rows: None)


def decode(
    job: DecodeJob, progress: Progress = _no_progress, on_note: Callable[[str], None] = lambda text: None
) -> Decoded:
    """Decode what has come since the last call, and commit it.

    Parameters
    ----------
    job : DecodeJob
    progress : callable
        As `Progress`.
    on_note : callable
        Called with notes on the input, such as accepted gaps.

    Raises
    ------
    TargetExists, PathError, RunError, RunFault
        As in `Target.begin`, and if the input does not follow the last run.
    FileFault
        If a file is damaged or out of order, or in FAILFAST mode at a bad payload or value. There is no output then.
    """
    write = _messages if job.what == (MESSAGES,) else _changes
    with job.target.begin(job.what, job.in_manifest, source=job.source, overwrite=job.overwrite) as run:
        return write(job, run, progress, on_note)


def _messages(job: DecodeJob, run: Run, progress: Progress, on_note: Callable[[str], None]) -> Decoded:
    found = new_messages(job.source, run.state, job.payload, job.keep, job.unwrap)
    if found.is_empty:
        return Decoded()
    _check_gaps(found, job, on_note)
    bad = None if job.bad is None else _BadFile(job.bad, job, run)
    n_rows = sum(file.n_rows for file in found.files)
    taken = {file.name for manifest in run.target.manifests() for file in manifest.files} if run.last else set()
    known = {item.path: item for item in run.state.files}
    ends = {
        file.path: FileEnd(None, known[item.path].in_stream)
        for file, (item, n_before) in zip(found.files, found.selection.new, strict=True)
        if n_before
    }

    def open_output(file: PayloadFile) -> NewOutput:
        stem = relative_name(file.path, job.source).removesuffix(".parquet")
        return run.files.open(stem, job.format, is_numbered=f"{stem}.{job.format}" in taken)

    with (
        Workers(job.workers, caller_works=False) as workers,
        nullcontext(None) if bad is None else bad.writer() as write_bad,
        progress(n_rows) as on_rows,
    ):
        totals = convert_messages(
            found.files,
            run,
            open_output,
            format=job.format,
            fields=job.fields,
            in_stream=job.in_stream,
            mode=job.options.mode,
            empty=job.options.empty,
            limits=job.options.limits,
            batch_rows=job.batch_rows,
            workers=workers,
            ends=ends,
            on_rows=on_rows,
            on_bad=write_bad or (lambda bad: None),
        )
    manifest = Manifest(
        "local",
        job.what,
        job.in_manifest,
        found.described(totals.rows, None, None, is_counted=False),
        rows=sum(file.rows for file in totals.files),
        bad_rows=dict(sorted(totals.bad_rows.items())),
        files=totals.files,
    )
    fingerprints = {path: end.fingerprint for path, end in ends.items() if end.fingerprint is not None}
    state = found.state_after(fingerprints, {path: end.streamed for path, end in ends.items()})
    return Decoded(run.commit(manifest, state), totals.payload_bytes)


def _changes(job: DecodeJob, run: Run, progress: Progress, on_note: Callable[[str], None]) -> Decoded:
    last = -1 if run.state.replication is None else int(run.state.replication["position"]) - 1
    found, files = new_changes(job.source, run.state, last, job.payload, job.position, job.session, job.unwrap)
    if found.is_empty:
        return Decoded()
    if job.is_snapshot and run.last is not None:
        check_all_there(found)
        run.begin_anew()
        last = -1
        found, files = new_changes(job.source, run.state, last, job.payload, job.position, job.session, job.unwrap)
    _check_gaps(found, job, on_note)
    bad = None if job.bad is None else _BadFile(job.bad, job, run)
    replication = replication_of(run.state, run.spill)
    before = None if run.last is None else StoredState(replication, run.state.user_types, run.state.session)
    relations = () if job.what == (CHANGES,) else job.what
    outputs = _Outputs(run, job.format, has_folders=len(job.what) > 1)
    with Workers(job.workers) as workers, progress(files.n_rows) as on_rows:
        totals, reader = convert_changes(
            files,
            outputs,
            relations=relations,
            is_snapshot=job.is_snapshot,
            net_key=job.key if job.is_net else None,
            as_file=not run.target.has_log,
            format=job.format,
            options=FileChangeOptions(
                job.options,
                job.catalog,
                spill=run.spill,
                stored=before,
                keep_errors=job.bad is not None,
            ),
            batch_rows=job.batch_rows,
            workers=workers,
            on_rows=on_rows,
        )
        if job.options.as_of is not None and not reader.has_later_commits:
            on_note(f"{job.source}: no commit is after {job.options.as_of}: the rows are those at the end")
        if bad is not None:
            with bad.writer() as write_bad:
                for batch in bad_payloads(files, reader.errors, workers):
                    write_bad(batch)
    after, counts = reader.saved_state, reader.engine.counts
    described = found.described(files.n_rows, counts.first_position, counts.last_position, is_counted=files.is_counted)
    manifest = Manifest(
        "local",
        job.what,
        job.in_manifest,
        described,
        rows=totals.changes,
        bad_rows=dict(sorted(totals.bad_rows.items())),
        skipped=totals.skipped,
        undecided=totals.undecided,
        last_lsn=after.last_lsn,
        files=outputs.accepted(totals.files),
        renames=renames_since(after, job.options.renames, last + 1),
    )
    state = found.state_after(
        files.fingerprints,
        user_types=reader.user_types,
        session=reader.session,
        position=files.position,
        is_counted=files.is_counted,
    )
    if run.target.has_log:
        state = with_replication(state, after, run.files.payload_path())
    return Decoded(
        run.commit(manifest, state),
        totals.payload_bytes,
        totals.repeated,
        totals.empty_payloads,
        totals.text_columns,
        totals.altered_types,
    )


def _check_gaps(found: NewInput, job: DecodeJob, on_note: Callable[[str], None]) -> None:
    """Refuse gaps that are not accepted, and note the others, and folders that begin within a used slot."""
    accepted_gaps(found.files, accept_gap=job.accept_gap)
    for note in notes_of(found.files):
        on_note(note)


class _Outputs:
    """Creates the files of a run for `convert_changes`. Several tables have a folder each."""

    def __init__(self, run: Run, format: Format, *, has_folders: bool) -> None:
        self._run, self._format, self._has_folders = run, format, has_folders
        self._files: dict[tuple[str | None, int], NewOutput] = {}

    def open(self, table: str | None, schema: pa.Schema, number: int) -> BinaryIO:
        """Create a file."""
        name = table_file_name(table)
        folder = name if self._has_folders else ""
        self._files[table, number] = self._run.files.open(name, self._format, folder=folder, nth=number)
        return cast(BinaryIO, self._files[table, number])

    def discard(self) -> None:
        """Remove all files."""
        for file in self._files.values():
            file.discard()
        self._files.clear()

    def accepted(self, files: Iterable[change_export.WrittenFile]) -> list[OutputFile]:
        """Take the complete files into the output of the run."""
        return [self._run.accept(self._files[item.table, item.number].written(item.rows)) for item in files]


class _BadFile:
    """A file of bad payloads, to which each run adds its own.

    The footer has the number of rows of each run. So the rows of a run that did not commit are left out the next time.

    Raises
    ------
    TargetExists
        If the file exists, and is not that of this data set.
    """

    def __init__(self, path: Path, job: DecodeJob, run: Run) -> None:
        self._path, self._number = path, run.files.number
        self._data_set = os.path.relpath(real_path(Path(str(job.target.path))), real_path(path).parent)
        self._before: list[tuple[int, int]] = []
        if path.exists():
            plain = {}
            with suppress(*PARQUET_ERRORS, ValueError):
                plain = json.loads((pq.read_metadata(path).metadata or {}).get(_BAD_KEY, b"{}"))
            if plain.get("data_set") == self._data_set and not run.files.is_first:
                self._before = [(number, rows) for number, rows in plain["runs"] if number < self._number]
            elif plain.get("data_set") != self._data_set and not job.overwrite:
                raise TargetExists(f"{path}: exists already, and has not the bad messages of this output")

    @contextmanager
    def writer(self) -> Iterator[WriteBatch]:
        """Yield a function that adds bad payloads. The file has them after the block, before the commit of the run."""
        n_rows = 0
        left = sum(rows for _, rows in self._before)
        with staged(self._path) as hidden, pq.ParquetWriter(hidden, BAD_PAYLOADS, compression="zstd") as writer:
            if left:
                with pq.ParquetFile(self._path) as file:
                    for batch in file.iter_batches():
                        rows = pa.Table.from_batches([batch.slice(0, left)]).cast(BAD_PAYLOADS)
                        writer.write_table(rows)
                        left -= len(rows)

            def write(batch: pa.RecordBatch) -> None:
                nonlocal n_rows
                n_rows += len(batch)
                writer.write_batch(batch)

            yield write
            runs = [*self._before, (self._number, n_rows)]
            writer.add_key_value_metadata({_BAD_KEY: json.dumps({"data_set": self._data_set, "runs": runs})})
