"""Types that are text on the wire, or bytes."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

from pgdecode._codec cimport Codec
from pgdecode._column cimport Column
from pgdecode._fault cimport FaultCode


cdef bint texts_codec(str name, Codec *codec)
cdef FaultCode check_text(const uint8_t *text, size_t length) noexcept nogil
cdef FaultCode text_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil
