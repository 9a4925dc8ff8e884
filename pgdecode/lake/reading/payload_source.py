"""Files of payloads, read from a position on, and at single positions."""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.committed_changes import values_of
from pgdecode.datasets.errors import RunError
from pgdecode.datasets.input_listing import find_files, is_hidden
from pgdecode.files.ordered_files import OrderedFiles, Positions, is_captured, open_ordered
from pgdecode.files.payload_file import BATCH_ROWS, PayloadFile, fingerprint_of
from pgdecode.lake.applied import Applied
from pgdecode.payloads.commits import commit_lsn_of
from pgdecode.protocol.options import Unwrap
from pgdecode.storage.object_path import FilePath, ObjectPath, relative_name

# `pgdecode capture` names a file by its first position.
_CAPTURED = re.compile(r"[0-9]{20}\.parquet")
_GO_ON = "keep what was applied and append to it, or apply the new payloads to another target"


@dataclass
class PayloadSource:
    """A file or folder of payloads in slot order.

    Attributes
    ----------
    path : Path or ObjectPath
    payload, position, session, unwrap
        As in `open_ordered`.
    """

    path: FilePath
    payload: str = "data"
    position: str | None = None
    session: str | None = None
    unwrap: Unwrap = "auto"
    _paths: Sequence[FilePath | str] = field(default=(), init=False)  # names of captured files: a folder has many
    _firsts: list[int] | None = field(default=None, init=False)  # of captured files, by their names
    _opened: dict[FilePath, OrderedFiles] = field(default_factory=dict, init=False)
    _all: OrderedFiles | None = field(default=None, init=False)
    _n_applied: int = field(default=0, init=False)  # payloads of the files up to the position of `after`

    def find(self) -> None:
        """List the files.

        Raises
        ------
        PathError
            If there are none.
        """
        names = _captured_names(self.path)
        if names:
            self._paths, self._firsts = names, [int(name[:20]) for name in names]
            return
        paths = find_files(self.path)
        if all(_CAPTURED.fullmatch(path.name) for path in paths):
            paths = sorted(paths, key=lambda path: path.name)
            self._firsts = [int(path.name[:20]) for path in paths]
        self._paths = paths

    def _chosen(self, start: int = 0, end: int | None = None) -> list[FilePath]:
        return [self.path / item if isinstance(item, str) else item for item in self._paths[start:end]]

    def after(self, last: int, last_session: str | None = None, seen: Mapping[str, Any] | None = None) -> OrderedFiles:
        """Open the files with payloads after a position, without the payloads up to it.

        Captured files before it are not opened. Of others, only the footers are read.

        Parameters
        ----------
        last : int
        last_session : str, optional
        seen : mapping, optional
            What `seen` returned for this position.

        Raises
        ------
        PathError, FileFault
            As `open_ordered`.
        RunError
            If files are missing or were replaced, or have come between those that were read.
        """
        if self._firsts is not None:
            chosen = self._chosen(max(bisect_right(self._firsts, last + 1) - 1, 0))
            opened = open_ordered(chosen, self.payload, self.position, self.session, self.unwrap)
        else:
            opened = self._every()
        bases = self._bases(opened)
        files = [_after(file, opened.position, last, base) for file, base in zip(opened.files, bases, strict=True)]
        self._check_captured(opened)
        n_before = opened.n_rows - sum(file.n_rows for file in files)
        if seen is not None:
            self._check_seen(seen, last, n_before)
        # Payloads of files that were deleted do not count any more: as many others could come too late.
        self._n_applied = n_before
        return replace(
            opened,
            files=tuple(file for file in files if file.n_rows),
            first_position=last + 1,
            last_session=last_session,
        )

    def seen(self, position: int, n_rows: int, fingerprint: str | None) -> dict[str, Any]:
        """Describe the files up to a position, so that a later call can tell whether others have come.

        Parameters
        ----------
        position : int
        n_rows : int
            Number of the payloads that were read since `after`, up to this position.
        fingerprint : str or None
            Of the payload at this position.
        """
        if self._firsts is not None:
            return {"fingerprint": fingerprint}  # names tell the positions
        if self._every().position is not None:
            return {"rows": self._n_applied + n_rows, "fingerprint": fingerprint}
        file, start = self._file_at(position)
        return {"file": relative_name(file.path, self.path), "start": start, "fingerprint": fingerprint}

    def _file_at(self, position: int) -> tuple[PayloadFile, int]:
        """Return the file with a counted position, or else the last one, and the position of its first row."""
        opened = self._every()
        bases = self._bases(opened)
        at = bisect_right(bases, position) - 1
        return opened.files[at], bases[at]

    def _check_seen(self, seen: Mapping[str, Any], last: int, n_before: int) -> None:
        if "rows" in seen and n_before > seen["rows"]:
            raise RunError(
                f"{self.path}: {n_before - seen['rows']:,} payloads came too late: they are at or before position "
                f"{last}, up to which payloads are applied; apply all of them to another target"
            )
        if "file" in seen and self._firsts is None and self._every().position is None:
            self._check_counted(seen, last)

    def _check_counted(self, seen: Mapping[str, Any], last: int) -> None:
        """Check that counted positions are those of the same payloads as before."""
        file, start = self._file_at(last)
        # A source that is one file may be renamed.
        name = seen["file"] if file.path == self.path else relative_name(file.path, self.path)
        if (name, start) != (seen["file"], seen["start"]):
            raise RunError(
                f"{self.path}: positions are counted, and files before the end of {seen['file']}, up to which "
                "payloads are applied, were added or removed: keep the files, and give new ones names behind them"
            )
        n_rows = self._every().n_rows
        if last >= n_rows:
            raise RunError(
                f"{self.path}: positions are counted, and it has {n_rows:,} payloads, but all up to position {last} "
                f"are applied: {file.path.name} was cut or replaced; {_GO_ON}"
            )
        _, payloads = next(self.at(pa.array([last], pa.int64())))
        if seen.get("fingerprint") not in (None, fingerprint_of(payloads[0])):
            raise RunError(
                f"{file.path}: row {last - start}: positions are counted, and the payload at position {last}, up to "
                f"which payloads are applied, is not the one that was applied: the file was changed or "
                f"replaced; {_GO_ON}"
            )

    def check_follows(self, applied: Applied, target: str) -> None:
        """Check that the payloads are those that were applied to a table, as far as there are files with them.

        Another folder of the same slot has other payloads at the same positions, and would lose changes.

        Raises
        ------
        RunError
            If they are others, or captured files end before the position of the table, and are later all the same.
        """
        if self._firsts is None and self._every().position is None:
            return  # positions are counted, and `after` has compared the payload
        replication = applied.replication or {}
        seen, engine = replication.get("seen") or {}, replication.get("engine", {})
        # A payload may be equal by chance, but no commit is. Those of copies are not in the state: instead, another
        # folder begins after all of them.
        lsn = engine.get("last_lsn", -1)
        commit_position = engine["last_lsn_position"] if lsn >= 0 else 0
        of = f"the {applied.payloads} that {target} has"
        remedy = "apply those, or apply this folder to another target"
        last = (self._every().files if self._firsts is None else self.footers())[-1]
        end = applied.position + 1 if last.captured is None else last.captured.first_seq + last.n_rows
        # Files of before may be applied again, one by one.
        if last.captured is not None and end <= applied.position and last.captured.first_lsn > applied.commit_lsn:
            raise RunError(f"{self.path}: ends at position {end - 1}, and does not have {of}: {remedy}")
        for positions, payloads in self._read_at(pa.array(sorted({commit_position, applied.position}), pa.int64())):
            for position, payload in zip(values_of(positions), payloads, strict=True):
                is_same = position != applied.position or seen.get("fingerprint") in (None, fingerprint_of(payload))
                if position == commit_position:
                    sent = commit_lsn_of(payload.as_py() or b"")
                    is_same &= sent == lsn if lsn >= 0 else sent is None or sent <= applied.commit_lsn
                if not is_same:
                    raise RunError(f"{self.path}: at position {position}, it does not have {of}: {remedy}")

    def _check_captured(self, opened: OrderedFiles) -> None:
        """Check that no captured file is missing between others."""
        if opened.position is None or not is_captured(opened.files):
            return
        for before, file in pairwise(opened.files):
            assert before.captured is not None
            assert file.captured is not None
            end, first = before.captured.first_seq + before.n_rows, file.captured.first_seq
            if first > end:
                raise RunError(
                    f"{self.path}: {file.path.name} begins at position {first}, but {before.path.name} ends at "
                    f"{end - 1}: {first - end:,} payloads between them are missing"
                )

    def footers(self) -> Sequence[PayloadFile]:
        """Open the last file, whose footer has what the footers of all files say of the source."""
        return open_ordered(self._chosen(-1), self.payload, self.position, self.session, self.unwrap).files

    def _every(self) -> OrderedFiles:
        """Open all files, once."""
        if self._all is None:
            found = open_ordered(self._chosen(), self.payload, self.position, self.session, self.unwrap)
            self._all = replace(found, position=None) if found.is_counted else found
        return self._all

    def _bases(self, opened: OrderedFiles) -> Sequence[int]:
        """Return the position of the first row of each file, if positions are counted."""
        return [0, *accumulate(file.n_rows for file in opened.files)][: len(opened.files)]

    def at(self, positions: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Read the payloads at ascending positions. Yield positions and payloads in batches.

        Raises
        ------
        RunError
            If one is missing.
        """
        n_read = 0
        for found, payloads in self._read_at(positions):
            yield found, payloads
            n_read += len(found)
        if n_read < len(positions):
            raise RunError(
                f"{self.path}: {len(positions) - n_read:,} payloads of a transaction that had no end at the last run "
                f"are missing: keep the files from position {positions[0]} on, or copy the tables again"
            )

    def _read_at(self, positions: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Read the payloads at ascending positions, as far as there are some."""
        wanted = values_of(positions)
        low, high = wanted[0], wanted[-1]
        for opened, file, base in self._files_with(low, high):
            groups = tuple(
                group
                for group in file.groups
                if all(low <= last and first <= high for name, first, last in group.ranges if name == opened.position)
            )
            if opened.position is None:
                groups = tuple(
                    group
                    for group in file.groups
                    if base + group.start <= high and low < base + group.start + group.n_rows
                )
            if not groups:
                continue
            piece = replace(file, groups=groups, entries={}, skip=0)
            numbers = Positions(opened.position, base + groups[0].start)
            start = groups[0].start
            for source in piece.batches(BATCH_ROWS):
                found = numbers.of(file, start, source)
                start += len(source)
                if not len(found):
                    continue
                # Only those in the range of the batch, because Arrow makes a hash table of them.
                first = bisect_left(wanted, found[0].as_py())
                end = bisect_right(wanted, found[-1].as_py())
                is_wanted = pc.is_in(found, positions.slice(first, end - first))
                if pc.any(is_wanted).as_py():
                    yield found.filter(is_wanted), source.column(file.payload).filter(is_wanted)

    def _files_with(self, low: int, high: int) -> Iterator[tuple[OrderedFiles, PayloadFile, int]]:
        """Yield the files that may have positions from `low` to `high`."""
        if self._firsts is None:
            opened = self._every()
            for file, base in zip(opened.files, self._bases(opened), strict=True):
                yield opened, file, base
            return
        first = max(bisect_right(self._firsts, low) - 1, 0)
        for path in self._chosen(first, bisect_right(self._firsts, high)):
            if path not in self._opened:
                self._opened[path] = open_ordered([path], self.payload, self.position, self.session, self.unwrap)
            opened = self._opened[path]
            yield opened, opened.files[0], 0


def _captured_names(path: FilePath) -> list[str]:
    """List the files of a local folder if all that it has are captured; empty otherwise."""
    if isinstance(path, ObjectPath) or not path.is_dir():
        return []
    with os.scandir(path) as entries:
        names = []
        for entry in entries:
            if _CAPTURED.fullmatch(entry.name) and entry.is_file():
                names.append(entry.name)
            elif not is_hidden(entry.name) and (entry.is_dir() or entry.name.endswith(".parquet")):
                return []
    return sorted(names)


def first_position(opened: OrderedFiles) -> int | None:
    """Return the first position of captured files, which have no gaps; None for others and without files."""
    if opened.position is None or not opened.files or not is_captured(opened.files):
        return None
    file = opened.files[0]
    first = file.groups[0].counted_from(opened.position)
    return None if first is None else first + file.skip


def _after(file: PayloadFile, position: str | None, last: int, base: int) -> PayloadFile:
    """Leave out the rows of a file up to a position."""
    if position is None:
        return file.after(min(max(last + 1 - base, 0), file.n_rows))
    n_rows = 0
    for group in file.groups:
        limits = next(((low, high) for name, low, high in group.ranges if name == position), None)
        if limits is not None and limits[1] <= last:
            n_rows += group.n_rows
            continue
        if limits is not None and limits[0] > last:
            break
        first = group.counted_from(position)
        if first is not None:
            n_rows += last + 1 - first
            break
        piece = replace(file, groups=(group,), entries={}, skip=0)
        n_before = sum(pc.sum(pc.less_equal(batch.column(position), last)).as_py() or 0 for batch in piece.batches())
        n_rows += n_before
        if n_before < group.n_rows:
            break
    return file.after(n_rows) if n_rows else file
