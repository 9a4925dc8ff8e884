"""Moves what the sinks of a part have appended behind what those of the whole have."""

from libc.stddef cimport size_t

from pgdecode._fault cimport FaultCode
from pgdecode._sink cimport ColumnsSink, Sink, TupleSink, WordSink

cdef void close_offsets(Sink *part, size_t n_items) noexcept nogil
cdef FaultCode join_sink(Sink *part) noexcept nogil
cdef FaultCode join_tuple(TupleSink *whole, TupleSink *part) noexcept nogil
cdef FaultCode join_columns(ColumnsSink *whole, ColumnsSink *part) noexcept nogil
cdef FaultCode join_words(const WordSink *part) noexcept nogil
