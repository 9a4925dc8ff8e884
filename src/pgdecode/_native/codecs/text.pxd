"""Types that are text on the wire, or bytes."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

from pgdecode._native.arrow.column_builder cimport Column
from pgdecode._native.codecs.codec cimport Codec
from pgdecode._native.fault cimport FaultCode


cdef FaultCode check_text(const uint8_t *text, size_t length) noexcept nogil
cdef FaultCode text_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil
cdef FaultCode text_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil
