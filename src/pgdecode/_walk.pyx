"""Walks one message by the plan and puts its fields into the envelope's sinks, or into none."""

from libc.stdint cimport int16_t, int32_t, uint16_t, uint64_t
from libc.string cimport memcpy

from pgdecode._cursor cimport Cursor, be16, be32, be64, bytes_left, offset_of, take, take_string
from pgdecode._fault cimport (
    FAULT_BAD_COLUMN_KIND,
    FAULT_BAD_FLAGS,
    FAULT_BAD_LENGTH,
    FAULT_BAD_TUPLE_TAG,
    FAULT_BAD_VALUE,
    FAULT_EMPTY,
    FAULT_EMPTY_NAME,
    FAULT_ENCODING,
    FAULT_LIMIT_BATCH,
    FAULT_LIMIT_COLUMNS,
    FAULT_LIMIT_NAME,
    FAULT_LIMIT_PAYLOAD,
    FAULT_LIMIT_VALUE,
    FAULT_NO_MEMORY,
    FAULT_NO_NUL,
    FAULT_OUT_OF_RANGE,
    FAULT_STATE_DESYNC,
    FAULT_TRAILING,
    FAULT_TRUNCATED,
    FAULT_UNKNOWN_TAG,
    OK,
)
from pgdecode._plan cimport (
    COLUMNS,
    CONTENT,
    COUNT,
    FLAGS,
    FORMATS,
    INT32,
    LETTER,
    LSN,
    N_MESSAGES,
    NAME,
    NEW_TUPLE,
    OLD_TUPLE,
    OLD_TYPE,
    PART_CELL,
    PART_FLAGS,
    PART_NAME,
    PART_TYPE_ID,
    PART_TYPE_MODIFIER,
    RELATION_IDS,
    TEXT,
    TIMESTAMP,
    UINT32,
    XID_PREFIX,
    MessagePlan,
    Op,
)
from pgdecode._sink cimport (
    SINK_BOOL,
    append_int16,
    append_int32,
    append_int64,
    put_bool,
    put_int16,
    put_int64,
    put_list,
    put_text,
    reserve,
)
from pgdecode._utf8 cimport utf8_prefix

cdef enum:
    # MaxAllocSize, utils/memutils.h: no server can build a longer value.
    MAX_LENGTH = 0x3FFFFFFF

# 946684800000000 us = 2000-01-01 minus 1970-01-01
cdef int64_t EPOCH_SHIFT_US = 946684800000000

cdef struct Walk:
    # What one walk carries from field to field.
    Cursor cursor
    const Rules *rules
    Fault *fault
    int64_t row
    uint32_t count       # of the COUNT field
    uint8_t old_type     # of the OLD_TYPE field, 0 where no old tuple was sent


cdef FaultCode fail(
    Walk *walk, FaultCode code, int label, size_t offset, int64_t expected, int64_t seen, int32_t column
) noexcept nogil:
    walk.fault.code = code
    walk.fault.label = <int16_t>label
    walk.fault.offset = offset
    walk.fault.expected = expected
    walk.fault.seen = seen
    walk.fault.column = column
    return code


cdef FaultCode fail_truncated(Walk *walk, int label, int64_t needed, int32_t column) noexcept nogil:
    return fail(
        walk, FAULT_TRUNCATED, label, offset_of(&walk.cursor), needed, <int64_t>bytes_left(&walk.cursor), column
    )


cdef FaultCode fail_in_sink(Walk *walk, FaultCode code, int label) noexcept nogil:
    """A sink that could not take a value: no memory, or no room for more in 32-bit offsets."""
    return fail(walk, code, label, 0, 0, 0, -1)


cdef int recognise(const uint8_t *payload, size_t length) noexcept nogil:
    """Index into _fault.HINTS of what a payload with an unknown tag looks like."""
    cdef uint8_t first = payload[0]
    cdef size_t i
    if first == c"w" and length >= 25:
        return 1
    if first == c"k" and length == 18:
        return 2
    if first == c"d" and length >= 5 and be32(payload + 1) == length - 1:
        return 3
    if first == c"\\" and length > 2 and payload[1] == c"x":
        return 4
    if length >= 2 and first == 0x1F and payload[1] == 0x8B:
        return 5
    if length >= 4 and be32(payload) == 0x28B52FFD:
        return 6
    if length % 2 == 0 and first < c"a":
        for i in range(length if length < 32 else 32):
            if not (c"0" <= payload[i] <= c"9" or c"a" <= payload[i] <= c"f" or c"A" <= payload[i] <= c"F"):
                return 0
        return 4
    return 0


cdef inline FaultCode fixed_field(Walk *walk, const Op *op, Envelope *out) noexcept nogil:
    """A field of constant width."""
    cdef Sink *sink = NULL if op.column < 0 else out.sinks[op.column]
    cdef size_t offset = offset_of(&walk.cursor)
    cdef const uint8_t *p = take(&walk.cursor, op.width)
    cdef FaultCode code = OK
    cdef uint64_t wide
    cdef uint32_t word
    cdef int64_t moment
    if p == NULL:
        return fail_truncated(walk, op.label, op.width, -1)
    if op.form == LSN:
        wide = be64(p)
        if wide >> 63:
            return fail(walk, FAULT_OUT_OF_RANGE, op.label, offset, 0, 0, -1)
        if sink != NULL:
            code = put_int64(sink, walk.row, <int64_t>wide)
    elif op.form == UINT32 or op.form == XID_PREFIX:
        word = be32(p)
        if word < op.minimum:
            return fail(walk, FAULT_BAD_VALUE, op.label, offset, op.minimum, word, -1)
        if sink != NULL:
            code = put_int64(sink, walk.row, word)
    elif op.form == TIMESTAMP:
        moment = <int64_t>be64(p)
        if moment > <int64_t>0x7FFFFFFFFFFFFFFF - EPOCH_SHIFT_US:
            return fail(walk, FAULT_OUT_OF_RANGE, op.label, offset, 0, 0, -1)
        if sink != NULL:
            code = put_int64(sink, walk.row, moment + EPOCH_SHIFT_US)
    elif op.form == FLAGS:
        if p[0] > op.maximum and walk.rules.strict_flags:
            return fail(walk, FAULT_BAD_FLAGS, op.label, offset, op.maximum, p[0], -1)
        if sink != NULL:
            code = put_bool(sink, walk.row, p[0] != 0) if sink.type == SINK_BOOL else put_int16(sink, walk.row, p[0])
    elif op.form == LETTER:
        if p[0] < 64 or p[0] > 127 or not (op.letters >> (p[0] - 64)) & 1:
            return fail(walk, FAULT_BAD_VALUE, op.label, offset, 0, p[0], -1)
        if sink != NULL:
            code = put_text(sink, walk.row, p, 1)
    else:  # COUNT
        walk.count = be32(p)
    return OK if code == OK else fail_in_sink(walk, code, op.label)


cdef FaultCode string_of(
    Walk *walk, const Op *op, int label, bint is_name, const uint8_t **text, size_t *length, int32_t column
) noexcept nogil:
    """A NUL-terminated UTF-8 string; a name has a length to keep."""
    cdef size_t offset = offset_of(&walk.cursor)
    cdef size_t valid
    text[0] = take_string(&walk.cursor, length)
    if text[0] == NULL:
        return fail(walk, FAULT_NO_NUL, label, offset, 0, <int64_t>bytes_left(&walk.cursor), column)
    if is_name:
        if length[0] == 0 and not op.may_be_empty:
            return fail(walk, FAULT_EMPTY_NAME, label, offset, 1, 0, column)
        if length[0] > walk.rules.max_name_bytes:
            return fail(
                walk, FAULT_LIMIT_NAME, label, offset, <int64_t>walk.rules.max_name_bytes, <int64_t>length[0], column
            )
    valid = utf8_prefix(text[0], length[0])
    if valid != length[0]:
        return fail(walk, FAULT_ENCODING, label, offset + valid, 0, 0, column)
    return OK


cdef inline FaultCode length_of(Walk *walk, int label, size_t *length, int32_t column) noexcept nogil:
    """An Int32 length whose bytes are there and which the limits allow."""
    cdef size_t offset = offset_of(&walk.cursor)
    cdef const uint8_t *p = take(&walk.cursor, 4)
    if p == NULL:
        return fail_truncated(walk, label, 4, column)
    length[0] = be32(p)
    # The length is checked against what is left before anything is reserved: a corrupt length must cost nothing.
    if length[0] > MAX_LENGTH:
        return fail(walk, FAULT_BAD_LENGTH, label, offset, MAX_LENGTH, <int64_t>length[0], column)
    if length[0] > bytes_left(&walk.cursor):
        return fail_truncated(walk, label, <int64_t>length[0], column)
    if length[0] > walk.rules.max_value_bytes:
        return fail(
            walk, FAULT_LIMIT_VALUE, label, offset, <int64_t>walk.rules.max_value_bytes, <int64_t>length[0], column
        )
    return OK


cdef FaultCode text_field(Walk *walk, const Op *op, Envelope *out) noexcept nogil:
    cdef const uint8_t *text = NULL
    cdef size_t length = 0
    cdef FaultCode code
    if op.form == CONTENT:
        code = length_of(walk, op.label, &length, -1)
        text = walk.cursor.at
        if code == OK:
            walk.cursor.at += length
    else:
        code = string_of(walk, op, op.label, op.form == NAME, &text, &length, -1)
    if code != OK or out.sinks[op.column] == NULL:
        return code
    code = put_text(out.sinks[op.column], walk.row, text, length)
    return OK if code == OK else fail_in_sink(walk, code, op.label)


cdef FaultCode relation_ids_field(Walk *walk, const Op *op, Envelope *out) noexcept nogil:
    cdef Sink *sink = out.sinks[op.column]
    cdef size_t n = bytes_left(&walk.cursor) // 4
    cdef const uint8_t *p
    cdef size_t i, n_before
    if n > walk.count:
        n = walk.count
    # n is what the bytes hold, never what the count claims, so reserving for it is safe.
    p = take(&walk.cursor, n * 4)
    if n < walk.count:
        return fail_truncated(walk, op.label, 4, -1)
    if sink == NULL:
        return OK
    n_before = sink.data.size // sizeof(int64_t)
    if n_before + n > <size_t>0x7FFFFFFF:
        return fail_in_sink(walk, FAULT_LIMIT_BATCH, op.label)
    if put_list(sink, walk.row, n_before) != OK or reserve(&sink.data, n * sizeof(int64_t)) != OK:
        return fail_in_sink(walk, FAULT_NO_MEMORY, op.label)
    for i in range(n):
        append_int64(&sink.data, be32(p + 4 * i))
    return OK


cdef FaultCode columns_field(Walk *walk, const Op *op, Envelope *out) noexcept nogil:
    cdef ColumnsSink *sink = out.columns
    cdef size_t offset = offset_of(&walk.cursor)
    cdef const uint8_t *p = take(&walk.cursor, 2)
    cdef const uint8_t *name = NULL
    cdef const uint8_t *flags
    cdef size_t length = 0
    cdef uint16_t n
    cdef int32_t i
    cdef FaultCode code
    if p == NULL:
        return fail_truncated(walk, op.label, 2, -1)
    n = be16(p)
    if n > walk.rules.max_columns:
        return fail(walk, FAULT_LIMIT_COLUMNS, op.label, offset, walk.rules.max_columns, n, -1)
    if sink != NULL:
        if sink.flags.size // sizeof(int16_t) + n > <size_t>0x7FFFFFFF:
            return fail_in_sink(walk, FAULT_LIMIT_BATCH, op.label)
        if sink.name_ends.size == 0 and append_int32(&sink.name_ends, 0) != OK:
            return fail_in_sink(walk, FAULT_NO_MEMORY, op.label)
        if put_list(&sink.rows, walk.row, sink.flags.size // sizeof(int16_t)) != OK:
            return fail_in_sink(walk, FAULT_NO_MEMORY, op.label)
    for i in range(n):
        offset = offset_of(&walk.cursor)
        flags = take(&walk.cursor, 1)
        if flags == NULL:
            return fail_truncated(walk, op.label + PART_FLAGS, 1, i)
        if flags[0] > 1 and walk.rules.strict_flags:
            return fail(walk, FAULT_BAD_FLAGS, op.label + PART_FLAGS, offset, 1, flags[0], i)
        code = string_of(walk, op, op.label + PART_NAME, True, &name, &length, i)
        if code != OK:
            return code
        p = take(&walk.cursor, 4)
        if p == NULL:
            return fail_truncated(walk, op.label + PART_TYPE_ID, 4, i)
        if take(&walk.cursor, 4) == NULL:
            return fail_truncated(walk, op.label + PART_TYPE_MODIFIER, 4, i)
        if sink == NULL:
            continue
        if sink.names.size + length > <size_t>0x7FFFFFFF:
            return fail_in_sink(walk, FAULT_LIMIT_BATCH, op.label)
        if (
            append_int16(&sink.flags, flags[0]) != OK
            or reserve(&sink.names, length) != OK
            or append_int64(&sink.type_ids, be32(p)) != OK
            or append_int32(&sink.type_modifiers, <int32_t>be32(p + 4)) != OK
        ):
            return fail_in_sink(walk, FAULT_NO_MEMORY, op.label)
        memcpy(sink.names.data + sink.names.size, name, length)
        sink.names.size += length
        if append_int32(&sink.name_ends, <int32_t>sink.names.size) != OK:
            return fail_in_sink(walk, FAULT_NO_MEMORY, op.label)
    return OK


cdef FaultCode open_tuple(Walk *walk, const Op *op, TupleSink *sink, size_t n) noexcept nogil:
    """Start the row's tuple and make room for `n` cells and for all the bytes that are left."""
    cdef size_t left = bytes_left(&walk.cursor)
    cdef size_t n_cells = sink.letters.size
    if n > left:
        # The claimed count does not fit: the walk will fault, and needs no more room than this.
        n = left
    if n_cells + n > <size_t>0x7FFFFFFF or sink.values.size + left > <size_t>0x7FFFFFFF:
        return fail_in_sink(walk, FAULT_LIMIT_BATCH, op.label)
    if put_list(&sink.rows, walk.row, n_cells) != OK or reserve(&sink.letters, n) != OK:
        return fail_in_sink(walk, FAULT_NO_MEMORY, op.label)
    if sink.wants_values:
        if sink.ends.size == 0 and append_int32(&sink.ends, 0) != OK:
            return fail_in_sink(walk, FAULT_NO_MEMORY, op.label)
        if reserve(&sink.ends, n * sizeof(int32_t)) != OK or reserve(&sink.values, left) != OK:
            return fail_in_sink(walk, FAULT_NO_MEMORY, op.label)
    return OK


cdef FaultCode tuple_field(Walk *walk, const Op *op, TupleSink *sink) noexcept nogil:
    """TupleData: Int16 count, then per column a kind and, for t and b, an Int32 length and the value."""
    cdef Cursor *cursor = &walk.cursor
    cdef const uint8_t *end = cursor.end
    cdef size_t offset = offset_of(cursor)
    cdef const uint8_t *p = take(cursor, 2)
    cdef const uint8_t *kind
    cdef uint8_t *letters = NULL
    cdef uint8_t *values = NULL
    cdef int32_t *ends = NULL
    cdef size_t length = 0, size = 0
    cdef uint16_t n
    cdef int32_t i
    cdef FaultCode code
    if p == NULL:
        return fail_truncated(walk, op.label, 2, -1)
    n = be16(p)
    if n > walk.rules.max_columns:
        return fail(walk, FAULT_LIMIT_COLUMNS, op.label, offset, walk.rules.max_columns, n, -1)
    if sink != NULL:
        code = open_tuple(walk, op, sink, n)
        if code != OK:
            return code
        letters = sink.letters.data + sink.letters.size
        if sink.wants_values:
            values = sink.values.data
            ends = <int32_t *>(sink.ends.data + sink.ends.size)
            size = sink.values.size
    for i in range(n):
        kind = take(cursor, 1)
        if kind == NULL:
            return fail_truncated(walk, op.label + PART_CELL, 1, i)
        if kind[0] == c"t" or kind[0] == c"b":
            code = length_of(walk, op.label + PART_CELL, &length, i)
            if code != OK:
                return code
            p = cursor.at
            cursor.at += length
            if ends != NULL:
                # Most values are short: one block copied whole costs less than a call. Only bytes of this payload
                # are read, and the sink has slack for what is written past the value.
                if length <= 16 and <size_t>(end - p) >= 16:
                    memcpy(values + size, p, 16)
                else:
                    memcpy(values + size, p, length)
                size += length
        elif kind[0] != c"n" and kind[0] != c"u":
            return fail(
                walk, FAULT_BAD_COLUMN_KIND, op.label + PART_CELL, offset_of(cursor) - 1, 0, kind[0], i
            )
        if letters != NULL:
            letters[i] = kind[0]
            if ends != NULL:
                ends[i] = <int32_t>size
    if sink != NULL:
        sink.letters.size += n
        if ends != NULL:
            sink.ends.size += n * sizeof(int32_t)
            sink.values.size = size
    return OK


cdef inline FaultCode old_type_field(Walk *walk, const Op *op, Envelope *out) noexcept nogil:
    """K or O; where it is optional, anything else is left for the new tuple to judge."""
    cdef const uint8_t *p = take(&walk.cursor, 1)
    cdef FaultCode code
    if p == NULL:
        return fail_truncated(walk, op.label, 1, -1)
    if p[0] != c"K" and p[0] != c"O":
        walk.cursor.at -= 1
        if op.optional:
            return OK
        return fail(walk, FAULT_BAD_TUPLE_TAG, op.label, offset_of(&walk.cursor), 0, p[0], -1)
    walk.old_type = p[0]
    if out.sinks[op.column] == NULL:
        return OK
    code = put_text(out.sinks[op.column], walk.row, p, 1)
    return OK if code == OK else fail_in_sink(walk, code, op.label)


cdef inline FaultCode new_tuple_field(Walk *walk, const Op *op, Envelope *out) noexcept nogil:
    cdef const uint8_t *p = take(&walk.cursor, 1)
    if p == NULL:
        return fail_truncated(walk, op.label, 1, -1)
    if p[0] != c"N":
        return fail(walk, FAULT_BAD_TUPLE_TAG, op.label, offset_of(&walk.cursor) - 1, 0, p[0], -1)
    return tuple_field(walk, op, out.new)


cdef FaultCode walk_fields(Walk *walk, const MessagePlan *message, bint streamed, Envelope *out) noexcept nogil:
    cdef const Op *op
    cdef FaultCode code = OK
    cdef int i
    if streamed:
        code = fixed_field(walk, &message.prefix, out)
        if code != OK:
            return code
    for i in range(message.n_ops):
        op = &message.ops[i]
        if op.width:
            # The optional fields end a message: all of them are there, or none.
            if op.optional and walk.cursor.at == walk.cursor.end and not message.ops[i - 1].optional:
                break
            code = fixed_field(walk, op, out)
        elif op.form == NEW_TUPLE:
            code = new_tuple_field(walk, op, out)
        elif op.form == OLD_TYPE:
            code = old_type_field(walk, op, out)
        elif op.form == OLD_TUPLE:
            if walk.old_type:
                code = tuple_field(walk, op, out.old)
        elif op.form == COLUMNS:
            code = columns_field(walk, op, out)
        elif op.form == RELATION_IDS:
            code = relation_ids_field(walk, op, out)
        elif op.form != FORMATS:
            code = text_field(walk, op, out)
        if code != OK:
            return code
    if walk.cursor.at != walk.cursor.end:
        return fail(
            walk, FAULT_TRAILING, message.label, offset_of(&walk.cursor), 0, <int64_t>bytes_left(&walk.cursor), -1
        )
    return OK


cdef Rules rules_of(object limits, bint strict_flags) except *:
    """The public `Limits` as the walker takes them."""
    cdef Rules rules
    rules.max_payload_bytes = limits.max_payload_bytes
    rules.max_columns = limits.max_columns
    rules.max_name_bytes = limits.max_name_bytes
    rules.max_value_bytes = limits.max_value_bytes
    rules.strict_flags = strict_flags
    return rules


cdef FaultCode walk_message(
    const PlanTable *plan,
    const uint8_t *payload,
    size_t length,
    bint streamed,
    const Rules *rules,
    Envelope *out,
    int64_t row,
    Fault *fault,
) noexcept nogil:
    """Decode one payload into `out`, or say in `fault` why not; then parts of the row may already be put.

    `streamed` says whether the message carries an xid prefix, where its kind can.
    """
    cdef Walk walk
    cdef const MessagePlan *message
    cdef FaultCode code
    cdef size_t relation_at
    walk.fault = fault
    walk.rules = rules
    walk.row = row
    walk.count = 0
    walk.old_type = 0
    walk.cursor.start = payload
    walk.cursor.at = payload
    walk.cursor.end = payload + length
    fault.relation = -1
    fault.row = row
    if length == 0:
        return fail(&walk, FAULT_EMPTY, -1, 0, 1, 0, -1)
    fault.tag = payload[0]
    if length > rules.max_payload_bytes:
        return fail(&walk, FAULT_LIMIT_PAYLOAD, -1, 0, <int64_t>rules.max_payload_bytes, <int64_t>length, -1)
    if plan.by_tag[payload[0]] == N_MESSAGES:
        return fail(&walk, FAULT_UNKNOWN_TAG, -1, 0, recognise(payload, length), payload[0], -1)
    message = &plan.messages[plan.by_tag[payload[0]]]
    walk.cursor.at += 1
    streamed = streamed and message.streamed
    code = walk_fields(&walk, message, streamed, out)
    if code != OK and message.relation_at >= 0:
        relation_at = 1 + <size_t>message.relation_at + (4 if streamed else 0)
        if length >= relation_at + 4:
            fault.relation = be32(payload + relation_at)
    return code


cdef FaultCode judge_fault(
    const PlanTable *plan,
    const uint8_t *payload,
    size_t length,
    bint streamed,
    const Rules *rules,
    Envelope *nothing,
    FaultCode code,
    Fault *fault,
) noexcept nogil:
    """Turn a fault into a contradiction of the stream state where the other reading is well-formed.

    `nothing` has no sinks. Returns `code` where the state is not to blame.
    """
    cdef Fault other
    cdef const MessagePlan *message
    if length == 0 or plan.by_tag[payload[0]] == N_MESSAGES:
        return code
    message = &plan.messages[plan.by_tag[payload[0]]]
    if not message.streamed:
        return code
    if walk_message(plan, payload, length, not streamed, rules, nothing, fault.row, &other) != OK:
        return code
    fault.code = FAULT_STATE_DESYNC
    fault.label = message.label
    fault.offset = 1
    fault.expected = streamed
    fault.seen = not streamed
    fault.column = -1
    fault.relation = -1
    return FAULT_STATE_DESYNC
