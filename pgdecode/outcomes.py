"""What comes of transactions in a batch: they are delivered, dropped, or held for the batches to come."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._integers import Joined
from pgdecode._source import Source
from pgdecode.ledger import Delivery, Held, Transaction
from pgdecode.scanned import ScannedBatch


class DecidedBatch(ScannedBatch):
    """A batch whose transactions come to their outcomes."""

    def delivery(self) -> Delivery:
        """Deliver what has been decided so far."""
        return Delivery(self.parts, Joined(self.all_positions), *self.outline.delivered(), self.gids, self.told)

    def _commit(self, row: int, transaction: Transaction) -> None:
        lsn = self._value("lsn", row)
        if self.options.drop_duplicates and lsn <= self.outline.last_lsn:
            return
        self.outline.last_lsn = max(lsn, self.outline.last_lsn)
        self._deliver(transaction, row, lsn, self._value("timestamp", row), 1)

    def _abort(self, transaction: Transaction) -> None:
        self._drop(transaction, 0)

    def deliver_undecided(self, transaction: Transaction) -> None:
        """Deliver a transaction that no outcome has come for."""
        self._deliver(transaction, -1, -1, -1, -1)

    def _undecided(self, transaction: Transaction) -> None:
        self._drop(transaction, -1)

    def _drop(self, transaction: Transaction, committed: int) -> None:
        if self.options.include_uncommitted:
            self._deliver(transaction, -1, -1, -1, committed)

    def _deliver(self, transaction: Transaction, row: int, lsn: int, timestamp: int, committed: int) -> None:
        """Deliver a transaction, and what its sub-transactions have undone of it where that is wanted."""
        pieces = self._pieces(transaction)
        aborted = transaction.aborted if committed else {}  # in an abort all are alike
        self._decide(row, transaction, lsn, timestamp, committed)
        for start, end, place in pieces:
            self.outline.deliver_alive(start, end, place, aborted, True)
        if aborted and self.options.include_uncommitted:
            self._decide(-1, transaction, -1, -1, 0)
            for start, end, place in pieces:
                self.outline.deliver_alive(start, end, place, aborted, False)

    def _decide(self, row: int, transaction: Transaction, lsn: int, timestamp: int, committed: int) -> None:
        outcome = self.outline.decide(row, transaction.xid, lsn, timestamp, committed)
        if transaction.gid is not None:
            self.gids[outcome] = transaction.gid

    def _pieces(self, transaction: Transaction) -> list[tuple[int, int, int]]:
        """List the changes of a transaction as (start, end, place in it), those of earlier batches first."""
        found = []
        place = 0
        for held in transaction.held:
            start = self.outline.n
            first = self.end
            relation_ids, xids = (memoryview(item).cast("B").cast("q") for item in (held.relation_ids, held.xids))
            versions = memoryview(held.versions).cast("B").cast("i")
            self.outline.list_held(first, Source([held.payloads]), relation_ids, xids, versions)
            self.add_part(held.payloads, held.positions)
            found.append((start, self.outline.n, place))
            place += len(held)
        # Held changes are no part of the transaction that is open.
        self.since = self.outline.n
        for start, end in transaction.ranges:
            found.append((start, end, place))
            place += end - start
        return found

    def _hold(self) -> None:
        """Keep the payloads of undecided transactions for the batches to come."""
        self._keep(self.ledger.undecided)

    def _keep(self, transactions: Iterable[Transaction]) -> None:
        """Copy the payloads of transactions out of the batch."""
        for item in transactions:
            if not item.ranges:
                continue
            rows, relation_ids, xids, versions, truncates = self.outline.rows_of(item.ranges)
            n = rows.size // 8
            # Bad payloads are not kept.
            item.n_changes += n - sum(end - start for start, end in item.ranges)
            item.ranges = []
            if n:
                places = pa.Array.from_buffers(pa.int64(), n, [None, rows])
                payloads = self._take(places, truncates)
                item.held.append(Held(payloads, self.positions.take(places), relation_ids, xids, versions))

    def _take(self, places: pa.Array, truncates: pa.Buffer) -> pa.Array:
        """Copy payloads; of a Truncate only the tag, since each of its tables, however many, would have a copy."""
        if b"\1" not in truncates.to_pybytes():
            return self.payloads.take(places)
        is_truncate = pa.Array.from_buffers(pa.uint8(), len(places), [None, truncates]).cast(pa.bool_())
        return self.payloads.take(pc.if_else(is_truncate, pa.scalar(None, pa.int64()), places)).fill_null(b"T")
