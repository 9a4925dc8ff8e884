"""The vectors of pgvector: vector and halfvec."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from pgdecode._native.arrow.column_builder cimport Column, add_bytes, end_bytes, end_list, put_float
from pgdecode._native.codecs.codec cimport Codec, add_codec
from pgdecode._native.codecs.text cimport text_from_text
from pgdecode._native.cursor cimport Cursor, be16, be32, bytes_left, cursor_of, take
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_WRONG_SIZE, OK, FaultCode
from pgdecode._native.literals.shortest_float cimport MAX_FLOAT_TEXT, write_float4


cdef FaultCode vector_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Read vector and halfvec: `[1,2.5,3]`. Source: vector_out, pgvector."""
    cdef Cursor cursor = cursor_of(value, length)
    cdef const uint8_t *start
    cdef const uint8_t *p
    cdef FaultCode code
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


cdef inline FaultCode open_vector(
    const uint8_t *value, size_t length, size_t width, Cursor *cursor, uint16_t *n
) noexcept nogil:
    """Take Int16 dimensions and Int16 zero. Exactly that many numbers of `width` bytes must follow."""
    cdef const uint8_t *p
    cursor[0] = cursor_of(value, length)
    p = take(cursor, 4)
    if p == NULL or be16(p + 2) != 0:
        return FAULT_WRONG_SIZE
    n[0] = be16(p)
    return OK if bytes_left(cursor[0]) == width * n[0] else FAULT_WRONG_SIZE


cdef FaultCode vector_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Read Int16 dimensions, Int16 zero, then as many float4. Source: vector_send, pgvector."""
    cdef Cursor cursor
    cdef const uint8_t *p
    cdef uint16_t n = 0, _i
    cdef FaultCode code = open_vector(value, length, 4, &cursor, &n)
    if code != OK:
        return code
    for _i in range(n):
        p = take(&cursor, 4)
        code = codec.element.from_binary(p, 4, &out.children[0], codec.element)
        if code != OK:
            return code
    return end_list(out)


cdef float float_of_half(uint16_t half) noexcept nogil:
    """Convert IEEE 754 binary16 to binary32, exactly."""
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
    """Read Int16 dimensions, Int16 zero, then as many 2-byte floats. Source: halfvec_send, pgvector."""
    cdef Cursor cursor
    cdef const uint8_t *p
    cdef uint16_t n = 0, _i
    cdef FaultCode code = open_vector(value, length, 2, &cursor, &n)
    if code != OK:
        return code
    for _i in range(n):
        p = take(&cursor, 2)
        code = put_float(&out.children[0], float_of_half(be16(p)))
        if code != OK:
            return code
    return end_list(out)


# -- as PostgreSQL's own text ----------------------------------------------------------------------------------------

cdef inline float number_at(const uint8_t *p, size_t width) noexcept nogil:
    cdef uint32_t bits
    cdef float number = 0
    if width == 2:
        return float_of_half(be16(p))
    bits = be32(p)
    memcpy(&number, &bits, sizeof(number))
    return number


cdef inline FaultCode put_vector_text(
    const uint8_t *value, size_t length, size_t width, Column *out
) noexcept nogil:
    """Append `[1,2.5,3]`; the numbers of both types are printed as float4. Faults: WRONG_SIZE."""
    cdef uint8_t[1 + MAX_FLOAT_TEXT] text
    cdef Cursor cursor
    cdef uint16_t n = 0, i
    cdef FaultCode code = open_vector(value, length, width, &cursor, &n)
    if code != OK:
        return code
    for i in range(n):
        text[0] = c"," if i else c"["
        code = add_bytes(out, text, 1 + write_float4(text + 1, number_at(take(&cursor, width), width)))
        if code != OK:
            return code
    code = add_bytes(out, b"]", 1) if n else add_bytes(out, b"[]", 2)
    return end_bytes(out) if code == OK else code


cdef FaultCode vector_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a vector. Faults: WRONG_SIZE. Source: vector_out, pgvector."""
    return put_vector_text(value, length, 4, out)


cdef FaultCode halfvec_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a halfvec. Faults: WRONG_SIZE. Source: halfvec_out, pgvector."""
    return put_vector_text(value, length, 2, out)


add_codec("vector", vector_from_text, vector_from_binary)
add_codec("halfvec", vector_from_text, halfvec_from_binary)
add_codec("vector_text", text_from_text, vector_text_from_binary)
add_codec("halfvec_text", text_from_text, halfvec_text_from_binary)
