"""Binary values in PostgreSQL's own text."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint forms_codec(str name, Codec *codec)
