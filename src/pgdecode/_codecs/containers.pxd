"""Arrays, ranges and multiranges, hstore and vectors: values made of values."""

from pgdecode._codec cimport Codec

cdef bint containers_codec(str name, Codec *codec)
