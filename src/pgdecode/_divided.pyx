"""Decodes the rows of a batch by several threads: in turns, into parts of one whole."""

from cpython.pythread cimport PyThread_allocate_lock, PyThread_free_lock
from libc.stdint cimport int64_t

from pgdecode._fault cimport OK
from pgdecode._memory cimport Arena
from pgdecode._part cimport begin_rows, divide, finish_rows, free_part, join_rows, lend, scan_rows
from pgdecode._sink cimport Opening
from pgdecode._source cimport Segment
from pgdecode._turns cimport Work, in_turns

cdef struct Division:
    # What all threads share.
    Opening opening
    Part *whole
    const Segment *segments
    Py_ssize_t n_segments


cdef FaultCode scan_divided(Part *whole, Source source, Py_ssize_t n_threads) except *:
    """Decode all rows; where a fault ends it, the whole has it."""
    cdef Division division
    cdef Work work
    division.whole = whole
    division.segments = source.segments
    division.n_segments = source.n_segments
    division.opening.n_joined = 0
    division.opening.lock = PyThread_allocate_lock()
    work.decode = decode
    work.join = join
    work.end = end
    work.n_rows = source.n_rows
    work.n_bytes = source.n_bytes()
    work.n_threads = n_threads
    work.owns = &division
    work.own_size = 0
    work.whole = whole
    work.part_size = sizeof(Part)
    work.whole_is_front = False
    if division.opening.lock == NULL:
        raise MemoryError()
    try:
        return in_turns(&work)
    finally:
        PyThread_free_lock(division.opening.lock)


cdef FaultCode decode(void *own, void *part, Arena *arena, int64_t first, int64_t stop) noexcept nogil:
    cdef Division *division = <Division *>own
    cdef Part *taken = <Part *>part
    cdef FaultCode code
    if taken.walk.plan == NULL:
        divide(taken, division.whole, &division.opening, arena)
    begin_rows(taken, first, stop)
    if taken.is_front:
        lend(division.whole, taken)
    code = scan_rows(taken, division.segments, division.n_segments, first, stop)
    return code if code != OK else finish_rows(taken)


cdef FaultCode join(void *whole, void *part) noexcept nogil:
    return join_rows(<Part *>whole, <Part *>part)


cdef void end(void *whole, void *part, bint failed) noexcept:
    if failed:
        (<Part *>whole).fault = (<Part *>part).fault
    free_part(<Part *>part)
