"""numeric, as decimals."""

from pgdecode._codec cimport Codec


cdef bint numeric_codec(str name, Codec *codec)
