"""The state between two batches, and the changes that a batch has committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from pgdecode._native.arrow.int64_kernels import ChunkedInt64
from pgdecode.relations.catalog import RelationCatalog
from pgdecode.relations.undo_log import NoUndoLog, UndoLog
from pgdecode.relations.version_tracker import RelationTracker


@dataclass(frozen=True, slots=True)
class BufferedChanges:
    """Changes of an undecided transaction: their payloads, and the fields of each change."""

    payloads: pa.Array
    positions: pa.Array  # int64
    relation_ids: pa.Buffer  # int64
    xids: pa.Buffer  # int64: the xid in the message, that of a sub-transaction if there is one
    versions: pa.Buffer  # int32

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def path(self) -> None:
        """No file: the changes are in memory."""
        return None

    def parts(self) -> Iterator[ChangePart]:
        """Yield the changes, as `StoredChanges.parts` does."""
        yield self

    def read(self, *, with_payloads: bool = True) -> BufferedChanges:
        """Return the changes, as `ChangePart.read` does."""
        return self


class ChangePart(Protocol):
    """Changes of an undecided transaction that fit into memory: they are there, or are read when they are needed."""

    @property
    def path(self) -> Path | None:
        """The spill file; None if the changes are in memory."""

    def __len__(self) -> int: ...

    def read(self, *, with_payloads: bool = True) -> BufferedChanges:
        """Read the changes. Without `with_payloads`, the payloads may be null."""


class StoredChanges(Protocol):
    """Changes of an undecided transaction in a file. They are read when the transaction ends."""

    @property
    def path(self) -> Path | None:
        """The spill file, or the one to which they are copied when they are read; None if they are then in memory."""

    def __len__(self) -> int: ...

    def parts(self) -> Iterator[ChangePart]:
        """Yield the changes in order."""


@dataclass(slots=True)
class Transaction:
    """A transaction without an outcome yet.

    `ranges` are its changes in the current batch, by their numbers in the transaction index. `aborted` maps the xid of
    each rolled-back sub-transaction to the position of its Stream Abort.
    """

    xid: int  # top-level
    begin_position: int  # of the message that began it
    gid: str | None = None
    final_lsn: int = -1
    buffered: list[BufferedChanges | StoredChanges] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    aborted: dict[int, int] = field(default_factory=dict)
    relations: list[int] = field(default_factory=list)  # versions that it has sent, visible outside its stream
    block_position: int = -1  # of its last Stream Start
    batch: object = None  # identifies the last batch that has added changes

    def parts(self) -> Iterator[ChangePart]:
        """Yield the changes of earlier batches in order. Those in files are open as long as their part is in use."""
        return (part for buffered in self.buffered for part in buffered.parts())

    def copy(self) -> Transaction:
        """Make an independent copy."""
        return replace(
            self,
            buffered=list(self.buffered),
            ranges=list(self.ranges),
            aborted=dict(self.aborted),
            relations=list(self.relations),
        )


@dataclass(slots=True)
class Skipped:
    """Transactions that are left out because their beginning is missing.

    Attributes
    ----------
    n : int
        Number of transactions that are known to be distinct.
    xids, gids : set
        Those of them that have not ended yet.
    has_head : bool
        Whether the payloads began inside a transaction whose end has not come yet.
    has_streamed_head : bool
        Whether the payloads began inside a stream block. A later message may identify its transaction.
    """

    n: int = 0
    xids: set[int] = field(default_factory=set)
    gids: set[str] = field(default_factory=set)
    has_head: bool = False
    has_streamed_head: bool = False

    @property
    def count(self) -> int:
        """Number of transactions left out so far."""
        return self.n + self.has_head + self.has_streamed_head


@dataclass(slots=True)
class ReplicationState:
    """The state between two batches.

    All changes go through the undo log, so that a call that fails can be rolled back.
    """

    position: int = 0  # the least position that the next payload may have; 0 only before the first payload
    has_seen_boundary: bool = False  # whether a transaction boundary has been processed
    in_stream: bool | None = None  # whether the next payload is in a stream block, according to the scan
    last_lsn: int = -1  # the greatest commit LSN so far
    last_lsn_position: int = -1  # position of that commit
    session_lsn: int = -1  # the greatest commit LSN of the present session
    n_repeated: int = 0  # commits whose LSN was not greater than all before
    stream: int | None = None  # top-level xid of the stream block that is open
    open: Transaction | None = None  # between Begin and Commit, or Begin Prepare and Prepare
    streamed: dict[int, Transaction] = field(default_factory=dict)
    prepared: dict[str, Transaction] = field(default_factory=dict)
    relations: RelationTracker = field(default_factory=RelationTracker)
    skipped: Skipped = field(default_factory=Skipped)
    is_reconnected: bool = False  # the next payload is the first of another session
    undo_log: UndoLog = field(default_factory=NoUndoLog, compare=False)

    def copy(self, *, with_versions: bool = True) -> ReplicationState:
        """Make an independent copy; without the versions of relations if `preload` will set them."""
        return replace(
            self,
            open=None if self.open is None else self.open.copy(),
            streamed={xid: item.copy() for xid, item in self.streamed.items()},
            prepared={gid: item.copy() for gid, item in self.prepared.items()},
            relations=self.relations.copy(with_versions=with_versions),
            skipped=replace(self.skipped, xids=set(self.skipped.xids), gids=set(self.skipped.gids)),
            undo_log=NoUndoLog(),
        )

    def first_catalog(self, given: RelationCatalog | None) -> RelationCatalog | None:
        """Find the relations that are known before the first payload; None if there are none, or after that payload.

        They are those that the caller gives. Otherwise they are those of this state: a decoder without payloads has
        saved its catalog. After the first payload, the facts of the given catalog are added to the state.
        """
        if self.position:
            self.relations.add_facts(given.facts if given else ())
            return None
        known = RelationCatalog(self.relations.versions, self.relations.facts)
        return given or known or None

    def set_undo_log(self, undo_log: UndoLog) -> None:
        """Set the undo log for the next changes."""
        self.undo_log = self.relations.undo_log = undo_log

    @property
    def undecided(self) -> list[Transaction]:
        """Transactions without an outcome."""
        return [*([self.open] if self.open else []), *self.streamed.values(), *self.prepared.values()]

    @property
    def n_undecided(self) -> int:
        """Number of transactions without an outcome. After a reconnect only prepared transactions count."""
        if self.is_reconnected:
            return len(self.prepared)
        return (self.open is not None) + len(self.streamed) + len(self.prepared)


@dataclass(frozen=True, slots=True)
class CommittedChanges:
    """The changes that a batch has committed, in the order to apply them. Rows refer to `parts`."""

    parts: list[pa.Array]  # payloads of the batch, then buffered ones from earlier batches
    positions: ChunkedInt64  # of all payloads
    found: dict[str, pa.Buffer]  # columns of `TransactionIndex.delivered`
    is_certain: bool  # whether each change has a transaction and its commit
    is_known: bool  # whether each change has a version of its relation
    has_truncates: bool
    has_subxids: bool  # whether a change belongs to a sub-transaction
    used: list[int]  # versions of relations that the changes use
    gids: dict[int, str]  # number of the outcome -> gid
    row_errors: dict[int, str]  # row of a bad payload -> its error
    # (n, listings): n of the changes are before those of a large transaction. Each of the functions lists some of them,
    # and returns (assembler, changes).
    deferred: Sequence[tuple[int, Sequence[Callable[[], tuple[Any, CommittedChanges]]]]] = ()
