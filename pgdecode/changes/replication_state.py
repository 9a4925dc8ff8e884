"""What is known of transactions between two batches, and what a batch has committed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from pgdecode._native.arrow.int64_kernels import Joined
from pgdecode.relations.journal import Journal, NoJournal
from pgdecode.relations.version_tracker import RelationTracker


@dataclass(frozen=True, slots=True)
class BufferedChanges:
    """Changes of a transaction that is not decided yet: their payloads, and what is known of each."""

    payloads: pa.Array
    positions: pa.Array  # int64
    relation_ids: pa.Buffer  # int64
    xids: pa.Buffer  # int64, each row's own
    versions: pa.Buffer  # int32
    path: Path | None = None  # of the file that it lies in, where that is not memory

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(slots=True)
class Transaction:
    """A transaction whose outcome is to come.

    `codecs/ranges` are its changes in the batch at hand, by their numbers in the outline; `aborted` says of each
    sub-transaction that was rolled back how many changes of the transaction had been sent before.
    """

    xid: int  # top-level
    begin_position: int  # of the message that began it
    gid: str | None = None
    final_lsn: int = -1
    buffered: list[BufferedChanges] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    aborted: dict[int, int] = field(default_factory=dict)
    n_changes: int = 0  # so far, undone ones too
    relations: list[int] = field(default_factory=list)  # versions that its messages have sent to all
    block_position: int = -1  # of its last Stream Start
    batch: object = None  # the last one that has added to it

    def copy(self) -> Transaction:
        """Make one that goes its own way."""
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
        Transactions that are known to be others.
    xids, gids : set
        Those of them that may still come to their end.
    has_head : bool
        Whether the payloads began with changes of a transaction, whose end has not come.
    has_streamed_head : bool
        Whether they began inside a stream block: its transaction may be one of those whose xids come later.
    """

    n: int = 0
    xids: set[int] = field(default_factory=set)
    gids: set[str] = field(default_factory=set)
    has_head: bool = False
    has_streamed_head: bool = False

    @property
    def count(self) -> int:
        """Transactions left out so far."""
        return self.n + self.has_head + self.has_streamed_head


@dataclass(slots=True)
class ReplicationState:
    """What is known between two batches.

    Changes are made through the journal, so that a call that fails can take them back.
    """

    position: int = 0  # the least that the next payload may have
    begun: bool = False  # a transaction boundary has come by
    in_stream: bool | None = None  # whether the next payload is in a stream block, as the scan sees it
    last_lsn: int = -1  # of the newest commit
    last_lsn_position: int = -1  # of its message
    stream: int | None = None  # top-level xid of the stream block that is open
    open: Transaction | None = None  # between Begin and Commit, or Begin Prepare and Prepare
    streamed: dict[int, Transaction] = field(default_factory=dict)
    prepared: dict[str, Transaction] = field(default_factory=dict)
    relations: RelationTracker = field(default_factory=RelationTracker)
    skipped: Skipped = field(default_factory=Skipped)
    is_reconnected: bool = False  # the next payload is the first of another session
    journal: Journal = field(default_factory=NoJournal, compare=False)

    def copy(self, *, with_versions: bool = True) -> ReplicationState:
        """Make one that goes its own way; without the versions of relations where these come by `preload`."""
        return replace(
            self,
            open=None if self.open is None else self.open.copy(),
            streamed={xid: item.copy() for xid, item in self.streamed.items()},
            prepared={gid: item.copy() for gid, item in self.prepared.items()},
            relations=self.relations.copy(with_versions=with_versions),
            skipped=replace(self.skipped, xids=set(self.skipped.xids), gids=set(self.skipped.gids)),
            journal=NoJournal(),
        )

    def note_in(self, journal: Journal) -> None:
        """Make the changes that come next through a journal."""
        self.journal = self.relations.journal = journal

    @property
    def undecided(self) -> list[Transaction]:
        """Transactions without an outcome."""
        return [*([self.open] if self.open else []), *self.streamed.values(), *self.prepared.values()]

    @property
    def n_undecided(self) -> int:
        """How many they are; those that end with the session only where that goes on."""
        if self.is_reconnected:
            return len(self.prepared)
        return (self.open is not None) + len(self.streamed) + len(self.prepared)


@dataclass(frozen=True, slots=True)
class CommittedChanges:
    """What a batch has committed: changes in the order to apply them, by places in `parts`."""

    parts: list[pa.Array]  # payloads of the batch, then those buffered from earlier ones
    positions: Joined  # of all of them
    found: dict[str, pa.Buffer]  # of Outline.delivered
    is_certain: bool  # whether each change has a transaction and its commit
    is_known: bool  # whether each has a version of its relation
    has_truncates: bool
    used: list[int]  # versions of relations that they have
    gids: dict[int, str]  # outcome -> gid
    row_errors: dict[int, str]  # row of a bad payload -> its error
