"""Values whose text is of another client_encoding than UTF8."""

from pgdecode._codec cimport Codec


cdef bint recoded_codec(str name, Codec *codec)
