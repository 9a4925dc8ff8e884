"""Values made of values in PostgreSQL's own text."""

from pgdecode._codec cimport Codec

cdef bint container_forms_codec(str name, Codec *codec)
