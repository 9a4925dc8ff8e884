"""A run of `decode`: what has come since the last run is decoded by an engine, and appended to the data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from pgdecode.changes.replication_state import ReplicationState
from pgdecode.changes.stored_state import renames_since, with_replication
from pgdecode.datasets.input_selection import recorded
from pgdecode.datasets.manifest import Input, Manifest, OutputFile, TaskSummary
from pgdecode.datasets.run import Run, Target
from pgdecode.datasets.state import State
from pgdecode.files.envelope_batches import MessageOptions
from pgdecode.files.file_metadata import notes_of
from pgdecode.jobs.new_input import NewInput, new_changes, new_messages
from pgdecode.protocol.options import Format, InStream, Unwrap, options_of
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.rows.options import Options
from pgdecode.storage.object_path import FilePath, relative_name, size_of

MESSAGES, CHANGES = "messages", "changes"


@dataclass(frozen=True)
class DecodeJob:
    """What a run reads and writes, on any engine.

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
    keep : tuple of str
        For messages: other columns of the input.
    fields : tuple of str, optional
        Columns to write.
    in_stream : {"ordered", "auto"} or bool
        For messages.
    in_folders : bool
        Each output has a folder of its own.
    accept_gap, overwrite : bool
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
    in_folders: bool = False
    accept_gap: bool = False
    overwrite: bool = False

    @property
    def is_of_messages(self) -> bool:
        """Whether it writes messages, not changes."""
        return self.what == (MESSAGES,)

    @property
    def message_options(self) -> MessageOptions:
        """The options of messages."""
        return MessageOptions(self.fields, self.in_stream, self.options.mode, self.options.empty, self.options.limits)

    @property
    def in_manifest(self) -> dict[str, Any]:
        """The options that change the rows."""
        if self.is_of_messages:
            of_messages = {"fields": self.fields, "keep": self.keep, "in_stream": self.in_stream}
            return {"mode": self.options.mode, "empty": self.options.empty, "format": self.format, **of_messages}
        fields = {} if self.fields is None else {"fields": self.fields}
        what = {"snapshot": self.is_snapshot, "net": self.is_net, **({"key": self.key} if self.is_net else {})}
        return {**options_of(self.options), "format": self.format, **what, **fields}


@dataclass(frozen=True)
class SequenceEnd:
    """The end of a sequence of payloads that an engine has decoded to changes.

    Attributes
    ----------
    state : ReplicationState
    first_position, last_position : int or None
        Of the payloads of the run.
    skipped : int
        As in `Manifest`.
    user_types, session
        As in `State`.
    """

    state: ReplicationState
    first_position: int | None
    last_position: int | None
    skipped: int
    user_types: Sequence[tuple[int, str, str]] = ()
    session: str | None = None


@dataclass(frozen=True)
class RunOutput:
    """What an engine has decoded and written.

    Attributes
    ----------
    files : sequence of OutputFile
        Files that the run has accepted.
    bad_rows : mapping
        Number of rows with an error, written or left out, by error code.
    tasks : sequence of TaskSummary
    fingerprints : mapping of path to str
        Of the last row of each file, if the engine has read the rows in order.
    streamed : mapping of path to bool or None
        For messages: the stream state at the end of each file.
    end : SequenceEnd or None
        None for messages.
    notes : sequence of str
        On the input.
    """

    files: Sequence[OutputFile]
    bad_rows: Mapping[str, int]
    tasks: Sequence[TaskSummary] = ()
    fingerprints: Mapping[FilePath, str] = field(default_factory=dict)
    streamed: Mapping[FilePath, bool | None] = field(default_factory=dict)
    end: SequenceEnd | None = None
    notes: Sequence[str] = ()


class Engine(Protocol):
    """Decodes the input of a run, and writes its files."""

    @property
    def name(self) -> Literal["local", "spark"]:
        """Its name in manifests."""

    def messages(self, job: DecodeJob, run: Run, found: NewInput) -> RunOutput:
        """Decode files to messages."""

    def changes(self, job: DecodeJob, run: Run, found: NewInput) -> RunOutput:
        """Decode files to changes or tables."""


def decode(job: DecodeJob, engine: Engine, on_note: Callable[[str], None] = lambda text: None) -> Manifest | None:
    """Decode what has come since the last run, and commit it. Return None if nothing has come.

    Parameters
    ----------
    job : DecodeJob
    engine : Engine
    on_note : callable
        Called with notes on the input, such as accepted gaps.

    Raises
    ------
    TargetExists, PathError, RunError, RunFault
        As in `Target.begin`, and if the input does not follow the last run.
    FileFault
        If a file is damaged or out of order, or in FAILFAST mode at a bad payload or value. There is no output then.
    """
    with job.target.begin(job.what, job.in_manifest, source=job.source, overwrite=job.overwrite) as run:
        found = _input(job, run)
        if found.is_empty:
            return None
        for note in notes_of(found.files):
            on_note(note)
        output = (engine.messages if job.is_of_messages else engine.changes)(job, run, found)
        for note in output.notes:
            on_note(note)
        end = output.end
        manifest = Manifest(
            engine.name,
            job.what,
            job.in_manifest,
            _described(job.source, found, end),
            rows=sum(file.rows for file in output.files),
            bad_rows=dict(sorted(output.bad_rows.items())),
            files=output.files,
            tasks=output.tasks,
        )
        state = _state_after(found, output)
        if end is not None:
            manifest = replace(
                manifest,
                skipped=end.skipped,
                undecided=end.state.n_undecided,
                last_lsn=end.state.last_lsn,
                renames=renames_since(end.state, job.options.renames, found.last + 1),
            )
            state = replace(state, user_types=end.user_types, session=end.session)
            if run.target.has_log:
                state = with_replication(state, end.state, run.files.payload_path())
        return run.commit(manifest, state)


def _input(job: DecodeJob, run: Run) -> NewInput:
    """Find the input of a run. A snapshot is made anew from all files, once there is a new one."""
    if job.is_of_messages:
        return new_messages(job.source, run.state, job.payload, job.keep, job.unwrap, accept_gap=job.accept_gap)
    columns = job.payload, job.position, job.session, job.unwrap
    found = new_changes(job.source, run.state, *columns, accept_gap=job.accept_gap)
    if not job.is_snapshot or run.last is None or found.is_empty:
        return found
    found.check_all_there()
    run.begin_anew()
    return new_changes(job.source, run.state, *columns, accept_gap=job.accept_gap, listing=found.listing)


def _described(source: FilePath, found: NewInput, end: SequenceEnd | None) -> Input:
    """Describe the input for the manifest."""
    first, last = (None, None) if end is None else (end.first_position, end.last_position)
    files = [
        {"path": relative_name(file.path, source), "rows": file.n_rows, "bytes": size_of(file.path)}
        for file in found.files
    ]
    gaps = [gap.as_dict(source) for gap in found.gaps]
    is_counted = found.ordered is not None and found.ordered.is_counted
    return Input(sum(file.n_rows for file in found.files), first, last, is_counted, found.source, files, gaps)


def _state_after(found: NewInput, output: RunOutput) -> State:
    """Return the state after a run, without that of replication."""
    decoded = [
        item._replace(fingerprint=output.fingerprints.get(file.path), in_stream=output.streamed.get(file.path))
        for file, (item, _) in zip(found.files, found.selection.new, strict=True)
    ]
    # Entries of decoders that were saved have no path.
    entries = {item.path or item: item for item in found.state.files}
    for item in [*recorded(found.selection, found.state), *decoded]:
        # What has been decoded last is at the end.
        entries.pop(item.path, None)
        entries[item.path] = item
    state = replace(found.state, source=found.source or found.state.source, files=[*entries.values()])
    ordered = found.ordered
    return state if ordered is None else replace(state, position=ordered.position, is_counted=ordered.is_counted)
