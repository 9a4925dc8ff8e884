"""Finds a codec by its name, and builds the codecs of nested types."""

from pgdecode._native.codecs.codec cimport Codec
from pgdecode._native.memory.transcoding cimport Charset


cdef class CodecTree:
    """A codec with the codecs of its elements and fields, which are kept in place with this object."""

    cdef Codec codec
    cdef CodecTree element
    cdef list trees     # of the fields
    cdef Codec *fields
    cdef Charset charset

    cdef int keep_fields(self, tuple fields) except -1
