"""Ranges and multiranges."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint ranges_codec(str name, Codec *codec)
