"""Finds a codec by its name, and builds the codecs of nested types."""

from importlib import import_module

from libc.stddef cimport size_t
from libc.stdlib cimport calloc, free

from pgdecode._native.codecs.codec cimport CODECS, Codec, CodecEntry
from pgdecode._native.codecs.datestyles cimport style_of
from pgdecode._native.memory.transcoding cimport free_charset, open_charset

from pgdecode.types import encodings, pgtypes

FAMILIES = (
    "datestyles", "datetime", "floats", "geometric", "interval", "money", "network", "numbers", "numeric", "text",
    "text_forms", "textsearch", "wrappers", "containers.arrays", "containers.composites", "containers.hstore",
    "containers.ranges", "containers.vectors",
)

# A family's module adds its codecs to the table.
for family in FAMILIES:
    import_module(f"pgdecode._native.codecs.{family}")
for item in (*pgtypes.TYPES, *pgtypes.NAMED):
    if item.codec not in CODECS:
        raise ImportError(f"type {item.name} has the codec {item.codec!r}, which no module adds")


cdef class CodecTree:
    def __cinit__(self, decoding):
        cdef CodecEntry entry = CODECS.get(decoding.codec)
        if entry is None:
            raise LookupError(f"there is no codec {decoding.codec!r}")
        self.codec = entry.codec
        self.codec.precision = decoding.precision
        self.codec.scale = decoding.scale
        self.codec.oid = decoding.oid
        self.codec.delimiter = ord(decoding.delimiter)
        if decoding.element is not None:
            self.element = CodecTree(decoding.element)
            self.codec.element = &self.element.codec
        if decoding.fields:
            self.keep_fields(decoding.fields)
        self.codec.declared = decoding.declared
        self.codec.style = style_of(decoding.style)
        if decoding.encoding:
            open_charset(&self.charset, encodings.decoder(decoding.encoding))
            self.codec.charset = &self.charset

    cdef int keep_fields(self, tuple fields) except -1:
        cdef size_t i
        self.trees = [CodecTree(field) for field in fields]
        self.fields = <Codec *>calloc(len(fields), sizeof(Codec))
        if self.fields == NULL:
            raise MemoryError()
        for i in range(<size_t>len(fields)):
            self.fields[i] = (<CodecTree>self.trees[i]).codec
        self.codec.fields = self.fields
        self.codec.n_fields = len(fields)
        return 0

    def __dealloc__(self):
        free(self.fields)
        free_charset(&self.charset)
