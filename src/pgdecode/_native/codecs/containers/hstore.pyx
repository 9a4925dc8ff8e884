"""hstore: keys and values, which are text."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcmp

from pgdecode._native.arrow.column_builder cimport Column, add_bytes, end_list, mark, put_null
from pgdecode._native.codecs.codec cimport Codec, add_codec
from pgdecode._native.codecs.containers.items cimport Token, is_null_item, take_count, take_item, unquote
from pgdecode._native.codecs.containers.quoting cimport OF_HSTORE, finish, quote
from pgdecode._native.codecs.text cimport check_text, text_from_text
from pgdecode._native.cursor cimport Cursor, cursor_of, take
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_LIMIT_VALUE, FAULT_NO_MEMORY, OK, FaultCode, unlikely
from pgdecode._native.literals.rendering cimport MAX_RENDERED
from pgdecode._native.memory.transcoding cimport to_utf8

cdef enum:
    LEAST_PAIR = 8   # bytes: two lengths


cdef struct Key:
    const uint8_t *text
    size_t length


cdef int order_of_keys(const void *left, const void *right) noexcept nogil:
    """Compare keys as hstore does: shorter ones first, then by bytes (comparePairs, contrib/hstore/hstore_io.c)."""
    cdef const Key *one = <const Key *>left
    cdef const Key *other = <const Key *>right
    if one.length != other.length:
        return 1 if one.length > other.length else -1
    return memcmp(one.text, other.text, one.length) if one.length else 0


cdef FaultCode check_sorted(Key *keys, size_t n) noexcept nogil:
    """Sort keys, and look for duplicates. Faults: BAD_VALUE."""
    cdef size_t i
    qsort(keys, n, sizeof(Key), order_of_keys)
    for i in range(1, n):
        if order_of_keys(&keys[i - 1], &keys[i]) == 0:
            return FAULT_BAD_VALUE
    return OK


cdef inline Key key_at(const Column *keys, size_t i) noexcept nogil:
    cdef const int32_t *ends = <const int32_t *>keys.ends.data
    cdef Key key
    key.text = keys.data.data + ends[i]
    key.length = <size_t>(ends[i + 1] - ends[i])
    return key


cdef FaultCode check_keys(const Column *keys, size_t first) noexcept nogil:
    """Check that the keys from `first` on differ, as hstoreUniquePairs makes them. Faults: BAD_VALUE, NO_MEMORY."""
    cdef Key *found
    cdef Key key, before
    cdef size_t i, n = keys.n - first
    cdef FaultCode code
    if n < 2:
        return OK
    before = key_at(keys, first)
    for i in range(first + 1, keys.n):
        key = key_at(keys, i)
        # Servers send keys in order, unless client_encoding has changed their lengths.
        if order_of_keys(&before, &key) >= 0:
            break
        before = key
    else:
        return OK
    found = <Key *>malloc(n * sizeof(Key))
    if found == NULL:
        return FAULT_NO_MEMORY
    for i in range(n):
        found[i] = key_at(keys, first + i)
    code = check_sorted(found, n)
    free(found)
    return code


cdef FaultCode take_keys(Cursor cursor, uint32_t n, Key *keys, uint32_t *n_ordered) noexcept nogil:
    """Find the keys of n pairs in binary: all of them with `keys`, otherwise up to the first that is not in order."""
    cdef const uint8_t *text = NULL
    cdef uint32_t n_bytes = 0, i
    cdef Key key, before
    cdef FaultCode code
    before.text = NULL
    before.length = 0
    for i in range(n):
        code = take_item(&cursor, &text, &n_bytes)
        key.text = text
        key.length = n_bytes
        if code == OK:
            code = FAULT_BAD_VALUE if text == NULL else take_item(&cursor, &text, &n_bytes)
        if code != OK:
            return code
        if keys != NULL:
            keys[i] = key
        elif i and order_of_keys(&before, &key) >= 0:
            break
        before = key
        n_ordered[0] = i + 1
    return OK


cdef FaultCode check_binary_keys(Cursor cursor, uint32_t n) noexcept nogil:
    """Check the n pairs that follow in binary as `check_keys` does. Faults: BAD_VALUE, WRONG_SIZE, NO_MEMORY."""
    cdef uint32_t n_ordered = 0
    cdef Key *keys
    cdef FaultCode code = take_keys(cursor, n, NULL, &n_ordered)
    if code != OK or n_ordered == n:
        return code
    keys = <Key *>malloc(n * sizeof(Key))
    if keys == NULL:
        return FAULT_NO_MEMORY
    code = take_keys(cursor, n, keys, &n_ordered)
    if code == OK:
        code = check_sorted(keys, n)
    free(keys)
    return code


cdef FaultCode put_client_text(
    Column *column, const uint8_t *text, size_t length, const Codec *codec
) noexcept nogil:
    """Append text of a binary form, which is in client_encoding."""
    cdef FaultCode code = to_utf8(codec.charset, &text, &length)
    return text_from_text(text, length, column, codec) if code == OK else code


cdef FaultCode hstore_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Read `"key"=>"value", "other"=>NULL`, without duplicate keys. Source: hstore_out."""
    cdef Cursor cursor = cursor_of(value, length)
    cdef Column *pair = &out.children[0]
    cdef size_t first = pair.n
    cdef const uint8_t *p
    cdef Token token
    cdef FaultCode code
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
            if take(&cursor, 3) == NULL or not is_null_item(&token):
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
    code = check_keys(&pair.children[0], first)
    return code if code != OK else end_list(out)


cdef FaultCode hstore_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Read Int32 count, then different keys, and values as Int32 length and bytes; the length of a null value is -1.

    Source: hstore_send.
    """
    cdef Cursor cursor = cursor_of(value, length)
    cdef Column *pair = &out.children[0]
    cdef size_t first = pair.n
    cdef const uint8_t *text = NULL
    cdef uint32_t n = 0, _i, n_bytes = 0
    cdef FaultCode code
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
    if cursor.at != cursor.end:
        return FAULT_BAD_VALUE
    code = check_keys(&pair.children[0], first)
    return code if code != OK else end_list(out)


# -- as PostgreSQL's own text ----------------------------------------------------------------------------------------

cdef FaultCode add_quoted(Column *out, const uint8_t *text, size_t length, const Codec *codec) noexcept nogil:
    """Add a quoted key or value. Faults: BAD_VALUE for a NUL, ENCODING."""
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
    cdef Cursor cursor = cursor_of(value, length)
    cdef const uint8_t *text = NULL
    cdef size_t begin = out.data.size
    cdef uint32_t n = 0, i, n_bytes = 0
    cdef FaultCode code
    code = take_count(&cursor, LEAST_PAIR, &n)
    if code == OK:
        code = check_binary_keys(cursor, n)
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
        if unlikely(out.data.size - begin > MAX_RENDERED):
            return FAULT_LIMIT_VALUE
    return finish(cursor, out)


add_codec("hstore", hstore_from_text, hstore_from_binary)
add_codec("hstore_text", text_from_text, hstore_text_from_binary)
