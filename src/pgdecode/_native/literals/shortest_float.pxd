"""The text that PostgreSQL 12 and later write for floats."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

cdef enum:
    MAX_FLOAT_TEXT = 32  # bytes; the longest is -2.2250738585072014e-308, 24


cdef size_t write_float8(uint8_t *text, double value) noexcept nogil
cdef size_t write_float4(uint8_t *text, float value) noexcept nogil
