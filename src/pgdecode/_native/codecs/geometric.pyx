"""Geometric types: point, lseg, path, box, polygon, line and circle; and the extension cube's."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pgdecode._native.arrow.column_builder cimport Column, add_bytes, end_bytes
from pgdecode._native.codecs.codec cimport Codec, add_codec
from pgdecode._native.codecs.text cimport text_from_text
from pgdecode._native.cursor cimport be32, be64
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_LIMIT_VALUE, FAULT_WRONG_SIZE, OK, FaultCode, unlikely
from pgdecode._native.literals.rendering cimport MAX_RENDERED
from pgdecode._native.literals.shortest_float cimport MAX_FLOAT_TEXT, write_float8

cdef enum:
    POINT = 16  # bytes: two float8
    CUBE_MAX_DIM = 100  # contrib/cube/cubedata.h
    POINT_BIT = 0x80000000  # also contrib/cube/cubedata.h: the upper corner equals the lower one, and is not sent


cdef inline double float8_at(const uint8_t *value) noexcept nogil:
    """The float8 in eight bytes, big-endian."""
    cdef uint64_t bits = be64(value)
    cdef double number = 0
    memcpy(&number, &bits, 8)
    return number


cdef FaultCode add_numbers(Column *out, const uint8_t *numbers, size_t n, bint spaced=False) noexcept nogil:
    """Add float8 numbers, separated by commas, perhaps with a space after each."""
    cdef uint8_t[MAX_FLOAT_TEXT + 2] text
    cdef size_t i
    cdef size_t between = 0
    cdef FaultCode code = OK
    text[0] = c","
    text[1] = c" "
    for i in range(n):
        code = add_bytes(out, text, between)
        if code == OK:
            code = add_bytes(out, text + 2, write_float8(text + 2, float8_at(numbers + 8 * i)))
        between = 2 if spaced else 1
        if code != OK:
            return code
    return OK


cdef FaultCode add_points(Column *out, const uint8_t *points, size_t n) noexcept nogil:
    """Add points as (x,y), separated by commas, as path_encode does (utils/adt/geo_ops.c). Faults: LIMIT_VALUE."""
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
        if unlikely(out.data.size - start > MAX_RENDERED):
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
    """Whether exactly `n` points, at least one, follow the count."""
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

    Source: box_send, utils/adt/geo_ops.c. box_recv would order the corners, but box_send always sends them in order.
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
    # EPSILON of utils/geo_decls.h: numbers nearer to zero are zero.
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


cdef FaultCode cube_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one cube: the number of dimensions in 4 bytes, with POINT_BIT if only one corner follows; the corners.

    Faults: WRONG_SIZE, BAD_VALUE past CUBE_MAX_DIM. Source: cube_send, cube_recv and cube_out, contrib/cube/cube.c.
    """
    cdef uint32_t n
    cdef size_t width
    cdef bint is_point
    cdef FaultCode code
    if length < 4:
        return FAULT_WRONG_SIZE
    n = be32(value)
    is_point = n & POINT_BIT != 0
    n &= ~<uint32_t>POINT_BIT
    if n > CUBE_MAX_DIM:
        return FAULT_BAD_VALUE
    width = 8 * <size_t>n
    if length != 4 + (width if is_point else 2 * width):
        return FAULT_WRONG_SIZE
    code = add_corner(out, value + 4, n)
    if code == OK and not is_point and not are_equal(value + 4, value + 4 + width, n):
        code = add_bytes(out, b",", 1)
        if code == OK:
            code = add_corner(out, value + 4 + width, n)
    return end_bytes(out) if code == OK else code


cdef FaultCode add_corner(Column *out, const uint8_t *numbers, size_t n) noexcept nogil:
    """Add a corner of a cube as (x, y, ...)."""
    cdef FaultCode code = add_bytes(out, b"(", 1)
    if code == OK:
        code = add_numbers(out, numbers, n, True)
    return add_bytes(out, b")", 1) if code == OK else code


cdef bint are_equal(const uint8_t *ours, const uint8_t *others, size_t n) noexcept nogil:
    """Whether float8 numbers are equal, as in C: zeros of both signs are, and a NaN equals nothing."""
    cdef size_t i
    for i in range(n):
        if float8_at(ours + 8 * i) != float8_at(others + 8 * i):
            return False
    return True


add_codec("point", text_from_text, point_from_binary)
add_codec("lseg", text_from_text, lseg_from_binary)
add_codec("path", text_from_text, path_from_binary)
add_codec("box", text_from_text, box_from_binary)
add_codec("polygon", text_from_text, polygon_from_binary)
add_codec("line", text_from_text, line_from_binary)
add_codec("circle", text_from_text, circle_from_binary)
add_codec("cube", text_from_text, cube_from_binary)
