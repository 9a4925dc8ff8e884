from pgdecode._native.codecs.codec cimport Codec


cdef bint intervals_codec(str name, Codec *codec)
