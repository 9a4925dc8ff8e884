"""Moves what the sinks of a part have appended behind what those of the whole have."""

from pgdecode._fault cimport FaultCode
from pgdecode._sink cimport ColumnsSink, Sink, TupleSink, WordSink

cdef FaultCode join_sink(Sink *part) noexcept nogil
cdef FaultCode join_tuple(TupleSink *whole, TupleSink *part) noexcept nogil
cdef FaultCode join_columns(ColumnsSink *whole, ColumnsSink *part) noexcept nogil
cdef FaultCode join_words(WordSink *whole, const WordSink *part) noexcept nogil
