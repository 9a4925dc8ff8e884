"""Payloads of undecided transactions on disk, where there are too many of them for memory."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from pgdecode.changes.replication_state import BufferedChanges, ReplicationState, Transaction

_SCHEMA = pa.schema(
    [
        ("payload", pa.large_binary()),
        ("position", pa.int64()),
        ("relation_id", pa.int64()),
        ("xid", pa.int64()),
        ("version", pa.int32()),
    ]
)


# A state may come from anywhere: no other file is read or deleted for it, and none outside the folder.
_NAME = re.compile(r"pgdecode-[0-9]+-[0-9-]+-[0-9]+\.arrow")


def path_in(directory: Path | None, name: str) -> Path:
    """Path of a file that a state names.

    Raises
    ------
    ValueError
        If it is none of a decoder's, or no folder was given.
    """
    if directory is None:
        raise ValueError("the state has payloads on disk: say by spill= where")
    if not _NAME.fullmatch(name):
        raise ValueError("the state names a file that is no decoder's")
    return directory / name


def buffered_bytes(transaction: Transaction) -> int:
    """Bytes of a transaction's payloads in memory."""
    return sum(part.payloads.nbytes for part in transaction.buffered if part.path is None)


def spill(state: ReplicationState, directory: Path, most_bytes: int) -> None:
    """Write payloads to files until at most so many bytes are in memory, those of the largest transactions first.

    A file is written once, by an Arrow stream, and read in place; `buffered_in` finds it again.
    """
    undecided = state.undecided
    sizes = sorted(((buffered_bytes(item), place) for place, item in enumerate(undecided)), reverse=True)
    total = sum(size for size, _ in sizes)
    for size, place in sizes:
        if total <= most_bytes or size == 0:
            return
        transaction = undecided[place]
        state.journal.set_attribute(transaction, "buffered", list(transaction.buffered))
        _write(transaction, directory)
        total -= size


def _write(transaction: Transaction, directory: Path) -> None:
    """Move what a transaction has in memory to one file."""
    in_memory = [part for part in transaction.buffered if part.path is None]
    spilled = [part for part in transaction.buffered if part.path is not None]
    directory.mkdir(parents=True, exist_ok=True)
    first = in_memory[0].positions[0].as_py()
    path = directory / f"pgdecode-{transaction.xid}-{transaction.begin_position}-{first}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, _SCHEMA) as writer:
        for part in in_memory:
            n = len(part)
            numbers = [
                pa.Array.from_buffers(field.type, n, [None, buffer])
                for field, buffer in zip(list(_SCHEMA)[2:], (part.relation_ids, part.xids, part.versions), strict=True)
            ]
            columns = [part.payloads.cast(pa.large_binary()), part.positions, *numbers]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
    # What is buffered later comes later: files first keeps the order.
    transaction.buffered = [*spilled, *buffered_in(path)]


def buffered_in(path: Path) -> list[BufferedChanges]:
    """Find what a file holds, which is read in place.

    Raises
    ------
    FileNotFoundError
        If it is gone: the decoder whose state names it has gone on.
    """
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    found = []
    for number in range(reader.num_record_batches):
        payloads, positions, *numbers = reader.get_batch(number).columns
        relation_ids, xids, versions = (column.buffers()[1] for column in numbers)
        found.append(BufferedChanges(payloads, positions, relation_ids, xids, versions, path))
    return found


def paths_of(state: ReplicationState) -> set[Path]:
    """Files that a state has payloads in."""
    return {part.path for item in state.undecided for part in item.buffered if part.path is not None}
