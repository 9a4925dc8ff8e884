"""Changes of transactions without an outcome: tasks write them to payload files, which become part of the state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pgdecode.changes.replication_state import BufferedChanges, ReplicationState
from pgdecode.changes.stored_state import StoredRange, payload_batch
from pgdecode.datasets.file_digest import FileDigest
from pgdecode.datasets.new_files import NewFiles
from pgdecode.datasets.payload_ranges import PayloadRange, PayloadReader, PayloadWriter
from pgdecode.storage.object_path import FilePath


class KeptFile(NamedTuple):
    """A payload file that one attempt of a task has written.

    Attributes
    ----------
    path : Path or ObjectPath
    file : FileDigest
    ranges : dict of int to PayloadRange
        By the begin_position of each transaction.
    """

    path: FilePath
    file: FileDigest
    ranges: dict[int, PayloadRange]


class KeptChanges:
    """Collects the changes of transactions without an outcome in a task. They are at most the input of the task."""

    def __init__(self) -> None:
        self.parts: dict[int, list[BufferedChanges]] = {}

    def keep(self, begin_position: int, changes: BufferedChanges) -> None:
        """Add the next changes of a transaction."""
        self.parts.setdefault(begin_position, []).append(changes)

    def write(self, files: NewFiles, task: int) -> KeptFile | None:
        """Write the changes as an attempt of a task; None without changes."""
        path = files.payload_path(task)
        with PayloadWriter(path) as writer:
            for begin_position in sorted(self.parts):
                for changes in self.parts[begin_position]:
                    writer.write(payload_batch(begin_position, changes))
        return None if writer.file is None else KeptFile(path, writer.file, writer.ranges)


def add_kept(state: ReplicationState, files: Iterable[KeptFile]) -> None:
    """Add the files of tasks, in the order of the input, to the transactions of the state after the run."""
    transactions = {item.begin_position: item for item in state.undecided}
    for item in files:
        reader = PayloadReader(item.path, item.file)
        for begin_position, place in item.ranges.items():
            if begin_position in transactions:
                stored = StoredRange(reader, place, begin_position, len(state.relations.versions))
                transactions[begin_position].buffered.append(stored)
