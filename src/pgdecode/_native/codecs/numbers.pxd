"""bool, integers, OIDs, xid8 and money."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint numbers_codec(str name, Codec *codec)
