"""Addresses and identifiers of fixed size."""

from pgdecode._codec cimport Codec


cdef bint network_codec(str name, Codec *codec)
