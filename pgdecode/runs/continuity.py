"""Checks that the input of a run follows the run before it: same source, no overlap, no gap."""

from __future__ import annotations

from pathlib import Path

from pgdecode.runs.errors import RunError
from pgdecode.runs.manifest import Input, Manifest

# What identifies the source of payloads in the footers of captured files.
IDENTITY = ("system", "database", "slot")


def check_continues(folder: Path, previous: Manifest, position: int, input: Input) -> None:
    """Check the input of a run before it is decoded.

    Parameters
    ----------
    folder : Path
        Of the previous run, for errors.
    previous : Manifest
        Of the previous run.
    position : int
        The least position that the next payload may have, from the state of the previous run.
    input : Input
        Of this run.

    Raises
    ------
    RunError
        If the input comes from another source, overlaps that of the previous run, or payloads between both are missing.

    Notes
    -----
    A gap is known if both inputs are dense, or if both were captured by `pgdecode capture`, which numbers payloads
    without gaps. Otherwise positions may have gaps, and missing payloads show only in the payloads themselves.
    """
    before = previous.input
    _check_source(folder, before, input)
    if before.rows and input.rows and before.is_counted != input.is_counted:
        kinds = ("counted", "from a column") if before.is_counted else ("from a column", "counted")
        raise RunError(f"{folder}: its positions are {kinds[0]}, but those of this input are {kinds[1]}")
    if input.is_counted and input.files and list(input.files) == list(before.files):
        raise RunError(f"{folder}: has decoded the same files already")
    if input.first_position is None:
        return
    first, last = input.first_position, position - 1
    if first <= last:
        raise RunError(
            f"the input begins at position {first}, but {folder} ended at position {last}: "
            "the input overlaps that of the run before, or has files that came too late"
        )
    is_captured = before.source is not None and input.source is not None
    if first > last + 1 and before.rows and (is_captured or (before.is_dense and input.is_dense)):
        raise RunError(
            f"the input begins at position {first}, but {folder} ended at position {last}: "
            f"{first - last - 1} payloads between them are missing"
        )


def _check_source(folder: Path, before: Input, input: Input) -> None:
    if before.source is None or input.source is None:
        return
    for name in IDENTITY:
        old, new = before.source.get(name), input.source.get(name)
        if old != new:
            raise RunError(f"{folder}: its input came from {name} {old!r}, this input comes from {name} {new!r}")
