"""Geometric types."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint geometric_codec(str name, Codec *codec)
