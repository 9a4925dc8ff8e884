"""numeric in PostgreSQL's own text."""

from pgdecode._codec cimport Codec


cdef bint numeric_forms_codec(str name, Codec *codec)
