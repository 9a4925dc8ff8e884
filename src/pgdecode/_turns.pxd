"""Divides the rows of a batch among threads."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from pgdecode._fault cimport FaultCode

cdef enum:
    # For each thread: how many parts there are, which is how far the others may go on while one does not.
    PARTS = 8

# Makes a part of rows from `first` up to `stop`, in place of what it was before, with what a thread has of its own.
ctypedef FaultCode (*Decode)(void *own, void *part, int64_t first, int64_t stop) noexcept nogil

# Puts a part's rows behind those that the whole has.
ctypedef FaultCode (*Join)(void *whole, void *part) noexcept nogil

cdef struct Work:
    Decode decode
    Join join
    int64_t n_rows
    int64_t step         # rows of a turn
    Py_ssize_t n_threads
    void *owns           # one for each thread, one behind the other
    size_t own_size      # bytes; 0 where all threads have the same
    void *whole
    void *front          # the part whose rows are decoded into the whole's memory, being next
    void *parts          # those that have memory of their own, PARTS for each thread, one behind the other
    size_t part_size
    void *failed         # afterwards: the part in which a fault ended it

cdef FaultCode in_turns(Work *work) except *
cdef int64_t rows_of_turn(int64_t n_rows, size_t n_bytes, Py_ssize_t n_threads) noexcept nogil
cdef size_t arena_size(const Work *work, size_t n_bytes) noexcept nogil
