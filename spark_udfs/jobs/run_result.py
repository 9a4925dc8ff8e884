"""The result of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgdecode.datasets.manifest import Manifest


@dataclass(frozen=True)
class RunResult:
    """The result of `decode_files`.

    Attributes
    ----------
    rows : int
        Number of rows that this call has added to all outputs together.
    bad_rows : dict
        Number of rows with an error, written or left out, by error code, for all outputs together.
    skipped : int
        Number of transactions left out because their beginning is missing, with `start="anywhere"`.
    undecided : int
        Number of transactions without an outcome. Their changes are in the state, for the next call.
    first_position, last_position : int or None
        Of the payloads, for changes and tables; None without payloads.
    manifest : pgdecode.datasets.manifest.Manifest or None
        The manifest of this call in the target; None if nothing has come since the last call.
    """

    rows: int = 0
    bad_rows: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0
    undecided: int = 0
    first_position: int | None = None
    last_position: int | None = None
    manifest: Manifest | None = None

    @classmethod
    def of(cls, manifest: Manifest | None) -> RunResult:
        """Take the result from a manifest."""
        if manifest is None:
            return cls()
        return cls(
            manifest.rows,
            dict(manifest.bad_rows),
            manifest.skipped,
            manifest.undecided,
            manifest.input.first_position,
            manifest.input.last_position,
            manifest,
        )
