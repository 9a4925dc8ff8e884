"""Selects the input files of a run: those that the state does not have, and the new rows of those that have grown."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pgdecode.datasets.errors import RunError
from pgdecode.datasets.input_listing import Listed
from pgdecode.datasets.state import InputFile, State

# What identifies the source of payloads in the footers of captured files.
IDENTITY = ("system", "database", "slot")
_AGAIN = "; decode everything again with overwrite=True"


@dataclass(frozen=True)
class Selection:
    """What a run reads.

    Attributes
    ----------
    new : list of (InputFile, int)
        Files with new rows, each with the number of its rows that have been decoded.
    same : list of InputFile
        Files whose rows have all been decoded: moved, copied, touched or merged ones, and those without rows.
    """

    new: list[tuple[InputFile, int]]
    same: list[InputFile]


def unknown_files(listing: Iterable[Listed], state: State) -> list[int]:
    """Return the numbers of the files in a listing that the state does not have, or has with another size or time."""
    known = {item[0]: item[:3] for item in state.files}
    return [number for number, item in enumerate(listing) if known.get(item.path) != item]


def select_by_position(files: Sequence[InputFile], state: State, last: int) -> Selection:
    """Select among unknown files with positions.

    Parameters
    ----------
    files : sequence of InputFile
        Opened, with their positions.
    state : State
    last : int
        The last position that has been decoded; -1 before the first run.

    Raises
    ------
    RunError
        If a file has positions at or before the last one, and is not known to have been decoded.
    """
    by_path = {item.path: item for item in state.files}
    decoded = _Decoded(state.files)
    found = Selection([], [])
    for item in files:
        known = by_path.get(item.path)
        if known is not None and item.rows < known.rows and not (item.first is not None and item.first > last):
            raise changed(item.path)
        if not item.rows or decoded.has(item):
            found.same.append(item)
        elif item.first is None or item.first > last or last < 0:
            found.new.append((item, 0))  # without positions, reading it is an error that names the row
        elif known is not None and item.first == known.first and item.rows > known.rows and (item.last or 0) > last:
            found.new.append((item, known.rows))
        else:
            what = "came too late" if known is None else "was changed after it was decoded"
            raise RunError(
                f"{item.path}: {what}: it has the positions {item.first} to {item.last}, but all up to {last} have "
                f"been decoded{_AGAIN}"
            )
    return found


def select_by_name(files: Sequence[InputFile], state: State, *, is_ordered: bool) -> Selection:
    """Select among unknown files without positions.

    Parameters
    ----------
    files : sequence of InputFile
        Opened.
    state : State
    is_ordered : bool
        Whether the order of the files' names is that of their rows. Otherwise files are independent of each other.

    Raises
    ------
    RunError
        If a file comes before the last decoded one, or has less rows than when it was decoded.
    """
    by_path = {item.path: item for item in state.files}
    # Payloads that were not decoded from files have no name.
    named = [path for path, item in by_path.items() if item.version]
    last = max(map(_order, named), default=None) if is_ordered else None
    decoded = _Decoded(state.files)
    found = Selection([], [])
    for item in files:
        known = by_path.get(item.path)
        if known is None and (decoded.has(item) or (is_ordered and not item.rows)):
            found.same.append(item)
            continue
        if known is not None and item.first is not None and known.last is not None and item.first > known.last:
            found.new.append((item, 0))
            continue
        if known is not None and item.rows < known.rows:
            raise changed(item.path)
        if known is not None and item.rows == known.rows:
            found.same.append(item)
            continue
        if last is not None and _order(item.path) < last:
            what = "comes before one that has been decoded" if known is None else "has grown, but is not the last one"
            raise RunError(
                f"{item.path}: came too late: without positions, files are in the order of their names, and this one "
                f"{what}{_AGAIN}"
            )
        found.new.append((item, 0 if known is None else known.rows))
    return found


def check_fingerprints(selection: Selection, state: State, fingerprint: Callable[[InputFile, int], str | None]) -> None:
    """Check that files whose rows have been decoded, or some of them, have these rows.

    Parameters
    ----------
    selection : Selection
    state : State
    fingerprint : callable
        Computes the fingerprint of a row of a file.

    Raises
    ------
    RunError
        If they do not.
    """
    known = {item.path: item for item in state.files}
    by_position = {item.last: item.fingerprint for item in state.files if item.last is not None}
    decoded = [(item, item.rows) for item in selection.same] + [item for item in selection.new if item[1]]
    for item, n_rows in decoded:
        before = known.get(item.path)
        expected = None if before is None or before.rows != n_rows else before.fingerprint
        if expected is None and item.rows == n_rows:
            expected = by_position.get(-1 if item.last is None else item.last)
        if expected is None or not n_rows or fingerprint(item, n_rows - 1) == expected:
            continue
        if before is not None:
            raise changed(item.path)
        raise RunError(
            f"{item.path}: came too late: it has the positions {item.first} to {item.last} of other rows, which have "
            f"been decoded{_AGAIN}"
        )


def changed(path: str) -> RunError:
    """Make the error for a file whose decoded rows are not there any more."""
    return RunError(f"{path}: was changed after it was decoded{_AGAIN}")


def check_source(state: State, source: Mapping[str, Any] | None) -> None:
    """Check that new files come from the same slot as those before.

    Raises
    ------
    RunError
    """
    for name in IDENTITY if state.source is not None and source is not None else ():
        old, new = state.source.get(name), source.get(name)  # type: ignore[union-attr]
        if old != new:
            raise RunError(f"the input so far came from {name} {old!r}, this input comes from {name} {new!r}")


def check_no_gap(state: State, last: int, selection: Selection, *, is_captured: bool) -> None:
    """Check that no payloads are missing between the last decoded one and the first new one.

    Parameters
    ----------
    state : State
    last : int
        The last decoded position.
    selection : Selection
    is_captured : bool
        Whether `pgdecode capture` wrote the new files. It numbers payloads without gaps.

    Raises
    ------
    RunError

    Notes
    -----
    A gap is known if the files before and after it have no gaps, or were captured. Otherwise positions may have gaps,
    and missing payloads show only in the payloads themselves.
    """
    whole = [item for item, n_rows in selection.new if n_rows == 0]
    first = min((item.first for item in whole if item.first is not None), default=None)
    if first is None or len(whole) < len(selection.new) or not state.files or first <= last + 1:
        return
    are_captured = is_captured and state.source is not None
    if are_captured or (_are_dense(state.files) and _are_dense(whole)):
        raise RunError(
            f"the input begins at position {first}, but the last decoded position is {last}: {first - last - 1:,} "
            "payloads between them are missing"
        )


def recorded(selection: Selection, state: State) -> list[InputFile]:
    """Return the entries of files that were passed over, for the state after the run."""
    exact = {(item.first, item.last, item.rows) for item in state.files}
    by_path = {item.path: item for item in state.files}
    found = []
    for item in selection.same:
        known = by_path.get(item.path)
        if known is not None:
            found.append(item._replace(fingerprint=known.fingerprint, in_stream=known.in_stream))
        elif (item.first, item.last, item.rows) in exact:
            found.append(item)
        else:
            # The state has these rows already, in other files.
            found.append(item._replace(first=None, last=None))
    return found


class _Decoded:
    """The ranges of positions that have been decoded."""

    def __init__(self, files: Sequence[InputFile]) -> None:
        found = {
            (item.first, item.last, item.rows) for item in files if item.first is not None and item.last is not None
        }
        self._ranges = sorted(found)
        self._firsts = [first for first, _, _ in self._ranges]
        self._exact = found
        # Without gaps, and not known file by file: what Python has decoded.
        self._dense = [(item.first, item.last) for item in files if item.fingerprint is None and _is_dense(item)]

    def has(self, item: InputFile) -> bool:
        """Whether the rows of a file were decoded, by their positions: as one file, as several, or as a part."""
        if item.first is None or item.last is None:
            return False
        if (item.first, item.last, item.rows) in self._exact:
            return True
        inside = self._ranges[bisect_left(self._firsts, item.first) : bisect_right(self._firsts, item.last)]
        rows = sum(n_rows for _, _, n_rows in inside)
        if inside and rows == item.rows and (inside[0][0], inside[-1][1]) == (item.first, item.last):
            return all(before[1] < after[0] for before, after in pairwise(inside))
        return _is_dense(item) and any(
            first is not None and last is not None and first <= item.first and item.last <= last
            for first, last in self._dense
        )


def _is_dense(item: InputFile) -> bool:
    return item.first is not None and item.last is not None and item.last - item.first + 1 == item.rows


def _are_dense(files: Iterable[InputFile]) -> bool:
    """Whether each position from the first to the last occurs, and there are some."""
    ranges = {(item.first, item.last, item.rows) for item in files if item.first is not None and item.last is not None}
    n_rows = sum(rows for _, _, rows in ranges)
    return n_rows > 1 and max(last for _, last, _ in ranges) - min(first for first, _, _ in ranges) + 1 == n_rows


def _order(path: str) -> tuple[str, ...]:
    """Return what sorts paths and URIs as a listing does."""
    return (path,) if "://" in path else Path(path).parts
