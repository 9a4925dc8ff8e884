"""Decoding runs before the whole has been looked through: what they are told then, and whether that was right.

Most sequences hold plain transactions of tables that do not change. Cut between transactions, a run must know nothing
but the relations of its rows, and a look at a few messages tells these. A run is decoded on the strength of that; once
`index_runs` has all messages, `holds` says whether the run would have been told the same. If not, it is decoded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pgdecode.catalog import RelationCatalog
from pgdecode.ledger import Ledger
from pgdecode.runs import EVERYWHERE, Run, RunIndex, index_runs
from pgdecode.versions import RelationVersion

# First bytes of the messages that describe relations ...
RELATIONS = b"RY"
# ... and of those that no forecast holds with: of streams and of two-phase commits.
APART = bytes(tag for tag in EVERYWHERE if tag not in RELATIONS)


def forecast(
    runs: Iterable[Run], payloads: Any, positions: pa.Array, *, catalog: RelationCatalog | None = None
) -> RunIndex:
    """Tell runs what they probably have to know.

    Parameters
    ----------
    runs : iterable of Run
        Without overlap; all but the first begin with a transaction, as far as is known.
    payloads : column of payloads, as `decode_messages` takes them
        Relation and Type messages from somewhere in them, in slot order.
    positions : pa.Array of int64
    catalog : RelationCatalog, optional
        As of `index_runs`.
    """
    index = index_runs(payloads, positions, [run._replace(has_rows=False) for run in runs], catalog=catalog)
    begun = [replace(ledger, begun=number > 0) for number, ledger in enumerate(index.starts)]
    return replace(index, starts=tuple(begun))


def holds(told: RunIndex, index: RunIndex, number: int) -> bool:
    """Whether a run decoded by a forecast is as it would be by the index of the whole.

    That is so for a run without messages of `APART`, of whose changes each had a version of its relation.

    Parameters
    ----------
    told : RunIndex
        The forecast.
    index : RunIndex
        Of the same runs, by `index_runs`.
    number : int
        Of the run.
    """
    start, other = index.starts[number], told.starts[number]
    if start.begun != other.begun or _is_open(start):
        return False
    if number + 1 < len(index.runs) and _is_open(index.starts[number + 1]):
        # What becomes of its last transaction is told beyond the run.
        return False
    versions, foreseen = list(index.catalog), list(told.catalog)
    for relation_id, version in other.catalog.visible.items():
        true = start.catalog.visible.get(relation_id, -1)
        # Negative: in doubt, of a bad message.
        if min(true, version) < 0 or versions[true] != foreseen[version]:
            return False
    if any(start.catalog.types.get(type_id) != item for type_id, item in other.catalog.types.items()):
        return False
    run = index.runs[number]
    return _within(run, versions) == _within(run, foreseen)


def _is_open(ledger: Ledger) -> bool:
    """Whether it stands in a stream, or between the beginning of a transaction and its outcome."""
    return ledger.stream is not None or bool(ledger.undecided)


def _within(run: Run, versions: Sequence[RelationVersion]) -> list[RelationVersion]:
    """Versions that a run itself describes."""
    return [item for item in versions if run.first <= item.position <= run.last]
