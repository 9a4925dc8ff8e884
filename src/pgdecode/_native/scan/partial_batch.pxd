"""Rows of a batch that one thread decodes: the builders that they fill, and the walk that fills these."""

from libc.stdint cimport int64_t

from pgdecode._native.arrow.builder cimport ColumnsBuilder, OpenLock, Builder, TupleBuilder, KeywordBuilder
from pgdecode._native.arrow.payload_array cimport Segment
from pgdecode._native.fault cimport Fault, FaultCode, Faults
from pgdecode._native.memory.buffers cimport Arena
from pgdecode._native.threads.merge cimport Copy
from pgdecode._native.wire.envelope_builder cimport N_FAST, Envelope, FastMessage, Walk
from pgdecode._native.wire.wire_plan cimport N_ENVELOPE

cdef enum:
    MORE_COPIES = 13  # more than columns of the envelope: those of tuples, columns and keywords

cdef struct Part:
    # All rows of a batch, or some of them while other threads decode other parts of the same output.
    Builder[N_ENVELOPE] builders
    TupleBuilder old
    TupleBuilder new
    ColumnsBuilder columns
    KeywordBuilder kinds
    KeywordBuilder bases
    Envelope out            # the requested builders
    FastMessage[N_FAST] fast
    Walk walk
    Fault fault
    Faults faults           # for the `error` column
    bint permissive
    bint kind_codes         # the kinds are requested as codes, not as text
    Py_ssize_t segment      # of the source, where the walk is
    # Of a part: its data to append to the output, and the items to which the starts of its rows refer.
    Copy[N_ENVELOPE + MORE_COPIES] copies
    int n_copies
    (Copy *)[N_ENVELOPE] items
    Copy *items_of_old
    Copy *items_of_new
    Copy *items_of_columns
    Copy *kind_letters
    Copy *basis_letters

cdef void divide(Part *part, Part *output, OpenLock *open_lock, Arena *arena) noexcept nogil
cdef void begin_rows(Part *part, int64_t first, int64_t stop) noexcept nogil
cdef FaultCode scan_rows(
    Part *part, const Segment *segments, Py_ssize_t n_segments, int64_t first, int64_t stop
) noexcept nogil
cdef FaultCode finish_rows(Part *part) noexcept nogil
cdef bint fits_rows(const Part *output, const Part *part) noexcept nogil
cdef FaultCode place_rows(Part *output, Part *part) noexcept nogil
cdef void write_rows(const Part *output, Part *part) noexcept nogil
cdef void free_part(Part *part) noexcept
