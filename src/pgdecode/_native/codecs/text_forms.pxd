"""Binary values in PostgreSQL's own text."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t


cdef uint8_t *write_int4(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil
