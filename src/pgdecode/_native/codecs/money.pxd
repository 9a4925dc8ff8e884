"""money, with a scale from the caller."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint money_codec(str name, Codec *codec)
