"""Walks the payloads of a batch."""

from libc.stdint cimport int64_t, uint8_t

from pgdecode._envelope cimport Walk
from pgdecode._fault cimport FaultCode
from pgdecode._source cimport Segment

cdef FaultCode walk_rows(Walk *walk, const Segment *segment, int64_t *next, int64_t end) noexcept nogil
