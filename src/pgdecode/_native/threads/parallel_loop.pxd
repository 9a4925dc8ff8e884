"""Divides the rows of a batch among threads."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from pgdecode._native.arrow.payload_array cimport Source
from pgdecode._native.fault cimport FaultCode
from pgdecode._native.memory.buffers cimport Arena

# Decodes rows from `first` up to `stop` into a part, with the context of a thread; replaces the part's contents. A part
# is zero at first, and allocates from its arena.
ctypedef FaultCode (*Decode)(void *context, void *part, Arena *arena, int64_t first, int64_t stop) noexcept nogil

# Whether the output has memory for a part's rows, so that placing them does not move data that others write to.
ctypedef bint (*Fits)(const void *output, const void *part) noexcept nogil

# Assigns a part's rows their position, after all rows placed so far. One part at a time, in the order of their rows.
ctypedef FaultCode (*Place)(void *output, void *part) noexcept nogil

# Copies a part's rows to their position, while other threads copy theirs.
ctypedef void (*Write)(void *output, void *part) noexcept nogil

# Frees a part. The output takes the fault of the part that failed.
ctypedef void (*End)(void *output, void *part, bint failed) noexcept

cdef struct Task:
    Decode decode
    Fits fits
    Place place
    Write write
    End end
    void *source         # Source of the rows
    Py_ssize_t n_threads
    void *contexts       # one for each thread, consecutively
    size_t context_size  # bytes; 0 if all threads share one
    void *output
    size_t part_size
    bint appends         # whether parts take memory from arenas

cdef FaultCode run_in_chunks(const Task *task) except *
