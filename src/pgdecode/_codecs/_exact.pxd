"""Exact comparison of a literal of any length with a number of binary floating point."""

from libc.stdint cimport int64_t, uint64_t

from pgdecode._codecs.literal cimport Literal

cdef int order_of(const Literal *literal, uint64_t mantissa, int64_t exponent) noexcept nogil
