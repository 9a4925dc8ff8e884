"""hstore."""

from pgdecode._codec cimport Codec


cdef bint hstore_codec(str name, Codec *codec)
