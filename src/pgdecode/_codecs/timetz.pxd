"""timetz."""

from pgdecode._codec cimport Codec

cdef bint timetz_codec(str name, Codec *codec)
