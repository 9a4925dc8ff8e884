"""Growable memory from pyarrow's pool, which reuses pages from batch to batch and counts the memory in use."""

from cpython.ref cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t

from pgdecode._native.fault cimport OK, FaultCode, unlikely

cdef enum:
    SLACK = 32      # bytes behind the capacity that block copies may overwrite; never exported
    LEAST = 256     # bytes: a resize takes as long as writing many more
    FEW_ROWS = 512  # fewer rows do not show how long the others are

cdef struct Bytes:
    uint8_t *data
    size_t size
    size_t capacity
    PyObject *owner  # the pyarrow buffer that contains `data`; one reference
    size_t start     # offset of `data` in the owner
    Arena *arena     # the thread's own memory, if not NULL: it is allocated without the interpreter

cdef struct Arena:
    # A block that is handed out piece by piece. When it is full, the system allocates.
    uint8_t *first
    uint8_t *at
    uint8_t *end

cdef struct Arenas:
    # All lie in one block of the pool. The pool reuses its pages from call to call; the system would clear them.
    Arena *items
    Py_ssize_t n
    Bytes block


cdef FaultCode grow(Bytes *bytes, size_t capacity) noexcept nogil
cdef FaultCode grow_likely(Bytes *bytes, size_t extra, double a_row, int64_t n_done, int64_t n_rows) noexcept nogil
cdef FaultCode open_zeroed(Bytes *bytes, size_t size) noexcept nogil
cdef object hand_over(Bytes *bytes)
cdef void free_bytes(Bytes *bytes) noexcept
cdef int open_arenas(Arenas *arenas, Py_ssize_t n, size_t size) except -1
cdef void free_arenas(Arenas *arenas) noexcept


cdef inline bint has_capacity(const Bytes *bytes, size_t extra) noexcept nogil:
    """Whether `reserve` has nothing to do."""
    return not (extra > bytes.capacity - bytes.size or bytes.data == NULL)


cdef inline FaultCode reserve(Bytes *bytes, size_t extra) noexcept nogil:
    """Reserve capacity for `extra` more bytes and the slack."""
    cdef size_t needed, capacity
    if not unlikely(not has_capacity(bytes, extra)):
        return OK
    # Payloads are limited to 1 GiB and builders to 2 GiB, so these sums cannot overflow.
    needed = bytes.size + extra
    capacity = bytes.capacity + (bytes.capacity >> 1) if bytes.capacity > LEAST else LEAST
    return grow(bytes, capacity if capacity > needed else needed)


cdef inline FaultCode reserve_likely(Bytes *bytes, size_t extra, int64_t n_done, int64_t n_rows) noexcept nogil:
    """Reserve as `reserve` does. If that needs more memory, reserve for all rows, estimated from the rows so far."""
    if not unlikely(not has_capacity(bytes, extra)):
        return OK
    return grow_likely(bytes, extra, <double>bytes.size / <double>(n_done + 1), n_done, n_rows)
