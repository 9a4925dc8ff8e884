"""Walks one message by the plan, and writes its fields into the envelope's builders, if there are any."""

from libc.stdint cimport int16_t, int64_t, uint16_t, uint32_t, uint64_t

from pgdecode._native.arrow.builder cimport Builder, TupleBuilder, put_text
from pgdecode._native.cursor cimport Cursor, be16, be32, be64, bytes_left, take
from pgdecode._native.fault cimport (
    FAULT_BAD_FLAGS,
    FAULT_BAD_TUPLE_TAG,
    FAULT_BAD_VALUE,
    FAULT_EMPTY,
    FAULT_LIMIT_COLUMNS,
    FAULT_LIMIT_PAYLOAD,
    FAULT_NO_MEMORY,
    FAULT_OUT_OF_RANGE,
    FAULT_STATE_DESYNC,
    FAULT_TRAILING,
    FAULT_UNKNOWN_TAG,
    OK,
    Fault,
    unlikely,
)
from pgdecode._native.wire.envelope_builder cimport (
    EPOCH_SHIFT_US, Slot, fail, fail_in_builder, fail_truncated, open_slots,
)
from pgdecode._native.wire.tuples cimport put_cells, tuple_field
from pgdecode._native.wire.variable_length_fields cimport columns_field, relation_ids_field, text_field
from pgdecode._native.wire.wire_plan cimport (
    COLUMNS,
    FLAGS,
    LETTER,
    LSN,
    NEW_TUPLE,
    N_MESSAGES,
    OLD_TUPLE,
    OLD_TYPE,
    RELATION_IDS,
    TIMESTAMP,
    UINT32,
    XID_PREFIX,
    MessagePlan,
    Op,
)

# A field function takes the cursor and returns the cursor after the field; its `at` is NULL after a fault.

cdef int recognise(const uint8_t *payload, size_t length) noexcept nogil:
    """Index into fault.HINTS of the format that a payload with an unknown tag seems to have."""
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


# -- fields of constant width ----------------------------------------------------------------------------------------

cdef inline void put_number(const Slot *slot, int64_t row, int64_t number) noexcept nogil:
    if slot.values != NULL:
        (<int64_t *>slot.values)[row] = number
        slot.validity[row >> 3] |= <uint8_t>(1 << (row & 7))


cdef inline bint fixed_field(Walk *walk, const Op *op, const uint8_t *p) noexcept nogil:
    """Read a field of constant width, whose bytes at `p` are available. False after a fault."""
    cdef const Slot *slot = &walk.out.slots[op.column]
    cdef uint64_t wide
    cdef uint32_t word
    cdef int64_t row = walk.row
    if op.form == LSN:
        wide = be64(p)
        if unlikely(wide >> 63 != 0):
            return fail(walk, FAULT_OUT_OF_RANGE, op.label, p, 0, 0, -1).at != NULL
        put_number(slot, row, <int64_t>wide)
    elif op.form == UINT32 or op.form == XID_PREFIX:
        word = be32(p)
        if unlikely(word < op.minimum):
            return fail(walk, FAULT_BAD_VALUE, op.label, p, op.minimum, word, -1).at != NULL
        put_number(slot, row, word)
    elif op.form == TIMESTAMP:
        wide = be64(p)
        if unlikely(<int64_t>wide > <int64_t>0x7FFFFFFFFFFFFFFF - <int64_t>EPOCH_SHIFT_US):
            return fail(walk, FAULT_OUT_OF_RANGE, op.label, p, 0, 0, -1).at != NULL
        put_number(slot, row, <int64_t>wide + <int64_t>EPOCH_SHIFT_US)
    elif op.form == FLAGS:
        if unlikely(p[0] > op.maximum and walk.rules.strict_flags):
            return fail(walk, FAULT_BAD_FLAGS, op.label, p, op.maximum, p[0], -1).at != NULL
        if slot.values != NULL:
            if op.is_bool:
                slot.values[row >> 3] |= <uint8_t>((p[0] != 0) << (row & 7))
            else:
                (<int16_t *>slot.values)[row] = p[0]
            slot.validity[row >> 3] |= <uint8_t>(1 << (row & 7))
    elif op.form == LETTER:
        if p[0] < 64 or p[0] > 127 or not (op.letters >> (p[0] - 64)) & 1:
            return fail(walk, FAULT_BAD_VALUE, op.label, p, 0, p[0], -1).at != NULL
        return put_letter(walk, op, p)
    else:  # COUNT
        walk.count = be32(p)
    return True


cdef bint put_letter(Walk *walk, const Op *op, const uint8_t *p) noexcept nogil:
    """Write one character into a string column. False after a fault."""
    cdef Builder *builder = walk.out.builders[op.column]
    cdef FaultCode code
    if builder == NULL:
        return True
    code = put_text(builder, walk.row, p, 1)
    return code == OK or fail_in_builder(walk, code, op.label).at != NULL


cdef inline Cursor take_fixed(Walk *walk, const Op *op, Cursor cursor) noexcept nogil:
    cdef const uint8_t *p = take(&cursor, op.width)
    if unlikely(p == NULL):
        return fail_truncated(walk, op.label, cursor, op.width, -1)
    if unlikely(not fixed_field(walk, op, p)):
        cursor.at = NULL
    return cursor


cdef Cursor window_to_fault(Walk *walk, const MessagePlan *message, Cursor cursor) noexcept nogil:
    """Read the leading fields one by one up to the fault, because not all of them fit."""
    cdef int i
    for i in range(message.n_window):
        cursor = take_fixed(walk, &message.ops[i], cursor)
        if cursor.at == NULL:
            break
    return cursor


# -- tuples ----------------------------------------------------------------------------------------------------------

cdef inline Cursor old_type_field(Walk *walk, const Op *op, Cursor cursor) noexcept nogil:
    """Read K or O. If the old tuple is optional, another byte is left for the new tuple."""
    cdef const uint8_t *p = take(&cursor, 1)
    if unlikely(p == NULL):
        return fail_truncated(walk, op.label, cursor, 1, -1)
    if p[0] == c"K" or p[0] == c"O":
        walk.old_type = p[0]
        if not put_letter(walk, op, p):
            cursor.at = NULL
    elif op.optional:
        cursor.at = p
    else:
        return fail(walk, FAULT_BAD_TUPLE_TAG, op.label, p, 0, p[0], -1)
    return cursor


cdef inline Cursor new_tuple_field(Walk *walk, const Op *op, Cursor cursor) noexcept nogil:
    cdef const uint8_t *p = take(&cursor, 1)
    if unlikely(p == NULL):
        return fail_truncated(walk, op.label, cursor, 1, -1)
    if unlikely(p[0] != c"N"):
        return fail(walk, FAULT_BAD_TUPLE_TAG, op.label, p, 0, p[0], -1)
    return tuple_field(walk, op, cursor, walk.out.new)


# -- messages --------------------------------------------------------------------------------------------------------

cdef Cursor later_field(Walk *walk, const Op *op, Cursor cursor) noexcept nogil:
    """Read a field of variable width, or one after such a field."""
    if op.form == COLUMNS:
        return columns_field(walk, op, cursor)
    if op.form == RELATION_IDS:
        return relation_ids_field(walk, op, cursor)
    if op.width:
        return take_fixed(walk, op, cursor)
    return text_field(walk, op, cursor)


cdef inline Cursor walk_fields(Walk *walk, const MessagePlan *message, bint streamed, Cursor cursor) noexcept nogil:
    """Read all fields of a message, in wire order."""
    cdef const Op *op = &message.ops[0]
    cdef const Op *stop = op + message.n_ops
    cdef const Op *later = op + message.n_window
    cdef const uint8_t *p
    if unlikely(streamed):
        cursor = take_fixed(walk, &message.prefix, cursor)
        if cursor.at == NULL:
            return cursor
    p = take(&cursor, message.window)
    if unlikely(p == NULL):
        return window_to_fault(walk, message, cursor)
    while op != later:
        if unlikely(not fixed_field(walk, op, p)):
            cursor.at = NULL
            return cursor
        p += op.width
        op += 1
    while op != stop:
        if op.form == NEW_TUPLE:
            cursor = new_tuple_field(walk, op, cursor)
        elif op.form == OLD_TYPE:
            cursor = old_type_field(walk, op, cursor)
        elif op.form == OLD_TUPLE:
            if walk.old_type:
                cursor = tuple_field(walk, op, cursor, walk.out.old)
        elif op.optional and cursor.at == cursor.end and not (op - 1).optional:
            # The optional fields are the last ones of a message: all of them are there, or none.
            return cursor
        else:
            cursor = later_field(walk, op, cursor)
        if unlikely(cursor.at == NULL):
            return cursor
        op += 1
    return cursor


cdef inline Cursor walk_new_row(Walk *walk, const MessagePlan *message, Cursor cursor) noexcept nogil:
    """Read an Insert, or an Update without old tuple, outside a stream: the most frequent messages.

    The caller has checked that the 8 bytes before the tuple's columns are there, with the N.
    """
    cdef const Op *op = &message.ops[message.new_op]
    cdef TupleBuilder *builder = walk.out.new
    cdef const uint8_t *p = take(&cursor, 8)
    cdef uint16_t n = be16(p + 6)
    put_number(&walk.out.slots[message.ops[0].column], walk.row, be32(p + 1))
    if unlikely(n > walk.rules.max_columns):
        return fail(walk, FAULT_LIMIT_COLUMNS, op.label, p + 6, walk.rules.max_columns, n, -1)
    return put_cells(walk, op, cursor, n, builder)


cdef FaultCode walk_payload(Walk *walk, const uint8_t *payload, size_t length, bint streamed) noexcept nogil:
    """Walk one payload into `walk.out`, or set `walk.fault`. After a fault, parts of the row may be written."""
    cdef const MessagePlan *message
    cdef Cursor cursor
    cdef int index
    walk.start = payload
    walk.old_type = 0
    cursor.at = payload
    cursor.end = payload + length
    if unlikely(length == 0 or length > walk.rules.max_payload_bytes):
        return fail_whole(walk, cursor)
    index = walk.plan.by_tag[payload[0]]
    if unlikely(index == N_MESSAGES):
        return fail_whole(walk, cursor)
    message = &walk.plan.messages[index]
    if unlikely(not walk.out.seen[index]) and open_slots(walk.out, message, index) != OK:
        fail_in_builder(walk, FAULT_NO_MEMORY, message.label)
        return FAULT_NO_MEMORY
    if message.new_op and not streamed and length >= 8 and payload[5] == c"N":
        cursor = walk_new_row(walk, message, cursor)
    else:
        cursor.at += 1
        streamed = streamed and message.streamed
        cursor = walk_fields(walk, message, streamed, cursor)
    if unlikely(cursor.at != cursor.end or cursor.at == NULL):
        return fail_message(walk, message, streamed, cursor, length)
    return OK


cdef FaultCode walk_message(Walk *walk, const uint8_t *payload, size_t length, bint streamed) noexcept nogil:
    """Decode one payload into row 0 of `walk.out`. `streamed`: it has an xid prefix, if its kind can."""
    walk.row = 0
    return walk_payload(walk, payload, length, streamed)


cdef FaultCode fail_whole(Walk *walk, Cursor cursor) noexcept nogil:
    """Report a payload without a tag."""
    cdef size_t length = bytes_left(cursor)
    walk.fault.tag = 0 if length == 0 else cursor.at[0]
    if length == 0:
        fail(walk, FAULT_EMPTY, -1, cursor.at, 1, 0, -1)
    elif length > walk.rules.max_payload_bytes:
        fail(
            walk, FAULT_LIMIT_PAYLOAD, -1, cursor.at, <int64_t>walk.rules.max_payload_bytes, <int64_t>length, -1
        )
    else:
        fail(walk, FAULT_UNKNOWN_TAG, -1, cursor.at, recognise(cursor.at, length), cursor.at[0], -1)
    return walk.fault.code


cdef FaultCode fail_message(
    Walk *walk, const MessagePlan *message, bint streamed, Cursor cursor, size_t length
) noexcept nogil:
    """Add the tag of a message, and the OID of its relation, to a fault or to bytes left over."""
    cdef size_t at = 1 + <size_t>message.relation_at + (4 if streamed else 0)
    if cursor.at != NULL:
        fail(walk, FAULT_TRAILING, message.label, cursor.at, 0, <int64_t>bytes_left(cursor), -1)
    walk.fault.tag = message.tag
    if message.relation_at >= 0 and length >= at + 4:
        walk.fault.relation = be32(walk.start + at)
    return walk.fault.code


cdef FaultCode resolve_fault(
    Walk *walk, Envelope *nothing, const uint8_t *payload, size_t length, bint streamed, FaultCode code
) noexcept nogil:
    """Turn a fault into a contradiction of the stream state, if the other reading is well-formed.

    `nothing` has no builders. Returns `code` if the state is not the reason: the fault is a limit, or not a payload's.
    """
    cdef Walk other = walk[0]
    cdef Fault other_fault
    cdef const MessagePlan *message
    if code >= FAULT_LIMIT_PAYLOAD or length == 0 or walk.plan.by_tag[payload[0]] == N_MESSAGES:
        return code
    message = &walk.plan.messages[walk.plan.by_tag[payload[0]]]
    other.out = nothing
    other.fault = &other_fault
    if not message.streamed or walk_message(&other, payload, length, not streamed) != OK:
        return code
    fail(walk, FAULT_STATE_DESYNC, message.label, payload + 1, streamed, not streamed, -1)
    walk.fault.tag = message.tag
    return FAULT_STATE_DESYNC
