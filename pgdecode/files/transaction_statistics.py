"""Statistics of transactions, and the versions of relations, for `pgdecode inspect`.

Only messages that begin or end transactions or describe relations are processed. So changes are never buffered, unlike
in `ChangeDecoder`.
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

# The greatest number of versions of relations. Only a corrupt file has more.
MAX_VERSIONS = 100_000
_OF_ROWS = ("insert", "update", "delete", "truncate", "message", "origin")
_CONTROL = pa.array([message.kind for message in MESSAGES if message.kind not in _OF_ROWS])


class _Counter(CommittedOutcomes):
    """Counts transactions that end without an outcome. Emits no changes."""

    wants_lost = True

    def __init__(self) -> None:
        self.n_lost = 0

    def commit(self, assembler: TransactionAssembler, row: int, transaction: Transaction) -> None:
        """Record only the LSN, which later messages are compared with. `MessageStatistics` counts commits."""
        assembler.transaction_index.note_lsn(row, assembler.batch.value("lsn", row))

    def lose(self, assembler: TransactionAssembler, transaction: Transaction, is_sent_again: bool) -> None:
        """Count a transaction without an outcome."""
        self.n_lost += 1


class TransactionStatistics:
    """Statistics of transactions in payloads in slot order.

    Attributes
    ----------
    fault : str or None
        The first message in an impossible place, or the reason why processing stopped.
    complete : bool
        Whether all payloads were processed.
    """

    def __init__(self, files: OrderedFiles) -> None:
        self._positions = files.positions()
        self._session: int | None = None
        self._state = ReplicationState()
        self._outcomes = _Counter()
        self.position = files.position
        self.fault: str | None = None
        self.complete = True

    @property
    def n_undecided(self) -> int:
        """Number of transactions without an outcome: those still open, and those that were lost."""
        return self._outcomes.n_lost + self._state.n_undecided

    @property
    def n_skipped(self) -> int:
        """Number of transactions whose beginning is missing, as far as other messages show them."""
        return self._state.skipped.count

    @property
    def catalog(self) -> RelationCatalog:
        """The versions of relations so far."""
        return RelationCatalog(self._state.relations.versions)

    def add(self, file: PayloadFile, batch: DecodedBatch) -> None:
        """Process the next rows. Their envelope must have the column `kind`."""
        if not self.complete:
            return
        if file.captured is not None and file.captured.session != self._session:
            self._state.is_reconnected = self._session is not None
            self._session = file.captured.session
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
