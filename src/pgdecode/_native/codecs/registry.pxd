"""Finds a codec by its name, and builds the codecs of nested types."""

from pgdecode._native.codecs.codec cimport Codec
from pgdecode._native.memory.transcoding cimport Charset


cdef class CodecTree:
    """A codec with those of its elements and fields, which stay where they are as long as this object."""

    cdef Codec codec
    cdef CodecTree element
    cdef list trees     # of the fields
    cdef Codec *fields
    cdef Charset charset

    cdef int keep_fields(self, tuple fields) except -1
