"""Divides the rows of a batch among threads."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from pgdecode._fault cimport FaultCode
from pgdecode._memory cimport Arena

# Makes a part of rows from `first` up to `stop`, in place of what it was before, with what a thread has of its own. A
# part is all zero at first, and the memory it takes is its arena's; that of the part in front, which has none, the
# whole's.
ctypedef FaultCode (*Decode)(void *own, void *part, Arena *arena, int64_t first, int64_t stop) noexcept nogil

# Puts a part's rows behind those that the whole has.
ctypedef FaultCode (*Join)(void *whole, void *part) noexcept nogil

# Frees what a part has; the whole takes the fault of the one that failed.
ctypedef void (*End)(void *whole, void *part, bint failed) noexcept

cdef struct Work:
    Decode decode
    Join join
    End end
    int64_t n_rows
    size_t n_bytes       # of their payloads
    Py_ssize_t n_threads
    void *owns           # one for each thread, one behind the other
    size_t own_size      # bytes; 0 where all threads have the same
    void *whole
    size_t part_size
    bint whole_is_front  # the rows that are next are decoded right into it, not into a part that borrows its memory

cdef FaultCode in_turns(const Work *work) except *
