"""Where a run begins, and how it ends: the run before is claimed and checked, and the next state is committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pgdecode.changes.change_engine import PayloadCounts
from pgdecode.changes.replication_state import ReplicationState
from pgdecode.changes.stored_state import StoredState, save_state
from pgdecode.protocol.options import ChangeOptions, options_of
from pgdecode.relations.column_history import NO_RENAMES, rename_events
from pgdecode.rows.value_options import ValueOptions
from pgdecode.runs.claim import claimed
from pgdecode.runs.continuity import check_continues
from pgdecode.runs.manifest import Input, Manifest, previous_of, write_manifest
from pgdecode.runs.state_files import SourceState


@dataclass(frozen=True)
class RunStart:
    """Where a run begins.

    Attributes
    ----------
    position : int
        The least position that its first payload may have.
    skipped : int
        Number of transactions that the runs before left out.
    previous : (Path, Manifest) or None
        The folder and manifest of the run before.
    source : SourceState
    """

    position: int = 0
    skipped: int = 0
    previous: tuple[Path, Manifest] | None = None
    source: SourceState = field(default_factory=SourceState)

    @classmethod
    def after(cls, stored: StoredState) -> RunStart:
        """Begin after a run whose state was loaded."""
        state = stored.state
        return cls(state.position, state.skipped.count, (stored.folder, stored.manifest), stored.source)

    def check(self, input: Input) -> None:
        """Check that the input of the run follows the run before.

        Raises
        ------
        RunError
        """
        if self.previous is not None:
            check_continues(*self.previous, self.position, input)

    @contextmanager
    def claimed(self, target: Path) -> Iterator[None]:
        """Claim the run before, if any, for a run in the folder `target`.

        Raises
        ------
        RunError
            If another run continues it.
        """
        with nullcontext() if self.previous is None else claimed(*self.previous, target):
            yield

    def commit(
        self, folder: Path, manifest: Manifest, state: ReplicationState, source: SourceState, target: Path | None = None
    ) -> Manifest:
        """Write the state and then the manifest. The output must be complete, and the run before claimed.

        Parameters
        ----------
        folder : Path
            Of the run.
        manifest : Manifest
            Without what this method adds: the run before, and everything about the state.
        state : ReplicationState
            After the run.
        source : SourceState
            After the run.
        target : Path, optional
            The folder's name in the end, if it is renamed later, beside its present name.

        Raises
        ------
        RunError
            If the input does not follow the run before.
        """
        self.check(manifest.input)
        files = save_state(state, folder, self.position, source)
        previous = None if self.previous is None else previous_of(target or folder, *self.previous)
        complete = replace(
            manifest,
            previous=previous,
            skipped=state.skipped.count - self.skipped,
            undecided=state.n_undecided,
            last_lsn=state.last_lsn,
            renames=renames_since(state, manifest, self.position),
            state=files,
        )
        return write_manifest(folder, complete)


def counted_input(known: Input, counts: PayloadCounts, before: PayloadCounts | None = None) -> Input:
    """Add to the input of a run what was counted, without what was counted before the run."""
    return replace(
        known,
        rows=counts.n_payloads - (0 if before is None else before.n_payloads),
        first_position=counts.first_position,
        last_position=counts.last_position,
        is_counted=known.is_counted or counts.is_counted,
    )


def renames_since(state: ReplicationState, manifest: Manifest, position: int = 0) -> list[dict[str, Any]]:
    """List the columns that have been renamed from a position on, for the manifest, whose options state some."""
    relations = state.relations
    versions = [relations.versions[number] for number in sorted(relations.in_shape)]
    return rename_events(versions, manifest.options.get("renames") or NO_RENAMES, position)


def options_to_json(options: ChangeOptions, value_options: ValueOptions) -> dict[str, Any]:
    """List the options that change the result, for the manifest."""
    return {**options_of(options), **options_of(value_options)}
