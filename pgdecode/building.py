"""Record batches of what was delivered, whatever builder makes them: cut where they are too large, or joined."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from pgdecode._source import Source
from pgdecode.deliveries import Stretch
from pgdecode.errors import BatchTooLarge
from pgdecode.ledger import Delivery
from pgdecode.nulls import null_array
from pgdecode.transactions import Follower


class Builder(Protocol):
    """Makes record batches of deliveries."""

    error: str  # name of the column that says what is wrong with a row

    @property
    def numbers(self) -> Collection[int] | None:
        """Numbers of the versions of relations whose changes it builds; None: of all."""

    def batch(self, stretch: Stretch) -> pa.RecordBatch:
        """Build the changes of a stretch."""


def built(
    deliveries: Iterable[tuple[Follower, Delivery]], builders: Sequence[Builder], max_rows: int, drop_bad: bool
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Build deliveries by each of several builders, so many changes at a time; each batch with its builder's number."""
    for follower, delivery in deliveries:
        n = delivery.found["rows"].size // 8
        source = Source(delivery.parts)
        for start in range(0, n, max_rows):
            stretch = Stretch(follower, delivery, source, start, min(max_rows, n - start))
            for number, builder in enumerate(builders):
                for batch in fitting_batches(builder, stretch):
                    error = batch.column(builder.error)
                    if drop_bad and error.null_count < len(batch):
                        batch = batch.filter(error.is_null())
                    yield number, batch


def fitting_batches(builder: Builder, stretch: Stretch) -> Iterator[pa.RecordBatch]:
    """Build a stretch as one record batch, or as several where it would pass what Arrow's offsets reach."""
    try:
        yield builder.batch(stretch)
    except BatchTooLarge:
        if stretch.n == 1:
            raise
        half = stretch.n // 2
        yield from fitting_batches(builder, replace(stretch, n=half))
        yield from fitting_batches(builder, replace(stretch, start=stretch.start + half, n=stretch.n - half))


def one_batch(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Make one record batch of several, or of none; the several are let go of column by column."""
    if len(batches) == 1:
        return batches[0]
    columns: list[list[pa.Array]] = [[batch.column(i) for batch in batches] for i in range(len(schema))]
    if not batches:
        columns = [[pa.array([], item.type)] for item in schema]
    batches.clear()
    try:
        return pa.RecordBatch.from_arrays([_joined(parts) for parts in columns], schema=schema)
    except pa.ArrowInvalid:
        # "offset overflow while concatenating arrays": in batches they can be had.
        raise BatchTooLarge(BatchTooLarge.wording.format(field="a column")) from None


def _joined(parts: list[pa.Array]) -> pa.Array:
    """Join the parts of a column, which are let go of."""
    n_null = sum(part.null_count for part in parts)
    n = sum(map(len, parts))
    found = null_array(n, parts[0].type) if n_null == n else pa.concat_arrays(parts)
    parts.clear()
    return found
