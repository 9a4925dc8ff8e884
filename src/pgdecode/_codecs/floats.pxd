"""float4 and float8."""

from libc.stdint cimport uint64_t

from pgdecode._codec cimport Codec
from pgdecode._codecs.literal cimport Literal
from pgdecode._fault cimport FaultCode

cdef bint floats_codec(str name, Codec *codec)
cdef FaultCode float8_of_literal(Literal *literal, uint64_t *bits) noexcept nogil
