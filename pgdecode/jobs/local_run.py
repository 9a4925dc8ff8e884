"""The local engine: decodes the input of a run in this process, in constant memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.changes.stored_state import StoredState, replication_of
from pgdecode.datasets.run import Run
from pgdecode.datasets.single_file import staged
from pgdecode.files.change_export import ChangeTotals, bad_payloads, convert_changes
from pgdecode.files.change_reader import FileChangeOptions
from pgdecode.files.envelope_batches import FileEnd
from pgdecode.files.payload_file import BATCH_ROWS
from pgdecode.files.writers import BAD_PAYLOADS, WriteBatch
from pgdecode.jobs.decode_run import CHANGES, DecodeJob, RunOutput, SequenceEnd
from pgdecode.jobs.message_export import MessageTotals, convert_messages
from pgdecode.jobs.new_input import NewInput
from pgdecode.payloads.workers import Workers
from pgdecode.storage.errors import TargetExists
from pgdecode.storage.object_path import real_path, relative_name
from pgdecode.storage.parquet_input import PARQUET_ERRORS

# The key in the footer of a file of bad payloads.
_BAD_KEY = b"pgdecode.bad"


# Called with the number of all rows of a run. Yields a function that is called with the number of rows of each batch;
# if files are read again, it is negative.
Progress = Callable[[int], AbstractContextManager[Callable[[int], None]]]


def _no_progress(n_rows: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda n_rows: None)


@dataclass
class LocalEngine:
    """Decodes in this process.

    Attributes
    ----------
    bad : Path, optional
        A file for bad payloads, as `writers.BAD_PAYLOADS`.
    batch_rows, workers : int
    progress : callable
        As `Progress`.
    totals : MessageTotals, ChangeTotals or None
        Counts of the last run; None if nothing had come.
    """

    bad: Path | None = None
    batch_rows: int = BATCH_ROWS
    workers: int = 1
    progress: Progress = _no_progress
    totals: MessageTotals | ChangeTotals | None = field(default=None, init=False)
    name: Literal["local"] = field(default="local", init=False)

    def messages(self, job: DecodeJob, run: Run, found: NewInput) -> RunOutput:
        """Decode files to messages, as `Engine.messages`."""
        bad = None if self.bad is None else _BadFile(self.bad, job, run)
        known = {item.path: item for item in run.state.files}
        ends = {
            file.path: FileEnd(None, known[item.path].in_stream)
            for file, (item, n_before) in zip(found.files, found.selection.new, strict=True)
            if n_before
        }
        with (
            Workers(self.workers, caller_works=False) as workers,
            nullcontext(None) if bad is None else bad.writer() as write_bad,
            self.progress(sum(file.n_rows for file in found.files)) as on_rows,
        ):
            self.totals = convert_messages(
                found.files,
                run,
                [f"{relative_name(file.path, job.source)}".removesuffix(".parquet") for file in found.files],
                format=job.format,
                options=job.message_options,
                batch_rows=self.batch_rows,
                workers=workers,
                ends=ends,
                on_rows=on_rows,
                on_bad=write_bad or (lambda bad: None),
            )
        fingerprints = {path: end.fingerprint for path, end in ends.items() if end.fingerprint is not None}
        streamed = {path: end.streamed for path, end in ends.items()}
        return RunOutput(self.totals.files, self.totals.bad_rows, fingerprints=fingerprints, streamed=streamed)

    def changes(self, job: DecodeJob, run: Run, found: NewInput) -> RunOutput:
        """Decode files to changes, tables or snapshots, as `Engine.changes`."""
        files = found.sequence
        bad = None if self.bad is None else _BadFile(self.bad, job, run)
        replication = replication_of(run.state, run.spill)
        before = None if run.last is None else StoredState(replication, run.state.user_types, run.state.session)
        with Workers(self.workers) as workers, self.progress(files.n_rows) as on_rows:
            totals, reader = convert_changes(
                files,
                run,
                relations=() if job.what == (CHANGES,) else job.what,
                is_snapshot=job.is_snapshot,
                net_key=job.key if job.is_net else None,
                in_folders=job.in_folders,
                format=job.format,
                options=FileChangeOptions(
                    job.options, job.catalog, spill=run.spill, stored=before, keep_errors=bad is not None
                ),
                batch_rows=self.batch_rows,
                workers=workers,
                on_rows=on_rows,
            )
            if bad is not None:
                with bad.writer() as write_bad:
                    for batch in bad_payloads(files, reader.errors, workers):
                        write_bad(batch)
        self.totals = totals
        state, counts = reader.saved_state, reader.engine.counts
        end = SequenceEnd(
            state, counts.first_position, counts.last_position, totals.skipped, reader.user_types, reader.session
        )
        notes = []
        if job.options.as_of is not None and not reader.has_later_commits:
            notes.append(f"{job.source}: no commit is after {job.options.as_of}: the rows are those at the end")
        return RunOutput(totals.files, totals.bad_rows, fingerprints=files.fingerprints, end=end, notes=notes)


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
