"""Composites whose fields the caller has described, because messages contain only their types' names; and records."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

from pgdecode._native.arrow.column_builder cimport Column, mark, put_null
from pgdecode._native.codecs.codec cimport Codec, add_codec, is_of_type
from pgdecode._native.codecs.containers.items cimport Token, sized_item, take_item, unquote
from pgdecode._native.codecs.containers.quoting cimport OF_FIELD, add_byte, add_value, finish, quote
from pgdecode._native.codecs.text cimport text_from_text
from pgdecode._native.cursor cimport Cursor, be32, bytes_left, cursor_of, take
from pgdecode._native.fault cimport (
    FAULT_BAD_VALUE, FAULT_LIMIT_VALUE, FAULT_UNKNOWN_TYPE, FAULT_WRONG_SIZE, OK, FaultCode, unlikely,
)
from pgdecode._native.literals.rendering cimport MAX_RENDERED


cdef FaultCode field_from_text(Cursor *cursor, Column *out, Column *child, const Codec *field) noexcept nogil:
    """Read the text of one field, up to the comma or closing parenthesis. Without text it is null; `""` is empty."""
    cdef Token token
    cdef const uint8_t *p
    cdef FaultCode code
    token.text = cursor.at
    if cursor.at != cursor.end and cursor.at[0] == c'"':
        take(cursor, 1)
        code = unquote(cursor, out, True, &token)
        return field.from_text(token.text, token.length, child, field) if code == OK else code
    while cursor.at != cursor.end and cursor.at[0] != c"," and cursor.at[0] != c")":
        p = take(cursor, 1)
        # The server quotes fields with one of these.
        if p[0] == c'"' or p[0] == c"\\" or p[0] == c"(":
            return FAULT_BAD_VALUE
    token.length = <size_t>(cursor.at - token.text)
    return field.from_text(token.text, token.length, child, field) if token.length else put_null(child)


cdef FaultCode composite_from_text(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append `(a,"b c",)`, with as many fields as described.

    Faults: BAD_VALUE, and those of the fields. Source: record_out, utils/adt/rowtypes.c.
    """
    cdef Cursor cursor = cursor_of(value, length)
    cdef const uint8_t *p
    cdef size_t i
    cdef FaultCode code
    for i in range(codec.n_fields):
        p = take(&cursor, 1)
        if p == NULL or p[0] != (c"," if i else c"("):
            return FAULT_BAD_VALUE
        code = field_from_text(&cursor, out, &out.children[i], &codec.fields[i])
        if code != OK:
            return code
    p = take(&cursor, 1)
    return mark(out, 1) if p != NULL and p[0] == c")" and cursor.at == cursor.end else FAULT_BAD_VALUE


cdef FaultCode composite_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append Int32 fields, then for each its type's OID, an Int32 length, -1 for null, and its bytes.

    Faults: WRONG_SIZE without the count; BAD_VALUE for another number of fields than described, or a field of another
    built-in type; those of the fields. Source: record_send, utils/adt/rowtypes.c.
    """
    cdef Cursor cursor = cursor_of(value, length)
    cdef const uint8_t *p
    cdef size_t i
    cdef FaultCode code
    p = take(&cursor, 4)
    if p == NULL:
        return FAULT_WRONG_SIZE
    if be32(p) != codec.n_fields:
        return FAULT_BAD_VALUE
    for i in range(codec.n_fields):
        p = take(&cursor, 4)
        if p == NULL or not is_of_type(&codec.fields[i], be32(p)):
            return FAULT_BAD_VALUE
        code = sized_item(&cursor, &out.children[i], &codec.fields[i])
        if code != OK:
            return code
    return mark(out, 1) if cursor.at == cursor.end else FAULT_BAD_VALUE


# -- as PostgreSQL's own text ----------------------------------------------------------------------------------------

cdef const Codec *codec_of(const Codec *codec, uint32_t oid) noexcept nogil:
    """The codec of a type in the list of a record, which ascends by OID; NULL if it is not in the list."""
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
    cdef Cursor cursor = cursor_of(value, length)
    cdef const uint8_t *p
    cdef size_t begin = out.data.size
    cdef uint32_t n, i
    cdef FaultCode code
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
        if unlikely(out.data.size - begin > MAX_RENDERED):
            return FAULT_LIMIT_VALUE
    if code == OK:
        code = add_byte(out, c")")
    return finish(cursor, out) if code == OK else code


cdef FaultCode record_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a composite whose fields are not described, by the OIDs of their types.

    Faults: WRONG_SIZE, BAD_VALUE, LIMIT_VALUE; UNKNOWN_TYPE for a field, unless null, of a type that is not built in;
    those of the fields. Source: record_out and record_send, utils/adt/rowtypes.c.
    """
    return put_composite(value, length, out, codec, True)


cdef FaultCode composite_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a composite whose fields are described.

    Faults: WRONG_SIZE, LIMIT_VALUE; BAD_VALUE for another number of fields, or a field of another type; those of the
    fields. Source: that of record.
    """
    return put_composite(value, length, out, codec, False)


add_codec("composite", composite_from_text, composite_from_binary)
add_codec("composite_text", text_from_text, composite_text_from_binary)
add_codec("record", text_from_text, record_from_binary)
