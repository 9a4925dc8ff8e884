"""Reads strings, contents and lists: checks them, and writes requested ones into the envelope."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t

from pgdecode._native.arrow.builder cimport (
    ColumnsBuilder, Builder, append_int64, open_columns, put_column, put_list, put_text,
)
from pgdecode._native.cursor cimport be16, be32, bytes_left, take, take_string
from pgdecode._native.fault cimport (
    FAULT_BAD_FLAGS,
    FAULT_BAD_LENGTH,
    FAULT_EMPTY_NAME,
    FAULT_ENCODING,
    FAULT_LIMIT_BATCH,
    FAULT_LIMIT_COLUMNS,
    FAULT_LIMIT_NAME,
    FAULT_LIMIT_VALUE,
    FAULT_NO_MEMORY,
    FAULT_NO_NUL,
    OK,
    FaultCode,
    unlikely,
)
from pgdecode._native.memory.buffers cimport reserve
from pgdecode._native.memory.utf8 cimport utf8_prefix
from pgdecode._native.wire.envelope_builder cimport fail, fail_in_builder, fail_truncated
from pgdecode._native.wire.wire_plan cimport CONTENT, NAME, PART_FLAGS, PART_NAME, PART_TYPE_ID, PART_TYPE_MODIFIER

cdef enum:
    # MaxAllocSize, utils/memutils.h: no server can build a longer value.
    MAX_LENGTH = 0x3FFFFFFF

# A field function takes the cursor and returns the cursor after the field; its `at` is NULL after a fault.

cdef Cursor string_of(
    Walk *walk, const Op *op, int label, bint is_name, Cursor cursor, Span *text, int32_t column
) noexcept nogil:
    """Read a NUL-terminated UTF-8 string. The length of a name is limited."""
    cdef const uint8_t *start = cursor.at
    cdef size_t valid
    text.length = 0
    text.data = take_string(&cursor, &text.length)
    if text.data == NULL:
        return fail(walk, FAULT_NO_NUL, label, start, 0, <int64_t>bytes_left(cursor), column)
    if is_name:
        if text.length == 0 and not op.may_be_empty:
            return fail(walk, FAULT_EMPTY_NAME, label, start, 1, 0, column)
        if text.length > walk.rules.max_name_bytes:
            return fail(
                walk, FAULT_LIMIT_NAME, label, start, <int64_t>walk.rules.max_name_bytes, <int64_t>text.length, column
            )
    valid = utf8_prefix(text.data, text.length)
    if valid != text.length:
        return fail(walk, FAULT_ENCODING, label, start + valid, 0, 0, column)
    return cursor


cdef Cursor value_of(Walk *walk, int label, Cursor cursor, Span *value, int32_t column) noexcept nogil:
    """Read an Int32 length and that many bytes, within the limits."""
    cdef const uint8_t *p = take(&cursor, 4)
    if unlikely(p == NULL):
        return fail_truncated(walk, label, cursor, 4, column)
    value.length = be32(p)
    # The length is compared with the bytes left before anything is reserved: a corrupt length must cost nothing.
    if value.length > MAX_LENGTH:
        return fail(walk, FAULT_BAD_LENGTH, label, p, MAX_LENGTH, <int64_t>value.length, column)
    value.data = take(&cursor, value.length)
    if value.data == NULL:
        return fail_truncated(walk, label, cursor, <int64_t>value.length, column)
    if value.length > walk.rules.max_value_bytes:
        return fail(
            walk, FAULT_LIMIT_VALUE, label, p, <int64_t>walk.rules.max_value_bytes, <int64_t>value.length, column
        )
    return cursor


cdef Cursor text_field(Walk *walk, const Op *op, Cursor cursor) noexcept nogil:
    cdef Span text
    cdef FaultCode code
    if op.form == CONTENT:
        cursor = value_of(walk, op.label, cursor, &text, -1)
    else:
        cursor = string_of(walk, op, op.label, op.form == NAME, cursor, &text, -1)
    if cursor.at == NULL or walk.out.builders[op.column] == NULL:
        return cursor
    code = put_text(walk.out.builders[op.column], walk.row, text.data, text.length)
    return cursor if code == OK else fail_in_builder(walk, code, op.label)


cdef Cursor relation_ids_field(Walk *walk, const Op *op, Cursor cursor) noexcept nogil:
    cdef Builder *builder = walk.out.builders[op.column]
    cdef size_t n = bytes_left(cursor) // 4
    cdef const uint8_t *p
    cdef size_t i, n_before
    if n > walk.count:
        n = walk.count
    # n is limited by the bytes left, whatever the count claims, so that it can be reserved.
    p = take(&cursor, n * 4)
    if n < walk.count:
        return fail_truncated(walk, op.label, cursor, 4, -1)
    if builder == NULL:
        return cursor
    n_before = builder.data.size // sizeof(int64_t)
    if n_before + n > <size_t>0x7FFFFFFF:
        return fail_in_builder(walk, FAULT_LIMIT_BATCH, op.label)
    if put_list(builder, walk.row, n_before) != OK or reserve(&builder.data, n * sizeof(int64_t)) != OK:
        return fail_in_builder(walk, FAULT_NO_MEMORY, op.label)
    for i in range(n):
        append_int64(&builder.data, be32(p + 4 * i))
    return cursor


cdef Cursor columns_field(Walk *walk, const Op *op, Cursor cursor) noexcept nogil:
    cdef ColumnsBuilder *builder = walk.out.columns
    cdef const uint8_t *p = take(&cursor, 2)
    cdef const uint8_t *flags
    cdef Span name
    cdef uint16_t n
    cdef int32_t i
    cdef FaultCode code
    if unlikely(p == NULL):
        return fail_truncated(walk, op.label, cursor, 2, -1)
    n = be16(p)
    if unlikely(n > walk.rules.max_columns):
        return fail(walk, FAULT_LIMIT_COLUMNS, op.label, p, walk.rules.max_columns, n, -1)
    if builder != NULL:
        code = open_columns(builder, walk.row, n)
        if code != OK:
            return fail_in_builder(walk, code, op.label)
    for i in range(n):
        flags = take(&cursor, 1)
        if flags == NULL:
            return fail_truncated(walk, op.label + PART_FLAGS, cursor, 1, i)
        if flags[0] > 1 and walk.rules.strict_flags:
            return fail(walk, FAULT_BAD_FLAGS, op.label + PART_FLAGS, flags, 1, flags[0], i)
        cursor = string_of(walk, op, op.label + PART_NAME, True, cursor, &name, i)
        if cursor.at == NULL:
            return cursor
        p = take(&cursor, 4)
        if p == NULL:
            return fail_truncated(walk, op.label + PART_TYPE_ID, cursor, 4, i)
        if take(&cursor, 4) == NULL:
            return fail_truncated(walk, op.label + PART_TYPE_MODIFIER, cursor, 4, i)
        if builder != NULL:
            code = put_column(builder, flags[0], name.data, name.length, be32(p), <int32_t>be32(p + 4))
            if code != OK:
                return fail_in_builder(walk, code, op.label)
    return cursor
