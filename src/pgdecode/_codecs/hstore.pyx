"""hstore: keys and values, both of them text."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

from pgdecode._charset cimport to_utf8
from pgdecode._codec cimport Codec
from pgdecode._codecs._quoting cimport OF_HSTORE, finish, quote
from pgdecode._codecs._rendering cimport MAX_RENDERED
from pgdecode._codecs.containers cimport Token, is_null, take_count, take_item, unquote
from pgdecode._codecs.texts cimport check_text, text_from_text
from pgdecode._column cimport Column, add_bytes, end_list, mark, put_null
from pgdecode._cursor cimport Cursor, take
from pgdecode._fault cimport FAULT_BAD_VALUE, FAULT_LIMIT_VALUE, OK, FaultCode, rarely

cdef enum:
    LEAST_PAIR = 8   # bytes: two lengths


cdef FaultCode put_client_text(
    Column *column, const uint8_t *text, size_t length, const Codec *codec
) noexcept nogil:
    """Append text of a binary form, which is in client_encoding."""
    cdef FaultCode code = to_utf8(codec.charset, &text, &length)
    return text_from_text(text, length, column, codec) if code == OK else code


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
            code = text_from_text(token.text, token.length, &pair.children[0], codec)
        if code != OK:
            return code
        p = take(&cursor, 3)
        if p == NULL or p[0] != c"=" or p[1] != c">":
            return FAULT_BAD_VALUE
        if p[2] == c'"':
            code = unquote(&cursor, out, False, &token)
            if code == OK:
                code = text_from_text(token.text, token.length, &pair.children[1], codec)
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
    cdef const uint8_t *text = NULL
    cdef uint32_t n = 0, _i, n_bytes = 0
    cdef FaultCode code
    cursor.at = value
    cursor.end = value + length
    code = take_count(&cursor, LEAST_PAIR, &n)
    if code != OK:
        return code
    for _i in range(n):
        code = take_item(&cursor, &text, &n_bytes)
        if code == OK:
            code = put_client_text(&pair.children[0], text, n_bytes, codec) if text != NULL else FAULT_BAD_VALUE
        if code == OK:
            code = take_item(&cursor, &text, &n_bytes)
        if code == OK and text != NULL:
            code = put_client_text(&pair.children[1], text, n_bytes, codec)
        elif code == OK:
            code = put_null(&pair.children[1])
        if code == OK:
            code = mark(pair, 1)
        if code != OK:
            return code
    return end_list(out) if cursor.at == cursor.end else FAULT_BAD_VALUE


# -- as PostgreSQL's own text ----------------------------------------------------------------------------------------

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


cdef bint hstore_codec(str name, Codec *codec):
    """Fill in the decoders of a codec of this family; False for a name of another."""
    if name == "hstore":
        codec.from_text, codec.from_binary = hstore_from_text, hstore_from_binary
    elif name == "hstore_text":
        codec.from_text, codec.from_binary = text_from_text, hstore_text_from_binary
    else:
        return False
    return True
