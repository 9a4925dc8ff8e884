"""Arrays, ranges and multiranges, hstore and vectors: values made of values.

A quoted or escaped element is unquoted into the `data` buffer of the container's own column, which a list or struct
does not use otherwise, so that the element's decoder gets plain bytes. Depth is that of the type, never of the input.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from pgdecode._cursor cimport Cursor, be16, be32, bytes_left, take
from pgdecode._charset cimport to_utf8
from pgdecode._codec cimport Codec, is_of_type
from pgdecode._codecs.texts cimport check_text
from pgdecode._column cimport Column, add_bytes, end_list, mark, put_bool, put_bytes, put_float, put_null
from pgdecode._fault cimport (
    FAULT_BAD_VALUE,
    FAULT_UNKNOWN_TYPE,
    FAULT_UNREPRESENTABLE,
    FAULT_WRONG_SIZE,
    OK,
    FaultCode,
    rarely,
)

cdef enum:
    # Children of a range's column, in the order of pgtypes.range_of.
    LOWER
    UPPER
    LOWER_INCLUSIVE
    UPPER_INCLUSIVE
    EMPTY


cdef FaultCode unquote(Cursor *cursor, Column *scratch, bint doubled, Token *token) noexcept nogil:
    """The inside of a quoted string whose opening quote has been taken; takes the closing one too.

    A backslash escapes the next byte; where `doubled`, two quotes in a row are one.
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


# -- arrays ----------------------------------------------------------------------------------------------------------

cdef FaultCode take_element(Cursor *cursor, uint8_t delimiter, Column *scratch, Token *token) noexcept nogil:
    """One element of an array's text, up to the delimiter or the closing brace."""
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
        # The server quotes whatever holds one of these.
        if p[0] == c'"' or p[0] == c"{" or p[0] == c"\\":
            return FAULT_BAD_VALUE
        if not is_blank(p[0]):
            last = cursor.at
    token.length = <size_t>(last - token.text)
    return OK if token.length else FAULT_BAD_VALUE


cdef bint is_null(const Token *token) noexcept nogil:
    cdef size_t i
    if token.quoted or token.length != 4:
        return False
    for i in range(4):
        if token.text[i] & ~0x20 != (b"NULL")[i]:
            return False
    return True


cdef FaultCode skip_bounds(Cursor *cursor) noexcept nogil:
    """The `[2:4]=` in front of an array that does not begin at 1; only for one dimension is it a list's."""
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
    """What an array of more than one dimension is: no list, or where no array has as many, no value at all."""
    return FAULT_UNREPRESENTABLE if n_dimensions <= MAX_DIMENSIONS else FAULT_BAD_VALUE


cdef inline size_t count_braces(Cursor cursor) noexcept nogil:
    """How many braces open next, up to one more than any array has; the cursor of the caller stays."""
    cdef size_t n = 0
    while n <= MAX_DIMENSIONS and cursor.at != cursor.end and cursor.at[0] == c"{":
        take(&cursor, 1)
        n += 1
    return n


cdef FaultCode array_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """An array of one dimension, `{a,"b c",NULL}`. Faults: FAULT_UNREPRESENTABLE for more. Source: array_in."""
    cdef Cursor cursor
    cdef const uint8_t *p
    cdef Token token
    cdef FaultCode code
    cdef size_t n_dimensions
    cursor.at = value
    cursor.end = value + length
    code = skip_bounds(&cursor)
    if code != OK:
        return code
    p = take(&cursor, 1)
    if p == NULL or p[0] != c"{":
        return FAULT_BAD_VALUE
    n_dimensions = 1 + count_braces(cursor)
    if rarely(n_dimensions > 1):
        return several(n_dimensions)
    if cursor.at != cursor.end and cursor.at[0] == c"}":
        take(&cursor, 1)
        return end_list(out) if cursor.at == cursor.end else FAULT_BAD_VALUE
    while True:
        code = take_element(&cursor, codec.delimiter, out, &token)
        if code != OK:
            return code
        if is_null(&token):
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


cdef FaultCode sized_item(Cursor *cursor, Column *child, const Codec *element) noexcept nogil:
    """An Int32 length, -1 for null, and as many bytes."""
    cdef const uint8_t *p = take(cursor, 4)
    cdef const uint8_t *value
    if p == NULL:
        return FAULT_BAD_VALUE
    if be32(p) == <uint32_t>0xFFFFFFFF:
        return put_null(child)
    value = take(cursor, be32(p))
    if value == NULL:
        return FAULT_BAD_VALUE
    return element.from_binary(value, be32(p), child, element)


cdef FaultCode array_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Int32 dimensions, flags and element OID, per dimension size and lower bound, then items. Source: array_recv."""
    cdef Cursor cursor
    cdef const uint8_t *head
    cdef const uint8_t *p
    cdef uint32_t n_dimensions, n, _i
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    head = take(&cursor, 12)
    if head == NULL:
        return FAULT_WRONG_SIZE
    n_dimensions = be32(head)
    # An enum's or domain's elements carry an OID of their own; a built-in type's must be the one expected.
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
    # Each item takes 4 bytes at least: a larger count is a lie, and costs nothing.
    if n > bytes_left(cursor) // 4:
        return FAULT_BAD_VALUE
    for _i in range(n):
        code = sized_item(&cursor, &out.children[0], codec.element)
        if code != OK:
            return code
    return end_list(out) if cursor.at == cursor.end else FAULT_BAD_VALUE


cdef FaultCode spaced_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """int2vector and oidvector: numbers with one blank between. Source: int2vectorout."""
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


# -- ranges ----------------------------------------------------------------------------------------------------------

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
    """One bound's text, null where it is not there, up to the comma or closing bracket."""
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
    """One range's text at the cursor."""
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
    """`[lower,upper)` or `empty`; a bound that is not there is infinite. Source: range_out."""
    cdef Cursor cursor
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    code = take_range(&cursor, out, codec)
    return code if code != OK or cursor.at == cursor.end else FAULT_BAD_VALUE


cdef FaultCode range_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Int8 flags, then the bounds that are there as Int32 length and bytes. Source: range_send."""
    cdef Cursor cursor
    cdef uint8_t flags = 0
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    code = take_range_flags(&cursor, &flags)
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
    """A bound, which is never null."""
    if bytes_left(cursor[0]) >= 4 and be32(cursor.at) == <uint32_t>0xFFFFFFFF:
        return FAULT_BAD_VALUE
    return sized_item(cursor, child, codec)


cdef FaultCode multirange_from_text(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """`{[1,3),[5,7)}`. Source: multirange_out."""
    cdef Cursor cursor
    cdef const uint8_t *p
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
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


cdef FaultCode multirange_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Int32 count, then that many ranges as Int32 length and bytes. Source: multirange_send."""
    cdef Cursor cursor
    cdef uint32_t n = 0, _i
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    code = take_count(&cursor, LEAST_RANGE, &n)
    if code != OK:
        return code
    for _i in range(n):
        code = bound_item(&cursor, &out.children[0], codec.element)
        if code != OK:
            return code
    return end_list(out) if cursor.at == cursor.end else FAULT_BAD_VALUE


# -- hstore ----------------------------------------------------------------------------------------------------------

cdef FaultCode put_client_text(
    Column *column, const uint8_t *text, size_t length, const Codec *codec
) noexcept nogil:
    """Append text of a binary form, which is in client_encoding."""
    cdef FaultCode code = to_utf8(codec.charset, &text, &length)
    return put_text(column, text, length) if code == OK else code


cdef FaultCode put_text(Column *column, const uint8_t *text, size_t length) noexcept nogil:
    cdef FaultCode code = check_text(text, length)
    return put_bytes(column, text, length) if code == OK else code


cdef FaultCode hstore_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """`"key"=>"value", "other"=>NULL`. Source: hstore_out."""
    cdef Cursor cursor
    cdef Column *pair = &out.children[0]
    cdef const uint8_t *p
    cdef Token token
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    while cursor.at != cursor.end:
        p = take(&cursor, 1)
        if p[0] != c'"':
            return FAULT_BAD_VALUE
        code = unquote(&cursor, out, False, &token)
        if code == OK:
            code = put_text(&pair.children[0], token.text, token.length)
        if code != OK:
            return code
        p = take(&cursor, 3)
        if p == NULL or p[0] != c"=" or p[1] != c">":
            return FAULT_BAD_VALUE
        if p[2] == c'"':
            code = unquote(&cursor, out, False, &token)
            if code == OK:
                code = put_text(&pair.children[1], token.text, token.length)
        else:
            token.text = p + 2
            token.length = 4
            token.quoted = False
            if take(&cursor, 3) == NULL or not is_null(&token):
                return FAULT_BAD_VALUE
            code = put_null(&pair.children[1])
        if code == OK:
            code = mark(pair, 1)
        if code != OK:
            return code
        if cursor.at != cursor.end:
            p = take(&cursor, 2)
            if p == NULL or p[0] != c"," or p[1] != c" " or cursor.at == cursor.end:
                return FAULT_BAD_VALUE
    return end_list(out)


cdef FaultCode hstore_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Int32 count, then keys and values as Int32 length and bytes; a value's length may be -1. Source: hstore_send."""
    cdef Cursor cursor
    cdef Column *pair = &out.children[0]
    cdef const uint8_t *p
    cdef const uint8_t *text
    cdef uint32_t n = 0, _i
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    code = take_count(&cursor, LEAST_PAIR, &n)
    if code != OK:
        return code
    for _i in range(n):
        p = take(&cursor, 4)
        text = take(&cursor, be32(p)) if p != NULL else NULL
        if text == NULL:
            return FAULT_BAD_VALUE
        code = put_client_text(&pair.children[0], text, be32(p), codec)
        if code != OK:
            return code
        p = take(&cursor, 4)
        if p == NULL:
            return FAULT_BAD_VALUE
        if be32(p) == <uint32_t>0xFFFFFFFF:
            code = put_null(&pair.children[1])
        else:
            text = take(&cursor, be32(p))
            if text == NULL:
                return FAULT_BAD_VALUE
            code = put_client_text(&pair.children[1], text, be32(p), codec)
        if code == OK:
            code = mark(pair, 1)
        if code != OK:
            return code
    return end_list(out) if cursor.at == cursor.end else FAULT_BAD_VALUE


# -- pgvector ---------------------------------------------------------------------------------------------------------

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


# -- what nobody knows -----------------------------------------------------------------------------------------------

cdef FaultCode opaque_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """A type known only by its OID: its text as it is."""
    return put_text(out, value, length)


cdef FaultCode opaque_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Bytes without a type have no meaning: never a guess."""
    return FAULT_UNKNOWN_TYPE


cdef bint containers_codec(str name, Codec *codec):
    """Fill in the pair of a codec of this family; False where the name is another's."""
    if name == "array":
        codec.from_text = array_from_text
        codec.from_binary = array_from_binary
    elif name == "spaced":
        codec.from_text = spaced_from_text
        codec.from_binary = array_from_binary
    elif name == "range":
        codec.from_text = range_from_text
        codec.from_binary = range_from_binary
    elif name == "multirange":
        codec.from_text = multirange_from_text
        codec.from_binary = multirange_from_binary
    elif name == "vector":
        codec.from_text = vector_from_text
        codec.from_binary = vector_from_binary
    elif name == "halfvec":
        codec.from_text = vector_from_text
        codec.from_binary = halfvec_from_binary
    elif name == "opaque":
        codec.from_text = opaque_from_text
        codec.from_binary = opaque_from_binary
    elif name == "hstore":
        codec.from_text = hstore_from_text
        codec.from_binary = hstore_from_binary
    else:
        return False
    return True
