"""Dates and timestamps written under another DateStyle than ISO."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint datestyles_codec(str name, Codec *codec)
cdef int style_of(str name) except -1
