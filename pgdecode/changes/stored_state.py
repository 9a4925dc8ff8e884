"""Converts a replication state to the state of a data set and back, with undecided payloads in files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.checkpoint import ROWS, state_from_json, state_to_json
from pgdecode.changes.committed_changes import values_of
from pgdecode.changes.replication_state import BufferedChanges, ChangePart, ReplicationState
from pgdecode.changes.spill_files import buffered_in, spill_path, spilled_to
from pgdecode.datasets.errors import RunFault
from pgdecode.datasets.file_digest import FileDigest
from pgdecode.datasets.payload_ranges import PAYLOADS, PayloadRange, PayloadReader, PayloadWriter
from pgdecode.datasets.state import State
from pgdecode.relations.column_history import NO_RENAMES, Renames, rename_events
from pgdecode.relations.version_tracker import BAD_PAYLOAD, INVALID
from pgdecode.storage.object_path import FilePath


@dataclass(frozen=True)
class StoredRange:
    """A range of a payload file: `StoredChanges` of one transaction.

    Attributes
    ----------
    reader : PayloadReader
        Of the file.
    place : PayloadRange
    begin_position : int
    n_versions : int
        Number of the versions of relations in the state.
    path : Path or None
        The spill file.
    """

    reader: PayloadReader
    place: PayloadRange
    begin_position: int
    n_versions: int
    path: Path | None = None

    def __len__(self) -> int:
        return self.place.rows

    def parts(self) -> Iterator[ChangePart]:
        """Read the changes in order. With a spill file, they are copied there.

        Raises
        ------
        RunFault
            If the file is not the one that was written, or its content does not fit the transaction.
        """
        if self.path is not None and self.path in self.reader.copies and self.path.exists():
            return buffered_in(self.path).parts()
        found = map(self._checked, self.reader.read(self.place))
        if self.path is None:
            return found
        copied = spilled_to(self.path, found)
        # Another decoder, for a second pass, may read the transaction again.
        self.reader.copies.add(self.path)
        return copied.parts()

    def _checked(self, batch: pa.RecordBatch) -> BufferedChanges:
        begins, positions, xids, relation_ids, versions, payloads = batch.columns
        ends = [self.place.first_position, *(positions[place].as_py() for place in (0, -1)), self.place.last_position]
        wrong = (
            (pc.any(pc.not_equal(begins, self.begin_position)), "of another transaction"),
            (pc.any(pc.less(positions.slice(1), positions.slice(0, len(positions) - 1))), "out of order"),
            (pa.scalar(ends != sorted(ends)), "at another position"),
            (pc.any(pc.invert(pc.is_in(pc.binary_slice(payloads, 0, 1), pa.array(ROWS, payloads.type)))), "not a row"),
            (
                pc.any(
                    pc.or_kleene(
                        pc.equal(versions, BAD_PAYLOAD),
                        pc.or_kleene(pc.less(versions, INVALID), pc.greater_equal(versions, self.n_versions)),
                    )
                ),
                "of an unknown version of a relation",
            ),
        )
        for found, what in wrong:
            if found.as_py():
                raise RunFault(
                    f"{self.reader.path}: the transaction that began at {self.begin_position}: a payload is {what}"
                )
        numbers = (pa.py_buffer(values_of(column)) for column in (relation_ids, xids, versions))
        return BufferedChanges(payloads, positions, *numbers)


@dataclass(frozen=True)
class StoredState:
    """What a decoder of files needs of the state of a data set: `state`, and the state of files beside it.

    Attributes
    ----------
    state : ReplicationState
    user_types : sequence of (OID, name, declaration)
        Types from the footers of all payload files so far.
    session : str or None
        The last value of the session column, as text.
    """

    state: ReplicationState
    user_types: Sequence[tuple[int, str, str]] = ()
    session: str | None = None


def payload_batch(begin_position: int, changes: BufferedChanges) -> pa.RecordBatch:
    """Make the rows of a payload file."""
    n = len(changes)
    int64, int32 = pa.int64(), pa.int32()
    begins = pa.repeat(pa.scalar(begin_position, int64), n)
    xids, relation_ids = (
        pa.Array.from_buffers(int64, n, [None, item]) for item in (changes.xids, changes.relation_ids)
    )
    versions = pa.Array.from_buffers(int32, n, [None, changes.versions])
    columns = [begins, changes.positions, xids, relation_ids, versions, changes.payloads.cast(pa.large_binary())]
    return pa.RecordBatch.from_arrays(columns, schema=PAYLOADS)


def with_replication(state: State, replication: ReplicationState, path: FilePath) -> State:
    """Return the state of a data set with a replication state.

    Parameters
    ----------
    state : State
    replication : ReplicationState
        Payloads in files of the data set stay there.
    path : Path or ObjectPath
        From `NewFiles.payload_path`: a file for the other payloads, which is written one part at a time.
    """
    files: dict[str, FileDigest] = {}
    ranges: dict[int, list[PayloadRange]] = {}
    with PayloadWriter(path) as writer:
        for item in sorted(replication.undecided, key=lambda item: item.begin_position):
            found = ranges.setdefault(item.begin_position, [])
            for part in item.buffered:
                if isinstance(part, StoredRange) and part.reader.path.parent == path.parent:
                    files[part.place.file] = part.reader.file
                    found.append(part.place)
                    continue
                for changes in part.parts():
                    writer.write(payload_batch(item.begin_position, changes.read()))
    for begin, written in writer.ranges.items():
        ranges[begin].append(written)
    if writer.file is not None:
        files[writer.file.name] = writer.file
    payloads = {begin: sorted(items, key=lambda item: item.first_position) for begin, items in ranges.items() if items}
    return replace(
        state, replication=state_to_json(replication, with_payloads=False), payloads=payloads, payload_files=files
    )


def replication_of(state: State, spill: Path | None = None) -> ReplicationState:
    """Return the replication state of a data set. Payloads of undecided transactions are read when these end.

    Parameters
    ----------
    state : State
    spill : Path, optional
        A folder for the payloads of a transaction when it ends. By default they are then in memory.

    Raises
    ------
    RunFault
        If it is damaged.
    """
    if state.replication is None:
        return ReplicationState()
    try:
        readers = state.readers()
        n_versions = len(state.replication["catalog"]["versions"])
        stored = {
            begin: [
                StoredRange(
                    readers[item.file],
                    item,
                    begin,
                    n_versions,
                    None if spill is None else spill_path(spill, 0, begin, item.first_position),
                )
                for item in items
            ]
            for begin, items in state.payloads.items()
        }
        return state_from_json(state.replication, stored=stored)
    except (ValueError, LookupError, TypeError) as error:
        text = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise RunFault(f"{state.folder}: the state is damaged: {text}") from None


def renames_since(state: ReplicationState, stated: Renames | None, position: int = 0) -> list[dict[str, Any]]:
    """List the columns that have been renamed from a position on, for a manifest. `stated` are those of the options."""
    relations = state.relations
    versions = [relations.versions[number] for number in sorted(relations.in_layout)]
    return rename_events(versions, stated or NO_RENAMES, position)
