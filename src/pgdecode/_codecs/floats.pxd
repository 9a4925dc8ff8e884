"""float4 and float8."""

from pgdecode._codec cimport Codec

cdef bint floats_codec(str name, Codec *codec)
