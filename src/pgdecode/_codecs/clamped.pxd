"""Values past an Arrow type's range as the nearest one in it."""

from pgdecode._codec cimport Codec

cdef bint clamped_codec(str name, Codec *codec)
