"""Bit strings."""

from pgdecode._codec cimport Codec


cdef bint bits_codec(str name, Codec *codec)
