"""Walks the payloads of a batch."""

from libc.stdint cimport int64_t, uint8_t

from pgdecode._native.arrow.payload_array cimport Segment
from pgdecode._native.fault cimport FaultCode
from pgdecode._native.wire.envelope_builder cimport Walk


cdef FaultCode walk_rows(Walk *walk, const Segment *segment, int64_t *next, int64_t end) noexcept nogil
