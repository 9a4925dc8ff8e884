"""What is to be known of a span before its changes are decoded, or once they have been decoded by a forecast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from pgdecode._source import Source
from pgdecode._tags import tagged
from pgdecode.building import Builder
from pgdecode.deliveries import Stretch
from pgdecode.forecast import APART
from pgdecode.messages import MESSAGES
from pgdecode.ordered import OrderFault
from pgdecode.runs import AT_THE_ENDS, EVERYWHERE, ROWS
from pgdecode.scanned import NO_KIND
from pgdecode.transactions import Follower
from pgdecode.visibility import Unforeseen
from spark_udfs.spans import numbers, packed, taken


class Survey(NamedTuple):
    """What is to be known of a span before changes are decoded.

    Attributes
    ----------
    first, last : int
        Positions.
    has_rows : bool
        Whether inserts, updates, deletes or truncates are in it.
    messages : bytes
        Arrow stream of the messages that `pgdecode.runs.index_runs` needs.
    """

    first: int
    last: int
    has_rows: bool
    messages: bytes


class SpanLook:
    """Looks through a span batch by batch."""

    def __init__(self) -> None:
        self.first = self.last = -1  # which is no position
        self.tags: set[int] = set()
        self.found: list[pa.RecordBatch] = []
        self.last_end: tuple[pa.Array, pa.Array] | None = None

    def take(self, positions: pa.Array, payloads: pa.Array) -> None:
        """Take up the next rows.

        Raises
        ------
        OrderFault
            If positions are negative.
        """
        rows, first_end, last_end, tags = tagged(Source([payloads]), EVERYWHERE, AT_THE_ENDS)
        self._note(positions, payloads, tags, numbers(rows), first_end, last_end)

    def follow(self, positions: pa.Array, payloads: pa.Array, follower: Follower) -> None:
        """Take up the next rows once their transactions have been followed, which has shown all that `take` looks for.

        Raises
        ------
        OrderFault
            If positions are negative.
        Unforeseen
            If there are messages of streams and of two-phase commits, or bad payloads, which may be anything.
        """
        outline = follower.outline
        met = [(row, follower.kinds[row]) for row in follower.met]
        if any(kind == NO_KIND and payloads[row].is_valid for row, kind in met):
            raise Unforeseen
        tags = [(row, ord(MESSAGES[kind].tag)) for row, kind in met if kind != NO_KIND]
        rows = pa.array([row for row, tag in tags if tag in EVERYWHERE], pa.int64())
        found = {tag for _, tag in tags} | set(ROWS[:1] if outline.has_rows else b"")
        self._note(positions, payloads, found, rows, outline.first_end, outline.last_end)
        if not self.is_plain:
            raise Unforeseen

    def _note(
        self,
        positions: pa.Array,
        payloads: pa.Array,
        tags: Iterable[int],
        rows: pa.Array,
        first_end: int,
        last_end: int,
    ) -> None:
        self.first = positions[0].as_py() if self.first < 0 else self.first
        if self.first < 0:
            raise OrderFault("a position is negative")
        self.last = positions[-1].as_py()
        self.tags.update(tags)
        if first_end >= 0:
            if self.last_end is None:
                self.found.append(taken(positions, payloads, [first_end]))
            self.last_end = positions.slice(last_end, 1), payloads.slice(last_end, 1)
        if len(rows):
            self.found.append(taken(positions, payloads, rows))

    @property
    def is_plain(self) -> bool:
        """Whether no message of streams and of two-phase commits has come."""
        return self.tags.isdisjoint(APART)

    def survey(self) -> Survey:
        """Say what there was."""
        ends = [] if self.last_end is None else [taken(*self.last_end, [0])]
        has_rows = not self.tags.isdisjoint(ROWS)
        return Survey(self.first, self.last, has_rows, packed([*self.found, *ends]))


class Foreseen:
    """Builds batches if all their changes have a version of their relation."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.error = builder.error
        self.numbers = builder.numbers

    def batch(self, stretch: Stretch) -> pa.RecordBatch:
        """Build a batch.

        Raises
        ------
        Unforeseen
            If a relation is not known, or a payload is bad: it may have described one.
        """
        if not stretch.delivery.is_known:
            raise Unforeseen
        return self.builder.batch(stretch)
