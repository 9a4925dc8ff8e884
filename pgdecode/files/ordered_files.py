"""Payload files in slot order: one sequence of payloads, each with its position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.int64_kernels import descent
from pgdecode.changes.committed_changes import values_of
from pgdecode.datasets.input_listing import find_files
from pgdecode.files.payload_batches import read_files
from pgdecode.files.payload_file import BATCH_ROWS, CAPTURE_SESSION, FileFault, PayloadFile, fingerprint_of
from pgdecode.files.payload_files import FILES_AT_ONCE, USUAL_NAMES, open_files
from pgdecode.payloads.payload_input import holds_positions
from pgdecode.payloads.workers import ONE_WORKER, Workers, map_io
from pgdecode.protocol.options import Unwrap
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import FilePath, ObjectPath


class OrderFault(FileFault):
    """The rows are not in the order of their positions."""


@dataclass(frozen=True)
class OrderedBatch:
    """Consecutive rows of a file.

    Attributes
    ----------
    file : PayloadFile
    start : int
        Number of the first row in the file, counted from 0.
    source : pa.RecordBatch
        The payload and `keep` columns of the file.
    positions : pa.Array
        int64, ascending within the batch and from batch to batch.
    is_reconnected : bool
        Whether a new session begins with this batch.
    session : str or None
        The value of the session column, as text.
    """

    file: PayloadFile
    start: int
    source: pa.RecordBatch
    positions: pa.Array
    is_reconnected: bool = False
    session: str | None = None

    @property
    def payloads(self) -> pa.Array:
        """The payload column."""
        return self.source.column(self.file.payload)

    def first(self, n_rows: int) -> OrderedBatch:
        """Return the first rows of the batch."""
        return replace(self, source=self.source.slice(0, n_rows), positions=self.positions.slice(0, n_rows))


@dataclass(frozen=True)
class OrderedFiles:
    """Files in slot order.

    Attributes
    ----------
    files : tuple of PayloadFile
    position : str or None
        The column with positions. None: rows are in the order of the files' names, and positions are counted from 0.
    session : str or None
        The column whose value changes when the client reconnected to the server.
    first_position : int
        Without a position column: the position of the first row.
    last_session : str or None
        The last value of the session column before the files, as text.
    fingerprints : dict of path to str
        Of the last row of each file, once it has been read.
    """

    files: tuple[PayloadFile, ...]
    position: str | None
    session: str | None = None
    first_position: int = 0
    last_session: str | None = None
    fingerprints: dict[FilePath, str] = field(default_factory=dict, compare=False)

    @property
    def n_rows(self) -> int:
        """Number of rows in all files."""
        return sum(file.n_rows for file in self.files)

    @property
    def is_counted(self) -> bool:
        """Whether positions are counted. Text files without positions have the numbers of their rows."""
        return self.position is None or any(
            file.converted is not None and not file.converted.has_positions for file in self.files
        )

    def batches(self, batch_rows: int = BATCH_ROWS, workers: Workers = ONE_WORKER) -> Iterator[OrderedBatch]:
        """Read the files in order, at most `batch_rows` rows at once. Workers read ahead.

        Raises
        ------
        OrderFault
            If a position is null or not greater than the previous one.
        FileFault
            If a file is damaged.
        """
        positions = self.positions()
        last = self.last_session
        present = None
        start = 0
        for file, source in read_files(self.files, batch_rows, workers):
            start = start if file is present else file.start
            present = file
            if len(source):
                self.fingerprints[file.path] = fingerprint_of(source.column(file.payload)[-1])
            batch = OrderedBatch(file, start, source, positions.of(file, start, source))
            if self.session is None or not len(source):
                yield batch
            else:
                sessions = source.column(self.session)
                yield from _sessions(batch, sessions, last)
                last = session_text(sessions[-1].as_py())
            start += len(source)

    def positions(self) -> Positions:
        """Make the `Positions` of the rows, which must be read in order."""
        return Positions(self.position, self.first_position)


def session_text(value: Any) -> str:
    """Return a value of a session column as text, which is the same for all its types and in all time zones."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    return str(value)


def _sessions(batch: OrderedBatch, sessions: pa.Array, last: str | None) -> Iterator[OrderedBatch]:
    """Split a batch at the rows where the session changes."""
    encoded = pc.run_end_encode(sessions)
    start = 0
    for value, end in zip(encoded.values, encoded.run_ends.to_pylist(), strict=True):
        text = session_text(value.as_py())
        is_reconnected = last is not None and text != last
        n = end - start
        positions = batch.positions.slice(start, n)
        source = batch.source.slice(start, n)
        yield OrderedBatch(batch.file, batch.start + start, source, positions, is_reconnected, text)
        start, last = end, text


class Positions:
    """Finds the positions of rows, and checks that they ascend."""

    def __init__(self, column: str | None, first: int = 0) -> None:
        self._column = column
        self._n_before = first
        self._last = 0
        self._last_file: PayloadFile | None = None

    def of(self, file: PayloadFile, start: int, source: pa.RecordBatch, rows: Sequence[int] | None = None) -> pa.Array:
        """Return the positions of the next rows of a file, from row `start`, or of these `rows`.

        Raises
        ------
        OrderFault
            If a position is null or not greater than the previous one.
        """
        if self._column is None:
            self._n_before += len(source)
            return pa.array(range(self._n_before - len(source), self._n_before), pa.int64())
        rows = range(start, start + len(source)) if rows is None else rows
        positions = source.column(self._column)
        try:
            # A cast takes time even if it changes nothing.
            positions = positions if positions.type == pa.int64() else positions.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise OrderFault(f"{file.path}: rows from {start}: {self._column} exceeds 2**63 - 1") from error
        if positions.null_count:
            row = positions.is_null().index(True).as_py()
            raise OrderFault(f"{file.path}: row {rows[row]}: {self._column} is null")
        if not len(positions):
            return positions
        if self._last_file is not None and positions[0].as_py() <= self._last:
            where = "" if self._last_file is file else f" of {self._last_file.path}"
            raise self._descent(file, rows[0], positions[0], f"{self._last}{where}")
        row = descent(values_of(positions))
        if row >= 0:
            raise self._descent(file, rows[row], positions[row], f"{positions[row - 1]}")
        self._last, self._last_file = positions[-1].as_py(), file
        return positions

    def of_joined(self, source: pa.RecordBatch, last: PayloadFile) -> pa.Array | None:
        """Return the positions of the next rows, of which the last are of the file `last`.

        None if they need a cast or one is wrong: then `of` must be called for the rows of each file.
        """
        positions = source.column(self._column)
        if positions.type != pa.int64() or positions.null_count or not len(positions):
            return None
        if self._last_file is not None and positions[0].as_py() <= self._last:
            return None
        if descent(values_of(positions)) >= 0:
            return None
        self._last, self._last_file = positions[-1].as_py(), last
        return positions

    def _descent(self, file: PayloadFile, row: int, position: pa.Scalar, before: str) -> OrderFault:
        return OrderFault(
            f"{file.path}: row {row}: {self._column} {position} does not come after {before}; "
            f"sort the rows of all files by {self._column}, or name the column with the slot order as the position"
        )


def ordered_files(
    path: FilePath,
    payload: str,
    position: str | None = None,
    session: str | None = None,
    unwrap: Unwrap = "auto",
) -> OrderedFiles:
    """Open the files of a path, as `payload_files` does, in the order of their positions, as `open_ordered` does."""
    return open_ordered(find_files(path), payload, position, session, unwrap)


def open_ordered(
    paths: Sequence[FilePath],
    payload: str,
    position: str | None = None,
    session: str | None = None,
    unwrap: Unwrap = "auto",
) -> OrderedFiles:
    """Open files in the order of their positions.

    Parameters
    ----------
    paths : sequence of Path or ObjectPath
        At least one, as `find_files` lists them.
    payload : str
    position : str, optional
        The column with positions, which are integers. By default it is `seq` or `position`, if all files have a column
        of that name; otherwise rows are in the order of the files' names.
    session : str, optional
        The column whose value changes when the client reconnected to the server. By default, the footers of files from
        `pgdecode capture` say it.
    unwrap : {"auto", "none", "hex", "base64", "xlogdata"}
        The form of the payloads, as in `pgdecode.unwrap`.

    Raises
    ------
    PathError
        As in `payload_files`, and for a position column that does not have integers.
    """

    def open_with(columns: tuple[str | None, str | None], opened: Sequence[PayloadFile]) -> list[PayloadFile]:
        keep = tuple(dict.fromkeys(name for name in columns if name is not None))
        return open_files(paths, payload, keep, unwrap, opened)

    first = open_files(paths[:1], payload, () if session is None else (session,), unwrap)
    columns = _order_columns(first, position, session)
    found = None
    # Most often the other files are like the first one. Then each of them is opened only once.
    with suppress(PathError, FileFault):
        found = open_with(columns, first)
    if found is None or _order_columns(found, position, session) != columns:
        found = open_with((None, session), first)
        columns = _order_columns(found, position, session)
        if columns != (None, session):
            found = open_with(columns, found)
    chosen, session = columns
    if chosen is None:
        return OrderedFiles(tuple(found), None, session)
    check_positions(found, chosen)
    return OrderedFiles(tuple(in_slot_order(found, chosen)), chosen, session)


def _order_columns(
    files: Sequence[PayloadFile], position: str | None, session: str | None
) -> tuple[str | None, str | None]:
    """Choose the columns with positions and sessions, if all files have them."""
    if not position:
        position = next(
            (name for name in USUAL_NAMES if all(file.columns.names.count(name) == 1 for file in files)), None
        )
    if position is not None and session is None and is_captured(files):
        session = CAPTURE_SESSION
    return position, session


def in_slot_order(files: Sequence[PayloadFile], position: str) -> list[PayloadFile]:
    """Sort files, or pieces of files, by their first positions.

    Reading raises OrderFault if the first position of a file is null or not its lowest.

    Raises
    ------
    FileFault
        If a file is damaged.
    """
    if len(files) < 2:
        return list(files)
    is_remote = isinstance(files[0].path, ObjectPath)
    firsts = list(map_io(lambda file: file.first_value(position) or 0, files, FILES_AT_ONCE, is_remote=is_remote))
    return [files[number] for number in sorted(range(len(files)), key=firsts.__getitem__)]


def is_captured(files: Sequence[PayloadFile]) -> bool:
    """Whether the footers of all files say in which session their rows were received."""
    return all(file.captured is not None and CAPTURE_SESSION not in file.columns.names for file in files)


def interruptions(files: Sequence[PayloadFile]) -> list[int]:
    """List where the sessions begin that follow one with open streams. Other reconnects make no difference."""
    if not is_captured(files):
        return []
    found = sorted((file.captured for file in files if file.captured is not None), key=lambda item: item.first_seq)
    pairs = ((last, first) for last, first in pairwise(found) if last.open_streams and last.session != first.session)
    return [first.first_seq for _, first in pairs]


def check_positions(files: Sequence[PayloadFile], position: str) -> None:
    """Check the type of the position column, which is one of the `keep` columns.

    Raises
    ------
    PathError
        If it does not have integers.
    """
    for file in files:
        type = file.schema.field(position).type
        if not holds_positions(type):
            raise PathError(
                f"{file.path}: column {position!r} is {type}, not integers: write it as integers, or name another "
                "column as the position"
            )
