"""Targets `walk` and `scan`: messages through the C core, without Python; what is wrong ends the process."""

from exact cimport Block, Target, exact, fail
from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from plain_memory cimport free_bytes, live_blocks

from pgdecode._native.arrow.builder cimport (
    BUILDER_LIST, BUILDER_TEXT, NO_KEYWORD, Builder, BuilderType, ColumnsBuilder, TupleBuilder, undo_columns, undo_row,
    undo_tuple,
)
from pgdecode._native.arrow.payload_array cimport LAYOUT_SPANS, Segment, Span
from pgdecode._native.cursor cimport be16, be32
from pgdecode._native.fault cimport FAULT_LIMIT_BATCH, OK, Fault, FaultCode
from pgdecode._native.memory.utf8 cimport utf8_prefix
from pgdecode._native.scan.fast_path cimport walk_rows
from pgdecode._native.wire.envelope_builder cimport N_FAST, Envelope, Rules, FastMessage, Walk, open_check, rules_of
from pgdecode._native.wire.stream_state cimport CARRY_NONE, Carry, Window, resolve_by_order, resolve_each
from pgdecode._native.wire.walker cimport STREAMED, resolve_fault, walk_message
from pgdecode._native.wire.wire_plan cimport N_ENVELOPE, PLAN

from fuzz import inputs

from pgdecode._native.scan.scanner import BUILDER_TYPES
from pgdecode.protocol import messages
from pgdecode.protocol.limits import Limits

cdef enum:
    MAX_ROWS = 160          # as inputs.MAX_ROWS
    NULL_LENGTH = 0xFFFF    # as inputs.NULL
    ALL_FIELDS = 0xFFFFFFFF

cdef Rules[4] RULES                     # by the bits of inputs.STRICT and inputs.TIGHT
cdef BuilderType[N_ENVELOPE] TYPES
cdef int OLD_TYPE_COLUMN
cdef uint8_t[N_ENVELOPE] COLLECTED      # 1: by a builder of this type; 2: text that must be UTF-8

cdef struct Batch:
    # A scan into builders, as scanner.Scan makes it.
    int64_t n_rows
    Builder[N_ENVELOPE] builders
    TupleBuilder old
    TupleBuilder new
    ColumnsBuilder columns
    Envelope out
    FastMessage[N_FAST] fast
    uint8_t[MAX_ROWS] kinds
    Walk walk
    Fault fault
    Fault[MAX_ROWS] faults      # by row; OK where there is none

cdef struct Payloads:
    Span[MAX_ROWS] spans        # each in a block of its own
    Block[MAX_ROWS] blocks
    int64_t n


cdef void open_batch(Batch *batch, int64_t n_rows, uint32_t fields, const Rules *rules) noexcept nogil:
    """`fields`: a bit for each column of the envelope, from bit 27 on those for the tuples and columns."""
    cdef int i
    # Of the faults, which come last, as many as there are rows.
    memset(batch, 0, sizeof(Batch) - sizeof(batch.faults))
    memset(batch.faults, 0, <size_t>n_rows * sizeof(Fault))
    batch.n_rows = n_rows
    batch.walk.plan = &PLAN.table
    batch.walk.rules = rules
    batch.walk.out = &batch.out
    batch.walk.fault = &batch.fault
    for i in range(N_ENVELOPE):
        batch.builders[i].type = TYPES[i]
        batch.builders[i].n_rows = n_rows
        if COLLECTED[i] and (fields >> i) & 1:
            batch.out.builders[i] = &batch.builders[i]
    batch.old.rows.type = batch.new.rows.type = batch.columns.rows.type = BUILDER_LIST
    batch.old.rows.n_rows = batch.new.rows.n_rows = batch.columns.rows.n_rows = n_rows
    batch.old.wants_values = (fields >> 27) & 1
    batch.new.wants_values = (fields >> 28) & 1
    if batch.old.wants_values or (fields >> 29) & 1:
        batch.out.old = &batch.old
    if batch.new.wants_values or (fields >> 30) & 1:
        batch.out.new = &batch.new
    if (fields >> 31) & 1:
        batch.out.columns = &batch.columns
    memset(batch.kinds, NO_KEYWORD, sizeof(batch.kinds))
    batch.out.kinds = batch.kinds
    batch.out.fast = batch.fast
    batch.out.old_type = batch.out.builders[OLD_TYPE_COLUMN]


cdef void close_builder(Builder *builder) noexcept nogil:
    free_bytes(&builder.validity)
    free_bytes(&builder.values)
    free_bytes(&builder.offsets)
    free_bytes(&builder.data)


cdef void close_tuple(TupleBuilder *builder) noexcept nogil:
    close_builder(&builder.rows)
    free_bytes(&builder.letters)
    free_bytes(&builder.ends)
    free_bytes(&builder.values)


cdef void close_batch(Batch *batch) noexcept nogil:
    cdef int i
    for i in range(N_ENVELOPE):
        close_builder(&batch.builders[i])
    close_tuple(&batch.old)
    close_tuple(&batch.new)
    close_builder(&batch.columns.rows)
    free_bytes(&batch.columns.flags)
    free_bytes(&batch.columns.name_ends)
    free_bytes(&batch.columns.names)
    free_bytes(&batch.columns.type_ids)
    free_bytes(&batch.columns.type_modifiers)


cdef FaultCode scan(Batch *batch, const Segment *segment) noexcept nogil:
    """All rows, as PERMISSIVE: each fault is kept and its row undone. Only a corrupt array ends it."""
    cdef int64_t next = 0
    cdef int64_t row
    cdef FaultCode code
    cdef int i
    while next < segment.n_rows:
        code = walk_rows(&batch.walk, segment, &next, segment.n_rows)
        if code >= FAULT_LIMIT_BATCH:
            return code
        if code != OK:
            row = batch.walk.row
            if row != next or batch.fault.row != row or batch.fault.code != code:
                fail("a fault is of another row than the one that the walk stopped at")
            for i in range(N_ENVELOPE):
                undo_row(&batch.builders[i], row, 8 if batch.builders[i].type == BUILDER_LIST else 1)
            undo_tuple(&batch.old, row)
            undo_tuple(&batch.new, row)
            undo_columns(&batch.columns, row)
            batch.faults[row] = batch.fault
            next += 1
    return OK


# -- what has to hold ------------------------------------------------------------------------------------------------

cdef void check_offsets(const Builder *builder, size_t n_items, bint is_text) noexcept nogil:
    """Offsets ascend to the items that there are; null rows have none; text is UTF-8."""
    cdef const int32_t *offsets = <const int32_t *>builder.offsets.data
    cdef int64_t row
    cdef size_t start, end
    if offsets == NULL:
        return
    for row in range(builder.next_row):
        start = <size_t>offsets[row]
        end = <size_t>offsets[row + 1] if row + 1 < builder.next_row else n_items
        if offsets[row] < 0 or end < start or end > n_items:
            fail("offsets of a column do not ascend")
        if end > start and not (builder.validity.data[row >> 3] >> (row & 7)) & 1:
            fail("a null row has items")
        if is_text and end != start and utf8_prefix(builder.data.data + start, end - start) != end - start:
            fail("a string of the envelope is not UTF-8")


cdef void check_ends(const uint8_t *data, size_t size, size_t n, size_t n_bytes) noexcept nogil:
    """Ends of n items, behind a 0."""
    cdef const int32_t *ends = <const int32_t *>data
    cdef size_t i
    if data == NULL:
        if n or n_bytes:
            fail("items without ends")
        return
    if size != (n + 1) * sizeof(int32_t) or ends[0] != 0 or <size_t>ends[n] != n_bytes:
        fail("ends do not fit their items")
    for i in range(n):
        if ends[i] > ends[i + 1]:
            fail("ends do not ascend")


cdef void check_tuple(const TupleBuilder *builder) noexcept nogil:
    cdef size_t i
    check_offsets(&builder.rows, builder.letters.size, False)
    for i in range(builder.letters.size):
        if builder.letters.data[i] not in (c"n", c"u", c"t", c"b"):
            fail("a cell has no such format")
    if builder.wants_values:
        check_ends(builder.ends.data, builder.ends.size, builder.letters.size, builder.values.size)


cdef void check_batch(const Batch *batch) noexcept nogil:
    cdef int64_t row
    cdef size_t n
    cdef int i
    for i in range(N_ENVELOPE):
        if batch.builders[i].type == BUILDER_TEXT:
            check_offsets(&batch.builders[i], batch.builders[i].data.size, COLLECTED[i] == 2)
        elif batch.builders[i].type == BUILDER_LIST:
            check_offsets(&batch.builders[i], batch.builders[i].data.size // 8, False)
        for row in range(batch.n_rows):
            if batch.faults[row].code != OK and batch.builders[i].validity.data != NULL:
                if (batch.builders[i].validity.data[row >> 3] >> (row & 7)) & 1:
                    fail("a faulty row is not null")
    check_tuple(&batch.old)
    check_tuple(&batch.new)
    n = batch.columns.flags.size // 2
    check_offsets(&batch.columns.rows, n, False)
    check_ends(batch.columns.name_ends.data, batch.columns.name_ends.size, n, batch.columns.names.size)
    if batch.columns.type_ids.size != 8 * n or batch.columns.type_modifiers.size != 4 * n:
        fail("columns of a Relation are of several lengths")
    if n and utf8_prefix(batch.columns.names.data, batch.columns.names.size) != batch.columns.names.size:
        fail("a column's name is not UTF-8")
    for row in range(batch.n_rows):
        if batch.faults[row].code != OK and batch.kinds[row] != NO_KEYWORD:
            fail("a faulty row has a kind")


cdef FaultCode alone(
    const Rules *rules, const uint8_t *payload, size_t length, bint streamed, Fault *fault
) noexcept nogil:
    """The verdict on a single payload, as `decode` has it."""
    cdef Envelope nothing
    cdef Walk walk
    cdef FaultCode code
    memset(fault, 0, sizeof(Fault))
    open_check(&walk, &PLAN.table, rules, &nothing, fault)
    code = walk_message(&walk, payload, length, streamed)
    if code != OK:
        code = resolve_fault(&walk, &nothing, payload, length, streamed, code)
    if code != OK and (fault.code != code or fault.offset > length):
        fail("a fault lies outside its payload")
    return code


cdef inline bint differ(const Fault *left, const Fault *right) noexcept nogil:
    return left.code != right.code or (left.code != OK and left.offset != right.offset)


# -- targets ---------------------------------------------------------------------------------------------------------

cdef const Rules *rules_by(uint8_t options) noexcept nogil:
    return &RULES[(options >> 4) & 3]


cdef void walk_target(const uint8_t *data, size_t size) noexcept nogil:
    """One payload: into nothing, into all builders, and with a byte more."""
    cdef Batch batch
    cdef Block block, longer
    cdef Segment segment
    cdef Span span
    cdef Fault fault, other
    cdef const Rules *rules
    cdef FaultCode code
    cdef bint streamed
    if size == 0:
        return
    rules = rules_by(data[0])
    streamed = data[0] & 1
    block = exact(data + 1, size - 1, 0)
    code = alone(rules, block.data, size - 1, streamed, &fault)
    span.data = block.data
    span.length = size - 1
    memset(&segment, 0, sizeof(segment))
    segment.layout = LAYOUT_SPANS
    segment.n_rows = segment.n_spans = 1
    segment.spans = &span
    open_batch(&batch, 1, ALL_FIELDS, rules)
    batch.walk.stream_flag = streamed
    scan(&batch, &segment)
    check_batch(&batch)
    if batch.faults[0].code != code or differ(&batch.faults[0], &fault):
        fail("a message alone and in a batch have two verdicts")
    close_batch(&batch)
    if code == OK:
        # What is well-formed takes up all its bytes: one more makes it another message, and a faulty one.
        longer = exact(data, size, 0)
        memcpy(longer.data, block.data, size - 1)
        longer.data[size - 1] = data[0]
        if alone(rules, longer.data, size, streamed, &other) == OK:
            fail("a message is well-formed with a byte more")
        free(longer.owner)
    free(block.owner)
    if live_blocks():
        fail("memory was not given back")


cdef void read_payloads(const uint8_t *data, size_t size, Payloads *out) noexcept nogil:
    """As inputs.payloads_of."""
    cdef size_t length
    out.n = 0
    while size >= 2 and out.n < MAX_ROWS:
        length = be16(data)
        data += 2
        size -= 2
        out.spans[out.n].data = NULL
        out.spans[out.n].length = 0
        out.blocks[out.n].owner = NULL
        if length != NULL_LENGTH:
            length = min(length, size)
            out.blocks[out.n] = exact(data, length, 0)
            out.spans[out.n].data = out.blocks[out.n].data
            out.spans[out.n].length = length
            data += length
            size -= length
        out.n += 1


cdef void close_payloads(Payloads *payloads) noexcept nogil:
    cdef int64_t i
    for i in range(payloads.n):
        free(payloads.blocks[i].owner)


cdef void scan_target(const uint8_t *data, size_t size) noexcept nogil:
    """A batch of payloads under each way of telling streams, into some builders; each row's verdict is that alone."""
    cdef Payloads payloads
    cdef Batch batch
    cdef Segment segment
    cdef Window window
    cdef Walk judging
    cdef Envelope nothing
    cdef uint8_t[MAX_ROWS] stream_flags
    cdef Carry carry = CARRY_NONE
    cdef Fault fault
    cdef const Rules *rules
    cdef int how
    cdef int64_t row
    if size < 5:
        return
    rules = rules_by(data[0])
    how = data[0] & 3
    read_payloads(data + 5, size - 5, &payloads)
    memset(&segment, 0, sizeof(segment))
    segment.layout = LAYOUT_SPANS
    segment.n_rows = segment.n_spans = payloads.n
    segment.spans = payloads.spans
    open_batch(&batch, payloads.n, be32(data + 1), rules)
    if how < 2:
        batch.walk.stream_flag = how
    else:
        memset(stream_flags, 0, sizeof(stream_flags))
        open_check(&judging, &PLAN.table, rules, &nothing, &fault)
        window.segments = &segment
        window.n_segments = 1
        window.n_rows = payloads.n
        window.plan = &PLAN.table
        window.walk = &judging
        window.stream_flags = stream_flags
        if (resolve_by_order(&window, &carry) if how == 2 else resolve_each(&window)) != OK:
            fail("payloads could not be judged")
        batch.walk.stream_flags = stream_flags
    scan(&batch, &segment)
    check_batch(&batch)
    for row in range(payloads.n):
        if payloads.spans[row].data == NULL:
            if batch.faults[row].code != OK or batch.kinds[row] != NO_KEYWORD:
                fail("a null has a verdict")
            continue
        if how < 2:
            alone(rules, payloads.spans[row].data, payloads.spans[row].length, how, &fault)
            if differ(&fault, &batch.faults[row]):
                fail("a message alone and in a batch have two verdicts")
        elif batch.faults[row].code == OK and (
            alone(
                rules, payloads.spans[row].data, payloads.spans[row].length, stream_flags[row] & STREAMED, &fault
            ) != OK
        ):
            fail("a row was accepted that is faulty alone")
    close_batch(&batch)
    close_payloads(&payloads)
    if live_blocks():
        fail("memory was not given back")


def target(str name):
    """Address of a target's function."""
    global OLD_TYPE_COLUMN
    cdef Target function = walk_target if name == "walk" else scan_target
    cdef int i
    OLD_TYPE_COLUMN = [column.name for column in messages.ENVELOPE].index("old_type")
    for i in range(4):
        limits = Limits(**inputs.TIGHT_LIMITS) if i & 2 else Limits()
        RULES[i] = rules_of(limits, i & 1)
    for i, column in enumerate(messages.ENVELOPE):
        # As scanner.Scan: the lists of values and columns have builders of their own, and so have the tuples' formats.
        if column.type in BUILDER_TYPES and not column.name.endswith("_formats"):
            TYPES[i] = <BuilderType><int>BUILDER_TYPES[column.type]
            COLLECTED[i] = 2 if column.type == "string" else 1
    return <uintptr_t>function
