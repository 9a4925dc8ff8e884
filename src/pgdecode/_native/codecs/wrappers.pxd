"""Codecs around another: transcoding, and values past an Arrow type's range."""

from pgdecode._native.codecs.codec cimport Codec


cdef bint transcoded_codec(str name, Codec *codec)
cdef bint saturating_codec(str name, Codec *codec)
