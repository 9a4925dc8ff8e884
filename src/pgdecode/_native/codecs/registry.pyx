"""Finds a codec by its name, and builds the codecs of nested types."""

from libc.stddef cimport size_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pgdecode._native.codecs.codec cimport Codec
from pgdecode._native.codecs.containers.arrays cimport arrays_codec
from pgdecode._native.codecs.containers.composites cimport composites_codec
from pgdecode._native.codecs.containers.hstore cimport hstore_codec
from pgdecode._native.codecs.containers.ranges cimport ranges_codec
from pgdecode._native.codecs.containers.vectors cimport vectors_codec
from pgdecode._native.codecs.datestyles cimport datestyles_codec, style_of
from pgdecode._native.codecs.datetime cimport datetimes_codec
from pgdecode._native.codecs.geometric cimport geometric_codec
from pgdecode._native.codecs.interval cimport intervals_codec
from pgdecode._native.codecs.money cimport money_codec
from pgdecode._native.codecs.network cimport network_codec
from pgdecode._native.codecs.numbers cimport numbers_codec
from pgdecode._native.codecs.numeric cimport numeric_codec, numeric_floats_codec, numeric_forms_codec
from pgdecode._native.codecs.text cimport bits_codec, texts_codec
from pgdecode._native.codecs.text_forms cimport forms_codec
from pgdecode._native.codecs.textsearch cimport search_codec
from pgdecode._native.codecs.wrappers cimport saturating_codec, transcoded_codec
from pgdecode._native.memory.transcoding cimport free_charset, open_charset

from pgdecode.types import encodings


cdef class CodecTree:
    def __cinit__(self, decoding):
        memset(&self.codec, 0, sizeof(self.codec))
        name = decoding.codec
        # One line for each family's finder.
        if not (
            numbers_codec(name, &self.codec)
            or texts_codec(name, &self.codec)
            or numeric_codec(name, &self.codec)
            or numeric_forms_codec(name, &self.codec)
            or datetimes_codec(name, &self.codec)
            or bits_codec(name, &self.codec)
            or arrays_codec(name, &self.codec)
            or ranges_codec(name, &self.codec)
            or hstore_codec(name, &self.codec)
            or vectors_codec(name, &self.codec)
            or geometric_codec(name, &self.codec)
            or intervals_codec(name, &self.codec)
            or network_codec(name, &self.codec)
            or search_codec(name, &self.codec)
            or forms_codec(name, &self.codec)
            or saturating_codec(name, &self.codec)
            or money_codec(name, &self.codec)
            or composites_codec(name, &self.codec)
            or datestyles_codec(name, &self.codec)
            or numeric_floats_codec(name, &self.codec)
            or transcoded_codec(name, &self.codec)
        ):
            raise LookupError(f"there is no codec {name!r}")
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
