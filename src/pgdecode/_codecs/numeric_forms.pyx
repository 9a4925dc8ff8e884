"""numeric in PostgreSQL's own text: into a column of strings, as the server prints it."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint8_t, uint16_t

from pgdecode._codec cimport Codec
from pgdecode._codecs._numeric cimport DEC_DIGITS, NUMERIC_DSCALE_MAX, Groups, group_digits, take_groups, trim
from pgdecode._codecs.literal cimport KIND_FINITE, KIND_NAN, Kind, Literal, scan_literal
from pgdecode._column cimport Column, add_bytes, end_bytes, put_bytes
from pgdecode._cursor cimport be16
from pgdecode._fault cimport FAULT_LIMIT_VALUE, OK, FaultCode, rarely

cdef enum:
    MAX_TEXT = 67108864         # bytes: 64 MiB, the longest text taken
    N_BUFFER = 512              # bytes of text written at a time


cdef FaultCode put_special(Column *out, Kind kind, bint negative) noexcept nogil:
    """Append NaN or an infinity to a column of strings."""
    if kind == KIND_NAN:
        return put_bytes(out, <const uint8_t *>b"NaN", 3)
    if negative:
        return put_bytes(out, <const uint8_t *>b"-Infinity", 9)
    return put_bytes(out, <const uint8_t *>b"Infinity", 8)


cdef FaultCode numeric_text_from_text(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a numeric to a column of strings: a decimal literal as it stands; NaN and Infinity in their usual case.

    Faults: BAD_VALUE, OUT_OF_RANGE for what no numeric holds, LIMIT_VALUE. Source: numeric_in, utils/adt/numeric.c.
    """
    cdef Literal literal
    cdef FaultCode code
    if rarely(length > MAX_TEXT):
        return FAULT_LIMIT_VALUE
    code = scan_literal(value, length, &literal)
    if rarely(code != OK):
        return code
    if rarely(literal.kind != KIND_FINITE):
        return put_special(out, literal.kind, literal.negative)
    # Fewer digits than this cannot be too many.
    if rarely(length > NUMERIC_DSCALE_MAX or literal.exponent):
        code = trim(&literal)
        if code != OK:
            return code
    return put_bytes(out, value, length)


cdef inline void write_group(uint8_t *text, uint16_t group) noexcept nogil:
    """Write four digits."""
    text[0] = <uint8_t>(0x30 + group // 1000)
    text[1] = <uint8_t>(0x30 + group // 100 % 10)
    text[2] = <uint8_t>(0x30 + group // 10 % 10)
    text[3] = <uint8_t>(0x30 + group % 10)


cdef inline uint16_t group_at(const Groups *groups, int32_t i) noexcept nogil:
    """The i-th group; those before the first and behind the last are 0."""
    return be16(groups.digits + 2 * i) if 0 <= i < <int32_t>groups.n else 0


cdef FaultCode add_groups(Column *out, const Groups *groups, int32_t i, size_t n_digits) noexcept nogil:
    """Add so many digits of the groups from the i-th on."""
    cdef uint8_t buffer[N_BUFFER]
    cdef size_t used
    cdef FaultCode code = OK
    while n_digits and code == OK:
        used = 0
        while used < n_digits and used < N_BUFFER:
            write_group(&buffer[used], group_at(groups, i))
            used += DEC_DIGITS
            i += 1
        if used > n_digits:
            used = n_digits
        code = add_bytes(out, buffer, used)
        n_digits -= used
    return code


cdef FaultCode numeric_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a numeric to a column of strings, as the server prints it: dscale digits behind the point, no -0.

    The text is bounded by int16 weight and 14 bits of dscale: 147,457 bytes at most, whatever the value claims.
    Faults: WRONG_SIZE, BAD_VALUE. Source: get_str_from_var, utils/adt/numeric.c.
    """
    cdef Groups groups
    cdef uint8_t first[DEC_DIGITS]
    cdef int hidden
    cdef FaultCode code = take_groups(value, length, &groups)
    if rarely(code != OK):
        return code
    if rarely(groups.kind != KIND_FINITE):
        return put_special(out, groups.kind, groups.negative)
    if groups.negative:
        code = add_bytes(out, <const uint8_t *>b"-", 1)
    if code == OK and groups.weight < 0 or groups.n == 0:
        code = add_bytes(out, <const uint8_t *>b"0", 1)
    elif code == OK:
        hidden = DEC_DIGITS - group_digits(be16(groups.digits))
        write_group(first, be16(groups.digits))
        code = add_bytes(out, &first[hidden], <size_t>(DEC_DIGITS - hidden))
        if code == OK:
            code = add_groups(out, &groups, 1, <size_t>(DEC_DIGITS * groups.weight))
    if code == OK and groups.dscale:
        code = add_bytes(out, <const uint8_t *>b".", 1)
        if code == OK:
            code = add_groups(out, &groups, groups.weight + 1, <size_t>groups.dscale)
    return code if code != OK else end_bytes(out)


cdef bint numeric_forms_codec(str name, Codec *codec):
    """Fill in the decoders of a codec of this family; False for a name of another."""
    if name != "numeric_text":
        return False
    codec.from_text, codec.from_binary = numeric_text_from_text, numeric_text_from_binary
    return True
