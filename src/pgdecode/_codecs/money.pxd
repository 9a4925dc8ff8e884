"""money of a scale that the caller says."""

from pgdecode._codec cimport Codec

cdef bint money_codec(str name, Codec *codec)
