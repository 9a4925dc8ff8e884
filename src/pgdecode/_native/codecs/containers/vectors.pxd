"""vector and halfvec, of pgvector."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint vectors_codec(str name, Codec *codec)
