"""Finds a codec by its name, and builds the codecs of nested types."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pgdecode._charset cimport free_charset, open_charset
from pgdecode._codecs.bits cimport bits_codec
from pgdecode._codecs.clamped cimport clamped_codec
from pgdecode._codecs.composites cimport composites_codec
from pgdecode._codecs.container_forms cimport container_forms_codec
from pgdecode._codecs.containers cimport containers_codec
from pgdecode._codecs.datestyles cimport datestyles_codec, style_of
from pgdecode._codecs.datetimes cimport datetimes_codec
from pgdecode._codecs.forms cimport forms_codec
from pgdecode._codecs.geometric cimport geometric_codec
from pgdecode._codecs.intervals cimport intervals_codec
from pgdecode._codecs.moment_forms cimport moment_forms_codec
from pgdecode._codecs.money cimport money_codec
from pgdecode._codecs.network cimport network_codec
from pgdecode._codecs.numbers cimport numbers_codec
from pgdecode._codecs.numeric cimport numeric_codec
from pgdecode._codecs.numeric_floats cimport numeric_floats_codec
from pgdecode._codecs.recoded cimport recoded_codec
from pgdecode._codecs.search cimport search_codec
from pgdecode._codecs.texts cimport texts_codec
from pgdecode._column cimport Column, finish_column, free_column, open_column, put_null, take_back
from pgdecode._fault cimport FAULT_TOO_HIGH, FAULT_UNREPRESENTABLE, OK, Fault, FaultCode, error_of

from pgdecode import encodings, pgtypes


cdef class CodecTree:
    def __cinit__(self, decoding):
        memset(&self.codec, 0, sizeof(self.codec))
        name = decoding.codec
        # One line for each family's finder.
        if not (
            numbers_codec(name, &self.codec)
            or texts_codec(name, &self.codec)
            or numeric_codec(name, &self.codec)
            or datetimes_codec(name, &self.codec)
            or bits_codec(name, &self.codec)
            or containers_codec(name, &self.codec)
            or geometric_codec(name, &self.codec)
            or intervals_codec(name, &self.codec)
            or network_codec(name, &self.codec)
            or search_codec(name, &self.codec)
            or forms_codec(name, &self.codec)
            or moment_forms_codec(name, &self.codec)
            or container_forms_codec(name, &self.codec)
            or clamped_codec(name, &self.codec)
            or money_codec(name, &self.codec)
            or composites_codec(name, &self.codec)
            or datestyles_codec(name, &self.codec)
            or numeric_floats_codec(name, &self.codec)
            or recoded_codec(name, &self.codec)
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


def decode_values(pg_type, values, *, binary, typmod=-1, unrepresentable="error"):
    """Decode values of one type, a name or a Decoding, to a pyarrow array; None stays null."""
    cdef CodecTree tree
    cdef Column column
    cdef FaultCode code
    cdef Fault fault
    cdef const uint8_t[::1] value
    cdef uint8_t nothing = 0
    cdef const uint8_t *data
    cdef size_t n
    decoding = pg_type if isinstance(pg_type, pgtypes.Decoding) else pgtypes.named(pg_type, typmod)
    label = pg_type if decoding is not pg_type else decoding.codec
    if decoding is None:
        raise LookupError(f"there is no type {pg_type!r}")
    tree = CodecTree(decoding)
    memset(&column, 0, sizeof(column))
    try:
        open_column(&column, decoding.arrow)
        for row, item in enumerate(values):
            n = column.n
            if item is None:
                code = put_null(&column)
            else:
                value = item
                data = &value[0] if value.shape[0] else &nothing
                decoder = tree.codec.from_binary if binary else tree.codec.from_text
                code = decoder(data, <size_t>value.shape[0], &column, &tree.codec)
            if code != OK:
                take_back(&column, n)
                if unrepresentable == "null" and FAULT_UNREPRESENTABLE <= code <= FAULT_TOO_HIGH:
                    put_null(&column)
                    continue
                memset(&fault, 0, sizeof(fault))
                fault.code = code
                fault.row = row
                fault.relation = fault.column = -1
                fault.tag = b"I"[0]
                fault.expected = -1
                fault.seen = len(item)
                raise error_of(&fault, (f"{label} value",), True)
        return finish_column(&column, decoding.arrow)
    finally:
        free_column(&column)
