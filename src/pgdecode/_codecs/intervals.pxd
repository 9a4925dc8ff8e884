from pgdecode._codec cimport Codec


cdef bint intervals_codec(str name, Codec *codec)
