"""What becomes of transactions, and the versions that relations have, by the few messages that say so.

`ChangeDecoder` would keep the changes of open transactions; their number and the catalog can be had without.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.batches import DecodedBatch
from pgdecode.catalog import RelationCatalog
from pgdecode.files import PayloadFile
from pgdecode.ledger import Ledger, Options, Transaction
from pgdecode.messages import MESSAGES
from pgdecode.ordered import OrderedFiles, OrderFault
from pgdecode.transactions import Follower

# No server sends so many versions of relations, a corrupt file may.
MAX_VERSIONS = 100_000
_OF_ROWS = ("insert", "update", "delete", "truncate", "message", "origin")
_CONTROL = pa.array([message.kind for message in MESSAGES if message.kind not in _OF_ROWS])


class _Counter(Follower):
    """Follows messages without changes, and counts the transactions that lose their outcome."""

    notes_lost = True
    n_lost = 0

    def _commit(self, row: int, transaction: Transaction) -> None:
        """Leave what is counted by its message."""

    def _abort(self, transaction: Transaction) -> None:
        """Leave it as well."""

    def _abort_part(self, row: int, transaction: Transaction, subxid: int) -> None:
        """Leave it as well."""

    def _undecided(self, transaction: Transaction) -> None:
        self.n_lost += 1


class Census:
    """Counts over payloads in slot order.

    Attributes
    ----------
    fault : str or None
        Why the payloads could not be followed any further, or the first message that stands where it cannot.
    complete : bool
        Whether all were followed.
    """

    def __init__(self, files: OrderedFiles) -> None:
        self._positions = files.positions()
        self._ledger = Ledger()
        self._n_lost = 0
        self.position = files.position
        self.fault: str | None = None
        self.complete = True

    @property
    def n_undecided(self) -> int:
        """Transactions without an outcome: those that are still open, and those that never got one."""
        return self._n_lost + len(self._ledger.undecided)

    @property
    def catalog(self) -> RelationCatalog:
        """The relations met so far."""
        return RelationCatalog(self._ledger.catalog.versions)

    def add(self, file: PayloadFile, batch: DecodedBatch) -> None:
        """Follow the next rows, whose envelope has `kind`."""
        if not self.complete:
            return
        try:
            positions = self._positions.of(file, batch.start, batch.source)
        except OrderFault as error:
            self._give_up(str(error))
            return
        chosen = pc.indices_nonzero(pc.is_in(batch.envelope.column("kind"), _CONTROL))
        payloads = batch.source.column(file.payload).take(chosen)
        follower = _Counter(self._ledger, payloads, positions.take(chosen), Options("PERMISSIVE"))
        told = follower.run().told
        self._n_lost += follower.n_lost
        if told and self.fault is None:
            row = min(told)
            self.fault = f"{file.path}: row {batch.start + chosen[row].as_py()}: {told[row]}"
        if len(self._ledger.catalog.versions) > MAX_VERSIONS:
            self._give_up(f"{file.path}: more than {MAX_VERSIONS:,} versions of relations")

    def _give_up(self, fault: str) -> None:
        self.complete = False
        self.fault = fault
        self._ledger = Ledger()
