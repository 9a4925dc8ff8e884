"""Walks one message by the plan and puts its fields into the envelope's sinks, or into none."""

from libc.stdint cimport int16_t, uint16_t
from libc.string cimport memcpy, memset

from pgdecode._cursor cimport Cursor, be16, be32, be64, bytes_left, take, take_string
from pgdecode._fault cimport (
    FAULT_ARITY,
    FAULT_BAD_ARRAY,
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
    STREAM_MET,
    rarely,
)
from pgdecode._memory cimport reserve
from pgdecode._plan cimport (
    COLUMNS,
    CONTENT,
    FLAGS,
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
    TAG_DELIMITER,
    TAG_STREAM,
    TIMESTAMP,
    UINT32,
    XID_PREFIX,
    MessagePlan,
    Op,
)
from pgdecode._sink cimport (
    SINK_INT64,
    Cell,
    append_int64,
    open_columns,
    open_fixed,
    open_tuple,
    put_column,
    put_list,
    put_text,
    width_of,
)
from pgdecode._source cimport ABSENT, CORRUPT, Presence, Segment, Span, payload_at
from pgdecode._utf8 cimport utf8_prefix

cdef enum:
    # MaxAllocSize, utils/memutils.h: no server can build a longer value.
    MAX_LENGTH = 0x3FFFFFFF

# A field function takes the cursor and returns it moved on, or with `at` NULL after a fault.

cdef Cursor fail(
    Walk *walk, FaultCode code, int label, const uint8_t *at, int64_t expected, int64_t seen, int32_t column
) noexcept nogil:
    """Note a fault at a byte of the payload."""
    cdef Cursor failed
    failed.at = NULL
    failed.end = NULL
    walk.fault.code = code
    walk.fault.row = walk.row
    walk.fault.relation = -1
    walk.fault.label = <int16_t>label
    walk.fault.offset = <size_t>(at - walk.start)
    walk.fault.expected = expected
    walk.fault.seen = seen
    walk.fault.column = column
    return failed


cdef Cursor fail_truncated(Walk *walk, int label, Cursor cursor, int64_t needed, int32_t column) noexcept nogil:
    return fail(walk, FAULT_TRUNCATED, label, cursor.at, needed, <int64_t>bytes_left(cursor), column)


cdef Cursor fail_in_sink(Walk *walk, FaultCode code, int label) noexcept nogil:
    """A sink that could not take a value: no memory, or no room for more in 32-bit offsets."""
    return fail(walk, code, label, walk.start, 0, 0, -1)


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


cdef FaultCode open_slots(Envelope *out, const MessagePlan *message, int index) noexcept nogil:
    """First message of its kind: allocate the columns of constant width that it may fill."""
    cdef int i, column
    for i in range(-1, message.n_ops):
        column = message.prefix.column if i < 0 else message.ops[i].column
        if out.sinks[column] == NULL or out.slots[column].values != NULL or out.sinks[column].type > SINK_INT64:
            continue
        if open_fixed(out.sinks[column], out.n_zeroed) != OK:
            return FAULT_NO_MEMORY
        out.slots[column].values = out.sinks[column].values.data
        out.slots[column].validity = out.sinks[column].validity.data
        out.open_values[out.n_open] = out.sinks[column].values.data
        out.open_widths[out.n_open] = width_of(out.sinks[column])
        out.n_open += 1
    out.seen[index] = True
    if out.usual != NULL:
        open_usual(out, message, &out.usual[index])
    return OK


cdef void open_nothing(Envelope *nothing) noexcept nogil:
    """Make an envelope of which no column is wanted: a walk into it only checks."""
    memset(nothing, 0, sizeof(nothing[0]))
    memset(nothing.seen, True, sizeof(nothing.seen))


cdef void open_usual(const Envelope *out, const MessagePlan *message, Usual *usual) noexcept nogil:
    cdef const Op *op
    cdef Put *put
    cdef uint8_t at = 1
    cdef int i
    usual.kind = message.usual
    usual.length = 1 + message.window
    memcpy(usual.mask, message.mask, sizeof(usual.mask))
    for i in range(message.n_window):
        op = &message.ops[i]
        if out.slots[op.column].values != NULL:
            put = &usual.puts[usual.n_puts]
            put.values = out.slots[op.column].values
            put.validity = out.slots[op.column].validity
            put.form = op.form
            put.at = at
            put.is_bool = op.is_bool
            usual.n_puts += 1
        at += op.width


# -- fields of constant width ----------------------------------------------------------------------------------------

cdef inline void put_number(const Slot *slot, int64_t row, int64_t number) noexcept nogil:
    if slot.values != NULL:
        (<int64_t *>slot.values)[row] = number
        slot.validity[row >> 3] |= <uint8_t>(1 << (row & 7))


cdef inline bint fixed_field(Walk *walk, const Op *op, const uint8_t *p) noexcept nogil:
    """A field of constant width whose bytes at `p` are there; False after a fault."""
    cdef const Slot *slot = &walk.out.slots[op.column]
    cdef uint64_t wide
    cdef uint32_t word
    cdef int64_t row = walk.row
    if op.form == LSN:
        wide = be64(p)
        if rarely(wide >> 63 != 0):
            return fail(walk, FAULT_OUT_OF_RANGE, op.label, p, 0, 0, -1).at != NULL
        put_number(slot, row, <int64_t>wide)
    elif op.form == UINT32 or op.form == XID_PREFIX:
        word = be32(p)
        if rarely(word < op.minimum):
            return fail(walk, FAULT_BAD_VALUE, op.label, p, op.minimum, word, -1).at != NULL
        put_number(slot, row, word)
    elif op.form == TIMESTAMP:
        wide = be64(p)
        if rarely(<int64_t>wide > <int64_t>0x7FFFFFFFFFFFFFFF - <int64_t>EPOCH_SHIFT_US):
            return fail(walk, FAULT_OUT_OF_RANGE, op.label, p, 0, 0, -1).at != NULL
        put_number(slot, row, <int64_t>wide + <int64_t>EPOCH_SHIFT_US)
    elif op.form == FLAGS:
        if rarely(p[0] > op.maximum and walk.rules.strict_flags):
            return fail(walk, FAULT_BAD_FLAGS, op.label, p, op.maximum, p[0], -1).at != NULL
        if slot.values != NULL:
            if op.is_bool:
                slot.values[row] = p[0] != 0
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
    """Put one character into a string column; False after a fault."""
    cdef Sink *sink = walk.out.sinks[op.column]
    cdef FaultCode code
    if sink == NULL:
        return True
    code = put_text(sink, walk.row, p, 1)
    return code == OK or fail_in_sink(walk, code, op.label).at != NULL


cdef inline Cursor take_fixed(Walk *walk, const Op *op, Cursor cursor) noexcept nogil:
    cdef const uint8_t *p = take(&cursor, op.width)
    if rarely(p == NULL):
        return fail_truncated(walk, op.label, cursor, op.width, -1)
    if rarely(not fixed_field(walk, op, p)):
        cursor.at = NULL
    return cursor


cdef Cursor window_to_fault(Walk *walk, const MessagePlan *message, Cursor cursor) noexcept nogil:
    """Fields at the front that do not all fit: one by one to the fault."""
    cdef int i
    for i in range(message.n_window):
        cursor = take_fixed(walk, &message.ops[i], cursor)
        if cursor.at == NULL:
            break
    return cursor


# -- strings, contents and lists -------------------------------------------------------------------------------------

cdef Cursor string_of(
    Walk *walk, const Op *op, int label, bint is_name, Cursor cursor, Span *text, int32_t column
) noexcept nogil:
    """A NUL-terminated UTF-8 string; a name has a length to keep."""
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
    """An Int32 length and as many bytes, which are there and which the limits allow."""
    cdef const uint8_t *p = take(&cursor, 4)
    if rarely(p == NULL):
        return fail_truncated(walk, label, cursor, 4, column)
    value.length = be32(p)
    # The length is checked against what is left before anything is reserved: a corrupt length must cost nothing.
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
    if cursor.at == NULL or walk.out.sinks[op.column] == NULL:
        return cursor
    code = put_text(walk.out.sinks[op.column], walk.row, text.data, text.length)
    return cursor if code == OK else fail_in_sink(walk, code, op.label)


cdef Cursor relation_ids_field(Walk *walk, const Op *op, Cursor cursor) noexcept nogil:
    cdef Sink *sink = walk.out.sinks[op.column]
    cdef size_t n = bytes_left(cursor) // 4
    cdef const uint8_t *p
    cdef size_t i, n_before
    if n > walk.count:
        n = walk.count
    # n is what the bytes hold, never what the count claims, so reserving for it is safe.
    p = take(&cursor, n * 4)
    if n < walk.count:
        return fail_truncated(walk, op.label, cursor, 4, -1)
    if sink == NULL:
        return cursor
    n_before = sink.data.size // sizeof(int64_t)
    if n_before + n > <size_t>0x7FFFFFFF:
        return fail_in_sink(walk, FAULT_LIMIT_BATCH, op.label)
    if put_list(sink, walk.row, n_before) != OK or reserve(&sink.data, n * sizeof(int64_t)) != OK:
        return fail_in_sink(walk, FAULT_NO_MEMORY, op.label)
    for i in range(n):
        append_int64(&sink.data, be32(p + 4 * i))
    return cursor


cdef Cursor columns_field(Walk *walk, const Op *op, Cursor cursor) noexcept nogil:
    cdef ColumnsSink *sink = walk.out.columns
    cdef const uint8_t *p = take(&cursor, 2)
    cdef const uint8_t *flags
    cdef Span name
    cdef uint16_t n
    cdef int32_t i
    cdef FaultCode code
    if rarely(p == NULL):
        return fail_truncated(walk, op.label, cursor, 2, -1)
    n = be16(p)
    if rarely(n > walk.rules.max_columns):
        return fail(walk, FAULT_LIMIT_COLUMNS, op.label, p, walk.rules.max_columns, n, -1)
    if sink != NULL:
        code = open_columns(sink, walk.row, n)
        if code != OK:
            return fail_in_sink(walk, code, op.label)
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
        if sink != NULL:
            code = put_column(sink, flags[0], name.data, name.length, be32(p), <int32_t>be32(p + 4))
            if code != OK:
                return fail_in_sink(walk, code, op.label)
    return cursor


# -- tuples ----------------------------------------------------------------------------------------------------------

cdef Cursor fail_in_cell(Walk *walk, const Op *op, const uint8_t *kind, const uint8_t *end, int32_t i) noexcept nogil:
    """What is wrong with the cell at `kind`, which `take_cell` has refused."""
    cdef Cursor cursor
    cdef Span value
    cursor.at = kind
    cursor.end = end
    if take(&cursor, 1) == NULL:
        return fail_truncated(walk, op.label + PART_CELL, cursor, 1, i)
    if kind[0] != c"t" and kind[0] != c"b":
        return fail(walk, FAULT_BAD_COLUMN_KIND, op.label + PART_CELL, kind, 0, kind[0], i)
    return value_of(walk, op.label + PART_CELL, cursor, &value, i)


cdef inline void copy_short(uint8_t *target, const uint8_t *value, size_t length, size_t readable) noexcept nogil:
    """Copy at most 16 bytes: most values are short, and blocks of constant size cost less than a call.

    `readable` bytes of the payload are there from the value's start on, and never more are read; the sink has slack
    for what is written past the value.
    """
    cdef size_t i
    if readable >= 16:
        memcpy(target, value, 16)
    elif length >= 8:
        # Two blocks that overlap in the middle.
        memcpy(target, value, 8)
        memcpy(target + length - 8, value + length - 8, 8)
    elif length >= 4:
        memcpy(target, value, 4)
        memcpy(target + length - 4, value + length - 4, 4)
    else:
        for i in range(length):
            target[i] = value[i]


cdef Cursor check_cells(Walk *walk, const Op *op, Cursor cursor, uint16_t n) noexcept nogil:
    cdef size_t max_value_bytes = walk.rules.max_value_bytes
    cdef const uint8_t *kind
    cdef Span value
    cdef int32_t i
    for i in range(n):
        kind = cursor.at
        if rarely(not take_cell(&cursor, max_value_bytes, &value)):
            return fail_in_cell(walk, op, kind, cursor.end, i)
    return cursor


cdef Cursor copy_letters(Walk *walk, const Op *op, Cursor cursor, uint16_t n, TupleSink *sink) noexcept nogil:
    """Cells of which only the formats are wanted."""
    cdef size_t max_value_bytes = walk.rules.max_value_bytes
    cdef uint8_t *letters = sink.letters.data + sink.letters.size
    cdef const uint8_t *kind
    cdef Span value
    cdef int32_t i
    for i in range(n):
        kind = cursor.at
        if rarely(not take_cell(&cursor, max_value_bytes, &value)):
            return fail_in_cell(walk, op, kind, cursor.end, i)
        letters[i] = kind[0]
    sink.letters.size += n
    return cursor


cdef Cursor copy_cells(Walk *walk, const Op *op, Cursor cursor, uint16_t n, TupleSink *sink) noexcept nogil:
    """Cells with their values."""
    cdef size_t max_value_bytes = walk.rules.max_value_bytes
    cdef uint8_t *letters = sink.letters.data + sink.letters.size
    cdef int32_t *ends = <int32_t *>(sink.ends.data + sink.ends.size)
    cdef uint8_t *start = sink.values.data
    cdef uint8_t *values = start + sink.values.size
    cdef const uint8_t *kind
    cdef Span value
    cdef int32_t i
    for i in range(n):
        kind = cursor.at
        if rarely(not take_cell(&cursor, max_value_bytes, &value)):
            return fail_in_cell(walk, op, kind, cursor.end, i)
        letters[i] = kind[0]
        if value.data != NULL:
            if value.length <= 16:
                copy_short(values, value.data, value.length, <size_t>(cursor.end - value.data))
            else:
                memcpy(values, value.data, value.length)
            values += value.length
        ends[i] = <int32_t>(values - start)
    sink.letters.size += n
    sink.ends.size += n * sizeof(int32_t)
    sink.values.size = <size_t>(values - start)
    return cursor


cdef Cursor note_cells(Walk *walk, const Op *op, Cursor cursor, uint16_t n, TupleSink *sink) noexcept nogil:
    """Cells that are decoded later, where they lie."""
    cdef size_t max_value_bytes = walk.rules.max_value_bytes
    cdef const uint8_t *kind
    cdef Cell *cell = sink.cells
    cdef uint8_t noted
    cdef int32_t i
    if n != sink.n_cells:
        # The count is the two bytes before the cursor.
        return fail(walk, FAULT_ARITY, op.label, cursor.at - 2, sink.n_cells, n, -1)
    sink.has_unchanged = False
    for i in range(n):
        kind = cursor.at
        noted = note_cell(&cursor, max_value_bytes, cell)
        if rarely(noted == 0):
            return fail_in_cell(walk, op, kind, cursor.end, i)
        sink.has_unchanged |= noted == c"u"
        cell += 1
    return cursor


cdef inline Cursor put_cells(Walk *walk, const Op *op, Cursor cursor, uint16_t n, TupleSink *sink) noexcept nogil:
    cdef FaultCode code
    if sink.cells != NULL:
        return note_cells(walk, op, cursor, n, sink)
    code = open_tuple(sink, walk.row, n, bytes_left(cursor))
    if rarely(code != OK):
        return fail_in_sink(walk, code, op.label)
    if sink.wants_values:
        return copy_cells(walk, op, cursor, n, sink)
    return copy_letters(walk, op, cursor, n, sink)


cdef Cursor tuple_field(Walk *walk, const Op *op, Cursor cursor, TupleSink *sink) noexcept nogil:
    """TupleData: Int16 count, then per column a kind and, for t and b, an Int32 length and the value."""
    cdef const uint8_t *p = take(&cursor, 2)
    cdef uint16_t n
    if rarely(p == NULL):
        return fail_truncated(walk, op.label, cursor, 2, -1)
    n = be16(p)
    if rarely(n > walk.rules.max_columns):
        return fail(walk, FAULT_LIMIT_COLUMNS, op.label, p, walk.rules.max_columns, n, -1)
    if sink == NULL:
        return check_cells(walk, op, cursor, n)
    return put_cells(walk, op, cursor, n, sink)


cdef inline Cursor old_type_field(Walk *walk, const Op *op, Cursor cursor) noexcept nogil:
    """K or O; where it is optional, anything else is left for the new tuple to judge."""
    cdef const uint8_t *p = take(&cursor, 1)
    if rarely(p == NULL):
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
    if rarely(p == NULL):
        return fail_truncated(walk, op.label, cursor, 1, -1)
    if rarely(p[0] != c"N"):
        return fail(walk, FAULT_BAD_TUPLE_TAG, op.label, p, 0, p[0], -1)
    return tuple_field(walk, op, cursor, walk.out.new)


# -- messages --------------------------------------------------------------------------------------------------------

cdef Cursor later_field(Walk *walk, const Op *op, Cursor cursor) noexcept nogil:
    """A field that is not of constant width, or stands behind one."""
    if op.form == COLUMNS:
        return columns_field(walk, op, cursor)
    if op.form == RELATION_IDS:
        return relation_ids_field(walk, op, cursor)
    if op.width:
        return take_fixed(walk, op, cursor)
    return text_field(walk, op, cursor)


cdef inline Cursor walk_fields(Walk *walk, const MessagePlan *message, bint streamed, Cursor cursor) noexcept nogil:
    """All fields of a message, in wire order."""
    cdef const Op *op = &message.ops[0]
    cdef const Op *stop = op + message.n_ops
    cdef const Op *later = op + message.n_window
    cdef const uint8_t *p
    if rarely(streamed):
        cursor = take_fixed(walk, &message.prefix, cursor)
        if cursor.at == NULL:
            return cursor
    p = take(&cursor, message.window)
    if rarely(p == NULL):
        return window_to_fault(walk, message, cursor)
    while op != later:
        if rarely(not fixed_field(walk, op, p)):
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
            # The optional fields end a message: all of them are there, or none.
            return cursor
        else:
            cursor = later_field(walk, op, cursor)
        if rarely(cursor.at == NULL):
            return cursor
        op += 1
    return cursor


cdef inline Cursor walk_new_row(Walk *walk, const MessagePlan *message, Cursor cursor) noexcept nogil:
    """An Insert, or an Update without old tuple, outside a stream: most of all data, so written out.

    The caller has seen that the 8 bytes up to the tuple's columns are there, and the N in them.
    """
    cdef const Op *op = &message.ops[message.new_op]
    cdef TupleSink *sink = walk.out.new
    cdef const uint8_t *p = take(&cursor, 8)
    cdef uint16_t n = be16(p + 6)
    put_number(&walk.out.slots[message.ops[0].column], walk.row, be32(p + 1))
    if rarely(n > walk.rules.max_columns):
        return fail(walk, FAULT_LIMIT_COLUMNS, op.label, p + 6, walk.rules.max_columns, n, -1)
    if sink == NULL:
        return check_cells(walk, op, cursor, n)
    return put_cells(walk, op, cursor, n, sink)


cdef Rules rules_of(object limits, bint strict_flags) except *:
    """The public `Limits` as the walker takes them."""
    cdef Rules rules
    rules.max_payload_bytes = limits.max_payload_bytes
    rules.max_columns = limits.max_columns
    rules.max_name_bytes = limits.max_name_bytes
    rules.max_value_bytes = limits.max_value_bytes
    rules.strict_flags = strict_flags
    return rules


cdef FaultCode walk_payload(Walk *walk, const uint8_t *payload, size_t length, bint streamed) noexcept nogil:
    """One payload into `walk.out`, or its fault into `walk.fault`; then parts of the row may already be put."""
    cdef const MessagePlan *message
    cdef Cursor cursor
    cdef int index
    walk.start = payload
    walk.old_type = 0
    cursor.at = payload
    cursor.end = payload + length
    if rarely(length == 0 or length > walk.rules.max_payload_bytes):
        return fail_whole(walk, cursor)
    index = walk.plan.by_tag[payload[0]]
    if rarely(index == N_MESSAGES):
        return fail_whole(walk, cursor)
    message = &walk.plan.messages[index]
    if rarely(not walk.out.seen[index]) and open_slots(walk.out, message, index) != OK:
        fail_in_sink(walk, FAULT_NO_MEMORY, message.label)
        return FAULT_NO_MEMORY
    if message.new_op and not streamed and length >= 8 and payload[5] == c"N":
        cursor = walk_new_row(walk, message, cursor)
    else:
        cursor.at += 1
        streamed = streamed and message.streamed
        cursor = walk_fields(walk, message, streamed, cursor)
    if rarely(cursor.at != cursor.end or cursor.at == NULL):
        return fail_message(walk, message, streamed, cursor, length)
    return OK


cdef FaultCode walk_message(Walk *walk, const uint8_t *payload, size_t length, bint streamed) noexcept nogil:
    """Decode one payload into row 0 of `walk.out`; `streamed`: it carries an xid prefix, where its kind can."""
    walk.row = 0
    return walk_payload(walk, payload, length, streamed)


cdef FaultCode fail_whole(Walk *walk, Cursor cursor) noexcept nogil:
    """A payload of which not even the tag stands."""
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
    """A message with a fault, or with bytes left over: add its tag and the OID of the relation it is about."""
    cdef size_t at = 1 + <size_t>message.relation_at + (4 if streamed else 0)
    if cursor.at != NULL:
        fail(walk, FAULT_TRAILING, message.label, cursor.at, 0, <int64_t>bytes_left(cursor), -1)
    walk.fault.tag = message.tag
    if message.relation_at >= 0 and length >= at + 4:
        walk.fault.relation = be32(walk.start + at)
    return walk.fault.code


cdef FaultCode judge_fault(
    Walk *walk, Envelope *nothing, const uint8_t *payload, size_t length, bint streamed, FaultCode code
) noexcept nogil:
    """Turn a fault into a contradiction of the stream state where the other reading is well-formed.

    `nothing` has no sinks. Returns `code` where the state is not to blame: the fault is a limit, or no payload's.
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
