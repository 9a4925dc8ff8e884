"""Reads batches of many payload files in order: small files together, pieces of files ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from pgdecode.files.payload_file import BATCH_BYTES, PLAIN_BINARY, FileFault, PayloadFile, RawBatch, holds_text
from pgdecode.payloads.unwrap import has_frames
from pgdecode.payloads.workers import Workers, prefetched

# Sizes of what a worker reads ahead: of a piece, by its metadata, and at most in memory.
_PIECE_BYTES = 8 * 2**20
_AHEAD_BYTES = 64 * 2**20
# Limits of the batches of small files that are joined: their size, which is copied, and their number, because each has
# some kilobytes of objects.
_TOGETHER_BYTES = BATCH_BYTES // 2
_TOGETHER_BATCHES = 2048


def read_together(files: Iterable[PayloadFile], batch_rows: int) -> Iterator[list[RawBatch]]:
    """Read files in order. Yield consecutive batches that may be joined, at most `batch_rows` rows together.

    Raises
    ------
    FileFault
        If a file is damaged, after all batches before the damage.
    """
    found: list[RawBatch] = []
    n_rows = n_bytes = 0
    try:
        for file in files:
            for batch in file.raw_batches(batch_rows):
                rows, size = len(batch.source), batch.source.get_total_buffer_size()
                is_full = n_rows + rows > batch_rows or n_bytes + size > _TOGETHER_BYTES
                is_full = is_full or len(found) == _TOGETHER_BATCHES
                if found and (is_full or not batch.is_like(found[0])):
                    yield found
                    found, n_rows, n_bytes = [], 0, 0
                found.append(batch)
                n_rows, n_bytes = n_rows + rows, n_bytes + size
    except FileFault:
        if found:
            yield found
        raise
    if found:
        yield found


def are_payloads(batches: Sequence[RawBatch]) -> bool:
    """Whether batches that `read_together` yields are complete as they are: none has text, frames or keepalives."""
    file = batches[0].file
    return (
        file.unwrap in ("auto", "none")
        and not holds_text(file.columns.field(file.payload).type)
        and all(name in file.columns.names for name in file.keep)
        and all(batch.payloads.type in PLAIN_BINARY for batch in batches)
        and not (file.unwrap == "auto" and has_frames([batch.payloads for batch in batches]))
    )


def read_files(
    files: Iterable[PayloadFile], batch_rows: int, workers: Workers
) -> Iterator[tuple[PayloadFile, pa.RecordBatch]]:
    """Read files in order, as `PayloadFile.batches` does, and yield each batch with its file.

    Each worker reads a piece of a file ahead, at most `_AHEAD_BYTES` of it.

    Raises
    ------
    FileFault
        If a file is damaged, after all batches before the damage.
    """
    pieces = ((file, piece) for file in files for piece in file.pieces(_PIECE_BYTES))
    is_ahead = workers.n > 1

    def read(item: tuple[PayloadFile, PayloadFile]) -> tuple[PayloadFile, Iterator[pa.RecordBatch]]:
        file, piece = item
        return file, _ahead(piece.batches(batch_rows)) if is_ahead else piece.batches(batch_rows)

    for file, batches in workers.map(read, pieces):
        for batch in batches:
            yield file, batch


def _ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the first batches now, and the others when they are needed, each while the one before it is used."""
    found: deque[pa.RecordBatch] = deque()
    failure = None
    n_bytes = 0
    try:
        for batch in batches:
            found.append(batch)
            n_bytes += batch.nbytes
            if n_bytes >= _AHEAD_BYTES:
                break
    except FileFault as error:
        failure = error

    def rest() -> Iterator[pa.RecordBatch]:
        while found:
            yield found.popleft()
        if failure is not None:
            raise failure
        if n_bytes >= _AHEAD_BYTES:
            yield from prefetched(batches)

    return rest()
