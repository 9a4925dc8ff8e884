"""Walks one message by the plan, and writes its fields into the envelope's builders, if there are any."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

from pgdecode._native.fault cimport FaultCode
from pgdecode._native.wire.envelope_builder cimport Envelope, Walk


cdef FaultCode walk_payload(Walk *walk, const uint8_t *payload, size_t length, bint streamed) noexcept nogil
cdef FaultCode walk_message(Walk *walk, const uint8_t *payload, size_t length, bint streamed) noexcept nogil
cdef FaultCode resolve_fault(
    Walk *walk, Envelope *nothing, const uint8_t *payload, size_t length, bint streamed, FaultCode code
) noexcept nogil

# A stream flag is a byte: bit 0 streamed; bit 1 doubtful (order and evidence contradict each other in this run); bits 4
# and up how it was decided, an index into messages.XID_BASES.
cdef enum StreamFlag:
    STREAMED = 1
    DOUBTFUL = 2
    BASIS_SHIFT = 4

cdef enum Basis:
    BASIS_EXPLICIT
    BASIS_ORDER
    BASIS_STRUCTURE
    BASIS_EVIDENCE
    BASIS_GUESS
