"""numeric, as decimals and as text."""

from pgdecode._codec cimport Codec

cdef bint numeric_codec(str name, Codec *codec)
