"""Files with the payloads of undecided transactions, if there are too many for memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import pyarrow as pa

from pgdecode.changes.replication_state import (
    BufferedChanges,
    ChangePart,
    ReplicationState,
    StoredChanges,
    Transaction,
)
from pgdecode.relations.undo_log import UndoLog
from pgdecode.storage.errors import storage_errors

_SCHEMA = pa.schema(
    [
        ("payload", pa.large_binary()),
        ("position", pa.int64()),
        ("relation_id", pa.int64()),
        ("xid", pa.int64()),
        ("version", pa.int32()),
    ]
)
_WITHOUT_PAYLOADS = [name for name in _SCHEMA.names if name != "payload"]

# A state may come from an untrusted source. Only files with such names, in the spill folder, are read or deleted.
_NAME = re.compile(r"pgdecode-[0-9]+-[0-9-]+-[0-9]+\.arrow")


class _SpillFile:
    """An open file. It can still be read after it was deleted.

    It is read, and not mapped: pages of a large file would count as memory of the process until the file is closed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Threads may read at the same time.
        self._lock = Lock()
        file = pa.OSFile(str(path))
        self._all = pa.ipc.open_file(file)
        options = pa.ipc.IpcReadOptions(included_fields=[_SCHEMA.get_field_index(name) for name in _WITHOUT_PAYLOADS])
        self._numbers = pa.ipc.open_file(file, options=options)

    def read(self, number: int, *, with_payloads: bool) -> pa.RecordBatch:
        """Read one of the batches."""
        with self._lock:
            return (self._all if with_payloads else self._numbers).get_batch(number)

    def lengths(self) -> list[int]:
        """Count the changes of each batch."""
        return [len(self.read(number, with_payloads=False)) for number in range(self._all.num_record_batches)]


@dataclass(frozen=True, slots=True)
class _SpilledPart:
    """One of the batches of an open file."""

    file: _SpillFile
    number: int
    n: int

    def __len__(self) -> int:
        return self.n

    @property
    def path(self) -> Path:
        """The file."""
        return self.file.path

    def read(self, *, with_payloads: bool = True) -> BufferedChanges:
        """Read the changes, as `ChangePart.read` does."""
        batch = self.file.read(self.number, with_payloads=with_payloads)
        payloads = batch["payload"] if with_payloads else pa.nulls(len(batch), pa.large_binary())
        numbers = (batch[name].buffers()[1] for name in _WITHOUT_PAYLOADS[1:])
        return BufferedChanges(payloads, batch["position"], *numbers)


@dataclass(frozen=True, slots=True)
class SpilledChanges:
    """Changes of an undecided transaction in a file.

    The file is open only while its parts are in use: there may be more undecided transactions than a process may open
    files.
    """

    path: Path
    lengths: Sequence[int]  # of the batches

    def __len__(self) -> int:
        return sum(self.lengths)

    def parts(self) -> Iterator[ChangePart]:
        """Open the file, and yield the changes. They can still be read after the file was deleted."""
        file = _SpillFile(self.path)
        for number, n in enumerate(self.lengths):
            yield _SpilledPart(file, number, n)


def path_in(directory: Path | None, name: str) -> Path:
    """Return the path of a file that a state names.

    Raises
    ------
    ValueError
        If it is not the name of a spill file, or there is no folder.
    """
    if directory is None:
        raise ValueError("the state has payloads on disk: pass their folder as spill=")
    if not _NAME.fullmatch(name):
        raise ValueError("the state names a file that is not a spill file")
    return directory / name


def buffered_bytes(transaction: Transaction) -> int:
    """Count the bytes of a transaction's payloads in memory."""
    return sum(part.payloads.nbytes for part in _in_memory(transaction))


def bytes_in_memory(state: ReplicationState) -> int:
    """Count the bytes of the payloads of all undecided transactions in memory."""
    return sum(map(buffered_bytes, state.undecided))


def spill(state: ReplicationState, directory: Path, most_bytes: int) -> int:
    """Write payloads to files, largest transactions first, until at most `most_bytes` bytes are in memory.

    Each file is written once, in Arrow's IPC file format, and read when its transaction ends. The cost depends on the
    number of undecided transactions and of their changes in memory, so this is called only if there are too many bytes.
    Returns the number of bytes left in memory.
    """
    undecided = state.undecided
    sizes = sorted(((buffered_bytes(item), place) for place, item in enumerate(undecided)), reverse=True)
    total = sum(size for size, _ in sizes)
    for size, place in sizes:
        if total <= most_bytes or size == 0:
            break
        _write(undecided[place], directory, state.undo_log)
        total -= size
    return total


def _write(transaction: Transaction, directory: Path, undo_log: UndoLog) -> None:
    """Move the buffered changes of a transaction from memory to one file."""
    in_memory = _in_memory(transaction)
    path = spill_path(directory, transaction.xid, transaction.begin_position, in_memory[0].positions[0].as_py())
    n_in_files = len(transaction.buffered) - len(in_memory)
    undo_log.record(_delete, path)
    written = spilled_to(path, in_memory)
    undo_log.record(_replace_from, transaction, n_in_files, in_memory)
    _replace_from(transaction, n_in_files, [written])


def _delete(path: Path) -> None:
    """Delete the file of a call that failed. The state is restored in any case; a file that stays is in no state."""
    with suppress(OSError):
        path.unlink()


def _replace_from(transaction: Transaction, first: int, parts: Sequence[StoredChanges]) -> None:
    transaction.buffered[first:] = parts


def _in_memory(transaction: Transaction) -> list[BufferedChanges]:
    """List the changes in memory. They are newer than those in files, so they are at the end."""
    found = []
    for part in reversed(transaction.buffered):
        if not isinstance(part, BufferedChanges):
            break
        found.append(part)
    return found[::-1]


def spill_path(directory: Path, xid: int, begin_position: int, first_position: int) -> Path:
    """Name the spill file of a transaction that begins with the change at a position."""
    return directory / f"pgdecode-{xid}-{begin_position}-{first_position}.arrow"


def spilled_to(path: Path, parts: Iterable[ChangePart]) -> SpilledChanges:
    """Write changes to a new file.

    Raises
    ------
    StorageError
        If the disk is full, or the folder cannot be written to.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A file with this name may still be open: replace it, and do not write into it.
        path.unlink(missing_ok=True)
        return SpilledChanges(path, _write_file(path, parts))


def _write_file(path: Path, parts: Iterable[ChangePart]) -> list[int]:
    """Write a batch for each part, and return their lengths."""
    lengths = []
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        for part in parts:
            changes = part.read()
            n = len(changes)
            numbers = [
                pa.Array.from_buffers(field.type, n, [None, buffer])
                for field, buffer in zip(
                    list(_SCHEMA)[2:], (changes.relation_ids, changes.xids, changes.versions), strict=True
                )
            ]
            columns = [changes.payloads.cast(pa.large_binary()), changes.positions, *numbers]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
            lengths.append(n)
    return lengths


def buffered_in(path: Path) -> SpilledChanges:
    """Find the changes in a file.

    Raises
    ------
    FileNotFoundError
        If the file is missing. The decoder whose state names it may have continued and deleted it.
    """
    return SpilledChanges(path, _SpillFile(path).lengths())
