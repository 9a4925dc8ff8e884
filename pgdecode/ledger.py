"""What is known of transactions between two batches, and what a batch has brought."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from pgdecode._integers import Joined
from pgdecode.limits import Limits
from pgdecode.visibility import CatalogBuilder


@dataclass(frozen=True, slots=True)
class Held:
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

    `ranges` are its changes in the batch at hand, by their numbers in the outline; `aborted` says of each
    sub-transaction that was rolled back how many changes of the transaction had been sent before.
    """

    xid: int  # top-level; 0 where its beginning was not seen
    begin_position: int = -1  # of the message that began it, -1 where that was not seen
    gid: str | None = None
    final_lsn: int = -1
    held: list[Held] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    aborted: dict[int, int] = field(default_factory=dict)
    n_changes: int = 0  # so far, undone ones too
    owner: object = None  # whose it is to change, by `Ledger.token`; None for one that is new

    def copy(self, owner: object = None) -> Transaction:
        """One that goes its own way."""
        return replace(self, held=list(self.held), ranges=list(self.ranges), aborted=dict(self.aborted), owner=owner)


@dataclass(slots=True)
class Ledger:
    """What is known between two batches."""

    position: int = 0  # the least that the next payload may have
    begun: bool = False  # a transaction boundary has come by
    last_lsn: int = -1  # of the newest commit
    stream: int | None = None  # top-level xid of the stream block that is open
    open: Transaction | None = None  # between Begin and Commit, or Begin Prepare and Prepare
    streamed: dict[int, Transaction] = field(default_factory=dict)
    prepared: dict[str, Transaction] = field(default_factory=dict)
    catalog: CatalogBuilder = field(default_factory=CatalogBuilder)
    token: object = field(default_factory=object, compare=False)

    def copy(self) -> Ledger:
        """One that goes its own way.

        The two share their transactions, of which there may be many, until one of them changes: `own_open` and
        `own_streamed` give what may be changed.
        """
        self.token = object()
        return replace(
            self,
            streamed=dict(self.streamed),
            prepared=dict(self.prepared),
            catalog=self.catalog.copy(),
            token=object(),
        )

    def _own(self, transaction: Transaction) -> Transaction:
        return transaction if transaction.owner is self.token else transaction.copy(self.token)

    def own_open(self) -> Transaction | None:
        """Give the transaction that is open, to be changed."""
        if self.open is not None:
            self.open = self._own(self.open)
        return self.open

    def own_streamed(self, xid: int) -> Transaction:
        """Give a streamed transaction, to be changed."""
        self.streamed[xid] = self._own(self.streamed[xid])
        return self.streamed[xid]

    def own_all(self) -> list[Transaction]:
        """Give all transactions without an outcome, to be changed."""
        self.streamed = {xid: self._own(item) for xid, item in self.streamed.items()}
        self.prepared = {gid: self._own(item) for gid, item in self.prepared.items()}
        self.own_open()
        return self.undecided

    @property
    def undecided(self) -> list[Transaction]:
        """Transactions without an outcome."""
        return [*([self.open] if self.open else []), *self.streamed.values(), *self.prepared.values()]


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a batch has brought: changes in the order to apply them, by places in `parts`."""

    parts: list[pa.Array]  # payloads of the batch, then those held from earlier ones
    positions: Joined  # of all of them
    found: dict[str, pa.Buffer]  # of Outline.delivered
    is_certain: bool  # whether each change has a transaction and its commit
    is_known: bool  # whether each has a version of its relation
    has_truncates: bool
    gids: dict[int, str]  # outcome -> gid
    told: dict[int, str]  # row of a bad payload -> its error


@dataclass(frozen=True, slots=True)
class Options:
    """How a decoder was asked to decode."""

    mode: str = "FAILFAST"
    include_uncommitted: bool = False
    drop_duplicates: bool = False
    limits: Limits = field(default_factory=Limits)
    strict_flags: bool = True
