"""The run of a job that decodes changes: the state that it continues, and what it needs to leave one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pgdecode.changes.replication_state import ReplicationState
from pgdecode.changes.run_start import RunStart
from pgdecode.files.change_run import StagedRun, WrittenRun
from pgdecode.partitions.partition_index import PartitionIndex
from pgdecode.runs.manifest import Input, Manifest, OutputFile, TaskSummary
from pgdecode.runs.state_files import SourceState
from spark_udfs.dataframes.kept_changes import KEPT, KeptFile, add_kept


@dataclass(frozen=True)
class JobRun:
    """The run of a job.

    Attributes
    ----------
    input : Input
        What is known of it before the run.
    begun : StagedRun or None
        None if the target is a URI: such a run has no state.
    """

    input: Input
    begun: StagedRun | None = None

    @property
    def start(self) -> RunStart:
        """Where the run begins."""
        return RunStart() if self.begun is None else self.begun.start

    @property
    def state(self) -> ReplicationState | None:
        """The state of the run before."""
        return None if self.begun is None or self.begun.stored is None else self.begun.stored.state

    @property
    def session(self) -> str | None:
        """The last value of the session column before, as text."""
        return self.start.source.session

    @property
    def kept(self) -> Path | None:
        """The folder for the files of tasks with changes of transactions without an outcome."""
        return None if self.begun is None else self.begun.hidden / KEPT

    def check(self, first: int | None, last: int | None, n_rows: int) -> Input:
        """Check that the input follows the run before, now that its positions are known, and return it.

        Raises
        ------
        RunError
        """
        found = replace(self.input, first_position=first, last_position=last, rows=n_rows)
        self.start.check(found)
        return found


NEW_RUN = JobRun(Input())


@dataclass(frozen=True)
class JobOutput:
    """The output of a job.

    Attributes
    ----------
    input : Input
    index : PartitionIndex
        With the state after the run.
    bad_rows : mapping
        By error code.
    rows : int
        Of all output files.
    files : sequence of OutputFile
    kept : sequence of KeptFile
        In the order of the input.
    session : str or None
        The last value of the session column, as text.
    tasks : sequence of TaskSummary
        Empty if Spark reads and writes the files.
    """

    input: Input
    index: PartitionIndex
    bad_rows: Mapping[str, int]
    rows: int
    files: Sequence[OutputFile] = ()
    kept: Sequence[KeptFile] = field(default_factory=list)
    session: str | None = None
    tasks: Sequence[TaskSummary] = ()

    def written(self, run: StagedRun, manifest: Manifest, source: SourceState) -> WrittenRun[JobOutput | None]:
        """Describe the run, so that its state and its manifest can be committed."""
        state = self.index.end
        complete = replace(
            manifest, input=self.input, rows=self.rows, bad_rows=self.bad_rows, files=self.files, tasks=self.tasks
        )
        known = source if self.session is None else replace(source, session=self.session)

        def commit(folder: Path, manifest: Manifest, target: Path | None) -> Manifest:
            add_kept(state, self.kept)
            done = run.start.commit(folder, manifest, state, known, target)
            shutil.rmtree(run.hidden / KEPT, ignore_errors=True)
            return done

        return WrittenRun(complete, commit, self)
