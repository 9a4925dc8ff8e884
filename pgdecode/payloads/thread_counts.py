"""Thread counts: how many of the allowed threads pay off."""

from __future__ import annotations

from pgdecode._native.arrow.payload_array import Source

# With fewer rows and fewer bytes of payloads per thread, a thread costs more than it saves.
LEAST_ROWS = 16_384
LEAST_BYTES = 1 << 21
# Average payload bytes. With longer payloads, the output of a thread's smallest chunk does not fit its core's cache.
MOST_ROW_BYTES = 1 << 15
# Resolving stream flags takes a tenth of the decoding time. With fewer rows, starting threads for it takes longer.
LEAST_RESOLVED = 1 << 17


def check_threads(threads: int) -> int:
    """Check a number of threads, and return it.

    Raises
    ------
    ValueError
        If it is not a positive integer.
    """
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise ValueError(f"threads must be a positive integer, not {threads!r}")
    return threads


def threads_for(source: Source, threads: int, n_rows: int | None = None) -> int:
    """Choose how many of the allowed threads to use: one per `LEAST_ROWS` rows or `LEAST_BYTES` bytes.

    Small batches and very large payloads use one thread. `n_rows` is the number of rows of the source that are decoded,
    by default all.
    """
    if threads == 1:
        return 1
    n_bytes = source.payload_bytes
    if n_bytes > MOST_ROW_BYTES * source.n_rows:
        return 1
    if n_rows is None:
        n_rows = source.n_rows
    elif source.n_rows:
        n_bytes = n_bytes * n_rows // source.n_rows
    return max(1, min(threads, max(n_rows // LEAST_ROWS, n_bytes // LEAST_BYTES)))


def resolvers_for(source: Source, n_threads: int) -> int:
    """Choose how many of the threads resolve the stream flags of rows."""
    return n_threads if source.n_rows >= LEAST_RESOLVED else 1
