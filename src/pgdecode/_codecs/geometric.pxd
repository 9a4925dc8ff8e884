"""Geometric types."""

from pgdecode._codec cimport Codec


cdef bint geometric_codec(str name, Codec *codec)
