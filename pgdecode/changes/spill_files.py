"""Files with the payloads of undecided transactions, if there are too many for memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from pgdecode.changes.replication_state import BufferedChanges, ReplicationState, Transaction
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


# A state may come from an untrusted source. Only files with such names, in the spill folder, are read or deleted.
_NAME = re.compile(r"pgdecode-[0-9]+-[0-9-]+-[0-9]+\.arrow")


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

    Each file is written once, in Arrow's IPC file format. `buffered_in` maps it into memory. The cost depends on the
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
    _replace_from(transaction, n_in_files, written)


def _delete(path: Path) -> None:
    """Delete the file of a call that failed. The state is restored in any case; a file that stays is in no state."""
    with suppress(OSError):
        path.unlink()


def _replace_from(transaction: Transaction, first: int, parts: list[BufferedChanges]) -> None:
    transaction.buffered[first:] = parts


def _in_memory(transaction: Transaction) -> list[BufferedChanges]:
    """List the changes in memory. They are newer than those in files, so they are at the end."""
    found = []
    for part in reversed(transaction.buffered):
        if not isinstance(part, BufferedChanges) or part.path is not None:
            break
        found.append(part)
    return found[::-1]


def spill_path(directory: Path, xid: int, begin_position: int, first_position: int) -> Path:
    """Name the spill file of a transaction that begins with the change at a position."""
    return directory / f"pgdecode-{xid}-{begin_position}-{first_position}.arrow"


def spilled_to(path: Path, parts: Iterable[BufferedChanges]) -> list[BufferedChanges]:
    """Write changes to a new file, and map it into memory.

    Raises
    ------
    StorageError
        If the disk is full, or the folder cannot be written to.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A file with this name may still be mapped: replace it, and do not write into it.
        path.unlink(missing_ok=True)
        _write_file(path, parts)
    return buffered_in(path)


def _write_file(path: Path, parts: Iterable[BufferedChanges]) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, _SCHEMA) as writer:
        for part in parts:
            n = len(part)
            numbers = [
                pa.Array.from_buffers(field.type, n, [None, buffer])
                for field, buffer in zip(list(_SCHEMA)[2:], (part.relation_ids, part.xids, part.versions), strict=True)
            ]
            columns = [part.payloads.cast(pa.large_binary()), part.positions, *numbers]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))


def buffered_in(path: Path) -> list[BufferedChanges]:
    """Map the changes in a file into memory.

    Raises
    ------
    FileNotFoundError
        If the file is missing. The decoder whose state names it may have continued and deleted it.
    """
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    found = []
    for number in range(reader.num_record_batches):
        payloads, positions, *numbers = reader.get_batch(number).columns
        relation_ids, xids, versions = (column.buffers()[1] for column in numbers)
        found.append(BufferedChanges(payloads, positions, relation_ids, xids, versions, path))
    return found
