"""The layout of a relation version, for the conversion of rows to text."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t
from libc.stdlib cimport calloc, free

from pgdecode._native.codecs.codec cimport Codec
from pgdecode._native.codecs.registry cimport CodecTree
from pgdecode._native.codecs.text cimport text_from_binary, text_from_text
from pgdecode._native.codecs.text_forms cimport write_int4
from pgdecode._native.memory.buffers cimport SLACK


cdef class TextLayout:
    """Names, keys and text codecs of the columns of one relation version."""

    def __cinit__(self, int64_t relation_id, names, is_key, decodings):
        cdef Py_ssize_t n = len(names)
        cdef int32_t *ends
        cdef const Codec **codecs
        cdef Py_ssize_t i
        cdef size_t end = 0
        encoded = [name.encode() for name in names]
        self.names = tuple(names)
        self.joined = b"".join(encoded) + bytes(SLACK)
        self.keys = bytes(is_key)
        self.trees = [CodecTree(decoding) for decoding in decodings]
        if len(self.keys) != n or len(self.trees) != n or n > 65535:
            raise ValueError("a relation has one name, flag and type for each of its columns")
        if len(self.joined) > 1 << 31:
            raise ValueError("the names of a relation's columns have 2 GiB or more")
        self.layout.n_columns = <uint16_t>n
        self.layout.relation_id = relation_id
        self.layout.names = <const uint8_t *><const char *>self.joined
        self.layout.is_key = <const uint8_t *><const char *>self.keys
        self.texts = bytearray(n + 1)
        self.layout.is_text = <const uint8_t *><const char *>self.texts
        ends = <int32_t *>calloc(<size_t>n + 4, sizeof(int32_t))
        self.layout.name_ends = ends
        codecs = <const Codec **>calloc(<size_t>n + 1, sizeof(void *))
        self.layout.codecs = codecs
        if ends == NULL or codecs == NULL:
            raise MemoryError()
        for i in range(n):
            end += len(encoded[i])
            ends[i] = <int32_t>end
            codecs[i] = &(<CodecTree>self.trees[i]).codec
            self.texts[i] = (IN_TEXT if codecs[i].from_text == text_from_text else 0) | (
                IN_BINARY if codecs[i].from_binary == text_from_binary else 0
            )
            if codecs[i].write_binary == write_int4:
                self.texts[i] |= IS_INT4
        self.layout.names_size = end

    def __dealloc__(self):
        free(<void *>self.layout.name_ends)
        free(<void *>self.layout.codecs)
