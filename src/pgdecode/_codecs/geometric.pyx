"""Geometric types: point, lseg, path, box, polygon, line and circle."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.string cimport memcpy

from pgdecode._codec cimport Codec
from pgdecode._codecs._rendering cimport MAX_RENDERED
from pgdecode._codecs._shortest cimport MAX_FLOAT_TEXT, write_float8
from pgdecode._codecs.texts cimport text_from_text
from pgdecode._column cimport Column, add_bytes, end_bytes
from pgdecode._cursor cimport be32, be64
from pgdecode._fault cimport FAULT_BAD_VALUE, FAULT_LIMIT_VALUE, FAULT_WRONG_SIZE, OK, FaultCode, rarely

cdef enum:
    POINT = 16  # bytes: two float8


cdef bint geometric_codec(str name, Codec *codec):
    """Fill in the decoders of a codec of this family; False for a name of another."""
    if name == "point":
        codec.from_binary = point_from_binary
    elif name == "lseg":
        codec.from_binary = lseg_from_binary
    elif name == "path":
        codec.from_binary = path_from_binary
    elif name == "box":
        codec.from_binary = box_from_binary
    elif name == "polygon":
        codec.from_binary = polygon_from_binary
    elif name == "line":
        codec.from_binary = line_from_binary
    elif name == "circle":
        codec.from_binary = circle_from_binary
    else:
        return False
    codec.from_text = text_from_text
    return True


cdef inline double float8_at(const uint8_t *value) noexcept nogil:
    """The float8 in eight bytes, big-endian."""
    cdef uint64_t bits = be64(value)
    cdef double number = 0
    memcpy(&number, &bits, 8)
    return number


cdef FaultCode add_numbers(Column *out, const uint8_t *numbers, size_t n) noexcept nogil:
    """Add float8 numbers, commas between."""
    cdef uint8_t[MAX_FLOAT_TEXT + 1] text
    cdef size_t i
    cdef FaultCode code = OK
    for i in range(n):
        text[0] = c","
        if i:
            code = add_bytes(out, text, 1 + write_float8(text + 1, float8_at(numbers + 8 * i)))
        else:
            code = add_bytes(out, text, write_float8(text, float8_at(numbers)))
        if code != OK:
            return code
    return OK


cdef FaultCode add_points(Column *out, const uint8_t *points, size_t n) noexcept nogil:
    """Add points as (x,y), commas between, as path_encode does (utils/adt/geo_ops.c). Faults: LIMIT_VALUE."""
    cdef size_t start = out.data.size
    cdef size_t i
    cdef FaultCode code = OK
    for i in range(n):
        code = add_bytes(out, b",(", 2) if i else add_bytes(out, b"(", 1)
        if code == OK:
            code = add_numbers(out, points + POINT * i, 2)
        if code == OK:
            code = add_bytes(out, b")", 1)
        if code != OK:
            return code
        if rarely(out.data.size - start > MAX_RENDERED):
            return FAULT_LIMIT_VALUE
    return OK


cdef FaultCode put_enclosed(
    Column *out, const uint8_t *points, size_t n, const uint8_t *opening, const uint8_t *closing
) noexcept nogil:
    """Append points between two bytes."""
    cdef FaultCode code = add_bytes(out, opening, 1)
    if code == OK:
        code = add_points(out, points, n)
    if code == OK:
        code = add_bytes(out, closing, 1)
    return end_bytes(out) if code == OK else code


cdef FaultCode check_count(const uint8_t *count, size_t length) noexcept nogil:
    """Whether so many points, at least one, are what is left after the count."""
    cdef int32_t n = <int32_t>be32(count)
    if n <= 0:
        return FAULT_BAD_VALUE
    return OK if <uint64_t>n * POINT == length else FAULT_WRONG_SIZE


cdef FaultCode point_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one point: x, y. Faults: WRONG_SIZE. Source: point_send, utils/adt/geo_ops.c."""
    cdef FaultCode code = FAULT_WRONG_SIZE
    if length == POINT:
        code = add_points(out, value, 1)
    return end_bytes(out) if code == OK else code


cdef FaultCode lseg_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one lseg: two points. Faults: WRONG_SIZE. Source: lseg_send, utils/adt/geo_ops.c."""
    if length != 2 * POINT:
        return FAULT_WRONG_SIZE
    return put_enclosed(out, value, 2, b"[", b"]")


cdef FaultCode path_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one path: a byte, 0 if it is open, the number of points in 4 bytes, the points.

    Faults: WRONG_SIZE, BAD_VALUE without points, LIMIT_VALUE. Source: path_send and path_recv, utils/adt/geo_ops.c.
    """
    cdef FaultCode code = FAULT_WRONG_SIZE if length < 5 else check_count(value + 1, length - 5)
    if code != OK:
        return code
    if value[0]:
        return put_enclosed(out, value + 5, (length - 5) // POINT, b"(", b")")
    return put_enclosed(out, value + 5, (length - 5) // POINT, b"[", b"]")


cdef FaultCode box_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one box: its upper right and its lower left corner, in the order sent. Faults: WRONG_SIZE.

    Source: box_send, utils/adt/geo_ops.c; box_recv would put corners in order, but box_send never sends others.
    """
    cdef FaultCode code = FAULT_WRONG_SIZE
    if length == 2 * POINT:
        code = add_points(out, value, 2)
    return end_bytes(out) if code == OK else code


cdef FaultCode polygon_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append one polygon: the number of points in 4 bytes, the points.

    Faults: WRONG_SIZE, BAD_VALUE without points, LIMIT_VALUE. Source: poly_send and poly_recv, utils/adt/geo_ops.c.
    """
    cdef FaultCode code = FAULT_WRONG_SIZE if length < 4 else check_count(value, length - 4)
    return put_enclosed(out, value + 4, (length - 4) // POINT, b"(", b")") if code == OK else code


cdef FaultCode line_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one line: A, B and C of Ax + By + C = 0. Faults: WRONG_SIZE, BAD_VALUE where A and B are both zero.

    Source: line_send and line_recv, utils/adt/geo_ops.c.
    """
    cdef double a, b
    cdef FaultCode code
    if length != 24:
        return FAULT_WRONG_SIZE
    a = float8_at(value)
    b = float8_at(value + 8)
    # EPSILON of utils/geo_decls.h: what is nearer to zero is zero.
    if -1e-6 <= a <= 1e-6 and -1e-6 <= b <= 1e-6:
        return FAULT_BAD_VALUE
    code = add_bytes(out, b"{", 1)
    if code == OK:
        code = add_numbers(out, value, 3)
    if code == OK:
        code = add_bytes(out, b"}", 1)
    return end_bytes(out) if code == OK else code


cdef FaultCode circle_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one circle: its center and its radius. Faults: WRONG_SIZE, BAD_VALUE for a negative radius.

    Source: circle_send and circle_recv, utils/adt/geo_ops.c.
    """
    cdef FaultCode code
    if length != POINT + 8:
        return FAULT_WRONG_SIZE
    if float8_at(value + POINT) < 0:
        return FAULT_BAD_VALUE
    code = add_bytes(out, b"<", 1)
    if code == OK:
        code = add_points(out, value, 1)
    if code == OK:
        code = add_bytes(out, b",", 1)
    if code == OK:
        code = add_numbers(out, value + POINT, 1)
    if code == OK:
        code = add_bytes(out, b">", 1)
    return end_bytes(out) if code == OK else code
