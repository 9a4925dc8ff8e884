"""Decoding the pieces of a sequence of payloads apart: what each must know of the others, and is told beforehand.

A run is a piece of the sequence without gaps: between its first and its last position no other run has payloads. Few
messages matter beyond their run: those of streams, of two-phase commits and of relations, and of Begin and Commit the
first and the last in each run. From these `index_runs` works out where every run starts and what becomes of the
transactions that it does not end itself; `pgdecode.run_decoder` then decodes a run alone.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa

from pgdecode.catalog import RelationCatalog
from pgdecode.inputs import payload_array
from pgdecode.ledger import Ledger, Options, Transaction
from pgdecode.limits import Limits
from pgdecode.plain import version_from_plain, version_to_plain
from pgdecode.state import state_from_plain, state_to_plain
from pgdecode.transactions import Follower
from pgdecode.visibility import CatalogBuilder

_LIMITS = Limits()
FORMAT = "pgdecode.RunIndex"
FORMAT_VERSION = 1

# First bytes of the messages that matter to other runs wherever they stand ...
EVERYWHERE = b"SEcAbPKrpRY"
# ... and of those that do only as the first or last of their run.
AT_THE_ENDS = b"BC"
# Of those that are a run's rows.
ROWS = b"IUDT"


class Run(NamedTuple):
    """A piece of the sequence: its first and last position, and whether rows are in it."""

    first: int
    last: int
    has_rows: bool = True


@dataclass(frozen=True)
class Fate:
    """What became of a transaction; of each sub-transaction that was rolled back, where that was said."""

    committed: int  # 1, 0 rolled back, -1 undecided
    commit_position: int = -1
    commit_lsn: int = -1
    commit_timestamp: int = -1
    gid: str | None = None
    aborted: tuple[tuple[int, int], ...] = ()  # (subxid, position of its Stream Abort)

    @cached_property
    def aborts(self) -> dict[int, int]:
        """Position of the Stream Abort of each sub-transaction that was rolled back."""
        return dict(self.aborted)


UNDECIDED = Fate(-1)


@dataclass(frozen=True)
class RunIndex:
    """What runs must know: plain data, small, the same for all of them.

    Attributes
    ----------
    catalog : RelationCatalog
        Every version of every relation.
    runs : tuple of Run
        In ascending order.
    starts : sequence of Ledger
        What is known before each run.
    fates : dict
        By the position of the message that began a transaction.
    """

    catalog: RelationCatalog
    runs: tuple[Run, ...]
    starts: Sequence[Ledger]
    fates: dict[int, Fate] = field(default_factory=dict)

    def number_of(self, position: int) -> int:
        """Find the run that a position lies in.

        Raises
        ------
        LookupError
            If it lies in none.
        """
        number = bisect_right(self.runs, position, key=lambda run: run.first) - 1
        if number < 0 or position > self.runs[number].last:
            raise LookupError(f"position {position} is in none of the runs that were indexed: have the data changed?")
        return number

    def to_json(self) -> str:
        """Write the index as one JSON object."""
        # Most runs start with the same relations as the one before.
        visible: dict[str, int] = {}
        starts = []
        for ledger in self.starts:
            plain = state_to_plain(ledger, with_versions=False)  # all share them
            starts.append({**plain, "catalog": visible.setdefault(json.dumps(plain["catalog"]), len(visible))})
        return json.dumps(
            {
                "format": FORMAT,
                "version": FORMAT_VERSION,
                "catalog": [version_to_plain(item) for item in self.catalog],
                "runs": self.runs,
                "visible": [json.loads(item) for item in visible],
                "starts": starts,
                "fates": [[position, asdict(fate)] for position, fate in self.fates.items()],
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> RunIndex:
        """Read back what `to_json` wrote.

        Raises
        ------
        ValueError
            If it is something else or of a later version.
        """
        plain = json.loads(text)
        if not isinstance(plain, dict) or plain.get("format") != FORMAT or plain.get("version") != FORMAT_VERSION:
            raise ValueError(f"no {FORMAT} of version {FORMAT_VERSION} in JSON")
        catalog = RelationCatalog(version_from_plain(item) for item in plain["catalog"])
        fates = {
            position: Fate(**{**fate, "aborted": tuple((xid, at) for xid, at in fate["aborted"])})
            for position, fate in plain["fates"]
        }
        starts = _PlainStarts(plain["starts"], plain["visible"], catalog)
        return cls(catalog, tuple(Run(*item) for item in plain["runs"]), starts, fates)


@dataclass(frozen=True)
class _PlainStarts(Sequence[Ledger]):
    """What is known before each run, read when it is asked for: of many runs a process decodes a few."""

    starts: list[dict[str, Any]]
    visible: list[dict[str, Any]]
    versions: RelationCatalog

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: Any) -> Any:
        plain = self.starts[number]
        return state_from_plain({**plain, "catalog": self.visible[plain["catalog"]]}, versions=self.versions)


class IndexFollower(Follower):
    """Follows the messages that matter beyond their run, and notes what becomes of transactions."""

    notes_lost = True
    fates: dict[int, Fate]
    aborts: dict[int, list[tuple[int, int]]]

    def _commit(self, row: int, transaction: Transaction) -> None:
        self._note(transaction, Fate(1, self._position(row), self._value("lsn", row), self._value("timestamp", row)))

    def _abort(self, transaction: Transaction) -> None:
        self._note(transaction, Fate(0))

    def _undecided(self, transaction: Transaction) -> None:
        self._note(transaction, UNDECIDED)

    def _keep(self, transactions: Iterable[Transaction]) -> None:
        # The rows are their runs' to give, whether or not they have been handed over here.
        for item in transactions:
            item.ranges = []

    def _note(self, transaction: Transaction, fate: Fate) -> None:
        aborted = tuple(self.aborts.pop(transaction.begin_position, ()))
        self.fates[transaction.begin_position] = replace(fate, gid=transaction.gid, aborted=aborted)

    def _abort_part(self, row: int, transaction: Transaction, subxid: int) -> None:
        self.aborts.setdefault(transaction.begin_position, []).append((subxid, self._position(row)))


def index_runs(
    payloads: Any,
    positions: pa.Array,
    runs: Iterable[Run],
    *,
    catalog: RelationCatalog | None = None,
    limits: Limits = _LIMITS,
) -> RunIndex:
    """Work out what runs must know of each other.

    Parameters
    ----------
    payloads : column of payloads, as `decode_messages` takes them
        In slot order: all whose first byte is in `EVERYWHERE`, and of each run the first and the last with one of
        `AT_THE_ENDS`. Others do no harm.
    positions : pa.Array of int64
    runs : iterable of Run
        Without overlap; each payload's position lies in one.
    catalog : RelationCatalog, optional
        Relations that the payloads do not describe; its versions from later positions than the first do not count.
    limits : Limits
        Those that the runs are decoded under.

    Raises
    ------
    ValueError
        If runs overlap.
    """
    ordered = sorted(runs)
    for before, after in pairwise(ordered):
        if before.last >= after.first:
            raise ValueError(f"runs overlap: {before.first} to {before.last}, {after.first} to {after.last}")
    column = payload_array(payloads).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    ledger = Ledger(catalog=CatalogBuilder(catalog or (), ordered[0].first if ordered else None))
    starts = []
    fates: dict[int, Fate] = {}
    aborts: dict[int, list[tuple[int, int]]] = {}
    places = positions.to_pylist()
    first = 0
    for run in ordered:
        starts.append(ledger.copy())
        last = bisect_right(places, run.last, first)
        # What is wrong with a message is said where its run is decoded.
        follower = IndexFollower(
            ledger,
            column.slice(first, last - first),
            positions.slice(first, last - first),
            Options("PERMISSIVE", limits=limits),
        )
        follower.fates, follower.aborts = fates, aborts
        follower.run()
        ledger.position = run.last + 1
        if not ledger.begun and ledger.open is None and run.has_rows:
            # The rest of a transaction whose beginning was not captured.
            ledger.open = Transaction(0)
        first = last
    for item in ledger.undecided:
        fates[item.begin_position] = replace(
            UNDECIDED, gid=item.gid, aborted=tuple(aborts.get(item.begin_position, ()))
        )
    return RunIndex(RelationCatalog(ledger.catalog.versions), tuple(ordered), tuple(starts), fates)


def stretches(index: RunIndex, positions: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Cut ascending positions into stretches of one run each: (number of the run, start, end)."""
    start = 0
    while start < len(positions):
        number = index.number_of(positions[start])
        end = bisect_right(positions, index.runs[number].last, start)
        yield number, start, end
        start = end
