"""money of a scale that the caller says."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint money_codec(str name, Codec *codec)
