"""Decodes columns of bytes that are written as text, in hexadecimal digits or base64."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memset

from pgdecode._native.arrow.payload_array cimport ABSENT, CORRUPT, Presence, Segment, Source, Span, payload_at
from pgdecode._native.fault cimport (
    FAULT_BAD_ARRAY, FAULT_BAD_VALUE, FAULT_NO_MEMORY, OK, Fault, FaultCode, error_of, unlikely,
)
from pgdecode._native.literals.hex_digits cimport put_hex
from pgdecode._native.memory.buffers cimport Bytes, free_bytes, grow, hand_over, open_zeroed, reserve

cdef enum:
    NO_DIGIT = 0x80   # of base64
    PAD = 0x40        # =
    LINE_BREAK = 0x20 | NO_DIGIT

cdef enum Form:
    HEX
    BASE64
    EITHER   # hexadecimal if a value begins with \x or the first digit of a tag


cdef struct Decoded:
    Bytes validity
    Bytes offsets     # int64
    Bytes data
    int64_t n_null
    uint8_t[256] base64   # value of each byte


def decoded_text(Source source, str form):
    """Decode each value. Returns (-1, buffers of a large_binary array), or (row, None) for the first invalid value.

    `form`: "hex", "base64", or "auto": hexadecimal digits if a value begins with \\x or with the first digit of a tag,
    otherwise base64. \\x may always precede the digits. Base64 may have line breaks, and is padded.
    """
    cdef Decoded column
    cdef Fault fault
    cdef FaultCode code
    cdef Form kind = {"hex": HEX, "base64": BASE64, "auto": EITHER}[form]
    cdef int64_t row = 0
    memset(&column, 0, sizeof(column))
    open_base64(column.base64)
    try:
        with nogil:
            code = decode_rows(source, kind, &column, &row)
        if code == FAULT_BAD_VALUE:
            return row, None
        if code != OK:
            fault.code = code
            fault.row = row
            raise error_of(&fault, (), True)
        validity = hand_over(&column.validity) if column.n_null else None
        return -1, [validity, hand_over(&column.offsets), hand_over(&column.data)]
    finally:
        free_bytes(&column.validity)
        free_bytes(&column.offsets)
        free_bytes(&column.data)


cdef void open_base64(uint8_t *values) noexcept nogil:
    cdef const char *digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    cdef int i
    memset(values, NO_DIGIT, 256)
    for i in range(64):
        values[<uint8_t>digits[i]] = <uint8_t>i
    values[<int>c"="] = NO_DIGIT | PAD
    values[<int>c"\n"] = values[<int>c"\r"] = LINE_BREAK


cdef FaultCode decode_rows(Source source, Form form, Decoded *column, int64_t *row) noexcept nogil:
    cdef size_t n_rows = <size_t>source.n_rows
    cdef size_t n_text = source.n_bytes()
    cdef const Segment *segment
    cdef int64_t *ends
    cdef Span text
    cdef Presence presence
    cdef FaultCode code
    cdef Py_ssize_t i
    cdef int64_t at
    if (
        open_zeroed(&column.validity, (n_rows + 7) // 8) != OK
        or open_zeroed(&column.offsets, (n_rows + 1) * sizeof(int64_t)) != OK
        or grow(&column.data, n_text // 2 if form == HEX else n_text // 4 * 3) != OK
    ):
        return FAULT_NO_MEMORY
    ends = <int64_t *>column.offsets.data + 1
    for i in range(source.n_segments):
        segment = &source.segments[i]
        for at in range(segment.n_rows):
            presence = payload_at(segment, at, &text)
            if unlikely(presence == CORRUPT):
                return FAULT_BAD_ARRAY
            if presence == ABSENT:
                column.n_null += 1
            else:
                code = decode_value(text, form, column)
                if unlikely(code != OK):
                    return code
                column.validity.data[row[0] >> 3] |= <uint8_t>(1 << (row[0] & 7))
            ends[row[0]] = <int64_t>column.data.size
            row[0] += 1
    return OK


cdef inline FaultCode decode_value(Span text, Form form, Decoded *column) noexcept nogil:
    cdef bint has_prefix = text.length >= 2 and text.data[0] == c"\\" and text.data[1] == c"x"
    # All tags of messages and frames are letters, whose first digits are 4 to 7. In base64, these begin a byte above
    # 0xDF, which is not a tag.
    cdef bint has_tag = text.length >= 2 and c"4" <= text.data[0] <= c"7"
    cdef bint is_base64 = form == BASE64 or form == EITHER and not has_prefix and not has_tag
    cdef uint8_t *to
    cdef uint8_t *end
    # There is enough memory, unless the offsets are corrupt and the lengths have another sum.
    if unlikely(reserve(&column.data, text.length // 4 * 3 if is_base64 else text.length // 2) != OK):
        return FAULT_NO_MEMORY
    to = column.data.data + column.data.size
    if is_base64:
        end = put_base64(text.data, text.length, column.base64, to)
        if unlikely(end == NULL):
            return FAULT_BAD_VALUE
        column.data.size += <size_t>(end - to)
        return OK
    if has_prefix:
        text.data += 2
        text.length -= 2
    if unlikely(not put_hex(text.data, text.length, to)):
        return FAULT_BAD_VALUE
    column.data.size += text.length // 2
    return OK


cdef inline uint8_t *put_base64(const uint8_t *text, size_t n, const uint8_t *values, uint8_t *to) noexcept nogil:
    """Write the bytes of base64 text, and up to two more. Returns their end, or NULL if it is invalid."""
    cdef const uint8_t *end = text + n
    cdef uint32_t word
    cdef uint8_t value
    cdef int n_digits, n_pads
    while True:
        while end - text >= 4:
            if unlikely((values[text[0]] | values[text[1]] | values[text[2]] | values[text[3]]) & NO_DIGIT):
                break
            word = <uint32_t>values[text[0]] << 18 | <uint32_t>values[text[1]] << 12
            to = put_three(word | <uint32_t>values[text[2]] << 6 | values[text[3]], to)
            text += 4
        # Four characters with padding, or with line breaks between them.
        word = 0
        n_digits = n_pads = 0
        while text != end and n_digits + n_pads < 4:
            value = values[text[0]]
            text += 1
            if value == LINE_BREAK:
                continue
            if value & PAD:
                n_pads += 1
            elif value & NO_DIGIT or n_pads:
                return NULL
            else:
                word = word << 6 | value
                n_digits += 1
        if n_digits + n_pads == 0:
            return to
        if n_digits + n_pads < 4 or n_digits < 2:
            return NULL
        to = put_three(word << 6 * n_pads, to) - n_pads
        if n_pads:
            while text != end and values[text[0]] == LINE_BREAK:
                text += 1
            return to if text == end else NULL


cdef inline uint8_t *put_three(uint32_t word, uint8_t *to) noexcept nogil:
    to[0] = <uint8_t>(word >> 16)
    to[1] = <uint8_t>(word >> 8)
    to[2] = <uint8_t>word
    return to + 3
