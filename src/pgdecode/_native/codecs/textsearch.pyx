"""Full-text search: tsvector and tsquery."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc

from pgdecode._native.arrow.column_builder cimport Column, add_bytes, end_bytes
from pgdecode._native.codecs.codec cimport Codec, add_codec
from pgdecode._native.codecs.text cimport text_from_text
from pgdecode._native.cursor cimport Cursor, be16, be32, bytes_left, take, take_string
from pgdecode._native.fault cimport (
    FAULT_BAD_VALUE, FAULT_ENCODING, FAULT_LIMIT_VALUE, FAULT_NO_MEMORY, FAULT_WRONG_SIZE, OK, FaultCode, unlikely,
)
from pgdecode._native.literals.rendering cimport MAX_DIGITS, MAX_RENDERED, write_byte, write_decimal
from pgdecode._native.memory.transcoding cimport to_utf8
from pgdecode._native.memory.utf8 cimport utf8_prefix

cdef enum:
    MAXSTRLEN = 2047   # tsearch/ts_type.h: bytes of a lexeme
    MAXNUMPOS = 256    # tsearch/ts_type.h: positions of a lexeme
    QI_VAL = 1         # tsearch/ts_type.h: items of a query
    QI_OPR = 2
    OP_NOT = 1
    OP_AND = 2
    OP_OR = 3
    OP_PHRASE = 4
    NEAR_FRAMES = 64   # open operators for which no memory is allocated

# An operator whose operands are not all written yet.
cdef struct Frame:
    uint8_t operator
    uint8_t enclosed      # in parentheses
    uint8_t n_missing     # operands still to come
    int16_t distance      # of a phrase


cdef FaultCode add_lexeme(Column *out, const uint8_t *lexeme, size_t length, const Codec *codec) noexcept nogil:
    """Add a quoted lexeme; its quotes and backslashes are doubled. Faults: BAD_VALUE if long, ENCODING."""
    cdef uint8_t[2 * MAXSTRLEN + 2] text
    cdef uint8_t *at = text
    cdef size_t i
    cdef FaultCode code = to_utf8(codec.charset, &lexeme, &length)
    if unlikely(code != OK):
        return code
    if unlikely(length > MAXSTRLEN):
        return FAULT_BAD_VALUE
    if unlikely(utf8_prefix(lexeme, length) != length):
        return FAULT_ENCODING
    at = write_byte(at, c"'")
    for i in range(length):
        if lexeme[i] == c"'" or lexeme[i] == c"\\":
            at = write_byte(at, lexeme[i])
        at = write_byte(at, lexeme[i])
    at = write_byte(at, c"'")
    return add_bytes(out, text, <size_t>(at - text))


cdef FaultCode add_positions(Column *out, const uint8_t *positions, size_t n) noexcept nogil:
    """Add ascending positions of 14 bits each, and their weights, the 2 bits above. Faults: BAD_VALUE."""
    cdef uint8_t[MAX_DIGITS + 2] text
    cdef uint8_t *at
    cdef size_t i
    cdef int position, weight
    cdef int previous = -1
    cdef FaultCode code
    for i in range(n):
        weight = be16(positions + 2 * i) >> 14
        position = be16(positions + 2 * i) & 0x3FFF
        if unlikely(position <= previous):
            return FAULT_BAD_VALUE
        previous = position
        at = write_decimal(write_byte(text, c"," if i else c":"), position)
        if weight:
            at = write_byte(at, <uint8_t>(c"D" - weight))
        code = add_bytes(out, text, <size_t>(at - text))
        if code != OK:
            return code
    return OK


cdef FaultCode tsvector_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append one tsvector: the number of lexemes in 4 bytes, then each with the count of its positions.

    Lexemes are written in the order sent: tsvectorrecv would sort them, but tsvectorsend sends them sorted.
    Faults: WRONG_SIZE if bytes are missing or left over, BAD_VALUE, ENCODING, LIMIT_VALUE.
    Source: tsvectorsend and tsvectorrecv, utils/adt/tsvector.c.
    """
    cdef Cursor cursor
    cdef size_t start = out.data.size
    cdef size_t n = 0
    cdef uint32_t count, i
    cdef const uint8_t *lexeme
    cdef const uint8_t *positions
    cdef FaultCode code
    if unlikely(length < 4):
        return FAULT_WRONG_SIZE
    cursor.at = value + 4
    cursor.end = value + length
    count = be32(value)
    for i in range(count):
        lexeme = take_string(&cursor, &n)
        if unlikely(lexeme == NULL or bytes_left(cursor) < 2):
            return FAULT_WRONG_SIZE
        code = add_bytes(out, b" ", i != 0)
        if code == OK:
            code = add_lexeme(out, lexeme, n, codec)
        if code != OK:
            return code
        n = be16(take(&cursor, 2))
        if unlikely(n > MAXNUMPOS):
            return FAULT_BAD_VALUE
        positions = take(&cursor, 2 * n)
        if unlikely(positions == NULL):
            return FAULT_WRONG_SIZE
        code = add_positions(out, positions, n)
        if code != OK:
            return code
        if unlikely(out.data.size - start > MAX_RENDERED):
            return FAULT_LIMIT_VALUE
    return end_bytes(out) if not bytes_left(cursor) else FAULT_WRONG_SIZE


cdef inline int priority_of(uint8_t operator) noexcept nogil:
    """The priority of an operator: tsearch_op_priority of utils/adt/tsquery.c."""
    if operator == OP_NOT:
        return 4
    if operator == OP_PHRASE:
        return 3
    return 2 if operator == OP_AND else 1


cdef void reverse(uint8_t *bytes, size_t length) noexcept nogil:
    cdef size_t i
    cdef uint8_t byte
    for i in range(length >> 1):
        byte = bytes[i]
        bytes[i] = bytes[length - 1 - i]
        bytes[length - 1 - i] = byte


cdef FaultCode add_reversed(Column *out, const uint8_t *text, size_t length) noexcept nogil:
    """Add a short text in reverse."""
    cdef FaultCode code = add_bytes(out, text, length)
    if code == OK:
        reverse(out.data.data + out.data.size - length, length)
    return code


cdef FaultCode add_operand(Column *out, Cursor *cursor, const Codec *codec) noexcept nogil:
    """Add an operand in reverse: a byte with weights, a byte that is 1 for a prefix, the NUL-terminated lexeme."""
    cdef uint8_t[8] labels
    cdef uint8_t *at = labels
    cdef size_t start = out.data.size
    cdef size_t n = 0
    cdef int i
    cdef const uint8_t *flags = take(cursor, 2)
    cdef const uint8_t *lexeme = take_string(cursor, &n)
    cdef FaultCode code
    if unlikely(flags == NULL or lexeme == NULL):
        return FAULT_WRONG_SIZE
    if unlikely(flags[0] > 15):
        return FAULT_BAD_VALUE
    code = add_lexeme(out, lexeme, n, codec)
    if code != OK:
        return code
    if flags[0] or flags[1]:
        at = write_byte(at, c":")
        if flags[1]:
            at = write_byte(at, c"*")
        for i in range(4):
            if flags[0] & (8 >> i):
                at = write_byte(at, <uint8_t>(c"A" + i))
    code = add_bytes(out, labels, <size_t>(at - labels))
    if code == OK:
        reverse(out.data.data + start, out.data.size - start)
    return code


cdef FaultCode add_operator(Column *out, const Frame *frame) noexcept nogil:
    """Add a binary operator between its operands, in reverse."""
    cdef uint8_t[MAX_DIGITS + 5] text
    cdef uint8_t *at
    if frame.operator == OP_AND:
        return add_bytes(out, b" & ", 3)
    if frame.operator == OP_OR:
        return add_bytes(out, b" | ", 3)
    if frame.distance == 1:
        return add_reversed(out, b" <-> ", 5)
    at = write_byte(write_byte(text, c" "), c"<")
    if frame.distance < 0:
        at = write_byte(at, c"-")
    at = write_decimal(at, -<int>frame.distance if frame.distance < 0 else frame.distance)
    at = write_byte(write_byte(at, c">"), c" ")
    return add_reversed(out, text, <size_t>(at - text))


cdef FaultCode end_operands(Column *out, Frame *frames, size_t *depth) noexcept nogil:
    """After a complete operand, add what follows it, in reverse; likewise for each operator that is complete now."""
    cdef Frame *frame
    cdef FaultCode code = OK
    while depth[0] and code == OK:
        frame = &frames[depth[0] - 1]
        frame.n_missing -= 1
        if frame.n_missing:
            return add_operator(out, frame)
        if frame.operator == OP_NOT:
            code = add_bytes(out, b"!", 1)
        if code == OK and frame.enclosed:
            code = add_bytes(out, b" (", 2)
        depth[0] -= 1
    return code


cdef FaultCode add_query(
    Column *out, Cursor *cursor, uint32_t count, Frame *frames, const Codec *codec
) noexcept nogil:
    """Add a query of at least one item, in reverse. `frames` has memory for as many items as fit into the bytes.

    Items come in prefix order, right operands first. Read from front to back, they give the text from its end.
    """
    cdef size_t start = out.data.size
    cdef size_t depth = 0
    cdef uint32_t i
    cdef const uint8_t *item
    cdef const uint8_t *distance
    cdef Frame *frame
    cdef FaultCode code
    for i in range(count):
        # One expression: every item except the first is the operand of an open operator.
        if unlikely(i and not depth):
            return FAULT_BAD_VALUE
        item = take(cursor, 1)
        if unlikely(item == NULL):
            return FAULT_WRONG_SIZE
        if item[0] == QI_VAL:
            code = add_operand(out, cursor, codec)
            if code == OK:
                code = end_operands(out, frames, &depth)
            if code != OK:
                return code
            if unlikely(out.data.size - start > MAX_RENDERED):
                return FAULT_LIMIT_VALUE
            continue
        if unlikely(item[0] != QI_OPR):
            return FAULT_BAD_VALUE
        item = take(cursor, 1)
        if unlikely(item == NULL):
            return FAULT_WRONG_SIZE
        if unlikely(not OP_NOT <= item[0] <= OP_PHRASE):
            return FAULT_BAD_VALUE
        frame = &frames[depth]
        frame.operator = item[0]
        frame.n_missing = 1 if item[0] == OP_NOT else 2
        frame.distance = 0
        frame.enclosed = False
        if item[0] == OP_PHRASE:
            distance = take(cursor, 2)
            if unlikely(distance == NULL):
                return FAULT_WRONG_SIZE
            frame.distance = <int16_t>be16(distance)
        if depth:
            # Phrases are not associative: a phrase that is the right operand of another one, which comes first, has
            # parentheses.
            frame.enclosed = priority_of(item[0]) < priority_of(frames[depth - 1].operator) or (
                item[0] == OP_PHRASE and frames[depth - 1].operator == OP_PHRASE and frames[depth - 1].n_missing == 2
            )
        if frame.enclosed:
            code = add_bytes(out, b") ", 2)
            if code != OK:
                return code
        depth += 1
    return FAULT_BAD_VALUE if depth else OK


cdef FaultCode tsquery_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one tsquery: the number of items in 4 bytes, then the items, each an operand or an operator.

    Faults: WRONG_SIZE if bytes are missing or left over, BAD_VALUE for items that are no expression, ENCODING,
    LIMIT_VALUE. Source: tsquerysend, tsqueryrecv and infix, utils/adt/tsquery.c.
    """
    cdef Frame[NEAR_FRAMES] near
    cdef Frame *frames = near
    cdef Cursor cursor
    cdef size_t start = out.data.size
    cdef size_t most = length >> 1
    cdef uint32_t count
    cdef FaultCode code = OK
    if unlikely(length < 4):
        return FAULT_WRONG_SIZE
    count = be32(value)
    cursor.at = value + 4
    cursor.end = value + length
    # An operator has at least two bytes, so that at most three times the bytes of the value are allocated.
    most = count if count < most else most
    if most > NEAR_FRAMES:
        frames = <Frame *>malloc(most * sizeof(Frame))
        if frames == NULL:
            return FAULT_NO_MEMORY
    if count:
        code = add_query(out, &cursor, count, frames, codec)
    if frames != near:
        free(frames)
    if code != OK:
        return code
    if unlikely(bytes_left(cursor)):
        return FAULT_WRONG_SIZE
    reverse(out.data.data + start, out.data.size - start)
    return end_bytes(out)


add_codec("tsvector", text_from_text, tsvector_from_binary)
add_codec("tsquery", text_from_text, tsquery_from_binary)
