"""Composites, whose fields the caller has described: the stream gives their names alone."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

from pgdecode._codec cimport Codec, is_of_type
from pgdecode._codecs.containers cimport Token, sized_item, unquote
from pgdecode._column cimport Column, mark, put_null
from pgdecode._cursor cimport Cursor, be32, take
from pgdecode._fault cimport FAULT_BAD_VALUE, FAULT_WRONG_SIZE, OK, FaultCode


cdef FaultCode field_from_text(Cursor *cursor, Column *out, Column *child, const Codec *field) noexcept nogil:
    """One field's text, up to the comma or closing parenthesis; nothing at all is null, and `""` is empty."""
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
        # The server quotes whatever holds one of these.
        if p[0] == c'"' or p[0] == c"\\" or p[0] == c"(":
            return FAULT_BAD_VALUE
    token.length = <size_t>(cursor.at - token.text)
    return field.from_text(token.text, token.length, child, field) if token.length else put_null(child)


cdef FaultCode composite_from_text(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append `(a,"b c",)`, with as many fields as were described.

    Faults: BAD_VALUE, and those of the fields. Source: record_out, utils/adt/rowtypes.c.
    """
    cdef Cursor cursor
    cdef const uint8_t *p
    cdef size_t i
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
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

    Faults: WRONG_SIZE without the count; BAD_VALUE for another number of fields than was described, or a field of
    another built-in type; those of the fields. Source: record_send, utils/adt/rowtypes.c.
    """
    cdef Cursor cursor
    cdef const uint8_t *p
    cdef size_t i
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
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


cdef bint composites_codec(str name, Codec *codec):
    """Fill in the decoders of a codec of this family; False for a name of another."""
    if name != "composite":
        return False
    codec.from_text, codec.from_binary = composite_from_text, composite_from_binary
    return True
