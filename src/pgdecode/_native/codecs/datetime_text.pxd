"""Dates, times and intervals in PostgreSQL's own text."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint moment_forms_codec(str name, Codec *codec)
