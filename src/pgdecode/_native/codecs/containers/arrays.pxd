"""Arrays, int2vector and oidvector."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint arrays_codec(str name, Codec *codec)
