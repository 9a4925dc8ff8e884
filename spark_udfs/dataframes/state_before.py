"""The state after the payloads before those of a DataFrame."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pgdecode.changes.checkpoint import state_from_json
from pgdecode.changes.replication_state import ReplicationState
from pgdecode.changes.run_start import RunStart
from pgdecode.changes.stored_state import load_state
from pgdecode.files.file_metadata import UserType, overridden
from pgdecode.runs.errors import RunError
from pgdecode.runs.manifest import Input
from pgdecode.storage.object_path import local_path

State = str | os.PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True)
class StateBefore:
    """A state that the caller has given.

    Attributes
    ----------
    state : ReplicationState
    start : RunStart
        With the run before, if the state is that of a run.
    """

    state: ReplicationState
    start: RunStart

    @property
    def session(self) -> str | None:
        """The last value of the session column before, as text."""
        return self.start.source.session

    def check(self, first: int | None, last: int | None, n_rows: int) -> Input:
        """Check that payloads follow. The arguments are their first and last position, and their number.

        Raises
        ------
        RunError
        """
        found = Input(n_rows, first, last)
        self.start.check(found)
        if first is not None and first < self.state.position:
            raise RunError(
                f"the input begins at position {first}, but the payloads before the state ended at position "
                f"{self.state.position - 1}: the input overlaps them, or has rows that came too late"
            )
        return found


def state_before(state: State | None, source: object = None, catalog: object = None) -> StateBefore | None:
    """Read the option `state`.

    Raises
    ------
    TypeError
        With `source` or `catalog`, or if the state is neither a path nor a mapping.
    ValueError
        If it is damaged, or of another format.
    """
    if state is None:
        return None
    if source is not None or catalog is not None:
        what = "source: decode each source on its own" if catalog is None else "catalog: the state has the relations"
        raise TypeError(f"state cannot be used with {what}")
    if isinstance(state, Mapping):
        found = state_from_json(state)
        return StateBefore(found, RunStart(found.position, found.skipped.count))
    if not isinstance(state, str | os.PathLike):
        raise TypeError(f"state is the folder of a run, or the state of a ChangeDecoder, not {type(state).__name__}")
    # Tasks may have another working directory.
    stored = load_state(local_path(state, "the folder of a run").absolute())
    return StateBefore(stored.state, RunStart.after(stored))


def with_types(before: StateBefore | None, given: Mapping[str | int, str] | None) -> Mapping[str | int, str] | None:
    """Add the types from the footers of earlier payload files. The caller's types take precedence."""
    if before is None:
        return given
    return overridden((UserType(*item) for item in before.start.source.user_types), given) or None
