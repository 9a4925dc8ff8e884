"""Values made of values in PostgreSQL's own text: arrays, ranges, multiranges, hstore, vectors and composites.

An item's own text form writes it behind what is there of the container's text; where it must be quoted, it then is, in
place. Depth is that of the type, never of the input.
"""

from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pgdecode._charset cimport to_utf8
from pgdecode._codec cimport Codec, is_of_type
from pgdecode._codecs._rendering cimport MAX_DIGITS, MAX_RENDERED, make_room, write_byte, write_decimal
from pgdecode._codecs._shortest cimport MAX_FLOAT_TEXT, write_float4
from pgdecode._codecs.containers cimport (
    LEAST_PAIR, LEAST_RANGE, MAX_DIMENSIONS, RANGE_EMPTY, RANGE_LB_INC, RANGE_LB_INF, RANGE_UB_INC, RANGE_UB_INF,
    float_of_half, is_blank, take_count, take_dimensions, take_range_flags,
)
from pgdecode._codecs.texts cimport check_text, text_from_text
from pgdecode._column cimport Column, add_bytes, end_bytes, reopen
from pgdecode._cursor cimport Cursor, be16, be32, bytes_left, take
from pgdecode._fault cimport (
    FAULT_BAD_VALUE, FAULT_LIMIT_VALUE, FAULT_UNKNOWN_TYPE, FAULT_WRONG_SIZE, OK, FaultCode, rarely,
)

cdef enum:
    NULL_LENGTH = 0xFFFFFFFF  # -1, the length of a null

# By which function of the server an item is quoted: it says what must be, and how quotes and backslashes are escaped.
cdef enum Quoting:
    OF_ARRAY   # array_out, utils/adt/arrayfuncs.c
    OF_BOUND   # range_bound_escape, utils/adt/rangetypes.c
    OF_FIELD   # record_out, utils/adt/rowtypes.c
    OF_HSTORE  # hstore_out, contrib/hstore: always


cdef inline bint is_special(uint8_t byte, Quoting quoting, uint8_t delimiter) noexcept nogil:
    """Whether an item with this byte, which is neither a quote nor a backslash, must be quoted."""
    if is_blank(byte):
        return True
    if quoting == OF_ARRAY:
        return byte == c"{" or byte == c"}" or byte == delimiter
    if byte == c"(" or byte == c")" or byte == c",":
        return True
    return quoting == OF_BOUND and (byte == c"[" or byte == c"]")


cdef inline bint is_null_word(const uint8_t *text, size_t length) noexcept nogil:
    """Whether an array would read it as a null, whatever its case."""
    cdef size_t i
    if length != 4:
        return False
    for i in range(4):
        if text[i] & ~0x20 != (b"NULL")[i]:
            return False
    return True


cdef FaultCode quote(Column *out, size_t start, Quoting quoting, uint8_t delimiter) noexcept nogil:
    """Put quotes around what has been written from `start` on, if there must be."""
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
    code = make_room(out, n_escapes + 2)
    if code != OK:
        return code
    # From the end on, so that no byte is overwritten before it has been moved.
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


cdef FaultCode add_value(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Add a value's text to the item being written."""
    cdef FaultCode code = codec.from_binary(value, length, out, codec)
    if code == OK:
        reopen(out)
    return code


cdef inline FaultCode add_byte(Column *out, uint8_t byte) noexcept nogil:
    return add_bytes(out, &byte, 1)


cdef inline FaultCode finish(Cursor cursor, Column *out) noexcept nogil:
    """End the container where nothing is left over."""
    return end_bytes(out) if cursor.at == cursor.end else FAULT_BAD_VALUE


cdef FaultCode take_item(Cursor *cursor, const uint8_t **value, uint32_t *length) noexcept nogil:
    """An Int32 length, -1 for null (the value is then NULL), and as many bytes."""
    cdef const uint8_t *p = take(cursor, 4)
    if p == NULL:
        return FAULT_BAD_VALUE
    length[0] = be32(p)
    value[0] = NULL
    if length[0] == <uint32_t>NULL_LENGTH:
        return OK
    value[0] = take(cursor, length[0])
    return OK if value[0] != NULL else FAULT_BAD_VALUE


# -- arrays ----------------------------------------------------------------------------------------------------------

cdef FaultCode count_items(
    const uint8_t *dimensions, uint32_t n_dimensions, size_t most, size_t *strides
) noexcept nogil:
    """How many items there are inside a brace of each depth; the outermost has all of them.

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


cdef uint8_t *write_signed(uint8_t *at, int64_t number) noexcept nogil:
    if number < 0:
        at = write_byte(at, c"-")
    return write_decimal(at, <uint64_t>(-number if number < 0 else number))


cdef FaultCode add_bounds(Column *out, const uint8_t *dimensions, uint32_t n_dimensions) noexcept nogil:
    """Add `[2:4][1:2]=` where an array does not begin at 1 in every dimension."""
    cdef uint8_t[2 * MAX_DIGITS + 3] text
    cdef uint8_t *at
    cdef int64_t lower
    cdef bint usual = True
    cdef uint32_t i
    cdef FaultCode code = OK
    for i in range(n_dimensions):
        usual = usual and be32(dimensions + 8 * i + 4) == 1
    if usual:
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
    """Add the items of an array that has some, between braces."""
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
        if rarely(out.data.size - begin > MAX_RENDERED):
            return FAULT_LIMIT_VALUE
    return OK


cdef FaultCode take_head(
    Cursor *cursor, const Codec *codec, const uint8_t **dimensions, uint32_t *n_dimensions, size_t *strides
) noexcept nogil:
    """What stands in front of an array's items: number of dimensions, flags, element OID, sizes and lower bounds."""
    cdef const uint8_t *head = take(cursor, 12)
    if head == NULL:
        return FAULT_WRONG_SIZE
    n_dimensions[0] = be32(head)
    # An enum's or domain's elements carry an OID of their own; a built-in type's must be the one expected.
    if n_dimensions[0] > MAX_DIMENSIONS or be32(head + 4) > 1 or not is_of_type(codec.element, be32(head + 8)):
        return FAULT_BAD_VALUE
    dimensions[0] = take(cursor, 8 * <size_t>n_dimensions[0])
    if dimensions[0] == NULL:
        return FAULT_WRONG_SIZE
    # Each item takes 4 bytes at least: a larger count is a lie, and costs nothing.
    return count_items(dimensions[0], n_dimensions[0], bytes_left(cursor[0]) // 4, strides)


cdef FaultCode array_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append an array of any number of dimensions, `{{1,2},{3,NULL}}`, lower bounds in front where they are not 1.

    Faults: WRONG_SIZE, BAD_VALUE, LIMIT_VALUE, those of the elements. Source: array_out, utils/adt/arrayfuncs.c.
    """
    cdef Cursor cursor
    cdef const uint8_t *dimensions = NULL
    cdef uint32_t n_dimensions = 0
    cdef size_t[MAX_DIMENSIONS] strides
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
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
    """Append an int2vector or oidvector, numbers with a blank between, of an array without nulls.

    Faults: WRONG_SIZE, BAD_VALUE, LIMIT_VALUE. Source: int2vectorout, utils/adt/int.c; oidvectorout, utils/adt/oid.c.
    """
    cdef Cursor cursor
    cdef const uint8_t *dimensions = NULL
    cdef const uint8_t *number = NULL
    cdef uint32_t n_dimensions = 0, n_bytes = 0
    cdef size_t[MAX_DIMENSIONS] strides
    cdef size_t i
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
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


# -- ranges ----------------------------------------------------------------------------------------------------------

cdef FaultCode add_bound(Cursor *cursor, Column *out, const Codec *codec) noexcept nogil:
    """A bound, which is never null, quoted where it must be."""
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
    """Append `[lower,upper)` or `empty`; a bound that is not there is infinite.

    Faults: WRONG_SIZE, BAD_VALUE, LIMIT_VALUE, those of the bounds. Source: range_deparse, utils/adt/rangetypes.c.
    """
    cdef Cursor cursor
    cdef uint8_t flags = 0
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    code = take_range_flags(&cursor, &flags)
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
    cdef Cursor cursor
    cdef const uint8_t *item = NULL
    cdef size_t begin = out.data.size
    cdef uint32_t n = 0, i, n_bytes = 0
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    code = take_count(&cursor, LEAST_RANGE, &n)
    if code != OK:
        return code
    code = add_byte(out, c"{")
    for i in range(n):
        if code == OK and i:
            code = add_byte(out, c",")
        if code == OK:
            code = take_item(&cursor, &item, &n_bytes)
        if code == OK:
            code = add_value(item, n_bytes, out, codec.element) if item != NULL else FAULT_BAD_VALUE
        if code != OK:
            return code
        if rarely(out.data.size - begin > MAX_RENDERED):
            return FAULT_LIMIT_VALUE
    if code == OK:
        code = add_byte(out, c"}")
    return finish(cursor, out) if code == OK else code


# -- hstore ----------------------------------------------------------------------------------------------------------

cdef FaultCode add_quoted(Column *out, const uint8_t *text, size_t length, const Codec *codec) noexcept nogil:
    """Add a key or value between quotes. Faults: BAD_VALUE for a NUL, ENCODING."""
    cdef size_t start = out.data.size
    cdef FaultCode code = to_utf8(codec.charset, &text, &length)
    if code == OK:
        code = check_text(text, length)
    if code == OK:
        code = add_bytes(out, text, length)
    return quote(out, start, OF_HSTORE, 0) if code == OK else code


cdef FaultCode hstore_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append `"key"=>"value", "other"=>NULL`, in the order sent.

    Faults: WRONG_SIZE, BAD_VALUE, ENCODING, LIMIT_VALUE. Source: hstore_out, contrib/hstore/hstore_io.c.
    """
    cdef Cursor cursor
    cdef const uint8_t *text = NULL
    cdef size_t begin = out.data.size
    cdef uint32_t n = 0, i, n_bytes = 0
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    code = take_count(&cursor, LEAST_PAIR, &n)
    if code != OK:
        return code
    for i in range(n):
        code = add_bytes(out, b", ", 2) if i else OK
        if code == OK:
            code = take_item(&cursor, &text, &n_bytes)
        if code == OK:
            code = add_quoted(out, text, n_bytes, codec) if text != NULL else FAULT_BAD_VALUE
        if code == OK:
            code = add_bytes(out, b"=>", 2)
        if code == OK:
            code = take_item(&cursor, &text, &n_bytes)
        if code == OK:
            code = add_quoted(out, text, n_bytes, codec) if text != NULL else add_bytes(out, b"NULL", 4)
        if code != OK:
            return code
        if rarely(out.data.size - begin > MAX_RENDERED):
            return FAULT_LIMIT_VALUE
    return finish(cursor, out)


# -- pgvector --------------------------------------------------------------------------------------------------------

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


# -- composites ------------------------------------------------------------------------------------------------------

cdef const Codec *codec_of(const Codec *codec, uint32_t oid) noexcept nogil:
    """The text form of a type among a record's, which ascend by OID; NULL where it is not there."""
    cdef size_t low = 0
    cdef size_t high = codec.n_fields
    cdef size_t middle
    while low < high:
        middle = (low + high) >> 1
        if codec.fields[middle].oid < oid:
            low = middle + 1
        else:
            high = middle
    return &codec.fields[low] if low < codec.n_fields and codec.fields[low].oid == oid else NULL


cdef FaultCode add_field(Cursor *cursor, Column *out, const Codec *codec, size_t i, bint by_oid) noexcept nogil:
    """Add one field of a composite: its type's OID, an Int32 length, -1 for null, and its bytes."""
    cdef const uint8_t *p = take(cursor, 4)
    cdef const uint8_t *value = NULL
    cdef const Codec *field
    cdef uint32_t length = 0
    cdef size_t start = out.data.size
    cdef FaultCode code = take_item(cursor, &value, &length) if p != NULL else FAULT_BAD_VALUE
    if code != OK:
        return code
    field = codec_of(codec, be32(p)) if by_oid else &codec.fields[i]
    if not by_oid and not is_of_type(field, be32(p)):
        return FAULT_BAD_VALUE
    if value == NULL:
        return OK
    if field == NULL:
        return FAULT_UNKNOWN_TYPE
    code = add_value(value, length, out, field)
    return quote(out, start, OF_FIELD, 0) if code == OK else code


cdef FaultCode put_composite(
    const uint8_t *value, size_t length, Column *out, const Codec *codec, bint by_oid
) noexcept nogil:
    """Append `(1,"a b",)` of an Int32 number of fields and the fields."""
    cdef Cursor cursor
    cdef const uint8_t *p
    cdef size_t begin = out.data.size
    cdef uint32_t n, i
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    p = take(&cursor, 4)
    if p == NULL:
        return FAULT_WRONG_SIZE
    n = be32(p)
    # Each field takes 8 bytes at least.
    if n > bytes_left(cursor) // 8 or not by_oid and n != codec.n_fields:
        return FAULT_BAD_VALUE
    code = add_byte(out, c"(")
    for i in range(n):
        if code == OK and i:
            code = add_byte(out, c",")
        if code == OK:
            code = add_field(&cursor, out, codec, i, by_oid)
        if code != OK:
            return code
        if rarely(out.data.size - begin > MAX_RENDERED):
            return FAULT_LIMIT_VALUE
    if code == OK:
        code = add_byte(out, c")")
    return finish(cursor, out) if code == OK else code


cdef FaultCode record_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a composite whose fields nobody has described, by the OIDs of their types.

    Faults: WRONG_SIZE, BAD_VALUE, LIMIT_VALUE; UNKNOWN_TYPE for a field, unless null, of a type that no OID names;
    those of the fields. Source: record_out and record_send, utils/adt/rowtypes.c.
    """
    return put_composite(value, length, out, codec, True)


cdef FaultCode composite_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a composite whose fields are described.

    Faults: WRONG_SIZE, LIMIT_VALUE; BAD_VALUE for another number of fields, or a field of another type; those of the
    fields. Source: as record's.
    """
    return put_composite(value, length, out, codec, False)


cdef bint container_forms_codec(str name, Codec *codec):
    """Fill the decoders of a codec of this family; whether it is one."""
    if name == "array_text":
        codec.from_binary = array_text_from_binary
    elif name == "spaced_text":
        codec.from_binary = spaced_text_from_binary
    elif name == "range_text":
        codec.from_binary = range_text_from_binary
    elif name == "multirange_text":
        codec.from_binary = multirange_text_from_binary
    elif name == "hstore_text":
        codec.from_binary = hstore_text_from_binary
    elif name == "vector_text":
        codec.from_binary = vector_text_from_binary
    elif name == "halfvec_text":
        codec.from_binary = halfvec_text_from_binary
    elif name == "composite_text":
        codec.from_binary = composite_text_from_binary
    elif name == "record":
        codec.from_binary = record_from_binary
    else:
        return False
    codec.from_text = text_from_text
    return True
