"""The result of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pgdecode.runs.manifest import Manifest


@dataclass(frozen=True)
class RunResult:
    """The result of `decode_files`.

    Attributes
    ----------
    rows : int
        Number of rows in all outputs together.
    bad_rows : dict
        Number of rows with an error, written or left out, by error code, for all outputs together.
    skipped : int
        Number of transactions left out because their beginning is missing, with `start="anywhere"`.
    undecided : int
        Number of transactions without an outcome. Their changes are in the state, for the next run.
    first_position, last_position : int or None
        Of the payloads, for changes and tables; None without payloads.
    manifest : pgdecode.runs.manifest.Manifest or None
        The content of `_manifest.json`.
    was_complete : bool
        Whether an earlier call had completed the same run, so that this one had nothing to do.
    """

    rows: int
    bad_rows: Mapping[str, int]
    skipped: int = 0
    undecided: int = 0
    first_position: int | None = None
    last_position: int | None = None
    manifest: Manifest | None = None
    was_complete: bool = False

    @classmethod
    def of(cls, manifest: Manifest, *, was_complete: bool = False) -> RunResult:
        """Take the result from a manifest."""
        return cls(
            manifest.rows,
            dict(manifest.bad_rows),
            manifest.skipped,
            manifest.undecided,
            manifest.input.first_position,
            manifest.input.last_position,
            manifest,
            was_complete,
        )
