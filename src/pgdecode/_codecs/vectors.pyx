"""The vectors of pgvector: vector and halfvec."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from pgdecode._codec cimport Codec
from pgdecode._codecs._shortest cimport MAX_FLOAT_TEXT, write_float4
from pgdecode._codecs.texts cimport text_from_text
from pgdecode._column cimport Column, add_bytes, end_bytes, end_list, put_float
from pgdecode._cursor cimport Cursor, be16, be32, bytes_left, take
from pgdecode._fault cimport FAULT_BAD_VALUE, FAULT_WRONG_SIZE, OK, FaultCode


cdef FaultCode vector_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """vector and halfvec: `[1,2.5,3]`. Source: vector_out, pgvector."""
    cdef Cursor cursor
    cdef const uint8_t *start
    cdef const uint8_t *p
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    p = take(&cursor, 1)
    if p == NULL or p[0] != c"[":
        return FAULT_BAD_VALUE
    while True:
        start = cursor.at
        p = take(&cursor, 1)
        while p != NULL and p[0] != c"," and p[0] != c"]":
            p = take(&cursor, 1)
        if p == NULL:
            return FAULT_BAD_VALUE
        code = codec.element.from_text(start, <size_t>(p - start), &out.children[0], codec.element)
        if code != OK:
            return code
        if p[0] == c"]":
            return end_list(out) if cursor.at == cursor.end else FAULT_BAD_VALUE


cdef const uint8_t *take_dimensions(Cursor *cursor, uint16_t *n) noexcept nogil:
    """Int16 dimensions and Int16 zero."""
    cdef const uint8_t *p = take(cursor, 4)
    if p == NULL or be16(p + 2) != 0:
        return NULL
    n[0] = be16(p)
    return p


cdef FaultCode vector_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Int16 dimensions, Int16 zero, then as many float4. Source: vector_send, pgvector."""
    cdef Cursor cursor
    cdef const uint8_t *p
    cdef uint16_t n = 0, _i
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    if take_dimensions(&cursor, &n) == NULL or bytes_left(cursor) != 4 * <size_t>n:
        return FAULT_WRONG_SIZE
    for _i in range(n):
        p = take(&cursor, 4)
        code = codec.element.from_binary(p, 4, &out.children[0], codec.element)
        if code != OK:
            return code
    return end_list(out)


cdef float float_of_half(uint16_t half) noexcept nogil:
    """IEEE 754 binary16 to binary32, exactly."""
    cdef uint32_t sign = <uint32_t>(half & 0x8000) << 16
    cdef uint32_t exponent = (half >> 10) & 0x1F
    cdef uint32_t fraction = half & 0x3FF
    cdef uint32_t bits
    cdef float wide = 0
    if exponent == 0x1F:
        bits = sign | 0x7F800000 | (fraction << 13)
    elif exponent:
        bits = sign | ((exponent + 112) << 23) | (fraction << 13)
    else:
        # Subnormal: fraction x 2**-24, which a float holds exactly.
        wide = <float>fraction * <float>5.9604644775390625e-08
        return -wide if sign else wide
    memcpy(&wide, &bits, sizeof(wide))
    return wide


cdef FaultCode halfvec_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Int16 dimensions, Int16 zero, then as many 2-byte floats. Source: halfvec_send, pgvector."""
    cdef Cursor cursor
    cdef const uint8_t *p
    cdef uint16_t n = 0, _i
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    if take_dimensions(&cursor, &n) == NULL or bytes_left(cursor) != 2 * <size_t>n:
        return FAULT_WRONG_SIZE
    for _i in range(n):
        p = take(&cursor, 2)
        code = put_float(&out.children[0], float_of_half(be16(p)))
        if code != OK:
            return code
    return end_list(out)


# -- as PostgreSQL's own text ----------------------------------------------------------------------------------------

cdef inline FaultCode add_number(Column *out, float number, bint first) noexcept nogil:
    """Add a float4 behind a comma, or the bracket that opens a vector."""
    cdef uint8_t[1 + MAX_FLOAT_TEXT] text
    text[0] = c"[" if first else c","
    return add_bytes(out, text, 1 + write_float4(text + 1, number))


cdef FaultCode vector_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a vector, `[1,2.5,3]`. Faults: WRONG_SIZE. Source: vector_out, pgvector."""
    cdef Cursor cursor
    cdef const uint8_t *p
    cdef uint16_t n = 0, i
    cdef uint32_t bits
    cdef float number = 0
    cdef FaultCode code = OK
    cursor.at = value
    cursor.end = value + length
    if take_dimensions(&cursor, &n) == NULL or bytes_left(cursor) != 4 * <size_t>n:
        return FAULT_WRONG_SIZE
    for i in range(n):
        p = take(&cursor, 4)
        bits = be32(p)
        memcpy(&number, &bits, sizeof(number))
        code = add_number(out, number, i == 0)
        if code != OK:
            return code
    code = add_bytes(out, b"]", 1) if n else add_bytes(out, b"[]", 2)
    return end_bytes(out) if code == OK else code


cdef FaultCode halfvec_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a halfvec, whose numbers are printed as float4. Faults: WRONG_SIZE. Source: halfvec_out, pgvector."""
    cdef Cursor cursor
    cdef const uint8_t *p
    cdef uint16_t n = 0, i
    cdef FaultCode code = OK
    cursor.at = value
    cursor.end = value + length
    if take_dimensions(&cursor, &n) == NULL or bytes_left(cursor) != 2 * <size_t>n:
        return FAULT_WRONG_SIZE
    for i in range(n):
        p = take(&cursor, 2)
        code = add_number(out, float_of_half(be16(p)), i == 0)
        if code != OK:
            return code
    code = add_bytes(out, b"]", 1) if n else add_bytes(out, b"[]", 2)
    return end_bytes(out) if code == OK else code


cdef bint vectors_codec(str name, Codec *codec):
    """Fill in the decoders of a codec of this family; False for a name of another."""
    if name == "vector":
        codec.from_text, codec.from_binary = vector_from_text, vector_from_binary
    elif name == "halfvec":
        codec.from_text, codec.from_binary = vector_from_text, halfvec_from_binary
    elif name == "vector_text":
        codec.from_text, codec.from_binary = text_from_text, vector_text_from_binary
    elif name == "halfvec_text":
        codec.from_text, codec.from_binary = text_from_text, halfvec_text_from_binary
    else:
        return False
    return True
