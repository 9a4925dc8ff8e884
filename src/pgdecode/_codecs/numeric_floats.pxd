"""numeric, as float8."""

from pgdecode._codec cimport Codec

cdef bint numeric_floats_codec(str name, Codec *codec)
