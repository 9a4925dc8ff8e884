from pgdecode._codec cimport Codec


cdef bint datetimes_codec(str name, Codec *codec)
