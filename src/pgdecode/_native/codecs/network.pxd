"""Addresses and identifiers of fixed size."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint network_codec(str name, Codec *codec)
