"""Walks the payloads of a batch: the usual ones in loops of their own here, all others as `_walk` does.

The usual: an insert, or an update without old tuple, outside a stream; and a message that is of constant width, outside
a stream. Any doubt about one leaves it to the walk, which does it anew from its first byte: so nothing here tells of
faults, and what was written for a payload before the doubt came up does not matter.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from pgdecode._cursor cimport be16, be32, be64
from pgdecode._fault cimport FAULT_BAD_ARRAY, FAULT_ENCODING, OK, STREAM_MET, rarely
from pgdecode._memory cimport reserve
from pgdecode._plan cimport (
    FLAGS,
    LSN,
    N_ENVELOPE,
    N_MESSAGES,
    TAG_DELIMITER,
    TAG_STREAM,
    TIMESTAMP,
    UINT32,
    USUAL_FIXED,
    USUAL_NEW,
    MessagePlan,
    Op,
)
from pgdecode._sink cimport TupleSink, expect_cells, width_of
from pgdecode._source cimport ABSENT, CORRUPT, LAYOUT_OFFSETS32, LAYOUT_OFFSETS64, Presence, Span, payload_at
from pgdecode._walk cimport (
    BASIS_ORDER,
    BASIS_SHIFT,
    DOUBTFUL,
    EPOCH_SHIFT_US,
    STREAMED,
    Envelope,
    fail,
    judge_fault,
    walk_payload,
)

cdef enum:
    BLOCK_ROWS = 64   # one word of validity bits
    # Bytes that may be read past the end of a usual payload: it is not among the last in its buffer.
    AHEAD = 64
    COPIED = 16       # bytes: most values are no longer, and one copy of constant size costs less than a call
    LEAST_USUAL = 8   # bytes: an insert up to its first column; none that is of constant width is shorter

# What is done with the cells of a tuple, a constant to the loops below.
cdef enum Wanted:
    WANTED_NOTHING
    WANTED_FORMATS
    WANTED_VALUES


cdef FaultCode walk_rows(Walk *walk, const Segment *segment, int64_t *next) noexcept nogil:
    """Decode the segment's rows from `next` on, up to the first fault, whose row `next` then is."""
    cdef int64_t stop, row, i = next[0]
    cdef FaultCode code = OK
    while i < segment.n_rows and code == OK:
        row = walk.first_row + i
        stop = min(segment.n_rows, i + BLOCK_ROWS - (row & (BLOCK_ROWS - 1)))
        open_block(walk.out, walk.first_row + stop)
        while i < stop:
            i = usual_rows(walk, segment, i, stop)
            if i == stop:
                break
            next[0] = i
            code = walk_row(walk, segment, i)
            if code != OK:
                break
            i += 1
        close_block(walk, row & ~(<int64_t>BLOCK_ROWS - 1))
    if code == OK:
        next[0] = segment.n_rows
    return code


cdef FaultCode walk_row(Walk *walk, const Segment *segment, int64_t i) noexcept nogil:
    """Decode a row that may be anything."""
    cdef Envelope nothing
    cdef Span payload
    cdef Presence presence = payload_at(segment, i, &payload)
    cdef FaultCode code
    cdef uint8_t verdict = walk.verdict
    cdef uint8_t index
    if presence == ABSENT:
        return OK
    walk.row = walk.first_row + i
    if rarely(presence == CORRUPT):
        fail(walk, FAULT_BAD_ARRAY, -1, walk.start, 0, 0, -1)
        return FAULT_BAD_ARRAY
    if walk.verdicts != NULL:
        verdict = walk.verdicts[walk.row]
    code = walk_payload(walk, payload.data, payload.length, verdict & STREAMED)
    if rarely(code != OK or verdict & DOUBTFUL != 0):
        # Where order is sure of the state, a string in another encoding is just that.
        if code == FAULT_ENCODING and verdict == (BASIS_ORDER << BASIS_SHIFT) | (verdict & STREAMED):
            return code
        memset(&nothing, 0, sizeof(nothing))
        code = judge_fault(walk, &nothing, payload.data, payload.length, verdict & STREAMED, code)
        if code != OK:
            return code
    index = walk.plan.by_tag[payload.data[0]]
    if walk.hopeful and walk.plan.tag_class[payload.data[0]] >= TAG_DELIMITER:
        if walk.plan.tag_class[payload.data[0]] == TAG_STREAM:
            return STREAM_MET
        walk.has_delimiter = True
    # The columns that no field of a message fills: its kind, and how its xid prefix was decided.
    if walk.out.kinds != NULL:
        walk.out.kinds[walk.row] = index
    if walk.out.bases != NULL and walk.plan.messages[index].streamed:
        walk.out.bases[walk.row] = verdict >> BASIS_SHIFT
    return OK


# -- blocks of rows --------------------------------------------------------------------------------------------------

cdef void open_block(Envelope *out, int64_t stop) noexcept nogil:
    """Write zeros to the columns of constant width, up to row `stop`: they stay where nothing else is put."""
    cdef int column
    cdef size_t width
    for column in range(N_ENVELOPE):
        if out.slots[column].values != NULL:
            width = width_of(out.sinks[column])
            memset(out.slots[column].values + <size_t>out.n_zeroed * width, 0, <size_t>(stop - out.n_zeroed) * width)
    out.n_zeroed = stop


cdef void close_block(Walk *walk, int64_t first) noexcept nogil:
    """Mark what the usual messages of a block filled; its first row is a multiple of BLOCK_ROWS."""
    cdef Envelope *out = walk.out
    cdef const MessagePlan *message
    cdef uint64_t marks
    cdef int index, i
    for index in range(N_MESSAGES):
        marks = out.marks[index]
        if marks == 0:
            continue
        out.marks[index] = 0
        message = &walk.plan.messages[index]
        for i in range(message.n_window):
            add_marks(out.slots[message.ops[i].column].validity, first, marks)
        if message.new_op:
            if out.new != NULL:
                add_marks(out.new.rows.validity.data, first, marks)
        else:
            # Every usual message but these is a delimiter, and none of a stream.
            walk.has_delimiter = True


cdef void add_marks(uint8_t *validity, int64_t first, uint64_t marks) noexcept nogil:
    """Set the bits of a block's rows; behind the last row there is slack for the rest of the word."""
    cdef int i
    if validity == NULL:
        return
    validity += first >> 3
    for i in range(8):
        validity[i] |= <uint8_t>(marks >> (8 * i))


# -- usual rows ------------------------------------------------------------------------------------------------------

cdef inline int64_t usual_rows(Walk *walk, const Segment *segment, int64_t i, int64_t stop) noexcept nogil:
    """Decode rows up to the first that is not usual, and return that, or `stop`."""
    cdef const TupleSink *sink = walk.out.new
    if walk.verdicts == NULL and walk.verdict & (STREAMED | DOUBTFUL):
        return i
    # Until its first message, a sink has nothing to write to.
    if sink == NULL:
        return usual_in(walk, segment, i, stop, WANTED_NOTHING)
    if not sink.wants_values:
        return usual_in(walk, segment, i, stop, WANTED_FORMATS)
    return usual_in(walk, segment, i, stop, WANTED_VALUES)


cdef inline int64_t usual_in(
    Walk *walk, const Segment *segment, int64_t i, int64_t stop, Wanted wanted
) noexcept nogil:
    if segment.layout == LAYOUT_OFFSETS32:
        return usual_by_offsets(walk, segment, i, stop, wanted, False)
    if segment.layout == LAYOUT_OFFSETS64:
        return usual_by_offsets(walk, segment, i, stop, wanted, True)
    return i


cdef inline int64_t offset_at(const Segment *segment, int64_t i, bint wide) noexcept nogil:
    i += segment.first
    return (<const int64_t *>segment.index)[i] if wide else (<const int32_t *>segment.index)[i]


cdef int64_t usual_by_offsets(
    Walk *walk, const Segment *segment, int64_t i, int64_t stop, Wanted wanted, bint wide
) noexcept nogil:
    cdef Envelope *out = walk.out
    cdef TupleSink *sink = out.new
    cdef const uint8_t *by_tag = walk.plan.by_tag
    cdef const uint8_t *verdicts = walk.verdicts
    cdef const uint8_t *payload
    cdef const uint8_t *end_of_payload
    cdef int64_t *relation_ids = <int64_t *>out.slots[walk.plan.relation_column].values
    cdef uint8_t *letters = NULL
    cdef int32_t *ends = NULL
    cdef uint8_t *values = NULL
    cdef int32_t *starts = NULL     # of the rows' lists of cells
    cdef int64_t n_cells = 0
    cdef int64_t position = 0       # in values
    cdef int64_t moved
    cdef int64_t start = offset_at(segment, i, wide)
    cdef int64_t limit = offset_at(segment, stop, wide)
    cdef int64_t end, row
    cdef uint64_t most
    cdef uint32_t max_columns = walk.rules.max_columns
    cdef uint32_t n
    cdef uint8_t index
    if limit > <int64_t>segment.data_size - AHEAD:
        limit = <int64_t>segment.data_size - AHEAD
    if start < 0 or limit < start:
        return i
    # No value is longer than its payload.
    most = min(walk.rules.max_payload_bytes, walk.rules.max_value_bytes)
    if most < LEAST_USUAL:
        return i
    most -= LEAST_USUAL
    if wanted != WANTED_NOTHING and sink.rows.offsets.data != NULL:
        if expect_cells(sink, walk.first_row + i, <size_t>(limit - start), max_columns * <size_t>(stop - i)) != OK:
            return i
        n_cells = <int64_t>sink.letters.size
        starts = <int32_t *>sink.rows.offsets.data
        letters = sink.letters.data
        if wanted == WANTED_VALUES:
            # Behind the 0 in front.
            ends = <int32_t *>sink.ends.data + 1
            values = sink.values.data
            position = <int64_t>sink.values.size
    while i < stop:
        row = walk.first_row + i
        if wanted != WANTED_NOTHING and starts != NULL:
            starts[row] = <int32_t>n_cells
        end = offset_at(segment, i + 1, wide)
        if segment.validity != NULL and not (segment.validity[(segment.first + i) >> 3] >> ((segment.first + i) & 7)) & 1:
            if end > start:
                start = end
            i += 1
            continue
        # As a number without sign, what is too short is too long.
        if rarely(end > limit or <uint64_t>(end - start - LEAST_USUAL) > most):
            break
        if verdicts != NULL and verdicts[row] & (STREAMED | DOUBTFUL):
            break
        payload = segment.data + start
        end_of_payload = segment.data + end
        index = by_tag[payload[0]]
        if out.usual[index] == USUAL_NEW:
            n = be16(payload + 6)
            if rarely(payload[5] != c"N" or n > max_columns):
                break
            if wanted == WANTED_VALUES:
                moved = copy_cells(payload + 8, end_of_payload, n, letters + n_cells, ends + n_cells, values, position)
            else:
                moved = copy_letters(payload + 8, end_of_payload, n, letters + n_cells, wanted)
            if rarely(moved < 0):
                break
            position = moved
            n_cells += n
            if relation_ids != NULL:
                relation_ids[row] = be32(payload + 1)
        elif out.usual[index] == USUAL_FIXED:
            if rarely(not put_fixed_message(walk, &walk.plan.messages[index], payload + 1, end - start - 1, row)):
                break
        else:
            break
        if out.kinds != NULL:
            out.kinds[row] = index
        if out.bases != NULL and walk.plan.messages[index].streamed:
            out.bases[row] = (walk.verdict if verdicts == NULL else verdicts[row]) >> BASIS_SHIFT
        out.marks[index] |= <uint64_t>1 << (row & (BLOCK_ROWS - 1))
        start = end
        i += 1
    if starts != NULL:
        sink.rows.next_row = walk.first_row + i
        sink.letters.size = <size_t>n_cells
        if wanted == WANTED_VALUES:
            sink.ends.size = (<size_t>n_cells + 1) * sizeof(int32_t)
            sink.values.size = <size_t>position
    return i


cdef inline int64_t copy_cells(
    const uint8_t *p, const uint8_t *end, uint32_t n, uint8_t *letters, int32_t *ends, uint8_t *values, int64_t position
) noexcept nogil:
    """Put all cells of a tuple, which end at `end`, and return the position in `values` behind them, or -1.

    AHEAD bytes behind `end` may be read, but nothing of them is looked at before it is known to be the tuple's.
    """
    cdef uint32_t length, i
    cdef uint8_t kind
    for i in range(n):
        kind = p[0]
        if kind == c"t" or kind == c"b":
            length = be32(p + 1)
            p += 5
            if rarely(<int64_t>length > end - p):
                return -1
            memcpy(values + position, p, COPIED)
            if length > COPIED:
                copy_rest(values + position + COPIED, p + COPIED, length - COPIED)
            p += length
            position += length
        else:
            if rarely(p == end or (kind != c"n" and kind != c"u")):
                return -1
            p += 1
        letters[i] = kind
        ends[i] = <int32_t>position
    return position if p == end else -1


cdef inline void copy_rest(uint8_t *target, const uint8_t *value, size_t length) noexcept nogil:
    """Copy in blocks of half AHEAD, and so up to SLACK bytes more."""
    cdef size_t at = 0
    if length > 8 * 32:
        memcpy(target, value, length)
        return
    while at < length:
        memcpy(target + at, value + at, 32)
        at += 32


cdef inline int64_t copy_letters(
    const uint8_t *p, const uint8_t *end, uint32_t n, uint8_t *letters, Wanted wanted
) noexcept nogil:
    """As `copy_cells`, but the formats alone, or nothing."""
    cdef uint32_t i
    cdef uint8_t kind
    for i in range(n):
        kind = p[0]
        if kind == c"t" or kind == c"b":
            p += 5
            if rarely(<int64_t>be32(p - 4) > end - p):
                return -1
            p += be32(p - 4)
        else:
            if rarely(p == end or (kind != c"n" and kind != c"u")):
                return -1
            p += 1
        if wanted != WANTED_NOTHING:
            letters[i] = kind
    return 0 if p == end else -1


cdef inline bint put_fixed_message(
    Walk *walk, const MessagePlan *message, const uint8_t *p, int64_t length, int64_t row
) noexcept nogil:
    """Put all fields of a message that is of constant width; False where one may be at fault."""
    cdef const Op *op = &message.ops[0]
    cdef const Op *stop = op + message.n_ops
    cdef uint8_t *values
    cdef uint64_t wide
    cdef uint64_t faulty = 0
    cdef uint32_t word
    if rarely(length != message.window):
        return False
    while op != stop:
        values = walk.out.slots[op.column].values
        if op.form == LSN:
            wide = be64(p)
            faulty |= wide >> 63
            if values != NULL:
                (<uint64_t *>values)[row] = wide
        elif op.form == TIMESTAMP:
            wide = be64(p)
            faulty |= <int64_t>wide > <int64_t>0x7FFFFFFFFFFFFFFF - <int64_t>EPOCH_SHIFT_US
            if values != NULL:
                (<uint64_t *>values)[row] = wide + <uint64_t>EPOCH_SHIFT_US
        elif op.form == UINT32:
            word = be32(p)
            faulty |= word < op.minimum
            if values != NULL:
                (<int64_t *>values)[row] = word
        else:  # FLAGS
            faulty |= p[0] > op.maximum
            if values != NULL:
                if op.is_bool:
                    values[row] = p[0]
                else:
                    (<int16_t *>values)[row] = p[0]
        p += op.width
        op += 1
    return faulty == 0
