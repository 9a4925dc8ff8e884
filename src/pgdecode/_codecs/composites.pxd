"""Composites, whose fields the caller has described."""

from pgdecode._codec cimport Codec


cdef bint composites_codec(str name, Codec *codec)
