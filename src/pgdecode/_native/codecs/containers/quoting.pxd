"""Writes the items of containers as PostgreSQL's text.

The codec of an item writes its text after the text of the container so far. It is then quoted in place, if necessary.
The depth is that of the type, never of the input.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

from pgdecode._native.arrow.column_builder cimport Column, add_bytes, end_bytes, reopen
from pgdecode._native.codecs.codec cimport Codec
from pgdecode._native.codecs.containers.items cimport is_blank, is_null_word
from pgdecode._native.cursor cimport Cursor
from pgdecode._native.fault cimport FAULT_BAD_VALUE, OK, FaultCode
from pgdecode._native.literals.rendering cimport reserve_text

# The function of the server that quotes an item. It determines which items are quoted, and how quotes are escaped.
cdef enum Quoting:
    OF_ARRAY   # array_out, utils/adt/arrayfuncs.c
    OF_BOUND   # range_bound_escape, utils/adt/rangetypes.c
    OF_FIELD   # record_out, utils/adt/rowtypes.c
    OF_HSTORE  # hstore_out, contrib/hstore: always


cdef inline bint is_special(uint8_t byte, Quoting quoting, uint8_t delimiter) noexcept nogil:
    """Whether an item with this byte, which is not a quote or a backslash, must be quoted."""
    if is_blank(byte):
        return True
    if quoting == OF_ARRAY:
        return byte == c"{" or byte == c"}" or byte == delimiter
    if byte == c"(" or byte == c")" or byte == c",":
        return True
    return quoting == OF_BOUND and (byte == c"[" or byte == c"]")


cdef inline FaultCode quote(Column *out, size_t start, Quoting quoting, uint8_t delimiter) noexcept nogil:
    """Quote the text from `start` on, if necessary."""
    cdef size_t length = out.data.size - start
    cdef size_t n_escapes = 0
    cdef size_t i
    cdef bint needed = length == 0 or quoting == OF_HSTORE
    cdef uint8_t *text
    cdef uint8_t *to
    cdef FaultCode code
    for i in range(start, out.data.size):
        if out.data.data[i] == c'"' or out.data.data[i] == c"\\":
            n_escapes += 1
        elif is_special(out.data.data[i], quoting, delimiter):
            needed = True
    if n_escapes == 0 and not needed:
        if quoting != OF_ARRAY or not is_null_word(out.data.data + start, length):
            return OK
    code = reserve_text(out, n_escapes + 2)
    if code != OK:
        return code
    # From the end on, so that each byte is moved before it is overwritten.
    text = out.data.data + start
    out.data.size += n_escapes + 2
    to = out.data.data + out.data.size - 1
    to[0] = c'"'
    i = length
    while i:
        i -= 1
        to -= 1
        to[0] = text[i]
        if to[0] == c'"' or to[0] == c"\\":
            to -= 1
            to[0] = c"\\" if quoting == OF_ARRAY or quoting == OF_HSTORE else to[1]
    text[0] = c'"'
    return OK


cdef inline FaultCode add_value(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Add the text of a value to the current item."""
    cdef FaultCode code = codec.from_binary(value, length, out, codec)
    if code == OK:
        reopen(out)
    return code


cdef inline FaultCode add_byte(Column *out, uint8_t byte) noexcept nogil:
    return add_bytes(out, &byte, 1)


cdef inline FaultCode finish(Cursor cursor, Column *out) noexcept nogil:
    """End the container, if no bytes are left over."""
    return end_bytes(out) if cursor.at == cursor.end else FAULT_BAD_VALUE
