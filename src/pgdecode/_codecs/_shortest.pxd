"""The text that PostgreSQL 12 and later write for a float8."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

cdef enum:
    MAX_FLOAT8_TEXT = 32  # bytes; the longest is -2.2250738585072014e-308, 24


cdef size_t write_float8(uint8_t *text, double value) noexcept nogil
