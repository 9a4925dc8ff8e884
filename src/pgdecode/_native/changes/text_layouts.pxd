"""The layout of a relation version: names and keys of its columns, and the codecs that make text of their values."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

from pgdecode._native.codecs.codec cimport Codec

cdef enum:
    IN_TEXT = 1
    IN_BINARY = 2
    IS_INT4 = 4

cdef struct Layout:
    # A version of a relation, for the conversion of rows to text.
    uint16_t n_columns
    int64_t relation_id
    const uint8_t *names     # concatenated, and SLACK bytes
    const int32_t *name_ends  # of each name, and three more items
    size_t names_size        # bytes of all names
    const uint8_t *is_key    # one byte for each column
    const uint8_t *is_text   # one byte for each column: its forms that are the text itself; whether it is an int4
    const Codec **codecs     # codecs that make text


cdef class TextLayout:
    cdef Layout layout
    cdef list trees          # the codecs point into them
    cdef readonly tuple names
    cdef bytes joined
    cdef bytes keys
    cdef bytearray texts
