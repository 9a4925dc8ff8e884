"""Growable memory from pyarrow's pool: it reuses pages from batch to batch, and counts what Python still holds."""

from cpython.ref cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t

from pgdecode._native.fault cimport OK, FaultCode, unlikely

cdef enum:
    SLACK = 32      # bytes past the capacity that a block copy may scribble on; never exported
    LEAST = 256     # bytes: a resize takes as long as writing many more
    FEW_ROWS = 512  # too few to estimate how long the others are

cdef struct Bytes:
    uint8_t *data
    size_t size
    size_t capacity
    PyObject *owner  # the pyarrow buffer that `data` lies in, one reference
    size_t start     # where in the owner `data` begins
    Arena *arena     # a thread's own memory instead: it is allocated without the interpreter

cdef struct Arena:
    # A piece of a block, of which parts are handed out one after the other; past its end the system's memory is.
    uint8_t *first
    uint8_t *at
    uint8_t *end

cdef struct Arenas:
    # They lie in one block of the pool's, which reuses its pages from call to call, where the system would clear them.
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
    # Payloads are limited to 1 GiB and builders to 2 GiB, so none of these sums can wrap.
    needed = bytes.size + extra
    capacity = bytes.capacity + (bytes.capacity >> 1) if bytes.capacity > LEAST else LEAST
    return grow(bytes, capacity if capacity > needed else needed)


cdef inline FaultCode reserve_likely(Bytes *bytes, size_t extra, int64_t n_done, int64_t n_rows) noexcept nogil:
    """As `reserve`; but where that takes more memory, take enough for all rows, if they are like those done."""
    if not unlikely(not has_capacity(bytes, extra)):
        return OK
    return grow_likely(bytes, extra, <double>bytes.size / <double>(n_done + 1), n_done, n_rows)
