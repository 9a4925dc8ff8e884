"""Opens the columns of an envelope, and records faults."""

from libc.stdint cimport int16_t
from libc.string cimport memcpy, memset

from pgdecode._native.arrow.builder cimport BUILDER_INT64, open_builder, width_of
from pgdecode._native.cursor cimport bytes_left
from pgdecode._native.fault cimport FAULT_NO_MEMORY, FAULT_TRUNCATED, OK
from pgdecode._native.wire.wire_plan cimport FAST_NEW, FAST_NONE, FAST_OLD, TIMESTAMP, Op


cdef Cursor fail(
    Walk *walk, FaultCode code, int label, const uint8_t *at, int64_t expected, int64_t seen, int32_t column
) noexcept nogil:
    """Record a fault at a byte of the payload."""
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


cdef Cursor fail_in_builder(Walk *walk, FaultCode code, int label) noexcept nogil:
    """Record that a builder could not take a value: there is no memory, or 32-bit offsets are exhausted."""
    return fail(walk, code, label, walk.start, 0, 0, -1)


cdef FaultCode open_slots(Envelope *out, const MessagePlan *message, int index) noexcept nogil:
    """Allocate the columns of constant width that the first message of a kind may fill."""
    cdef int i, column
    cdef Builder *builder
    for i in range(-1, message.n_ops):
        column = message.prefix.column if i < 0 else message.ops[i].column
        builder = out.builders[column]
        if builder == NULL or out.slots[column].values != NULL or builder.type > BUILDER_INT64:
            continue
        if builder.values.data == NULL:
            if open_builder(builder) != OK:
                return FAULT_NO_MEMORY
            keep_zeroed(out, builder)
        out.slots[column].values = builder.values.data
        out.slots[column].validity = builder.validity.data
    out.seen[index] = True
    if out.fast != NULL:
        open_fast(out, message, &out.fast[index])
        if message.streamed:
            open_streamed(out, message, &out.fast[index], &out.fast[IN_STREAM + index])
    return OK


cdef void keep_zeroed(Envelope *out, const Builder *builder) noexcept nogil:
    """Set a newly opened column to zero in as many rows as the others, and register it for later rows."""
    cdef size_t width = width_of(builder)
    if width == 0:
        return
    memset(
        builder.values.data + <size_t>builder.first_row * width, 0, <size_t>(out.n_zeroed - builder.first_row) * width
    )
    out.open_values[out.n_open] = builder.values.data
    out.open_widths[out.n_open] = width
    out.n_open += 1


cdef void open_nothing(Envelope *nothing) noexcept nogil:
    """Make an envelope without requested columns. A walk into it only checks."""
    memset(nothing, 0, sizeof(nothing[0]))
    memset(nothing.seen, True, sizeof(nothing.seen))


cdef void open_check(
    Walk *walk, const PlanTable *plan, const Rules *rules, Envelope *nothing, Fault *fault
) noexcept nogil:
    """Make a walk that only checks."""
    memset(walk, 0, sizeof(walk[0]))
    open_nothing(nothing)
    walk.plan = plan
    walk.rules = rules
    walk.out = nothing
    walk.fault = fault


cdef void open_fast(const Envelope *out, const MessagePlan *message, FastMessage *fast) noexcept nogil:
    fast.kind = message.fast_kind
    fast.length = 1 + message.window
    fast.has_old = message.new_op > 1
    memcpy(fast.mask, message.mask, sizeof(fast.mask))
    if fast.kind != FAST_NONE:
        add_fields(fast, out, message, 1)


cdef void open_streamed(
    const Envelope *out, const MessagePlan *message, const FastMessage *plain, FastMessage *streamed
) noexcept nogil:
    """Set up the same kind with an xid prefix, if it is an insert, update or delete."""
    if plain.kind != FAST_NEW and plain.kind != FAST_OLD:
        return
    streamed.kind = plain.kind
    streamed.has_old = plain.has_old
    streamed.least_xid = message.prefix.minimum
    add_field(streamed, out, &message.prefix, 1)
    add_fields(streamed, out, message, 1 + message.prefix.width)


cdef void add_fields(FastMessage *fast, const Envelope *out, const MessagePlan *message, uint8_t first) noexcept nogil:
    """Register the fields from byte `first` on, if their columns are requested."""
    cdef uint8_t at = first
    cdef int i
    for i in range(message.n_window):
        if message.ops[i].width > 1:
            add_field(fast, out, &message.ops[i], at)
            fast.n_numbers = fast.n_fields
        at += message.ops[i].width
    at = first
    for i in range(message.n_window):
        if message.ops[i].width == 1:
            add_field(fast, out, &message.ops[i], at)
        at += message.ops[i].width


cdef void add_field(FastMessage *fast, const Envelope *out, const Op *op, uint8_t at) noexcept nogil:
    cdef const Slot *slot = &out.slots[op.column]
    cdef FastField *field = &fast.fields[fast.n_fields]
    if slot.values == NULL:
        return
    field.values = slot.values
    field.validity = slot.validity
    field.added = <uint64_t>EPOCH_SHIFT_US if op.form == TIMESTAMP else 0
    field.shift = <uint8_t>(64 - 8 * op.width)
    field.at = at
    fast.n_fields += 1


cdef Rules rules_of(object limits, bint strict_flags) except *:
    """Convert the public `Limits` for the walker."""
    cdef Rules rules
    rules.max_payload_bytes = limits.max_payload_bytes
    rules.max_columns = limits.max_columns
    rules.max_name_bytes = limits.max_name_bytes
    rules.max_value_bytes = limits.max_value_bytes
    rules.strict_flags = strict_flags
    return rules
