"""A version of a relation as its rows are made text: names and keys of its columns, and what makes text of them."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t

from pgdecode._native.codecs.codec cimport Codec

cdef enum:
    IN_TEXT = 1
    IN_BINARY = 2
    IS_INT4 = 4

cdef struct Layout:
    # A version of a relation, as the rows that are made text need it.
    uint16_t n_columns
    int64_t relation_id
    const uint8_t *names     # all of them, one after the other, and SLACK bytes
    const int32_t *name_ends  # of each name, and three items behind the last one
    size_t names_size        # bytes of all of them
    const uint8_t *is_key    # a byte a column
    const uint8_t *is_text   # a byte a column: which of its forms are the text itself, and whether it is an int4
    const Codec **codecs     # to text


cdef class TextLayout:
    cdef Layout layout
    cdef list trees          # the codecs point into them
    cdef readonly tuple names
    cdef bytes joined
    cdef bytes keys
    cdef bytearray texts
