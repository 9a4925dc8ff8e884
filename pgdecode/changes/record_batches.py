"""Makes record batches of committed changes with any builder. Splits batches that are too large, or joins batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from pgdecode._native.arrow.payload_array import Source
from pgdecode.arrow.null_arrays import null_array
from pgdecode.changes.committed_changes import ChangeSlice
from pgdecode.changes.replication_state import CommittedChanges
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.protocol.errors import BatchExpands, BatchTooLarge
from pgdecode.protocol.limits import FREE_EXPANSION, FREE_NAME

ONE_BATCH = 1 << 62  # as `max_rows`: all changes become one batch, as in `ChangeDecoder.decode`


class Builder(Protocol):
    """Makes record batches of committed changes."""

    error: str  # name of the error column

    @property
    def numbers(self) -> Collection[int] | None:
        """Numbers of the versions of relations whose changes it builds; None for all."""

    def batch(self, change_slice: ChangeSlice) -> pa.RecordBatch:
        """Build the changes of a slice."""


def build_batches(
    committed: Iterable[tuple[TransactionAssembler, CommittedChanges]],
    builders: Sequence[Builder],
    max_rows: int,
    drop_bad: bool,
    bad_rows: Counter[str],
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Build slices of at most `max_rows` changes with several builders. Yield each batch with its builder's number.

    Bad rows are counted in `bad_rows` by error code, and left out with `drop_bad`. If `max_rows` is `ONE_BATCH`, the
    caller joins the batches.

    Raises
    ------
    BatchExpands
        If `max_rows` is `ONE_BATCH` and the text of the batches exceeds `Limits.max_expansion`.
    """
    n_bytes = 0
    expansion = _Expansion()
    for assembler, changes in committed:
        n = changes.found["rows"].size // 8
        source = Source(changes.parts)
        n_bytes += source.payload_bytes
        for start in range(0, n, max_rows):
            change_slice = ChangeSlice(assembler, changes, source, start, min(max_rows, n - start))
            for number, builder in enumerate(builders):
                for batch in fitting_batches(builder, change_slice):
                    if max_rows >= ONE_BATCH:
                        limit = assembler.options.limits.max_expansion * n_bytes + FREE_EXPANSION
                        # Native code has the limit for the changes that it builds at a time: those of one version, or
                        # of all tables.
                        is_limited = builder.numbers is None or len(builder.numbers) < 2
                        # It does not count the texts of errors.
                        is_limited &= batch.column(builder.error).null_count == len(batch)
                        expansion.add(batch, limit, is_limited=is_limited)
                    yield number, counted_batch(batch, builder.error, drop_bad, bad_rows)


class _Expansion:
    """Bytes of text in the batches that become one batch together."""

    def __init__(self) -> None:
        self._counted = 0
        # Batches whose text is not counted yet. While all bytes of their buffers are few, it need not be.
        self._uncounted: list[pa.RecordBatch] = []
        self._unsized: list[pa.RecordBatch] = []
        self._n_bytes = 0

    def add(self, batch: pa.RecordBatch, limit: int, *, is_limited: bool) -> None:
        """Add a batch; the limit holds for it alone already, if so said.

        Raises
        ------
        BatchExpands
            If there is more text than the limit.
        """
        self._uncounted.append(batch)
        self._unsized.append(batch)
        if is_limited and not self._counted and len(self._uncounted) == 1:
            return
        self._n_bytes += sum(item.nbytes for item in self._unsized)
        self._unsized = []
        if self._counted + self._n_bytes > limit:
            self._counted += sum(map(text_bytes, self._uncounted))
            self._uncounted, self._n_bytes = [], 0
            if self._counted > limit:
                raise BatchExpands(BatchExpands.wording)


def counted_batch(batch: pa.RecordBatch, error: str, drop_bad: bool, bad_rows: Counter[str]) -> pa.RecordBatch:
    """Count the bad rows of a batch by error code. With `drop_bad`, return the batch without them."""
    errors = batch.column(error)
    if errors.null_count == len(errors):
        return batch
    bad_rows.update(code_of(text) for text in errors.drop_null().to_pylist())
    return batch.filter(errors.is_null()) if drop_bad else batch


def code_of(error: str) -> str:
    """Return the code of an error from its text in an error column."""
    return error.partition(" ")[0]


def fitting_batches(builder: Builder, change_slice: ChangeSlice) -> Iterator[pa.RecordBatch]:
    """Build a slice as one record batch, or as several if one would overflow Arrow's 32-bit offsets."""
    batch = None
    try:
        batch = builder.batch(change_slice)
    except BatchTooLarge:
        if change_slice.n == 1:
            raise
    # Outside the except block, because the error's traceback references the partly built batch.
    if batch is not None:
        yield batch
        return
    half = change_slice.n // 2
    yield from fitting_batches(builder, replace(change_slice, n=half))
    yield from fitting_batches(builder, replace(change_slice, start=change_slice.start + half, n=change_slice.n - half))


def text_bytes(batch: pa.RecordBatch) -> int:
    """Count the bytes of text in a batch, without `FREE_NAME` bytes for each column name."""
    total = 0
    names = batch.schema.names
    for name, column in zip(names, batch.columns, strict=True):
        if name in ("unchanged", "_unchanged"):
            total += _names(column.flatten())
        elif names[0] == "position" and pa.types.is_map(column.type):
            # A map from column names in a batch of all tables, not an hstore column of a typed table.
            total += _names(column.keys) + _text(column.items)
        else:
            total += _text(column)
    return total


def _names(column: pa.Array) -> int:
    return max(_text(column) - FREE_NAME * len(column), 0)


def _text(column: pa.Array) -> int:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        # By the offsets: to add up lengths takes as long as to decode.
        offsets = column.buffers()[1] if len(column) else None
        if offsets is None:
            return 0
        ends = memoryview(offsets).cast("i")
        return int(ends[column.offset + len(column)] - ends[column.offset])
    if pa.types.is_map(kind):
        return _text(column.keys) + _text(column.items)
    if pa.types.is_list(kind):
        return _text(column.flatten())
    if pa.types.is_struct(kind):
        return sum(map(_text, column.flatten()))
    return 0


def one_batch(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Join record batches. Each column's parts are released once they are joined."""
    if len(batches) == 1:
        return batches[0]
    columns: list[list[pa.Array]] = [[batch.column(i) for batch in batches] for i in range(len(schema))]
    if not batches:
        columns = [[pa.array([], item.type)] for item in schema]
    batches.clear()
    try:
        return pa.RecordBatch.from_arrays([_joined(parts) for parts in columns], schema=schema)
    except pa.ArrowInvalid:
        # "offset overflow while concatenating arrays". The methods that yield several batches can return these changes.
        raise BatchTooLarge(BatchTooLarge.wording.format(field="a column")) from None


def _joined(parts: list[pa.Array]) -> pa.Array:
    """Join the parts of a column, and release them."""
    n_null = sum(part.null_count for part in parts)
    n = sum(map(len, parts))
    found = null_array(n, parts[0].type) if n_null == n else pa.concat_arrays(parts)
    parts.clear()
    return found
