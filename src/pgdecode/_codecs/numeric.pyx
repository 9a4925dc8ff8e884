"""numeric, into decimal128 without ever rounding, or into a column of strings as the server prints it."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint64_t

from pgdecode._codec cimport Codec
from pgdecode._codecs.literal cimport (
    KIND_FINITE,
    KIND_INFINITE,
    KIND_NAN,
    Kind,
    Literal,
    scan_literal,
    skip_zeros,
)
from pgdecode._codecs.wide cimport (
    TENS,
    WORD_DIGITS,
    Wide,
    put_decimal,
    wide_append,
    wide_digits,
    wide_shift,
)
from pgdecode._column cimport Column, add_bytes, end_bytes, put_bytes
from pgdecode._cursor cimport be16
from pgdecode._fault cimport (
    FAULT_BAD_VALUE,
    FAULT_LIMIT_VALUE,
    FAULT_OUT_OF_RANGE,
    FAULT_TOO_HIGH,
    FAULT_TOO_LOW,
    FAULT_UNREPRESENTABLE,
    FAULT_WRONG_SIZE,
    OK,
    FaultCode,
    rarely,
)

cdef enum:
    # numeric.c: signs as sent, and limits of what is stored.
    NUMERIC_POS = 0x0000
    NUMERIC_NEG = 0x4000
    NUMERIC_NAN = 0xC000
    NUMERIC_PINF = 0xD000
    NUMERIC_NINF = 0xF000
    NUMERIC_DSCALE_MAX = 0x3FFF
    NUMERIC_MAX_WHOLE = 131072  # digits before the point: 4 * (NUMERIC_WEIGHT_MAX + 1)
    NBASE = 10000
    HEADER = 8                  # bytes: count, weight, sign, dscale
    MAX_TEXT = 67108864         # bytes: 64 MiB, the longest text taken
    N_BUFFER = 512              # bytes of text written at a time

cdef FaultCode special_fault(Kind kind, bint negative) noexcept nogil:
    """The fault of NaN or an infinity in a decimal."""
    if kind == KIND_NAN:
        return FAULT_UNREPRESENTABLE
    return FAULT_TOO_LOW if negative else FAULT_TOO_HIGH


cdef FaultCode put_special(Column *out, Kind kind, bint negative) noexcept nogil:
    """Append NaN or an infinity to a column of strings."""
    if kind == KIND_NAN:
        return put_bytes(out, <const uint8_t *>b"NaN", 3)
    if negative:
        return put_bytes(out, <const uint8_t *>b"-Infinity", 9)
    return put_bytes(out, <const uint8_t *>b"Infinity", 8)


cdef FaultCode fits(int64_t top, int64_t bottom, bint negative, const Codec *codec) noexcept nogil:
    """Whether digits from the one of 10**(top - 1) down to the one of 10**bottom, neither 0, fit the decimal."""
    if top + codec.scale > codec.precision:
        return FAULT_TOO_LOW if negative else FAULT_TOO_HIGH
    return FAULT_UNREPRESENTABLE if bottom + codec.scale < 0 else OK


cdef FaultCode trim(Literal *literal) noexcept nogil:
    """Leave out zeros at both ends of the digits. Faults: OUT_OF_RANGE for what no numeric holds."""
    cdef bint in_scale = <int64_t>literal.n_fraction - literal.exponent <= NUMERIC_DSCALE_MAX
    skip_zeros(literal)
    if not in_scale or (
        literal.n_whole + literal.n_fraction and <int64_t>literal.n_whole + literal.exponent > NUMERIC_MAX_WHOLE
    ):
        return FAULT_OUT_OF_RANGE
    while literal.n_fraction and literal.fraction[literal.n_fraction - 1] == c"0":
        literal.n_fraction -= 1
    while literal.n_fraction == 0 and literal.n_whole and literal.whole[literal.n_whole - 1] == c"0":
        literal.n_whole -= 1
        literal.exponent += 1
    return OK


cdef FaultCode put_any_literal(Column *out, Literal *literal, const Codec *codec) noexcept nogil:
    """Append a literal of any shape to a column of decimals."""
    cdef Wide wide
    cdef int64_t bottom
    cdef FaultCode code
    if literal.kind != KIND_FINITE:
        return special_fault(literal.kind, literal.negative)
    code = trim(literal)
    if code != OK:
        return code
    wide.low = wide.high = 0
    if literal.n_whole + literal.n_fraction:
        bottom = literal.exponent - <int64_t>literal.n_fraction
        code = fits(<int64_t>literal.n_whole + literal.exponent, bottom, literal.negative, codec)
        if code != OK:
            return code
        wide_digits(&wide, literal.whole, literal.n_whole)
        wide_digits(&wide, literal.fraction, literal.n_fraction)
        wide_shift(&wide, <size_t>(bottom + codec.scale))
    return put_decimal(out, wide, literal.negative)


cdef FaultCode numeric_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a numeric to a column of decimals: a decimal literal, all of whose digits must fit.

    Faults: BAD_VALUE, OUT_OF_RANGE for what no numeric holds, UNREPRESENTABLE for digits past the scale and NaN,
    TOO_LOW and TOO_HIGH past the precision and for infinities. Source: numeric_in, utils/adt/numeric.c.
    """
    cdef Literal literal
    cdef Wide wide
    cdef int64_t missing
    cdef FaultCode code = scan_literal(value, length, &literal)
    if rarely(code != OK):
        return code
    missing = codec.scale - <int64_t>literal.n_fraction
    # What a column of numeric(p, s) prints, up to 19 digits: the word that has been read is the decimal.
    if (
        literal.kind == KIND_FINITE
        and literal.exponent == 0
        and literal.n_whole + literal.n_fraction <= WORD_DIGITS
        and 0 <= missing <= WORD_DIGITS
        and <int64_t>literal.n_whole + codec.scale <= codec.precision
    ):
        wide.low = literal.word
        wide.high = 0
        if missing:
            wide_append(&wide, TENS[missing], 0)
        return put_decimal(out, wide, literal.negative)
    return put_any_literal(out, &literal, codec)


cdef inline int trailing_zeros(uint16_t group) noexcept nogil:
    """Decimal zeros at the end of a group that is not 0."""
    if group % 10:
        return 0
    if group % 100:
        return 1
    return 2 if group % 1000 else 3


cdef inline int group_digits(uint16_t group) noexcept nogil:
    """Decimal digits of a group that is not 0."""
    return 1 + (group >= 10) + (group >= 100) + (group >= 1000)


cdef inline FaultCode take_groups(const uint8_t *value, size_t length, Groups *out) noexcept nogil:
    """Read a numeric's binary form, all of it.

    Faults: WRONG_SIZE without the whole header; BAD_VALUE where the count of groups is not what is there, for a group,
    sign or dscale that the server refuses, for groups of NaN and infinities, and for digits that the dscale hides
    (which the server would cut off, but never sends). Source: numeric_recv and numeric_send, utils/adt/numeric.c.
    """
    cdef uint16_t sign
    cdef size_t i
    if rarely(length < HEADER):
        return FAULT_WRONG_SIZE
    out.n = be16(value)
    out.weight = <int16_t>be16(value + 2)
    sign = be16(value + 4)
    out.dscale = be16(value + 6)
    out.digits = value + HEADER
    out.negative = sign == NUMERIC_NEG or sign == NUMERIC_NINF
    out.kind = KIND_FINITE
    if rarely(length - HEADER != 2 * out.n or out.dscale > NUMERIC_DSCALE_MAX):
        return FAULT_BAD_VALUE
    if rarely(sign != NUMERIC_POS and sign != NUMERIC_NEG):
        if sign != NUMERIC_NAN and sign != NUMERIC_PINF and sign != NUMERIC_NINF:
            return FAULT_BAD_VALUE
        out.kind = KIND_NAN if sign == NUMERIC_NAN else KIND_INFINITE
        return FAULT_BAD_VALUE if out.n else OK
    for i in range(out.n):
        if rarely(be16(out.digits + 2 * i) >= NBASE):
            return FAULT_BAD_VALUE
    while out.n and be16(out.digits) == 0:
        out.digits += 2
        out.n -= 1
        out.weight -= 1
    while out.n and be16(out.digits + 2 * (out.n - 1)) == 0:
        out.n -= 1
    if out.n == 0:
        out.weight = 0
        out.negative = False
    elif rarely(bottom_of(out) < -out.dscale):
        return FAULT_BAD_VALUE
    return OK


cdef FaultCode groups_of(const uint8_t *value, size_t length, Groups *out) noexcept nogil:
    return take_groups(value, length, out)


cdef inline int64_t bottom_of(const Groups *groups) noexcept nogil:
    """The power of ten that the last digit other than 0 counts."""
    cdef int64_t group = DEC_DIGITS * (groups.weight - <int64_t>groups.n + 1)
    return group + trailing_zeros(be16(groups.digits + 2 * (groups.n - 1)))


cdef FaultCode numeric_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a numeric to a column of decimals: int16 count, weight, sign and dscale, then groups of four digits.

    Faults: WRONG_SIZE, BAD_VALUE; UNREPRESENTABLE, TOO_LOW and TOO_HIGH as of its text. Source: numeric_send,
    utils/adt/numeric.c.
    """
    cdef Groups groups
    cdef Wide wide
    cdef uint64_t word = 0
    cdef int64_t top, shift
    cdef size_t i, last
    cdef uint16_t group
    cdef FaultCode code = take_groups(value, length, &groups)
    if rarely(code != OK):
        return code
    if rarely(groups.kind != KIND_FINITE):
        return special_fault(groups.kind, groups.negative)
    wide.low = wide.high = 0
    if groups.n == 0:
        return put_decimal(out, wide, False)
    top = DEC_DIGITS * <int64_t>groups.weight + group_digits(be16(groups.digits))
    code = fits(top, bottom_of(&groups), groups.negative, codec)
    if rarely(code != OK):
        return code
    # At most 38 digits are left, so at most 11 groups. The first four fit a word.
    last = groups.n - 1
    for i in range(last):
        group = be16(groups.digits + 2 * i)
        if i < 4:
            word = word * NBASE + group
            wide.low = word
        else:
            wide_append(&wide, NBASE, group)
    group = be16(groups.digits + 2 * last)
    shift = DEC_DIGITS * (groups.weight - <int64_t>last) + codec.scale
    if shift >= 0:
        wide_append(&wide, NBASE, group)
        wide_shift(&wide, <size_t>shift)
    else:
        # The group's last digits are zeros past the scale: bottom_of has seen to that.
        wide_append(&wide, TENS[DEC_DIGITS + shift], group // TENS[-shift])
    return put_decimal(out, wide, groups.negative)


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


cdef bint numeric_codec(str name, Codec *codec):
    """Fill the decoders of numeric for columns of decimals or of strings; whether it is one of them."""
    if name == "numeric":
        codec.from_text, codec.from_binary = numeric_from_text, numeric_from_binary
    elif name == "numeric_text":
        codec.from_text, codec.from_binary = numeric_text_from_text, numeric_text_from_binary
    else:
        return False
    return True
