"""Rows of a batch that one thread decodes: the builders they fill, and the walk that fills them."""

from libc.stdint cimport int64_t

from pgdecode._native.arrow.builder cimport ColumnsBuilder, OpenLock, Builder, TupleBuilder, WordBuilder
from pgdecode._native.arrow.payload_array cimport Segment
from pgdecode._native.fault cimport Fault, FaultCode, Faults
from pgdecode._native.memory.buffers cimport Arena
from pgdecode._native.threads.merge cimport Move
from pgdecode._native.wire.envelope_builder cimport N_FAST, Envelope, FastMessage, Walk
from pgdecode._native.wire.wire_plan cimport N_ENVELOPE

cdef enum:
    MORE_MOVES = 13  # than the envelope has columns: those of tuples, columns and words

cdef struct Part:
    # All rows of a batch, or in turn some of them, beside other threads' parts of the same whole.
    Builder[N_ENVELOPE] builders
    TupleBuilder old
    TupleBuilder new
    ColumnsBuilder columns
    WordBuilder kinds
    WordBuilder bases
    Envelope out            # the wanted builders
    FastMessage[N_FAST] fast
    Walk walk
    Fault fault
    Faults faults           # kept for the `error` column
    bint permissive
    bint kind_codes         # the kinds are wanted as they are, not as text
    Py_ssize_t segment      # of the source, where the walk is
    # Of a part: what it puts behind what the whole has, and which of that the rows' starts count.
    Move[N_ENVELOPE + MORE_MOVES] moves
    int n_moves
    (Move *)[N_ENVELOPE] items
    Move *items_of_old
    Move *items_of_new
    Move *items_of_columns
    Move *kind_letters
    Move *basis_letters

cdef void divide(Part *part, Part *whole, OpenLock *open_lock, Arena *arena) noexcept nogil
cdef void begin_rows(Part *part, int64_t first, int64_t stop) noexcept nogil
cdef FaultCode scan_rows(
    Part *part, const Segment *segments, Py_ssize_t n_segments, int64_t first, int64_t stop
) noexcept nogil
cdef FaultCode finish_rows(Part *part) noexcept nogil
cdef bint fits_rows(const Part *whole, const Part *part) noexcept nogil
cdef FaultCode place_rows(Part *whole, Part *part) noexcept nogil
cdef void write_rows(const Part *whole, Part *part) noexcept nogil
cdef void free_part(Part *part) noexcept
