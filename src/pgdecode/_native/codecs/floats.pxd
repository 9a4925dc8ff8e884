"""float4 and float8."""

from libc.stdint cimport uint64_t

from pgdecode._native.fault cimport FaultCode
from pgdecode._native.literals.decimal_literal cimport Literal


cdef FaultCode float8_of_literal(Literal *literal, uint64_t *bits) noexcept nogil
