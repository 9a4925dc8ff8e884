from pgdecode._native.codecs.codec cimport Codec


cdef bint datetimes_codec(str name, Codec *codec)
