"""Converts rows of COPY TO STDOUT to the Insert messages that pgoutput sends for the same rows.

Both forms have one field for each column. In text, a tab ends a field and a newline a row, a field `\\N` is null, and a
backslash escapes these bytes and some others; in binary, each field has a length. A row that is not complete is left
to the next call.

Source: PostgreSQL documentation, "COPY", File Formats; CopyAttributeOutText, commands/copyto.c.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from pgdecode._native.arrow.builder cimport append_int32
from pgdecode._native.cursor cimport be16, be32, le64, put_le64
from pgdecode._native.fault cimport (
    FAULT_ARITY, FAULT_BAD_VALUE, FAULT_LIMIT_BATCH, FAULT_NO_MEMORY, FAULT_TRAILING, OK, FaultCode, unlikely,
)
from pgdecode._native.memory.bits cimport lowest_bit
from pgdecode._native.memory.buffers cimport Bytes, free_bytes, hand_over, reserve

cdef enum:
    HEAD = 8           # tag, relation OID, N, number of columns
    CELL = 5           # kind and length
    END = 0xFFFF       # in place of a binary row's number of fields: the end of the data
    MOST_BYTES = 0x7FFFFFFF
    MOST_COLUMNS = 0xFFFF

cdef struct Rows:
    # What is read, and the array of payloads that is written.
    const uint8_t *at
    const uint8_t *end
    Bytes offsets
    Bytes data
    uint8_t[HEAD] head
    const uint8_t *kinds
    size_t n_columns

WORDING = {
    FAULT_ARITY: "another number of fields than columns",
    FAULT_BAD_VALUE: "an unknown escape sequence or length",
    FAULT_TRAILING: "bytes after the end of the data",
    FAULT_LIMIT_BATCH: "more bytes than an Arrow array can have",
}


def copied_rows(const uint8_t[::1] content not None, uint32_t relation_id, bytes kinds not None, bint is_binary):
    """Convert rows of COPY, without the header of the binary form.

    Returns (number of rows, buffers of a binary array, number of bytes read).
    `kinds`: the format of each column in a payload, t or b.
    """
    cdef Rows rows
    cdef FaultCode code
    cdef const uint8_t *begin
    if len(kinds) > MOST_COLUMNS:
        raise ValueError("more columns than a payload can have")
    memset(&rows, 0, sizeof(rows))
    begin = NULL if content.shape[0] == 0 else &content[0]
    rows.at = begin
    rows.end = begin + content.shape[0]
    rows.kinds = kinds
    rows.n_columns = <size_t>len(kinds)
    rows.head = [
        c"I", relation_id >> 24, relation_id >> 16 & 0xFF, relation_id >> 8 & 0xFF, relation_id & 0xFF, c"N",
        rows.n_columns >> 8, rows.n_columns & 0xFF,
    ]
    try:
        with nogil:
            code = copy_binary(&rows) if is_binary else copy_text(&rows)
        if code == FAULT_NO_MEMORY:
            raise MemoryError("no memory for copied rows")
        n_rows = rows.offsets.size // sizeof(int32_t) - 1
        if code != OK:
            raise ValueError(f"row {n_rows} of the answer to COPY has {WORDING[<int>code]}")
        return n_rows, [None, hand_over(&rows.offsets), hand_over(&rows.data)], rows.at - begin
    finally:
        free_bytes(&rows.offsets)
        free_bytes(&rows.data)


cdef inline FaultCode begin_row(Rows *rows) noexcept nogil:
    """Write what all payloads begin with."""
    if unlikely(reserve(&rows.data, HEAD) != OK):
        return FAULT_NO_MEMORY
    memcpy(rows.data.data + rows.data.size, rows.head, HEAD)
    rows.data.size += HEAD
    return OK


cdef inline FaultCode end_row(Rows *rows, const uint8_t *at) noexcept nogil:
    """Count a row, which ends before `at`."""
    if unlikely(rows.data.size > MOST_BYTES):
        return FAULT_LIMIT_BATCH
    if unlikely(append_int32(&rows.offsets, <int32_t>rows.data.size) != OK):
        return FAULT_NO_MEMORY
    rows.at = at
    return OK


cdef inline void put_cell(uint8_t *to, uint8_t kind, size_t length) noexcept nogil:
    to[0] = kind
    to[1] = <uint8_t>(length >> 24)
    to[2] = <uint8_t>(length >> 16)
    to[3] = <uint8_t>(length >> 8)
    to[4] = <uint8_t>length


# The binary form.


cdef FaultCode copy_binary(Rows *rows) noexcept nogil:
    cdef const uint8_t *at
    cdef size_t before, column, length
    cdef uint32_t given
    cdef FaultCode code
    # A payload has one more byte for each field, and for each row a few.
    if append_int32(&rows.offsets, 0) != OK or reserve(&rows.data, <size_t>(rows.end - rows.at)) != OK:
        return FAULT_NO_MEMORY
    while rows.end - rows.at >= 2:
        at = rows.at
        if unlikely(be16(at) != rows.n_columns):
            if be16(at) != END:
                return FAULT_ARITY
            rows.at += 2
            return OK if rows.at == rows.end else FAULT_TRAILING
        at += 2
        before = rows.data.size
        if unlikely(begin_row(rows) != OK):
            return FAULT_NO_MEMORY
        for column in range(rows.n_columns):
            if rows.end - at < 4:
                rows.data.size = before
                return OK
            given = be32(at)
            at += 4
            if given == <uint32_t>0xFFFFFFFF:
                if unlikely(reserve(&rows.data, 1) != OK):
                    return FAULT_NO_MEMORY
                rows.data.data[rows.data.size] = c"n"
                rows.data.size += 1
                continue
            if unlikely(given > MOST_BYTES):
                return FAULT_BAD_VALUE
            length = given
            if length > <size_t>(rows.end - at):
                rows.data.size = before
                return OK
            if unlikely(reserve(&rows.data, CELL + length) != OK):
                return FAULT_NO_MEMORY
            put_cell(rows.data.data + rows.data.size, rows.kinds[column], length)
            memcpy(rows.data.data + rows.data.size + CELL, at, length)
            rows.data.size += CELL + length
            at += length
        code = end_row(rows, at)
        if unlikely(code != OK):
            return code
    return OK


# The text form.


cdef FaultCode copy_text(Rows *rows) noexcept nogil:
    cdef const uint8_t *at
    cdef size_t before, column
    cdef FaultCode code
    if append_int32(&rows.offsets, 0) != OK or reserve(&rows.data, 2 * <size_t>(rows.end - rows.at)) != OK:
        return FAULT_NO_MEMORY
    while rows.at != rows.end:
        at = rows.at
        before = rows.data.size
        if unlikely(begin_row(rows) != OK):
            return FAULT_NO_MEMORY
        if rows.n_columns == 0:
            if at[0] != c"\n":
                return FAULT_ARITY
            at += 1
        for column in range(rows.n_columns):
            code = copy_field(rows, &at, rows.kinds[column])
            if unlikely(code != OK):
                return code
            if at == rows.end:
                rows.data.size = before
                return OK
            if unlikely((at[0] == c"\n") != (column + 1 == rows.n_columns)):
                return FAULT_ARITY
            at += 1
        code = end_row(rows, at)
        if unlikely(code != OK):
            return code
    return OK


cdef inline uint64_t found_byte(uint64_t word, uint64_t byte) noexcept nogil:
    """The high bits of the bytes of a word that equal a byte; also of some bytes after the first of them."""
    cdef uint64_t ones = <uint64_t>0x0101010101010101
    word ^= byte * ones
    return (word - ones) & ~word & (ones << 7)


cdef inline FaultCode copy_field(Rows *rows, const uint8_t **place, uint8_t kind) noexcept nogil:
    """Append a field, and move to the tab or newline behind it, or to the end if the field is not complete."""
    cdef const uint8_t *at = place[0]
    cdef const uint8_t *end = rows.end
    cdef size_t left = <size_t>(end - at)
    cdef uint8_t *cell
    cdef uint8_t *to
    cdef uint64_t word, found
    cdef uint8_t byte
    # Without its escapes, a field is not longer. The buffer's slack takes the rest of the last word.
    if unlikely(reserve(&rows.data, CELL + left) != OK):
        return FAULT_NO_MEMORY
    cell = rows.data.data + rows.data.size
    to = cell + CELL
    if left >= 3 and at[0] == c"\\" and at[1] == c"N":
        place[0] = at + 2
        if unlikely(at[2] != c"\t" and at[2] != c"\n"):
            return FAULT_BAD_VALUE
        cell[0] = c"n"
        rows.data.size += 1
        return OK
    while True:
        if end - at >= 8:
            word = le64(at)
            found = found_byte(word, c"\t") | found_byte(word, c"\n") | found_byte(word, c"\\")
            put_le64(to, word)
            if found == 0:
                at += 8
                to += 8
                continue
            at += lowest_bit(found) >> 3
            to += lowest_bit(found) >> 3
        elif at == end:
            break
        byte = at[0]
        if byte == c"\t" or byte == c"\n":
            break
        if byte == c"\\":
            if end - at < 2:
                at = end
                break
            byte = unescaped(at[1])
            if unlikely(byte == 0):
                if at[1] == c"N" and end - at == 2:
                    # Probably a null, whose row is not complete.
                    at = end
                    break
                return FAULT_BAD_VALUE
            at += 1
        to[0] = byte
        to += 1
        at += 1
    put_cell(cell, kind, <size_t>(to - cell) - CELL)
    rows.data.size += <size_t>(to - cell)
    place[0] = at
    return OK


cdef inline uint8_t unescaped(uint8_t letter) noexcept nogil:
    """The byte for which a backslash and a letter stand; 0 if the server does not write them."""
    if letter == c"\\":
        return letter
    if letter == c"n":
        return c"\n"
    if letter == c"t":
        return c"\t"
    if letter == c"r":
        return c"\r"
    if letter == c"b":
        return 8
    if letter == c"f":
        return 12
    if letter == c"v":
        return 11
    return 0
