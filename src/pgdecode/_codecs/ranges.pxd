"""Ranges and multiranges."""

from pgdecode._codec cimport Codec


cdef bint ranges_codec(str name, Codec *codec)
