"""hstore."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint hstore_codec(str name, Codec *codec)
