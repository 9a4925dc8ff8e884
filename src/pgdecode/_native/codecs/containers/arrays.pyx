"""Arrays, and the vectors of numbers whose binary form is an array."""

from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t

from pgdecode._native.arrow.column_builder cimport Column, add_bytes, end_list, put_null
from pgdecode._native.codecs.codec cimport Codec, add_codec, is_of_type
from pgdecode._native.codecs.containers.items cimport Token, is_blank, is_null_item, sized_item, take_item, unquote
from pgdecode._native.codecs.containers.quoting cimport OF_ARRAY, add_byte, add_value, finish, quote
from pgdecode._native.codecs.text cimport text_from_text
from pgdecode._native.cursor cimport Cursor, be32, bytes_left, cursor_of, take
from pgdecode._native.fault cimport (
    FAULT_BAD_VALUE, FAULT_LIMIT_VALUE, FAULT_UNREPRESENTABLE, FAULT_WRONG_SIZE, OK, FaultCode, unlikely,
)
from pgdecode._native.literals.rendering cimport MAX_DIGITS, MAX_RENDERED, write_byte, write_signed

cdef enum:
    MAX_DIMENSIONS = 6  # MAXDIM, utils/array.h


cdef FaultCode take_element(Cursor *cursor, uint8_t delimiter, Column *scratch, Token *token) noexcept nogil:
    """Read one element of an array's text, up to the delimiter or the closing brace."""
    cdef const uint8_t *p
    cdef const uint8_t *last
    cdef FaultCode code
    while cursor.at != cursor.end and is_blank(cursor.at[0]):
        take(cursor, 1)
    if cursor.at == cursor.end:
        return FAULT_BAD_VALUE
    if cursor.at[0] == c'"':
        take(cursor, 1)
        code = unquote(cursor, scratch, False, token)
        while code == OK and cursor.at != cursor.end and is_blank(cursor.at[0]):
            take(cursor, 1)
        return code
    if cursor.at[0] == c"{":
        return FAULT_UNREPRESENTABLE
    token.quoted = False
    token.text = last = cursor.at
    scratch.data.size = 0
    while cursor.at != cursor.end and cursor.at[0] != delimiter and cursor.at[0] != c"}":
        p = take(cursor, 1)
        # The server quotes elements with one of these.
        if p[0] == c'"' or p[0] == c"{" or p[0] == c"\\":
            return FAULT_BAD_VALUE
        if not is_blank(p[0]):
            last = cursor.at
    token.length = <size_t>(last - token.text)
    return OK if token.length else FAULT_BAD_VALUE


cdef FaultCode skip_bounds(Cursor *cursor) noexcept nogil:
    """Read `[2:4]=` before an array that does not begin at 1. Only arrays of one dimension are lists."""
    cdef const uint8_t *p
    cdef int n_dimensions = 0
    cdef bint inside = False
    if cursor.at == cursor.end or cursor.at[0] != c"[":
        return OK
    while True:
        p = take(cursor, 1)
        if p == NULL:
            return FAULT_BAD_VALUE
        if p[0] == c"=" and not inside:
            return OK if n_dimensions == 1 else several(n_dimensions)
        if p[0] == c"[" and not inside:
            inside = True
            n_dimensions += 1
        elif p[0] == c"]" and inside:
            inside = False
        elif not (inside and (c"0" <= p[0] <= c"9" or p[0] == c":" or p[0] == c"-" or p[0] == c"+")):
            return FAULT_BAD_VALUE


cdef inline FaultCode several(size_t n_dimensions) noexcept nogil:
    """The fault of an array with several dimensions: not a list; or, with too many dimensions, not a value."""
    return FAULT_UNREPRESENTABLE if n_dimensions <= MAX_DIMENSIONS else FAULT_BAD_VALUE


cdef inline size_t count_braces(Cursor cursor) noexcept nogil:
    """Number of braces that open next, up to one more than arrays can have. The cursor of the caller stays."""
    cdef size_t n = 0
    while n <= MAX_DIMENSIONS and cursor.at != cursor.end and cursor.at[0] == c"{":
        take(&cursor, 1)
        n += 1
    return n


cdef FaultCode array_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """An array of one dimension, `{a,"b c",NULL}`. Faults: FAULT_UNREPRESENTABLE for more. Source: array_in."""
    cdef Cursor cursor = cursor_of(value, length)
    cdef const uint8_t *p
    cdef Token token
    cdef FaultCode code
    cdef size_t n_dimensions
    code = skip_bounds(&cursor)
    if code != OK:
        return code
    p = take(&cursor, 1)
    if p == NULL or p[0] != c"{":
        return FAULT_BAD_VALUE
    n_dimensions = 1 + count_braces(cursor)
    if unlikely(n_dimensions > 1):
        return several(n_dimensions)
    if cursor.at != cursor.end and cursor.at[0] == c"}":
        take(&cursor, 1)
        return end_list(out) if cursor.at == cursor.end else FAULT_BAD_VALUE
    while True:
        code = take_element(&cursor, codec.delimiter, out, &token)
        if code != OK:
            return code
        if is_null_item(&token):
            code = put_null(&out.children[0])
        else:
            code = codec.element.from_text(token.text, token.length, &out.children[0], codec.element)
        if code != OK:
            return code
        p = take(&cursor, 1)
        if p == NULL or (p[0] != codec.delimiter and p[0] != c"}"):
            return FAULT_BAD_VALUE
        if p[0] == c"}":
            return end_list(out) if cursor.at == cursor.end else FAULT_BAD_VALUE


cdef FaultCode array_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Read Int32 dimensions, flags and element OID, for each dimension size and lower bound, then items.

    Source: array_recv.
    """
    cdef Cursor cursor = cursor_of(value, length)
    cdef const uint8_t *head
    cdef const uint8_t *p
    cdef uint32_t n_dimensions, n, _i
    cdef FaultCode code
    head = take(&cursor, 12)
    if head == NULL:
        return FAULT_WRONG_SIZE
    n_dimensions = be32(head)
    # The elements of an enum or domain have an OID of their own. A built-in type must be the expected one.
    if n_dimensions > MAX_DIMENSIONS or be32(head + 4) > 1 or not is_of_type(codec.element, be32(head + 8)):
        return FAULT_BAD_VALUE
    if n_dimensions == 0:
        return end_list(out) if cursor.at == cursor.end else FAULT_BAD_VALUE
    if n_dimensions > 1:
        return FAULT_UNREPRESENTABLE
    p = take(&cursor, 8)
    if p == NULL:
        return FAULT_WRONG_SIZE
    n = be32(p)
    # Each item has at least 4 bytes: a larger count is wrong, and must cost nothing.
    if n > bytes_left(cursor) // 4:
        return FAULT_BAD_VALUE
    for _i in range(n):
        code = sized_item(&cursor, &out.children[0], codec.element)
        if code != OK:
            return code
    return end_list(out) if cursor.at == cursor.end else FAULT_BAD_VALUE


cdef FaultCode spaced_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Read int2vector and oidvector: numbers separated by one blank. Source: int2vectorout."""
    cdef const uint8_t *end = value + length
    cdef const uint8_t *start
    cdef FaultCode code
    while value != end:
        start = value
        while value != end and value[0] != c" ":
            value += 1
        code = codec.element.from_text(start, <size_t>(value - start), &out.children[0], codec.element)
        if code != OK:
            return code
        if value != end:
            value += 1
            if value == end:
                return FAULT_BAD_VALUE
    return end_list(out)


# -- as PostgreSQL's own text ----------------------------------------------------------------------------------------

cdef FaultCode count_items(
    const uint8_t *dimensions, uint32_t n_dimensions, size_t most, size_t *strides
) noexcept nogil:
    """The number of items inside a brace of each depth; the outermost brace has all of them.

    Faults: BAD_VALUE for more than `most`, or bounds past int32. Source: ArrayGetNItems, utils/adt/arrayutils.c.
    """
    cdef size_t n = 1
    cdef uint32_t i
    cdef int64_t size
    for i in range(n_dimensions, 0, -1):
        size = <int32_t>be32(dimensions + 8 * (i - 1))
        if size < 0 or <int32_t>be32(dimensions + 8 * (i - 1) + 4) + size - 1 > INT32_MAX:
            return FAULT_BAD_VALUE
        n *= <size_t>size
        if n > most:
            return FAULT_BAD_VALUE
        strides[i - 1] = n
    return OK


cdef FaultCode add_bounds(Column *out, const uint8_t *dimensions, uint32_t n_dimensions) noexcept nogil:
    """Add `[2:4][1:2]=` if an array does not begin at 1 in every dimension."""
    cdef uint8_t[2 * MAX_DIGITS + 3] text
    cdef uint8_t *at
    cdef int64_t lower
    cdef bint is_default = True
    cdef uint32_t i
    cdef FaultCode code = OK
    for i in range(n_dimensions):
        is_default = is_default and be32(dimensions + 8 * i + 4) == 1
    if is_default:
        return OK
    for i in range(n_dimensions):
        lower = <int32_t>be32(dimensions + 8 * i + 4)
        at = write_byte(write_signed(write_byte(text, c"["), lower), c":")
        at = write_byte(write_signed(at, lower + <int32_t>be32(dimensions + 8 * i) - 1), c"]")
        code = add_bytes(out, text, <size_t>(at - text))
        if code != OK:
            return code
    return add_byte(out, c"=")


cdef FaultCode add_items(
    Cursor *cursor, Column *out, const Codec *codec, const size_t *strides, uint32_t n_dimensions
) noexcept nogil:
    """Add the items of an array that is not empty, between braces."""
    cdef size_t begin = out.data.size
    cdef size_t i, start
    cdef uint32_t depth, length = 0
    cdef const uint8_t *value = NULL
    cdef FaultCode code
    for i in range(strides[0]):
        code = add_byte(out, codec.delimiter) if i else OK
        for depth in range(n_dimensions):
            if i % strides[depth] == 0 and code == OK:
                code = add_byte(out, c"{")
        if code == OK:
            code = take_item(cursor, &value, &length)
        if code != OK:
            return code
        start = out.data.size
        if value == NULL:
            code = add_bytes(out, b"NULL", 4)
        else:
            code = add_value(value, length, out, codec.element)
            if code == OK:
                code = quote(out, start, OF_ARRAY, codec.delimiter)
        for depth in range(n_dimensions):
            if (i + 1) % strides[depth] == 0 and code == OK:
                code = add_byte(out, c"}")
        if code != OK:
            return code
        if unlikely(out.data.size - begin > MAX_RENDERED):
            return FAULT_LIMIT_VALUE
    return OK


cdef FaultCode take_head(
    Cursor *cursor, const Codec *codec, const uint8_t **dimensions, uint32_t *n_dimensions, size_t *strides
) noexcept nogil:
    """Read the header of an array: number of dimensions, flags, element OID, sizes and lower bounds."""
    cdef const uint8_t *head = take(cursor, 12)
    if head == NULL:
        return FAULT_WRONG_SIZE
    n_dimensions[0] = be32(head)
    # The elements of an enum or domain have an OID of their own. A built-in type must be the expected one.
    if n_dimensions[0] > MAX_DIMENSIONS or be32(head + 4) > 1 or not is_of_type(codec.element, be32(head + 8)):
        return FAULT_BAD_VALUE
    dimensions[0] = take(cursor, 8 * <size_t>n_dimensions[0])
    if dimensions[0] == NULL:
        return FAULT_WRONG_SIZE
    # Each item has at least 4 bytes: a larger count is wrong, and must cost nothing.
    return count_items(dimensions[0], n_dimensions[0], bytes_left(cursor[0]) // 4, strides)


cdef FaultCode array_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append an array of any number of dimensions, `{{1,2},{3,NULL}}`, with lower bounds if they are not 1.

    Faults: WRONG_SIZE, BAD_VALUE, LIMIT_VALUE, those of the elements. Source: array_out, utils/adt/arrayfuncs.c.
    """
    cdef Cursor cursor = cursor_of(value, length)
    cdef const uint8_t *dimensions = NULL
    cdef uint32_t n_dimensions = 0
    cdef size_t[MAX_DIMENSIONS] strides
    cdef FaultCode code
    code = take_head(&cursor, codec, &dimensions, &n_dimensions, strides)
    if code != OK:
        return code
    if n_dimensions == 0 or strides[0] == 0:
        code = add_bytes(out, b"{}", 2)
    else:
        code = add_bounds(out, dimensions, n_dimensions)
        if code == OK:
            code = add_items(&cursor, out, codec, strides, n_dimensions)
    return finish(cursor, out) if code == OK else code


cdef FaultCode spaced_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append an int2vector or oidvector, numbers separated by a blank, from an array without nulls.

    Faults: WRONG_SIZE, BAD_VALUE, LIMIT_VALUE. Source: int2vectorout, utils/adt/int.c; oidvectorout, utils/adt/oid.c.
    """
    cdef Cursor cursor = cursor_of(value, length)
    cdef const uint8_t *dimensions = NULL
    cdef const uint8_t *number = NULL
    cdef uint32_t n_dimensions = 0, n_bytes = 0
    cdef size_t[MAX_DIMENSIONS] strides
    cdef size_t i
    cdef FaultCode code
    strides[0] = 0
    code = take_head(&cursor, codec, &dimensions, &n_dimensions, strides)
    if code != OK:
        return code
    if n_dimensions > 1:
        return FAULT_BAD_VALUE
    for i in range(strides[0]):
        code = add_byte(out, c" ") if i else OK
        if code == OK:
            code = take_item(&cursor, &number, &n_bytes)
        if code == OK:
            code = add_value(number, n_bytes, out, codec.element) if number != NULL else FAULT_BAD_VALUE
        if code != OK:
            return code
    return finish(cursor, out)


add_codec("array", array_from_text, array_from_binary)
add_codec("spaced", spaced_from_text, array_from_binary)
add_codec("array_text", text_from_text, array_text_from_binary)
add_codec("spaced_text", text_from_text, spaced_text_from_binary)
