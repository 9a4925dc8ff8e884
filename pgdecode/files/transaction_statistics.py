"""What becomes of transactions, and the versions that relations have, by the few messages that say so.

`ChangeDecoder` would keep the changes of open transactions; their number and the catalog can be had without.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.outcomes import CommittedOutcomes
from pgdecode.changes.replication_state import ReplicationState, Transaction
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.files.envelope_batches import DecodedBatch
from pgdecode.files.ordered_files import OrderedFiles, OrderFault
from pgdecode.files.payload_files import PayloadFile
from pgdecode.protocol.messages import MESSAGES
from pgdecode.protocol.options import ChangeOptions
from pgdecode.relations.catalog import RelationCatalog

# No server sends so many versions of relations, a corrupt file may.
MAX_VERSIONS = 100_000
_OF_ROWS = ("insert", "update", "delete", "truncate", "message", "origin")
_CONTROL = pa.array([message.kind for message in MESSAGES if message.kind not in _OF_ROWS])


class _Counter(CommittedOutcomes):
    """Counts the transactions that lose their outcome; gives nothing."""

    wants_lost = True

    def __init__(self) -> None:
        self.n_lost = 0

    def commit(self, assembler: TransactionAssembler, row: int, transaction: Transaction) -> None:
        """Leave what is counted by its message; only its LSN matters to what comes."""
        assembler.transaction_index.note_lsn(row, assembler.batch.value("lsn", row))

    def lose(self, assembler: TransactionAssembler, transaction: Transaction, is_sent_again: bool) -> None:
        """Count it."""
        self.n_lost += 1


class TransactionStatistics:
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
        self._state = ReplicationState()
        self._outcomes = _Counter()
        self.position = files.position
        self.fault: str | None = None
        self.complete = True

    @property
    def n_undecided(self) -> int:
        """Transactions without an outcome: those that are still open, and those that never got one."""
        return self._outcomes.n_lost + self._state.n_undecided

    @property
    def n_skipped(self) -> int:
        """Transactions whose beginning is missing, as far as their ends are there."""
        return self._state.skipped.count

    @property
    def catalog(self) -> RelationCatalog:
        """The relations met so far."""
        return RelationCatalog(self._state.relations.versions)

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
        options = ChangeOptions("PERMISSIVE", start="anywhere")
        assembler = TransactionAssembler(self._state, payloads, positions.take(chosen), options, self._outcomes)
        row_errors = assembler.run().row_errors
        if row_errors and self.fault is None:
            row = min(row_errors)
            self.fault = f"{file.path}: row {batch.start + chosen[row].as_py()}: {row_errors[row]}"
        if len(self._state.relations.versions) > MAX_VERSIONS:
            self._give_up(f"{file.path}: more than {MAX_VERSIONS:,} versions of relations")

    def _give_up(self, fault: str) -> None:
        self.complete = False
        self.fault = fault
        self._state = ReplicationState()
