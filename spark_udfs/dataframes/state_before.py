"""The state after the payloads before those of a DataFrame."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pgdecode.changes.checkpoint import state_from_json
from pgdecode.changes.replication_state import ReplicationState
from pgdecode.changes.stored_state import replication_of
from pgdecode.datasets import state
from pgdecode.datasets.errors import RunError
from pgdecode.datasets.input_selection import Selection, check_no_gap
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.state import InputFile
from pgdecode.datasets.target import target_at
from pgdecode.storage.object_path import local_path
from pgdecode.types.user_types import DescribedTypes, UserType

State = str | os.PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True)
class StateBefore:
    """A state that the caller has given.

    Attributes
    ----------
    replication : ReplicationState
    stored : State
        What else is known, if the state is that of a data set.
    manifest : Manifest or None
        Of the last run of the data set.
    """

    replication: ReplicationState
    stored: state.State = field(default_factory=state.State)
    manifest: Manifest | None = None

    def check(self, first: int | None, last: int | None, n_rows: int) -> None:
        """Check that payloads follow. The arguments are their first and last position, and their number.

        Raises
        ------
        RunError
        """
        position = self.replication.position
        if first is not None and first < position:
            raise RunError(
                f"the input begins at position {first}, but the payloads before the state ended at position "
                f"{position - 1}: the input overlaps them, or has rows that came too late"
            )
        of_rows = Selection([(InputFile("", 0, "", n_rows, first, last), 0)], [])
        check_no_gap(self.stored, position - 1, of_rows, is_captured=False)


def state_before(given: State | None, source: object = None, catalog: object = None) -> StateBefore | None:
    """Read the option `state`.

    Raises
    ------
    TypeError
        With `source` or `catalog`, or if the state is neither a path nor a mapping.
    ValueError
        If it is damaged, or of another format.
    """
    if given is None:
        return None
    if source is not None or catalog is not None:
        what = "source: decode each source on its own" if catalog is None else "catalog: the state has the relations"
        raise TypeError(f"state cannot be used with {what}")
    if isinstance(given, Mapping):
        return StateBefore(state_from_json(given))
    if not isinstance(given, str | os.PathLike):
        raise TypeError(
            f"state is the folder of a data set, or the state of a ChangeDecoder, not {type(given).__name__}"
        )
    # Tasks may have another working directory.
    target = target_at(local_path(given, "the folder of a data set").absolute())
    manifest = target.manifests()[-1]
    stored = target.state(manifest)
    return StateBefore(replication_of(stored), stored, manifest)


def with_types(before: StateBefore | None, given: Mapping[str | int, str] | None) -> Mapping[str | int, str] | None:
    """Add the types from the footers of earlier payload files. The caller's types take precedence."""
    if before is None:
        return given
    return DescribedTypes.of(given).after(UserType(*item) for item in before.stored.user_types) or None
