"""Composites, whose fields the caller has described."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint composites_codec(str name, Codec *codec)
