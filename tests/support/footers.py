"""What the footers of files say: the types in them, and the index beside that of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.changes.checkpoint import state_to_json
from pgdecode.changes.replication_state import ReplicationState
from pgdecode.files.file_metadata import control_of, user_types_of
from pgdecode.files.payload_file import PayloadFile
from pgdecode.files.payload_files import payload_files
from pgdecode.partitions.partition_index import Partition, PartitionIndex, index_partitions
from pgdecode.protocol.boundaries import ROWS
from pgdecode.types.user_types import overridden

_ROWS = {bytes([tag]) for tag in ROWS}


def types_of(paths: Iterable[Path]) -> dict[str | int, str] | None:
    """Read the types in the footers of files, as a value of `types=`. None if there are none."""
    types = user_types_of(paths)
    return overridden(types, None) if types else None


def check_footers(folder: Path) -> bool:
    """Check that the footers of captured files give the index of their rows; False if they have no control messages."""
    files = payload_files(folder, "data", keep=("seq",))
    found = index_of(files, "seq")
    if found is None:
        return False
    tables = [pq.read_table(str(file.path), columns=["seq", "data"]) for file in files]
    partitions = [
        Partition(table["seq"][0].as_py(), table["seq"][-1].as_py(), any(item[:1] in _ROWS for item in payloads))
        for table, payloads in ((table, table["data"].to_pylist()) for table in tables)
    ]
    sessions = [file.captured.session for file in files if file.captured is not None]
    joined = pa.concat_tables(tables).combine_chunks()
    expected = index_partitions(
        joined["data"].combine_chunks(),
        joined["seq"].combine_chunks(),
        partitions,
        in_full=True,
        reconnects=_reconnects(partitions, sessions),
    )
    assert _plain(found) == _plain(expected)
    return True


def index_of(files: Sequence[PayloadFile], position: str, **options: Any) -> PartitionIndex | None:
    """Make the index of captured files from their footers, with one partition for each file.

    Its `catalog` has all versions of all relations, each with the position of its Relation message and the position
    from which it is visible. Its `shape` has those that count for the columns of tables. So both are known before a row
    is read.

    Parameters
    ----------
    files : sequence of PayloadFile
        In slot order, as for `control_of`.
    position : str
    **options
        As for `index_partitions`: `catalog`, `limits`, `start`, `state` and `drop_duplicates`.

    Returns
    -------
    PartitionIndex or None
        None if the footer of a file does not have its control messages.

    Raises
    ------
    ValueError
        As `index_partitions`.
    """
    partitions: list[Partition] = []
    positions: list[pa.Array] = []
    payloads: list[pa.Array] = []
    for file in files:
        control = control_of(file, position)
        if control is None:
            return None
        first, last = control.partitions[0].first, control.partitions[-1].last
        partitions.append(Partition(first, last, any(partition.has_rows for partition in control.partitions)))
        positions += control.positions
        payloads += control.payloads
    sessions = [None if file.captured is None else file.captured.session for file in files]
    return index_partitions(
        pa.chunked_array(payloads, pa.binary()),
        pa.concat_arrays([pa.array([], pa.int64()), *positions]),
        partitions,
        in_full=True,
        reconnects=_reconnects(partitions, sessions),
        **options,
    )


def _reconnects(partitions: Sequence[Partition], sessions: Sequence[object]) -> set[int]:
    """Return the first positions of the files that another session received than the file before."""
    return {
        partition.first
        for partition, (before, session) in zip(partitions[1:], pairwise(sessions), strict=True)
        if session != before
    }


def _plain(index: PartitionIndex) -> dict[str, Any]:
    """What must be equal, whichever other messages were read.

    A repeated Relation message counts for its transaction only while no committed transaction has sent its version, and
    a plain transaction has an outcome only if something lies between its Begin and its Commit. So both depend on how
    many messages are processed at once. `shape` has what counts in the end.
    """
    outcomes = {
        begin: outcome
        for begin, outcome in index.transaction_outcomes.items()
        if outcome.committed != 1
        or outcome.gid is not None
        or index.number_of(begin) != index.number_of(outcome.commit_position)
    }
    starts, end = [_without_relations(state) for state in index.starts], _without_relations(index.end)
    return {
        **vars(index),
        "catalog": index.catalog.to_json(),
        "starts": starts,
        "transaction_outcomes": outcomes,
        "end": end,
    }


def _without_relations(state: ReplicationState) -> dict[str, Any]:
    plain = state_to_json(state, with_payloads=False)
    for name in ("versions", "shape"):
        plain["catalog"].pop(name)
    for item in (*filter(None, [plain["open"]]), *plain["streamed"], *plain["prepared"]):
        item.pop("relations")
    return plain
