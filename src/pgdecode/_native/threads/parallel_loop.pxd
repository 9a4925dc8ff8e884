"""Divides the rows of a batch among threads."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from pgdecode._native.arrow.payload_array cimport Source
from pgdecode._native.fault cimport FaultCode
from pgdecode._native.memory.buffers cimport Arena

# Makes a part of rows from `first` up to `stop`, in place of what it was before, with the context of a thread. A
# part is all zero at first, and the memory it takes is its arena's.
ctypedef FaultCode (*Decode)(void *context, void *part, Arena *arena, int64_t first, int64_t stop) noexcept nogil

# Whether the whole has room for a part's rows, so that to place them moves nothing that others are writing to.
ctypedef bint (*Fits)(const void *whole, const void *part) noexcept nogil

# Gives a part's rows their place, behind all that have one: one part at a time, in the order of their rows.
ctypedef FaultCode (*Place)(void *whole, void *part) noexcept nogil

# Writes a part's rows to their place, while other threads write theirs.
ctypedef void (*Write)(void *whole, void *part) noexcept nogil

# Frees what a part has; the whole takes the fault of the one that failed.
ctypedef void (*End)(void *whole, void *part, bint failed) noexcept

cdef struct Work:
    Decode decode
    Fits fits
    Place place
    Write write
    End end
    void *source         # Source of the rows
    Py_ssize_t n_threads
    void *contexts       # one for each thread, one behind the other
    size_t context_size  # bytes; 0 where all threads have the same
    void *whole
    size_t part_size
    bint appends         # whether parts take memory from arenas

cdef FaultCode run_in_chunks(const Work *work) except *
