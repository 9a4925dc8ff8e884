"""Full-text search: tsvector and tsquery."""

from pgdecode._codec cimport Codec


cdef bint search_codec(str name, Codec *codec)
