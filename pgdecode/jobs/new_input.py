"""The input of a run: the files below a path that its data set does not have yet, and the new rows of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pgdecode.datasets.errors import RunError
from pgdecode.datasets.input_listing import Listed, Listing, listing_of
from pgdecode.datasets.input_selection import (
    Selection,
    check_fingerprints,
    check_no_gap,
    check_source,
    select_by_name,
    select_by_position,
    unknown_files,
)
from pgdecode.datasets.state import InputFile, State
from pgdecode.files.file_metadata import Gap, accepted_gaps, source_of
from pgdecode.files.ordered_files import OrderedFiles, is_captured, open_ordered
from pgdecode.files.payload_file import PayloadFile, fingerprint_of
from pgdecode.files.payload_files import USUAL_NAMES, open_files
from pgdecode.protocol.options import Unwrap
from pgdecode.storage.object_path import FilePath


@dataclass(frozen=True)
class NewInput:
    """The input of a run.

    Attributes
    ----------
    state : State
        After the last run.
    files : sequence of PayloadFile
        Files with new rows, without those that have been decoded.
    selection : Selection
    listing : list of (path, Listed)
        All files, in the order of their names.
    source : mapping or None
        Where `files` were captured, as from `source_of`.
    gaps : list of Gap
        Between `files`, which the caller accepts.
    ordered : OrderedFiles or None
        `files` as one sequence; None for messages.
    last : int
        The last position before the files, for changes.
    """

    state: State
    files: Sequence[PayloadFile]
    selection: Selection
    listing: Listing
    source: Mapping[str, Any] | None = None
    gaps: Sequence[Gap] = ()
    ordered: OrderedFiles | None = None
    last: int = -1

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come since the last run."""
        return not any(file.n_rows for file in self.files) and bool(self.state.files)

    @property
    def sequence(self) -> OrderedFiles:
        """The files as one sequence, for changes."""
        assert self.ordered is not None
        return self.ordered

    def check_all_there(self) -> None:
        """Check that no decoded file has gone, for an output that is made anew from all files.

        Raises
        ------
        RunError
        """
        listed = {item.path for _, item in self.listing}
        same = {(item.first, item.last, item.rows) for item in self.selection.same}
        for item in self.state.files:
            if item.path not in listed and (item.first is None or (item.first, item.last, item.rows) not in same):
                raise RunError(
                    f"{item.path}: is missing: a snapshot is made anew from all files, and this one was decoded before"
                )


def new_messages(
    source: FilePath,
    state: State,
    payload: str,
    keep: Sequence[str] = (),
    unwrap: Unwrap = "auto",
    *,
    accept_gap: bool = False,
) -> NewInput:
    """Find the files to decode to messages, each of which is a sequence of its own.

    Parameters
    ----------
    source : Path or ObjectPath
    state : State
        After the last run.
    payload, keep, unwrap
        As in `payload_files`.
    accept_gap : bool

    Raises
    ------
    PathError, FileFault
        As in `payload_files`.
    RunError
        If a file has changed after it was decoded, or there is a gap before it that is not accepted.
    """
    listing = listing_of(source, may_be_empty=bool(state.files))
    paths = _unknown(listing, state)
    opened = open_files([*paths], payload, keep, unwrap) if paths else []
    entries = [_described(file, item, _usual_position(file)) for file, item in zip(opened, paths.values(), strict=True)]
    selection = select_by_name(entries, state, is_ordered=False)
    files = _selected(state, opened, selection, entries)
    gaps = accepted_gaps(files, accept_gap=accept_gap)
    return NewInput(state, files, selection, listing, source_of(files), gaps)


def new_changes(
    source: FilePath,
    state: State,
    payload: str,
    position: str | None = None,
    session: str | None = None,
    unwrap: Unwrap = "auto",
    *,
    accept_gap: bool = False,
    listing: Listing | None = None,
) -> NewInput:
    """Find the files that continue the sequence of payloads.

    Parameters
    ----------
    source : Path or ObjectPath
    state : State
        After the last run.
    payload, position, session, unwrap
        As in `ordered_files`.
    accept_gap : bool
    listing : list of (path, Listed), optional
        Of the source, if it has been made.

    Raises
    ------
    PathError, FileFault
        As in `ordered_files`.
    RunError
        If a file came too late, has changed after it was decoded, or comes from another slot; if payloads are missing
        before it, or its capture accepted that and the caller does not; or if positions come from elsewhere than those
        before.
    """
    last = -1 if state.replication is None else int(state.replication["position"]) - 1
    listing = listing_of(source, may_be_empty=bool(state.files)) if listing is None else listing
    paths = _unknown(listing, state)
    if not paths:
        ordered = OrderedFiles((), state.position, session)
        return NewInput(state, [], Selection([], []), listing, ordered=ordered, last=last)
    ordered = open_ordered([*paths], payload, position, session, unwrap)
    if ordered.is_counted:
        ordered = replace(ordered, position=None)
    _check_positions(state, ordered)
    column = ordered.position
    entries = [_described(file, paths[file.path], column) for file in ordered.files]
    if column is None:
        selection = select_by_name(entries, state, is_ordered=True)
    else:
        selection = select_by_position(entries, state, last)
    files = _selected(state, ordered.files, selection, entries)
    origin = source_of(files)
    check_source(state, origin)
    check_no_gap(state, last, selection, is_captured=is_captured(files))
    gaps = accepted_gaps(files, accept_gap=accept_gap)
    ordered = replace(ordered, files=tuple(files), first_position=last + 1, last_session=state.session)
    return NewInput(state, files, selection, listing, origin, gaps, ordered, last)


def _unknown(listing: Listing, state: State) -> dict[FilePath, Listed]:
    """Return the files of a listing that the state does not have, or not so."""
    return dict(listing[number] for number in unknown_files([item for _, item in listing], state))


def _usual_position(file: PayloadFile) -> str | None:
    """Return the column of integers that tells which rows a file has, according to its statistics."""
    ranges = [{name for name, _, _ in group.ranges} for group in file.groups]
    return next((name for name in USUAL_NAMES if ranges and all(name in names for names in ranges)), None)


def _described(file: PayloadFile, listed: Listed, column: str | None) -> InputFile:
    first = last = None
    if column is not None and file.n_rows:
        limits = [limit for group in file.groups for limit in group.ranges if limit[0] == column]
        if len(limits) == len(file.groups):
            first, last = min(low for _, low, _ in limits), max(high for _, _, high in limits)
        else:
            first, last = file.range_of(column) or (None, None)
    return InputFile(*listed, file.n_rows, first, last)


def _selected(
    state: State, opened: Sequence[PayloadFile], selection: Selection, entries: Sequence[InputFile]
) -> list[PayloadFile]:
    """Check the files that the state has, and leave out the rows that have been decoded."""
    files = {item.path: file for item, file in zip(entries, opened, strict=True)}

    def fingerprint(item: InputFile, row: int) -> str | None:
        batches = files[item.path].after(row).batches(1)
        return fingerprint_of(next(batches).column(files[item.path].payload)[0])

    check_fingerprints(selection, state, fingerprint)
    return [files[item.path].after(n_rows) for item, n_rows in selection.new]


def _check_positions(state: State, ordered: OrderedFiles) -> None:
    if not state.files:
        return
    columns = (state.position, ordered.position)
    if state.is_counted == (ordered.position is None) and (None in columns or len({*columns}) == 1):
        return
    before = "are counted" if state.is_counted else f"are from the column {state.position or 'of positions'!r}"
    now = "are counted" if ordered.position is None else f"are from the column {ordered.position!r}"
    raise RunError(f"{ordered.files[0].path}: its positions {now}, but those of the input so far {before}")
