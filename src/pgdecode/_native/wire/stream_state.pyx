"""Decides for each payload whether it is inside a stream, and therefore has an xid prefix.

With order, the last delimiter decides. Without order, the structure of the payload decides: usually only one reading is
well-formed. If both are, the relations of the same batch decide, and at last a rule of plausibility. An Insert has N at
byte 5 (plain) or byte 9 (streamed), a Delete K or O. In the other reading, that byte is a column kind or the high byte
of a length of at most 1 GiB.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memset

from pgdecode._native.arrow.payload_array cimport PRESENT, Span, payload_at, segment_with
from pgdecode._native.capacity cimport ensure_capacity
from pgdecode._native.cursor cimport PREFETCH_BYTES, be32, be64, prefetch
from pgdecode._native.fault cimport FAULT_LIMIT_PAYLOAD, FAULT_NO_MEMORY, OK
from pgdecode._native.wire.walker cimport (
    BASIS_EVIDENCE, BASIS_GUESS, BASIS_ORDER, BASIS_SHIFT, BASIS_STRUCTURE, DOUBTFUL, STREAMED, Basis, walk_message,
)
from pgdecode._native.wire.wire_plan cimport N_MESSAGES, TAG_DELIMITER, TAG_MARKED

cdef enum:
    ROWS_AT_ONCE = 4096   # rows whose delimiters are found, and whose flags are set, in one step


cdef bint may_carry_xid(const PlanTable *plan, uint8_t tag) noexcept nogil:
    return plan.by_tag[tag] != N_MESSAGES and plan.messages[plan.by_tag[tag]].streamed


cdef inline FaultCode reading_fault(const Window *window, const Span *payload, bint streamed) noexcept nogil:
    """OK if the payload is well-formed in this reading. Otherwise the walk's fault has the offset."""
    return walk_message(window.walk, payload.data, payload.length, streamed)


cdef int readings_of(const Window *window, const Span *payload, int *further) noexcept nogil:
    """Readings in which the payload is well-formed. If there is none, `further` is the one that got further."""
    cdef size_t plain_offset = 0, streamed_offset = 0
    cdef int readings = 0
    if reading_fault(window, payload, False) == OK:
        readings |= READING_PLAIN
    else:
        plain_offset = window.walk.fault.offset
    if reading_fault(window, payload, True) == OK:
        readings |= READING_STREAMED
    else:
        streamed_offset = window.walk.fault.offset
    further[0] = READING_STREAMED if streamed_offset > plain_offset else READING_PLAIN
    return readings


# -- by order --------------------------------------------------------------------------------------------------------

cdef bint contradicted(Window *window, Order *order, int64_t end, bint streamed) noexcept nogil:
    """Whether a row since the last delimiter is well-formed in the other reading, and malformed in this one.

    A row that exceeds a limit is not malformed; `resolve_fault` makes the same distinction.
    """
    cdef Span payload
    cdef const Segment *segment
    cdef int64_t row, stop, first = order.start
    cdef FaultCode code
    cdef int this = READING_STREAMED if streamed else READING_PLAIN
    while first < end:
        segment = segment_with(window.segments, window.n_segments, first, &order.segment)
        stop = min(end, segment.n_before + segment.n_rows)
        for row in range(first - segment.n_before, stop - segment.n_before):
            if payload_at(segment, row, &payload) != PRESENT or payload.length == 0 or not marks(&payload) & ~this:
                continue
            code = reading_fault(window, &payload, streamed)
            if code != OK and code < FAULT_LIMIT_PAYLOAD and reading_fault(window, &payload, not streamed) == OK:
                return True
        first = stop
    return False


cdef FaultCode close_run(Window *window, Order *order, int64_t end, uint8_t next) noexcept nogil:
    """Set the flags of the rows since the last delimiter. `next` is the tag of the delimiter after them, 0 for none."""
    cdef bint streamed
    cdef bint doubtful = False
    cdef uint8_t stream_flag
    cdef Basis basis = BASIS_ORDER
    # A flag that depends only on the state is the same wherever the sequence is cut into batches.
    cdef bint by_state_alone = order.carry != CARRY_NONE and not window.lookahead
    if end == order.start:
        return OK
    if order.carry != CARRY_NONE:
        streamed = order.carry == CARRY_STREAMED
        doubtful = window.lookahead and next != 0 and (next == c"E") != streamed
    elif next:
        streamed = next == c"E"
    elif order.marks & READING_STREAMED and contradicted(window, order, end, False):
        streamed = True
        basis = BASIS_STRUCTURE
        order.carry = CARRY_STREAMED
    elif order.marks & READING_PLAIN and contradicted(window, order, end, True):
        streamed = False
        basis = BASIS_STRUCTURE
        order.carry = CARRY_PLAIN
    else:
        return resolve_rows(window, order.start, end)
    if not by_state_alone and order.marks & ~(READING_STREAMED if streamed else READING_PLAIN):
        doubtful = doubtful or contradicted(window, order, end, streamed)
    stream_flag = <uint8_t>(basis << BASIS_SHIFT)
    if streamed:
        stream_flag |= STREAMED
    if doubtful:
        stream_flag |= DOUBTFUL
    memset(window.stream_flags + order.start, stream_flag, <size_t>(end - order.start))
    return OK


cdef FaultCode find_delimiters(
    const Window *window, int64_t first, int64_t stop, Delimiters *delimiters
) noexcept nogil:
    """List the delimiters among rows. Successive calls have consecutive ranges."""
    cdef Span payload
    cdef const Segment *segment
    cdef int64_t row, end
    cdef uint8_t tag
    delimiters.n = 0
    delimiters.marks = 0
    while first < stop:
        segment = segment_with(window.segments, window.n_segments, first, &delimiters.segment)
        end = min(stop, segment.n_before + segment.n_rows)
        for row in range(first - segment.n_before, end - segment.n_before):
            if payload_at(segment, row, &payload) != PRESENT or payload.length == 0:
                continue
            prefetch(payload.data + PREFETCH_BYTES)
            tag = payload.data[0]
            if window.plan.tag_class[tag] < TAG_DELIMITER:
                if window.plan.tag_class[tag] == TAG_MARKED:
                    delimiters.marks |= marks(&payload)
            # A malformed delimiter is a fault of its own row, and does not affect other rows.
            elif reading_fault(window, &payload, False) == OK:
                if append_delimiter(delimiters, segment.n_before + row, tag) != OK:
                    return FAULT_NO_MEMORY
        first = end
    return OK


cdef inline FaultCode append_delimiter(Delimiters *delimiters, int64_t row, uint8_t tag) noexcept nogil:
    cdef Delimiter *found
    if not ensure_capacity(<void **>&delimiters.items, delimiters.n, &delimiters.capacity, sizeof(Delimiter), 0):
        return FAULT_NO_MEMORY
    found = &delimiters.items[delimiters.n]
    found.row = row
    found.marks = delimiters.marks
    found.tag = tag
    delimiters.n += 1
    delimiters.marks = 0
    return OK


cdef FaultCode flag_rows(Window *window, Order *order, const Delimiters *delimiters) noexcept nogil:
    """Set stream flags up to the last delimiter of the next rows."""
    cdef const Delimiter *found
    cdef FaultCode code
    cdef size_t i
    for i in range(delimiters.n):
        found = &delimiters.items[i]
        order.marks |= found.marks
        code = close_run(window, order, found.row, found.tag)
        if code != OK:
            return code
        window.stream_flags[found.row] = BASIS_ORDER << BASIS_SHIFT
        order.carry = CARRY_STREAMED if found.tag == c"S" else CARRY_PLAIN
        order.start = found.row + 1
        order.marks = 0
    order.marks |= delimiters.marks
    return OK


cdef FaultCode flag_last_rows(Window *window, Order *order) noexcept nogil:
    """Set stream flags for the rows after the last delimiter."""
    return close_run(window, order, window.n_rows, 0)


cdef FaultCode resolve_by_order(Window *window, Carry *carry) noexcept nogil:
    """Set stream flags in slot order. `carry` is the state before the first row, and afterwards after the last one."""
    cdef int64_t first = 0
    cdef FaultCode code = OK
    cdef Order order
    cdef Delimiters delimiters
    memset(&order, 0, sizeof(order))
    memset(&delimiters, 0, sizeof(delimiters))
    order.carry = carry[0]
    while first < window.n_rows and code == OK:
        code = find_delimiters(window, first, min(first + ROWS_AT_ONCE, window.n_rows), &delimiters)
        if code == OK:
            code = flag_rows(window, &order, &delimiters)
        first += ROWS_AT_ONCE
    free(delimiters.items)
    if code == OK:
        code = flag_last_rows(window, &order)
    carry[0] = order.carry
    return code


# -- one by one ------------------------------------------------------------------------------------------------------

cdef int ascending(const void *a, const void *b) noexcept nogil:
    cdef uint32_t left = (<const uint32_t *>a)[0]
    cdef uint32_t right = (<const uint32_t *>b)[0]
    return (left > right) - (left < right)


cdef FaultCode collect_relations(const Window *window, Relations *known) noexcept nogil:
    """OIDs of the inserts, updates and deletes for which only one reading is possible."""
    cdef Span payload
    cdef Py_ssize_t i
    cdef int64_t row
    cdef uint32_t oid
    cdef int reading
    known.ids = <uint32_t *>malloc((<size_t>window.n_rows + 1) * sizeof(uint32_t))
    if known.ids == NULL:
        return FAULT_NO_MEMORY
    known.collected = True
    for i in range(window.n_segments):
        for row in range(window.segments[i].n_rows):
            if payload_at(&window.segments[i], row, &payload) != PRESENT or payload.length == 0:
                continue
            reading = marks(&payload)
            if reading != READING_PLAIN and reading != READING_STREAMED:
                continue
            # A malformed row is no evidence.
            if reading_fault(window, &payload, reading == READING_STREAMED) != OK:
                continue
            oid = be32(payload.data + (1 if reading == READING_PLAIN else 5))
            # Most rows have the same relation as the row before.
            if known.n == 0 or known.ids[known.n - 1] != oid:
                known.ids[known.n] = oid
                known.n += 1
    qsort(known.ids, known.n, sizeof(uint32_t), ascending)
    return OK


cdef bint is_known(const Relations *known, uint32_t oid) noexcept nogil:
    cdef size_t low = 0, high = known.n, middle
    while low < high:
        middle = (low + high) // 2
        if known.ids[middle] < oid:
            low = middle + 1
        else:
            high = middle
    return low < known.n and known.ids[low] == oid


cdef int evident(const Relations *known, const Span *payload) noexcept nogil:
    """The reading whose relation OID occurs elsewhere in the window; 0 if both or none do."""
    # R and U: the OID follows the tag. T: the first OID, after count and options.
    cdef size_t at = 6 if payload.data[0] == c"T" else 1
    cdef int readings = 0
    if payload.data[0] == c"Y" or payload.data[0] == c"M" or payload.length < at + 8:
        return 0
    if is_known(known, be32(payload.data + at)):
        readings |= READING_PLAIN
    if is_known(known, be32(payload.data + at + 4)):
        readings |= READING_STREAMED
    return 0 if readings == READING_BOTH else readings


cdef bint is_clean(const uint8_t *text) noexcept nogil:
    """Whether a NUL-terminated string has no control character. It is known to be UTF-8 and to end."""
    while text[0]:
        if text[0] < 0x20 or text[0] == 0x7F:
            return False
        text += 1
    return True


cdef bint is_plausible(const uint8_t *body) noexcept nogil:
    """Whether flags, LSN and prefix of a LogicalMessage look like those of a server."""
    cdef uint64_t lsn = be64(body + 1)
    return lsn & 7 == 0 and lsn >> 53 == 0 and is_clean(body + 9)


cdef int guess(const Span *payload) noexcept nogil:
    """The more plausible reading of a payload that is well-formed in both."""
    cdef const uint8_t *p = payload.data
    if p[0] == c"R" or p[0] == c"Y":
        # In a streamed payload that is read as plain, the namespace starts with the OID: usually a control character.
        return READING_PLAIN if is_clean(p + 5) else READING_STREAMED
    if p[0] == c"M":
        # Only transactional messages are streamed, and no transaction has an xid below 3.
        if p[5] == 1 and be32(p + 1) >= 3 and is_plausible(p + 5) and not is_plausible(p + 1):
            return READING_STREAMED
    return READING_PLAIN


cdef FaultCode resolve_payload(
    const Window *window, Relations *known, const Span *payload, uint8_t *stream_flag
) noexcept nogil:
    """Find the stream flag of a payload that may have an xid. `known` is zero at first; the caller frees its ids."""
    cdef Basis basis = BASIS_STRUCTURE
    cdef int further = 0
    cdef int reading = marks(payload)
    if reading != READING_PLAIN and reading != READING_STREAMED:
        reading = readings_of(window, payload, &further)
        if reading == 0:
            reading = further
        elif reading == READING_BOTH:
            if not known.collected and collect_relations(window, known) != OK:
                return FAULT_NO_MEMORY
            reading = evident(known, payload)
            basis = BASIS_EVIDENCE
            if reading == 0:
                reading = guess(payload)
                basis = BASIS_GUESS
    stream_flag[0] = <uint8_t>(basis << BASIS_SHIFT)
    if reading == READING_STREAMED:
        stream_flag[0] |= STREAMED
    return OK


cdef FaultCode resolve_rows(Window *window, int64_t start, int64_t end) noexcept nogil:
    """Set stream flags for rows start to end, each from its own bytes."""
    cdef Relations known
    cdef FaultCode code = OK
    cdef Span payload
    cdef Py_ssize_t near = 0
    cdef int64_t row, stop
    cdef const Segment *segment
    memset(&known, 0, sizeof(known))
    while start < end and code == OK:
        segment = segment_with(window.segments, window.n_segments, start, &near)
        stop = min(end, segment.n_before + segment.n_rows)
        for row in range(start - segment.n_before, stop - segment.n_before):
            if payload_at(segment, row, &payload) != PRESENT or payload.length == 0:
                continue
            if may_carry_xid(window.plan, payload.data[0]):
                code = resolve_payload(window, &known, &payload, &window.stream_flags[segment.n_before + row])
                if code != OK:
                    break
        start = stop
    free(known.ids)
    return code


cdef FaultCode resolve_each(Window *window) noexcept nogil:
    """Set stream flags for payloads in any order."""
    return resolve_rows(window, 0, window.n_rows)


cdef FaultCode resolve_segments(Window *window) noexcept nogil:
    """Set stream flags for payloads in any order. Only payloads of the same segment are evidence."""
    cdef Window part = window[0]
    cdef FaultCode code = OK
    cdef int64_t start
    cdef Py_ssize_t i
    part.n_segments = 1
    for i in range(window.n_segments):
        part.segments = &window.segments[i]
        part.n_rows = part.segments.n_rows
        start = part.segments.n_before
        code = resolve_rows(&part, start, start + part.n_rows)
        if code != OK:
            break
    return code
