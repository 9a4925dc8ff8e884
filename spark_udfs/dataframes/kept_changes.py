"""Changes of transactions without an outcome: tasks write them to payload files, which become part of the state."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pgdecode.changes.replication_state import BufferedChanges, ReplicationState
from pgdecode.changes.stored_state import StoredRange, payload_batch
from pgdecode.runs.digested_file import FileDigest
from pgdecode.runs.payload_ranges import STATE, PayloadRange, PayloadReader, PayloadWriter, payload_file_name

# Folder of the files of attempts, in the folder of a run that is not complete.
KEPT = "_kept"


class KeptFile(NamedTuple):
    """A payload file that one attempt of a task has written.

    Attributes
    ----------
    folder : Path
        Of the attempt. It has the file in `_state`, like the folder of a run.
    file : FileDigest
    ranges : dict of int to PayloadRange
        By the begin_position of each transaction.
    """

    folder: Path
    file: FileDigest
    ranges: dict[int, PayloadRange]


class KeptChanges:
    """Collects the changes of transactions without an outcome in a task. They are at most the input of the task."""

    def __init__(self) -> None:
        self.parts: dict[int, list[BufferedChanges]] = {}

    def keep(self, begin_position: int, changes: BufferedChanges) -> None:
        """Add the next changes of a transaction."""
        self.parts.setdefault(begin_position, []).append(changes)

    def write(self, folder: Path, first_position: int, number: int) -> KeptFile | None:
        """Write the changes as an attempt of a task; None without changes.

        Parameters
        ----------
        folder : Path
            Of the attempts of all tasks.
        first_position : int
            The first position that the run may have.
        number : int
            Of the task.
        """
        if not self.parts:
            return None
        attempt = folder / uuid.uuid4().hex
        (attempt / STATE).mkdir(parents=True)
        with PayloadWriter(attempt / STATE, payload_file_name(first_position, number)) as writer:
            for begin_position in sorted(self.parts):
                for changes in self.parts[begin_position]:
                    writer.write(payload_batch(begin_position, changes))
        return None if writer.file is None else KeptFile(attempt, writer.file, writer.ranges)


def add_kept(state: ReplicationState, files: Iterable[KeptFile]) -> None:
    """Add the files of tasks, in the order of the input, to the transactions of the state after the run."""
    transactions = {item.begin_position: item for item in state.undecided}
    for item in files:
        reader = PayloadReader(item.folder, item.file)
        for begin_position, place in item.ranges.items():
            if begin_position in transactions:
                stored = StoredRange(reader, place, begin_position, len(state.relations.versions))
                transactions[begin_position].buffered.append(stored)
