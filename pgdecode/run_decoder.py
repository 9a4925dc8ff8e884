"""Decoding one run of a sequence alone, by what `index_runs` has worked out.

All runs together give what one `ChangeDecoder` gives for the whole sequence, though not in its order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

from pgdecode.errors import DecodeError, StreamDesync
from pgdecode.ledger import Delivery, Ledger, Options, Transaction
from pgdecode.messages import Relation
from pgdecode.runs import UNDECIDED, Fate, RunIndex
from pgdecode.transactions import Follower
from pgdecode.visibility import Unforeseen


class RunFollower(Follower):
    """Follows one batch of a run: what becomes of streamed and prepared transactions is known."""

    fates: Mapping[int, Fate]

    def _hold(self) -> None:
        ledger = self.ledger
        for item in (*ledger.streamed.values(), *ledger.prepared.values()):
            self.deliver_fated(item)
        if ledger.open is not None:
            self._keep([ledger.open])

    def _meet_stream_stop(self, row: int) -> None:
        # Each block is delivered when it ends: what Stream Aborts after it undo goes by their positions.
        stream = self.ledger.stream
        super()._meet_stream_stop(row)
        if stream is not None:
            self.deliver_fated(self.ledger.streamed[stream])

    def _describe(self, message: Relation, position: int, stream: int | None) -> None:
        try:
            super()._describe(message, position, stream)
        except Unforeseen:
            # Among all messages of its run it is another one than among those that matter everywhere: a boundary is
            # missing or out of order.
            detail = StreamDesync.wording.format(field="relation")
            raise StreamDesync(detail, offset=1, tag="R", relation=message.relation_id) from None

    def deliver_fated(self, item: Transaction) -> None:
        """Deliver what is listed of a transaction by its fate."""
        fate = self.fates.get(item.begin_position, UNDECIDED)
        if not item.ranges and not item.held:
            return
        pieces = self._pieces(item)
        item.ranges, item.held = [], []
        gid = fate.gid if fate.gid is not None else item.gid
        # No abort comes between the changes of a piece: the position of its first stands for all.
        places = [(start, end, self._position_of(start)) for start, end, _ in pieces]
        aborts = fate.aborts if fate.committed else {}  # in an abort all are alike
        wanted = self.options.include_uncommitted
        if fate.committed == 1 or wanted:
            self._decide_fated(item, fate, gid)
            for start, end, position in places:
                self.outline.deliver_alive(start, end, position, aborts, True, 0)
        if aborts and wanted:
            self._decide_fated(item, Fate(0), gid)
            for start, end, position in places:
                self.outline.deliver_alive(start, end, position, aborts, False, 0)

    def _decide_fated(self, item: Transaction, fate: Fate, gid: str | None) -> None:
        row = -1
        if fate.committed == 1:
            # Its commit may be far away: only the position is wanted of it.
            row = self.end
            self.add_part(pa.nulls(1, self.payloads.type), pa.array([fate.commit_position], pa.int64()))
        outcome = self.outline.decide(row, item.xid, fate.commit_lsn, fate.commit_timestamp, fate.committed)
        if gid is not None:
            self.gids[outcome] = gid

    def placed(self, error: DecodeError, rows: pa.Array) -> DecodeError:
        """Give the error of a delivered change the position of its payload."""
        return error if error.row is None else error.at_position(self._position_at(rows[error.row].as_py()))

    def _position_of(self, change: int) -> int:
        return self._position_at(self.outline.row_of(change))

    def _position_at(self, row: int) -> int:
        number, row = self._place(row)
        return int(self.all_positions[number][row].as_py())


class RunDecoder:
    """Decodes one run, batch by batch, in ascending order of position.

    Parameters
    ----------
    index : RunIndex
    number : int
        Of the run.
    options : Options
    versions : collection of int, optional
        Versions of relations, by their numbers in the catalog, whose changes are delivered; by default all. Bad
        payloads and changes without a version are, in any case.
    """

    def __init__(self, index: RunIndex, number: int, options: Options, versions: Collection[int] | None = None) -> None:
        self.index = index
        self.wanted = None if versions is None else bytes(item in versions for item in range(len(index.catalog)))
        self.run = index.runs[number]
        self.options = options
        self.ledger = index.starts[number].copy()
        self.ledger.own_all()
        self.ledger.catalog.foresee(index.catalog)

    def follow(self, payloads: pa.Array, positions: pa.Array) -> tuple[Follower, Delivery]:
        """Take up the next payloads; what they deliver.

        Raises
        ------
        DecodeError
            With `position`.
        """
        follower = self._follower(self.ledger, payloads, positions)
        try:
            return follower, follower.run()
        except DecodeError as error:
            if error.row is None:
                raise
            raise error.at_position(positions[error.row].as_py()) from None

    def finish(self) -> tuple[Follower, Delivery]:
        """End the run: give the changes of the transaction that goes on in the next."""
        nothing = pa.array([], pa.large_binary())
        follower = self._follower(Ledger(), nothing, pa.array([], pa.int64()))
        follower.run()
        if self.ledger.open is not None:
            follower.deliver_fated(self.ledger.open)
            self.ledger.open = None
        return follower, follower.delivery()

    def _follower(self, ledger: Ledger, payloads: pa.Array, positions: pa.Array) -> RunFollower:
        follower = RunFollower(ledger, payloads, positions, self.options)
        follower.fates = self.index.fates
        follower.wanted = self.wanted
        return follower
