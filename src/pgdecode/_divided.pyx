"""Decodes the rows of a batch by several threads: in turns, into parts of one whole."""

from cpython.pythread cimport PyThread_allocate_lock, PyThread_free_lock
from libc.stddef cimport size_t
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pgdecode._fault cimport OK
from pgdecode._memory cimport Arena, Arenas, free_arenas, open_arenas
from pgdecode._part cimport begin_rows, divide, finish_rows, free_part, join_rows, lend, scan_rows
from pgdecode._sink cimport Opening
from pgdecode._source cimport Segment
from pgdecode._turns cimport PARTS, Work, arena_size, in_turns, rows_of_turn

cdef struct Division:
    # What all threads share.
    Opening opening
    Part *whole
    Part *parts              # the first one is the part in front
    Arenas arenas            # of the others
    const Segment *segments
    Py_ssize_t n_segments


cdef FaultCode scan_divided(Part *whole, Source source, Py_ssize_t n_threads) except *:
    """Decode all rows; where a fault ends it, the whole has it."""
    cdef Division division
    cdef Work work
    cdef Py_ssize_t n_parts = n_threads * PARTS
    cdef Py_ssize_t i
    cdef FaultCode code
    memset(&division.arenas, 0, sizeof(Arenas))
    division.whole = whole
    division.segments = source.segments
    division.n_segments = source.n_segments
    division.opening.n_joined = 0
    division.opening.lock = PyThread_allocate_lock()
    division.parts = <Part *>calloc(<size_t>n_parts + 1, sizeof(Part))
    work.owns = &division
    work.own_size = 0
    work.part_size = sizeof(Part)
    work.decode = decode
    work.join = join
    work.n_rows = source.n_rows
    work.step = rows_of_turn(source.n_rows, source.n_bytes(), n_threads)
    work.n_threads = n_threads
    work.whole = whole
    try:
        if division.opening.lock == NULL or division.parts == NULL:
            raise MemoryError()
        open_arenas(&division.arenas, n_parts, arena_size(&work, source.n_bytes()))
        work.front = division.parts
        work.parts = division.parts + 1
        code = in_turns(&work)
        if code != OK:
            whole.fault = (<Part *>work.failed).fault
    finally:
        if division.parts != NULL:
            for i in range(n_parts + 1):
                free_part(&division.parts[i])
        free(division.parts)
        free_arenas(&division.arenas)
        if division.opening.lock != NULL:
            PyThread_free_lock(division.opening.lock)
    return code


cdef FaultCode decode(void *own, void *part, int64_t first, int64_t stop) noexcept nogil:
    cdef Division *division = <Division *>own
    cdef Part *taken = <Part *>part
    cdef FaultCode code
    cdef Arena *arena = NULL
    if taken.walk.plan == NULL:
        # Only parts that are needed are made.
        if taken != division.parts:
            arena = &division.arenas.items[taken - division.parts - 1]
        divide(taken, division.whole, &division.opening, arena)
    begin_rows(taken, first, stop)
    if taken.is_front:
        lend(division.whole, taken)
    code = scan_rows(taken, division.segments, division.n_segments, first, stop)
    return code if code != OK else finish_rows(taken)


cdef FaultCode join(void *whole, void *part) noexcept nogil:
    return join_rows(<Part *>whole, <Part *>part)
