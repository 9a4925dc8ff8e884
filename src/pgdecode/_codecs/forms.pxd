"""Numbers and bytes in PostgreSQL's own text."""

from pgdecode._codec cimport Codec

cdef bint forms_codec(str name, Codec *codec)
