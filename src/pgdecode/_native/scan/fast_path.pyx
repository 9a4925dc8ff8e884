"""Walks the payloads of a batch: common messages in their own loops, all others by `wire/walker`.

Common messages are inserts, updates and deletes, in a stream or not, and delimiters of constant width outside streams.
The walk decodes all other messages, from their first byte on. So no fault is reported here, and the walk overwrites
what was written for a payload before it took over.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from pgdecode._native.arrow.builder cimport put_list, put_text
from pgdecode._native.arrow.payload_array cimport (
    ABSENT, CORRUPT, LAYOUT_OFFSETS32, LAYOUT_OFFSETS64, Presence, Span, payload_at,
)
from pgdecode._native.cursor cimport PREFETCH_BYTES, be32, be64, le64, prefetch, put_le64
from pgdecode._native.fault cimport FAULT_BAD_ARRAY, FAULT_ENCODING, OK, STREAM_SEEN, unlikely
from pgdecode._native.memory.bits cimport lowest_bit
from pgdecode._native.scan.tuple_copy cimport AHEAD, TupleCopy, close_tuple_copy, open_tuple_copy, put_tuple
from pgdecode._native.wire.envelope_builder cimport (
    IN_STREAM, N_FAST, Envelope, FastField, FastMessage, fail, open_nothing,
)
from pgdecode._native.wire.walker cimport BASIS_ORDER, BASIS_SHIFT, DOUBTFUL, STREAMED, resolve_fault, walk_payload
from pgdecode._native.wire.wire_plan cimport (
    MASK_WORDS,
    N_MESSAGES,
    TAG_DELIMITER,
    TAG_MARKED,
    TAG_STREAM,
    FAST_FIXED,
    FAST_NEW,
    FAST_NONE,
    FAST_OLD,
)

cdef enum:
    BLOCK_ROWS = 64   # one word of validity bits
    CACHE_LINE = 64   # bytes
    SHORTEST_FAST = 8   # bytes: an insert up to its first column; no message of constant width is shorter
    XID_BYTES = 4     # additional length in a stream

# Which rows a loop handles.
cdef enum LoopVariant:
    PLAIN_ROWS       # no row is null, streamed or doubtful, and the basis of that decision is not recorded
    WITHOUT_TUPLES   # like PLAIN_ROWS, and nothing of tuples is requested
    ANY_ROWS         # rows may be null, streamed or doubtful, or the basis of that decision is recorded


cdef FaultCode walk_rows(Walk *walk, const Segment *segment, int64_t *next, int64_t end) noexcept nogil:
    """Decode rows `next` to `end` of the segment. Stops at the first fault; `next` is then its row."""
    cdef int64_t stop, row, i = next[0]
    cdef FaultCode code = OK
    while i < end and code == OK:
        row = walk.first_row + i
        stop = min(end, i + BLOCK_ROWS - (row & (BLOCK_ROWS - 1)))
        open_block(walk.out, walk.first_row + stop)
        while i < stop:
            i = fast_rows(walk, segment, i, stop)
            if i == stop:
                break
            next[0] = i
            code = walk_row(walk, segment, i)
            if code != OK:
                break
            i += 1
        close_block(walk, segment, row & ~(<int64_t>BLOCK_ROWS - 1))
    if code == OK:
        next[0] = end
    return code


cdef FaultCode walk_row(Walk *walk, const Segment *segment, int64_t i) noexcept nogil:
    """Decode a row of any kind."""
    cdef Envelope nothing
    cdef Span payload
    cdef Presence presence = payload_at(segment, i, &payload)
    cdef FaultCode code
    cdef uint8_t stream_flag = walk.stream_flag
    cdef uint8_t index
    if presence == ABSENT:
        return OK
    walk.row = walk.first_row + i
    if unlikely(presence == CORRUPT):
        fail(walk, FAULT_BAD_ARRAY, -1, walk.start, 0, 0, -1)
        return FAULT_BAD_ARRAY
    if payload.length == 0 and walk.empty_is_null:
        walk.n_empty += 1
        return OK
    if walk.stream_flags != NULL:
        stream_flag = walk.stream_flags[walk.row]
    code = walk_payload(walk, payload.data, payload.length, stream_flag & STREAMED)
    if unlikely(code != OK or stream_flag & DOUBTFUL != 0):
        # If order makes the state certain, a string in another encoding is only that.
        if code == FAULT_ENCODING and stream_flag == (BASIS_ORDER << BASIS_SHIFT) | (stream_flag & STREAMED):
            return code
        open_nothing(&nothing)
        code = resolve_fault(walk, &nothing, payload.data, payload.length, stream_flag & STREAMED, code)
        if code != OK:
            return code
    index = walk.plan.by_tag[payload.data[0]]
    if walk.assume_unstreamed and walk.plan.tag_class[payload.data[0]] >= TAG_DELIMITER:
        if walk.plan.tag_class[payload.data[0]] == TAG_STREAM:
            return STREAM_SEEN
        walk.has_delimiter = True
    # The columns that are not fields of a message: its kind, and how its xid prefix was decided.
    if walk.out.kinds != NULL:
        walk.out.kinds[walk.row] = index
    if walk.out.bases != NULL and walk.plan.messages[index].streamed:
        walk.out.bases[walk.row] = stream_flag >> BASIS_SHIFT
    if walk.out.relations != NULL and walk.plan.tag_class[payload.data[0]] == TAG_MARKED:
        walk.out.relations[walk.row] = be32(payload.data + (5 if stream_flag & STREAMED else 1))
    return OK


# -- blocks of rows --------------------------------------------------------------------------------------------------

cdef void open_block(Envelope *out, int64_t stop) noexcept nogil:
    """Write zeros to the columns of constant width, up to row `stop`. Nulls keep them."""
    cdef int i
    cdef size_t width, at
    if stop == out.n_zeroed:
        return
    for i in range(out.n_open):
        width = out.open_widths[i]
        memset(out.open_values[i] + <size_t>out.n_zeroed * width, 0, <size_t>(stop - out.n_zeroed) * width)
        # For the next block: otherwise writing its zeros would wait for memory.
        at = 0
        while at < BLOCK_ROWS * width:
            prefetch(out.open_values[i] + <size_t>stop * width + at)
            at += CACHE_LINE
    out.n_zeroed = stop


cdef void close_block(Walk *walk, const Segment *segment, int64_t first) noexcept nogil:
    """Write the fields of constant width of the fast path's rows in a block. Its first row is a multiple of BLOCK_ROWS.

    One or up to three fields at a time take half of the instructions of a loop over all fields of each row.
    """
    cdef Envelope *out = walk.out
    cdef FastMessage *fast
    cdef int index, i
    # Kinds with an xid prefix come second, and have rows only if some are streamed.
    cdef bint may_stream = walk.stream_flags != NULL or walk.stream_flag & STREAMED != 0
    for index in range(N_FAST if may_stream else N_MESSAGES):
        fast = &out.fast[index]
        if fast.marks == 0:
            continue
        for i in range(fast.n_fields):
            add_marks(fast.fields[i].validity, first, fast.marks)
        if segment.layout == LAYOUT_OFFSETS32:
            put_fields(fast, segment, first, walk.first_row, False)
        else:
            put_fields(fast, segment, first, walk.first_row, True)
        if fast.kind == FAST_FIXED:
            walk.has_delimiter = True
        elif fast.kind == FAST_NEW and out.new != NULL:
            add_marks(out.new.rows.validity.data, first, fast.marks)
        fast.marks = 0


cdef inline void put_fields(
    const FastMessage *fast, const Segment *segment, int64_t first, int64_t first_row, bint wide
) noexcept nogil:
    """Write the fields of a block's marked rows; `first_row`: of the segment."""
    cdef int i = 0
    # Several fields at a time share the walk over the rows.
    while fast.n_numbers - i > 2:
        put_numbers(&fast.fields[i], 3, fast.marks, segment, first, first_row, wide)
        i += 3
    if fast.n_numbers - i == 2:
        put_numbers(&fast.fields[i], 2, fast.marks, segment, first, first_row, wide)
    elif fast.n_numbers - i == 1:
        put_numbers(&fast.fields[i], 1, fast.marks, segment, first, first_row, wide)


cdef inline void put_numbers(
    const FastField *fields, int n, uint64_t marks, const Segment *segment, int64_t first, int64_t first_row, bint wide
) noexcept nogil:
    """Write `n` fields of 4 or 8 bytes; `n` is a constant, at most 3."""
    cdef const uint8_t *offsets = segment.index + segment.first * (sizeof(int64_t) if wide else sizeof(int32_t))
    cdef uint64_t *numbers0 = <uint64_t *>fields[0].values + first
    cdef uint64_t *numbers1 = <uint64_t *>fields[1].values + first if n > 1 else NULL
    cdef uint64_t *numbers2 = <uint64_t *>fields[2].values + first if n > 2 else NULL
    cdef const uint8_t *data0 = segment.data + fields[0].at
    cdef const uint8_t *data1 = segment.data + fields[1].at if n > 1 else NULL
    cdef const uint8_t *data2 = segment.data + fields[2].at if n > 2 else NULL
    cdef int64_t at
    cdef int bit
    first_row -= first
    while marks:
        bit = lowest_bit(marks)
        marks &= marks - 1
        at = offset_at(offsets, bit - first_row, wide)
        # For a field of four bytes, the next bytes are read too (see AHEAD) and shifted out.
        numbers0[bit] = (be64(data0 + at) >> fields[0].shift) + fields[0].added
        if n > 1:
            numbers1[bit] = (be64(data1 + at) >> fields[1].shift) + fields[1].added
        if n > 2:
            numbers2[bit] = (be64(data2 + at) >> fields[2].shift) + fields[2].added


cdef void add_marks(uint8_t *validity, int64_t first, uint64_t marks) noexcept nogil:
    """Set the bits of a block's rows. After the last row, there is slack for the rest of the word."""
    validity += first >> 3
    put_le64(validity, le64(validity) | marks)


# -- common rows -----------------------------------------------------------------------------------------------------

cdef inline int64_t fast_rows(Walk *walk, const Segment *segment, int64_t i, int64_t stop) noexcept nogil:
    """Decode rows up to the first one that is not fast. Returns that row, or `stop`."""
    cdef LoopVariant variant = variant_for(walk, segment)
    if segment.layout == LAYOUT_OFFSETS32:
        if variant == WITHOUT_TUPLES:
            return without_tuples_32(walk, segment, i, stop)
        if variant == PLAIN_ROWS:
            return plain_rows_32(walk, segment, i, stop)
        return any_rows_32(walk, segment, i, stop)
    if segment.layout == LAYOUT_OFFSETS64:
        if variant == WITHOUT_TUPLES:
            return without_tuples_64(walk, segment, i, stop)
        if variant == PLAIN_ROWS:
            return plain_rows_64(walk, segment, i, stop)
        return any_rows_64(walk, segment, i, stop)
    return i


cdef inline LoopVariant variant_for(const Walk *walk, const Segment *segment) noexcept nogil:
    cdef const Envelope *out = walk.out
    if segment.validity != NULL or walk.stream_flags != NULL or out.bases != NULL or (
        walk.stream_flag & (STREAMED | DOUBTFUL)
    ):
        return ANY_ROWS
    return WITHOUT_TUPLES if out.new == NULL and out.old == NULL else PLAIN_ROWS


cdef inline int64_t offset_at(const uint8_t *offsets, int64_t i, bint wide) noexcept nogil:
    return (<const int64_t *>offsets)[i] if wide else (<const int32_t *>offsets)[i]


cdef inline int64_t fast_rows_by_offsets(
    Walk *walk, const Segment *segment, int64_t i, int64_t stop, bint wide, LoopVariant variant
) noexcept nogil:
    """The loop. `wide` and `variant` are constants, and each combination is compiled as its own function below.

    In a single function, the compiler would keep more of the loop's variables in memory.
    """
    cdef Envelope *out = walk.out
    cdef const uint8_t *offsets = segment.index + segment.first * (sizeof(int64_t) if wide else sizeof(int32_t))
    cdef const uint8_t *data = segment.data
    cdef const uint8_t *by_tag = walk.plan.by_tag
    cdef const uint8_t *payload
    cdef uint8_t *kinds = NULL
    cdef uint32_t *relations = NULL
    cdef int32_t *starts = NULL     # of the rows' lists of new cells
    cdef FastMessage *fast
    cdef TupleCopy new, old
    cdef int64_t start = offset_at(offsets, i, wide)
    cdef int64_t limit = offset_at(offsets, stop, wide)
    cdef int64_t first_row = walk.first_row
    cdef int64_t end
    cdef uint64_t most, bit
    cdef bint no_tuples = variant == WITHOUT_TUPLES
    # Without output, the loop is faster than memory.
    cdef bint prefetches = no_tuples or (variant == ANY_ROWS and out.new == NULL and out.old == NULL)
    cdef size_t prefix = 0          # bytes of the row's xid
    cdef uint8_t index, stream_flag
    if limit > <int64_t>segment.data_size - AHEAD:
        limit = <int64_t>segment.data_size - AHEAD
    # No value is longer than its payload.
    most = min(walk.rules.max_payload_bytes, walk.rules.max_value_bytes)
    if start < 0 or limit <= start or most < SHORTEST_FAST:
        return i
    if out.fast[by_tag[data[start]]].kind == FAST_NONE:
        # With many such rows, opening the tuple copies needlessly, and takes a third of the time.
        return i
    most -= SHORTEST_FAST
    open_tuple_copy(&new, out.new, walk, first_row + i, stop - i, <size_t>(limit - start))
    open_tuple_copy(&old, out.old, walk, first_row + i, stop - i, <size_t>(limit - start))
    if not no_tuples and new.letters != NULL:
        starts = <int32_t *>out.new.rows.offsets.data + first_row
    if out.kinds != NULL:
        kinds = out.kinds + first_row
    if out.relations != NULL:
        relations = out.relations + first_row
    bit = <uint64_t>1 << ((first_row + i) & (BLOCK_ROWS - 1))
    while i < stop:
        if not no_tuples and starts != NULL:
            starts[i] = <int32_t>new.n_cells
        end = offset_at(offsets, i + 1, wide)
        # Unsigned: a length that is too short becomes too long.
        if unlikely(end > limit or <uint64_t>end - <uint64_t>start - SHORTEST_FAST > most):
            break
        payload = data + start
        if prefetches:
            prefetch(payload + PREFETCH_BYTES)
        index = by_tag[payload[0]]
        fast = &out.fast[index]
        if variant == ANY_ROWS:
            stream_flag = walk.stream_flag if walk.stream_flags == NULL else walk.stream_flags[first_row + i]
            if is_null_row(segment, i) or stream_flag & DOUBTFUL:
                break
            prefix = 0
            if stream_flag & STREAMED:
                fast = &out.fast[IN_STREAM + index]
                if unlikely(end - start < SHORTEST_FAST + XID_BYTES or be32(payload + 1) < fast.least_xid):
                    break
                prefix = XID_BYTES
        if fast.kind == FAST_NEW and payload[prefix + 5] == c"N":
            if unlikely(not put_new(&new, payload + prefix + 6, data + end, no_tuples)):
                break
        elif fast.kind == FAST_NEW and fast.has_old:
            if not put_both(&old, &new, payload + prefix + 5, data + end, out, first_row + i, no_tuples):
                break
        elif fast.kind == FAST_FIXED:
            if unlikely(end - start != fast.length or not is_fast(fast, payload)):
                break
        elif fast.kind != FAST_OLD or not put_old(
            &old, payload + prefix + 5, data + end, out, first_row + i, no_tuples
        ):
            break
        if kinds != NULL:
            kinds[i] = index
        if relations != NULL:
            relations[i] = be32(payload + prefix + 1)
        if variant == ANY_ROWS and out.bases != NULL and walk.plan.messages[index].streamed:
            out.bases[first_row + i] = stream_flag >> BASIS_SHIFT
        fast.marks |= bit
        bit <<= 1
        start = end
        i += 1
    close_tuple_copy(&new)
    close_tuple_copy(&old)
    if new.letters != NULL:
        new.builder.rows.next_row = first_row + i
    return i


cdef int64_t without_tuples_32(Walk *walk, const Segment *segment, int64_t i, int64_t stop) noexcept nogil:
    return fast_rows_by_offsets(walk, segment, i, stop, False, WITHOUT_TUPLES)


cdef int64_t plain_rows_32(Walk *walk, const Segment *segment, int64_t i, int64_t stop) noexcept nogil:
    return fast_rows_by_offsets(walk, segment, i, stop, False, PLAIN_ROWS)


cdef int64_t any_rows_32(Walk *walk, const Segment *segment, int64_t i, int64_t stop) noexcept nogil:
    return fast_rows_by_offsets(walk, segment, i, stop, False, ANY_ROWS)


cdef int64_t without_tuples_64(Walk *walk, const Segment *segment, int64_t i, int64_t stop) noexcept nogil:
    return fast_rows_by_offsets(walk, segment, i, stop, True, WITHOUT_TUPLES)


cdef int64_t plain_rows_64(Walk *walk, const Segment *segment, int64_t i, int64_t stop) noexcept nogil:
    return fast_rows_by_offsets(walk, segment, i, stop, True, PLAIN_ROWS)


cdef int64_t any_rows_64(Walk *walk, const Segment *segment, int64_t i, int64_t stop) noexcept nogil:
    return fast_rows_by_offsets(walk, segment, i, stop, True, ANY_ROWS)


cdef inline bint is_null_row(const Segment *segment, int64_t i) noexcept nogil:
    cdef int64_t at = segment.first + i
    return segment.validity != NULL and not (segment.validity[at >> 3] >> (at & 7)) & 1


cdef inline bint is_fast(const FastMessage *fast, const uint8_t *payload) noexcept nogil:
    """Whether no bit is set that is a fault in a message of constant width, or that is very rare."""
    cdef uint64_t word = 0, seen = 0
    cdef int i
    for i in range(MASK_WORDS):
        memcpy(&word, payload + 8 * i, sizeof(word))
        seen |= word & fast.mask[i]
    return seen == 0


cdef inline bint put_new(TupleCopy *new, const uint8_t *p, const uint8_t *end, bint no_tuples) noexcept nogil:
    """Write the new tuple of an Insert or Update."""
    if unlikely(not new.ready or put_tuple(new, p, end, no_tuples) != end):
        return False
    new.n_cells += new.n
    return True


cdef inline bint put_old(
    TupleCopy *old, const uint8_t *p, const uint8_t *end, Envelope *out, int64_t row, bint no_tuples
) noexcept nogil:
    """Write the old tuple of a Delete, and the letter before it, at `p`."""
    if p[0] != c"K" and p[0] != c"O" or not old.ready or put_tuple(old, p + 1, end, no_tuples) != end:
        return False
    return keep_old(old, p, out, row)


cdef inline bint put_both(
    TupleCopy *old, TupleCopy *new, const uint8_t *p, const uint8_t *end, Envelope *out, int64_t row, bint no_tuples
) noexcept nogil:
    """Write the old and the new tuple of an Update."""
    cdef const uint8_t *behind
    if p[0] != c"K" and p[0] != c"O" or not old.ready or not new.ready:
        return False
    behind = put_tuple(old, p + 1, end, no_tuples)
    # The letter and the count of the new tuple.
    if behind == NULL or end - behind < 3 or behind[0] != c"N" or put_tuple(new, behind + 1, end, no_tuples) != end:
        return False
    if not keep_old(old, p, out, row):
        return False
    new.n_cells += new.n
    return True


cdef inline bint keep_old(TupleCopy *old, const uint8_t *letter, Envelope *out, int64_t row) noexcept nogil:
    """Count the old tuple that has been written, once all of its message is good."""
    # If there is no memory for the letter, the walk starts the list again, with the same result.
    if old.letters != NULL and put_list(&old.builder.rows, row, <size_t>old.n_cells) != OK:
        return False
    if out.old_type != NULL and put_text(out.old_type, row, letter, 1) != OK:
        return False
    old.n_cells += old.n
    return True
