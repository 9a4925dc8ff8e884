"""Reads the items of containers: arrays, composites, ranges and hstore, from text and from binary.

A quoted or escaped item is unquoted into the `data` buffer of the container's column, which lists and structs do not
use otherwise. So the item's decoder gets plain bytes. The depth is that of the type, never of the input. All functions
are inline, because several families call them for each item.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

from pgdecode._native.arrow.column_builder cimport Column, add_bytes, put_null
from pgdecode._native.codecs.codec cimport Codec
from pgdecode._native.cursor cimport Cursor, be32, bytes_left, take
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_WRONG_SIZE, OK, FaultCode

cdef enum:
    NULL_LENGTH = 0xFFFFFFFF  # -1, the length of a null

cdef struct Token:
    # One element of a container's text.
    const uint8_t *text
    size_t length
    bint quoted


cdef inline bint is_blank(uint8_t byte) noexcept nogil:
    """array_isspace: the blanks that the server skips around elements."""
    return byte == c" " or 9 <= byte <= 13


cdef inline FaultCode unquote(Cursor *cursor, Column *scratch, bint doubled, Token *token) noexcept nogil:
    """Read a quoted string after its opening quote, with the closing one.

    A backslash escapes the next byte. If `doubled`, two consecutive quotes are one.
    """
    cdef const uint8_t *start = cursor.at
    cdef const uint8_t *p
    cdef bint plain = True
    cdef FaultCode code
    scratch.data.size = 0
    while True:
        p = take(cursor, 1)
        if p == NULL:
            return FAULT_BAD_VALUE
        if p[0] == c"\\":
            code = add_bytes(scratch, start, <size_t>(p - start))
            start = cursor.at
            if code != OK or take(cursor, 1) == NULL:
                return code if code != OK else FAULT_BAD_VALUE
            plain = False
        elif p[0] == c'"':
            if not (doubled and cursor.at != cursor.end and cursor.at[0] == c'"'):
                break
            # The first quote is kept, the second one skipped.
            code = add_bytes(scratch, start, <size_t>(cursor.at - start))
            if code != OK:
                return code
            take(cursor, 1)
            start = cursor.at
            plain = False
    token.quoted = True
    if plain:
        token.text = start
        token.length = <size_t>(p - start)
        return OK
    code = add_bytes(scratch, start, <size_t>(p - start))
    token.text = scratch.data.data
    token.length = scratch.data.size
    return code


cdef inline bint is_null_word(const uint8_t *text, size_t length) noexcept nogil:
    """Whether an unquoted item of an array is null, in any case."""
    cdef size_t i
    if length != 4:
        return False
    for i in range(4):
        if text[i] & ~0x20 != (b"NULL")[i]:
            return False
    return True


cdef inline bint is_null_item(const Token *token) noexcept nogil:
    return not token.quoted and is_null_word(token.text, token.length)


cdef inline FaultCode take_count(Cursor *cursor, size_t least, uint32_t *n) noexcept nogil:
    """Take the Int32 number of items that follow, of at least `least` bytes each. Faults: WRONG_SIZE, BAD_VALUE."""
    cdef const uint8_t *p = take(cursor, 4)
    if p == NULL:
        return FAULT_WRONG_SIZE
    n[0] = be32(p)
    return OK if n[0] <= bytes_left(cursor[0]) // least else FAULT_BAD_VALUE


cdef inline FaultCode take_item(Cursor *cursor, const uint8_t **value, uint32_t *length) noexcept nogil:
    """Take an Int32 length, -1 for null (the value is then NULL), and that many bytes."""
    cdef const uint8_t *p = take(cursor, 4)
    if p == NULL:
        return FAULT_BAD_VALUE
    length[0] = be32(p)
    value[0] = NULL
    if length[0] == <uint32_t>NULL_LENGTH:
        return OK
    value[0] = take(cursor, length[0])
    return OK if value[0] != NULL else FAULT_BAD_VALUE


cdef inline FaultCode sized_item(Cursor *cursor, Column *child, const Codec *element) noexcept nogil:
    """Append one item of `take_item`."""
    cdef const uint8_t *value = NULL
    cdef uint32_t length = 0
    cdef FaultCode code = take_item(cursor, &value, &length)
    if code != OK:
        return code
    return element.from_binary(value, length, child, element) if value != NULL else put_null(child)
