"""Ranges and multiranges."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

from pgdecode._native.arrow.column_builder cimport Column, add_bytes, end_list, mark, put_bool, put_null
from pgdecode._native.codecs.codec cimport Codec, add_codec
from pgdecode._native.codecs.containers.items cimport Token, take_count, take_item, unquote
from pgdecode._native.codecs.containers.quoting cimport OF_BOUND, add_byte, add_value, finish, quote
from pgdecode._native.codecs.containers.range_bounds cimport (
    RANGE_EMPTY,
    RANGE_LB_INC,
    RANGE_LB_INF,
    RANGE_UB_INC,
    RANGE_UB_INF,
    Bounds,
    is_behind,
    take_bounds,
)
from pgdecode._native.codecs.text cimport text_from_text
from pgdecode._native.cursor cimport Cursor, bytes_left, cursor_of, take
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_LIMIT_VALUE, OK, FaultCode, unlikely
from pgdecode._native.literals.rendering cimport MAX_RENDERED

cdef enum:
    LEAST_RANGE = 5  # bytes: a length and the flags

cdef enum:
    # Children of a range's column, in the order of pgtypes.range_of.
    LOWER
    UPPER
    LOWER_INCLUSIVE
    UPPER_INCLUSIVE
    EMPTY


cdef FaultCode end_range(Column *out, bint lower_inclusive, bint upper_inclusive, bint empty) noexcept nogil:
    cdef FaultCode code = put_bool(&out.children[LOWER_INCLUSIVE], lower_inclusive)
    if code == OK:
        code = put_bool(&out.children[UPPER_INCLUSIVE], upper_inclusive)
    if code == OK:
        code = put_bool(&out.children[EMPTY], empty)
    return code if code != OK else mark(out, 1)


cdef FaultCode empty_range(Column *out) noexcept nogil:
    cdef FaultCode code = put_null(&out.children[LOWER])
    if code == OK:
        code = put_null(&out.children[UPPER])
    return code if code != OK else end_range(out, False, False, True)


cdef FaultCode take_bound(Cursor *cursor, Column *scratch, Column *child, const Codec *codec) noexcept nogil:
    """Read the text of one bound, null if it is missing, up to the comma or closing bracket."""
    cdef Token token
    cdef const uint8_t *p
    cdef FaultCode code
    token.text = cursor.at
    token.length = 0
    if cursor.at != cursor.end and cursor.at[0] == c'"':
        take(cursor, 1)
        code = unquote(cursor, scratch, True, &token)
        if code != OK:
            return code
        return codec.from_text(token.text, token.length, child, codec)
    while cursor.at != cursor.end and cursor.at[0] != c"," and cursor.at[0] != c")" and cursor.at[0] != c"]":
        p = take(cursor, 1)
        if p[0] == c'"' or p[0] == c"\\" or p[0] == c"(" or p[0] == c"[":
            return FAULT_BAD_VALUE
    token.length = <size_t>(cursor.at - token.text)
    if token.length == 0:
        return put_null(child)
    return codec.from_text(token.text, token.length, child, codec)


cdef FaultCode take_range(Cursor *cursor, Column *out, const Codec *codec) noexcept nogil:
    """Read the text of one range at the cursor."""
    cdef const uint8_t *opening
    cdef const uint8_t *closing
    cdef const uint8_t *comma
    cdef FaultCode code
    if bytes_left(cursor[0]) >= 5 and cursor.at[0] == c"e":
        opening = take(cursor, 5)
        if opening[1] == c"m" and opening[2] == c"p" and opening[3] == c"t" and opening[4] == c"y":
            return empty_range(out)
        return FAULT_BAD_VALUE
    opening = take(cursor, 1)
    if opening == NULL or (opening[0] != c"[" and opening[0] != c"("):
        return FAULT_BAD_VALUE
    code = take_bound(cursor, out, &out.children[LOWER], codec.element)
    if code != OK:
        return code
    comma = take(cursor, 1)
    if comma == NULL or comma[0] != c",":
        return FAULT_BAD_VALUE
    code = take_bound(cursor, out, &out.children[UPPER], codec.element)
    if code != OK:
        return code
    closing = take(cursor, 1)
    if closing == NULL or (closing[0] != c"]" and closing[0] != c")"):
        return FAULT_BAD_VALUE
    return end_range(out, opening[0] == c"[", closing[0] == c"]", False)


cdef FaultCode range_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Read `[lower,upper)` or `empty`. A missing bound is infinite. Source: range_out."""
    cdef Cursor cursor = cursor_of(value, length)
    cdef FaultCode code
    code = take_range(&cursor, out, codec)
    return code if code != OK or cursor.at == cursor.end else FAULT_BAD_VALUE


cdef FaultCode open_range(
    const uint8_t *value, size_t length, const Codec *codec, Cursor *cursor, uint8_t *flags
) noexcept nogil:
    """Check the bounds of a range, and take its flags. Faults: WRONG_SIZE, BAD_VALUE.

    The bounds come before their values: a fault of a value may be allowed, but only in a range that PostgreSQL has.
    """
    cdef Bounds bounds
    cdef FaultCode code = take_bounds(value, length, codec.element, &bounds)
    if code != OK:
        return code
    flags[0] = bounds.flags
    cursor[0] = cursor_of(value + 1, length - 1)
    return OK


cdef FaultCode range_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Read Int8 flags, then the finite bounds as Int32 length and bytes. Source: range_send.

    Faults: WRONG_SIZE, BAD_VALUE also for bounds in the wrong order, those of the bounds.
    """
    cdef Cursor cursor
    cdef uint8_t flags = 0
    cdef FaultCode code = open_range(value, length, codec, &cursor, &flags)
    if code != OK:
        return code
    if flags & RANGE_EMPTY:
        return empty_range(out) if cursor.at == cursor.end else FAULT_BAD_VALUE
    if flags & RANGE_LB_INF:
        code = put_null(&out.children[LOWER])
    else:
        code = bound_item(&cursor, &out.children[LOWER], codec.element)
    if code == OK:
        if flags & RANGE_UB_INF:
            code = put_null(&out.children[UPPER])
        else:
            code = bound_item(&cursor, &out.children[UPPER], codec.element)
    if code != OK:
        return code
    if cursor.at != cursor.end:
        return FAULT_BAD_VALUE
    return end_range(out, flags & RANGE_LB_INC != 0, flags & RANGE_UB_INC != 0, False)


cdef FaultCode bound_item(Cursor *cursor, Column *child, const Codec *codec) noexcept nogil:
    """Append a bound, which is never null."""
    cdef const uint8_t *value = NULL
    cdef uint32_t length = 0
    cdef FaultCode code = take_item(cursor, &value, &length)
    if code != OK:
        return code
    return codec.from_binary(value, length, child, codec) if value != NULL else FAULT_BAD_VALUE


cdef FaultCode multirange_from_text(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Read `{[1,3),[5,7)}`. Source: multirange_out."""
    cdef Cursor cursor = cursor_of(value, length)
    cdef const uint8_t *p
    cdef FaultCode code
    p = take(&cursor, 1)
    if p == NULL or p[0] != c"{":
        return FAULT_BAD_VALUE
    if cursor.at != cursor.end and cursor.at[0] == c"}":
        take(&cursor, 1)
        return end_list(out) if cursor.at == cursor.end else FAULT_BAD_VALUE
    while True:
        code = take_range(&cursor, &out.children[0], codec.element)
        if code != OK:
            return code
        p = take(&cursor, 1)
        if p == NULL or (p[0] != c"," and p[0] != c"}"):
            return FAULT_BAD_VALUE
        if p[0] == c"}":
            return end_list(out) if cursor.at == cursor.end else FAULT_BAD_VALUE


cdef inline FaultCode next_bounds(Cursor item, Bounds *bounds, uint32_t i, const Codec *codec) noexcept nogil:
    """Check the next member of a multirange, without consuming it, against the one before.

    Faults: WRONG_SIZE, BAD_VALUE.
    """
    cdef const uint8_t *value = NULL
    cdef uint32_t length = 0
    cdef FaultCode code = take_item(&item, &value, &length)
    if code == OK:
        code = take_bounds(value, length, codec.element, &bounds[i & 1]) if value != NULL else FAULT_BAD_VALUE
    if code != OK:
        return code
    return OK if is_behind(&bounds[(i & 1) ^ 1] if i else NULL, &bounds[i & 1], codec.element) else FAULT_BAD_VALUE


cdef FaultCode multirange_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Read Int32 count, then that many ranges as Int32 length and bytes. Source: multirange_send.

    Faults: WRONG_SIZE, BAD_VALUE also for ranges that are empty or not in order, those of the ranges.
    """
    cdef Cursor cursor = cursor_of(value, length)
    cdef Bounds[2] bounds
    cdef uint32_t n = 0, i
    cdef FaultCode code
    code = take_count(&cursor, LEAST_RANGE, &n)
    if code != OK:
        return code
    for i in range(n):
        code = next_bounds(cursor, bounds, i, codec.element)
        if code == OK:
            code = bound_item(&cursor, &out.children[0], codec.element)
        if code != OK:
            return code
    return end_list(out) if cursor.at == cursor.end else FAULT_BAD_VALUE


# -- as PostgreSQL's own text ----------------------------------------------------------------------------------------

cdef FaultCode add_bound(Cursor *cursor, Column *out, const Codec *codec) noexcept nogil:
    """Add a bound, which is never null, quoted if necessary."""
    cdef size_t start = out.data.size
    cdef const uint8_t *value = NULL
    cdef uint32_t length = 0
    cdef FaultCode code = take_item(cursor, &value, &length)
    if code == OK:
        code = add_value(value, length, out, codec) if value != NULL else FAULT_BAD_VALUE
    return quote(out, start, OF_BOUND, 0) if code == OK else code


cdef FaultCode range_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append `[lower,upper)` or `empty`. A missing bound is infinite.

    Faults: WRONG_SIZE, BAD_VALUE, LIMIT_VALUE, those of the bounds. Source: range_deparse, utils/adt/rangetypes.c.
    """
    cdef Cursor cursor
    cdef uint8_t flags = 0
    cdef FaultCode code = open_range(value, length, codec, &cursor, &flags)
    if code != OK:
        return code
    if flags & RANGE_EMPTY:
        code = add_bytes(out, b"empty", 5)
        return finish(cursor, out) if code == OK else code
    code = add_byte(out, c"[" if flags & RANGE_LB_INC else c"(")
    if code == OK and not flags & RANGE_LB_INF:
        code = add_bound(&cursor, out, codec.element)
    if code == OK:
        code = add_byte(out, c",")
    if code == OK and not flags & RANGE_UB_INF:
        code = add_bound(&cursor, out, codec.element)
    if code == OK:
        code = add_byte(out, c"]" if flags & RANGE_UB_INC else c")")
    return finish(cursor, out) if code == OK else code


cdef FaultCode multirange_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append `{[1,3),[5,7)}`.

    Faults: WRONG_SIZE, BAD_VALUE, LIMIT_VALUE, those of the ranges. Source: multirange_out,
    utils/adt/multirangetypes.c.
    """
    cdef Cursor cursor = cursor_of(value, length)
    cdef Bounds[2] bounds
    cdef const uint8_t *item = NULL
    cdef size_t begin = out.data.size
    cdef uint32_t n = 0, i, n_bytes = 0
    cdef FaultCode code
    code = take_count(&cursor, LEAST_RANGE, &n)
    if code != OK:
        return code
    code = add_byte(out, c"{")
    for i in range(n):
        if code == OK and i:
            code = add_byte(out, c",")
        if code == OK:
            code = next_bounds(cursor, bounds, i, codec.element)
        if code == OK:
            code = take_item(&cursor, &item, &n_bytes)
        if code == OK:
            code = add_value(item, n_bytes, out, codec.element) if item != NULL else FAULT_BAD_VALUE
        if code != OK:
            return code
        if unlikely(out.data.size - begin > MAX_RENDERED):
            return FAULT_LIMIT_VALUE
    if code == OK:
        code = add_byte(out, c"}")
    return finish(cursor, out) if code == OK else code


add_codec("range", range_from_text, range_from_binary)
add_codec("multirange", multirange_from_text, multirange_from_binary)
add_codec("range_text", text_from_text, range_text_from_binary)
add_codec("multirange_text", text_from_text, multirange_text_from_binary)
