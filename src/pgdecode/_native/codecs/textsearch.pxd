"""Full-text search: tsvector and tsquery."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint search_codec(str name, Codec *codec)
