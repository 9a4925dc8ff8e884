"""numeric, into decimal128 without ever rounding."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy

from pgdecode._block cimport fixed_block
from pgdecode._codec cimport Cells, Codec
from pgdecode._codecs._numeric cimport (
    DEC_DIGITS,
    HEADER,
    NBASE,
    NUMERIC_NEG,
    NUMERIC_POS,
    Groups,
    bottom_of,
    group_digits,
    take_groups,
    trim,
)
from pgdecode._codecs.digits cimport digits_before
from pgdecode._codecs.literal cimport KIND_FINITE, KIND_NAN, Kind, Literal, scan_literal
from pgdecode._codecs.wide cimport TENS, WORD_DIGITS, Wide, put_decimal, wide_append, wide_digits, wide_shift
from pgdecode._column cimport Column
from pgdecode._cursor cimport be16, be64
from pgdecode._fault cimport FAULT_TOO_HIGH, FAULT_TOO_LOW, FAULT_UNREPRESENTABLE, OK, FaultCode, rarely


cdef FaultCode special_fault(Kind kind, bint negative) noexcept nogil:
    """The fault of NaN or an infinity in a decimal."""
    if kind == KIND_NAN:
        return FAULT_UNREPRESENTABLE
    return FAULT_TOO_LOW if negative else FAULT_TOO_HIGH


cdef FaultCode fits(int64_t top, int64_t bottom, bint negative, const Codec *codec) noexcept nogil:
    """Whether digits from the one of 10**(top - 1) down to the one of 10**bottom, neither 0, fit the decimal."""
    if top + codec.scale > codec.precision:
        return FAULT_TOO_LOW if negative else FAULT_TOO_HIGH
    return FAULT_UNREPRESENTABLE if bottom + codec.scale < 0 else OK


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


# -- blocks: decimals of a word, with as many digits behind the point as the column has; see _block -------------------

cdef inline void store_decimal(uint8_t *slot, uint64_t magnitude, bint negative) noexcept nogil:
    """Write a decimal128 of less than 2**63."""
    cdef uint64_t sign = 0 - <uint64_t>negative
    cdef Wide wide
    wide.low = (magnitude ^ sign) + negative
    wide.high = 0 - (wide.low >> 63)
    memcpy(slot, &wide, sizeof(wide))


cdef inline bint numeric_text(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef size_t scale = <size_t>codec.scale
    cdef size_t n_behind = scale + (scale != 0)
    cdef uint64_t whole = 0
    cdef uint64_t fraction = 0
    cdef bint negative
    cdef size_t n
    if rarely(length <= n_behind):
        return False
    negative = value[0] == c"-"
    n = length - n_behind - negative
    if rarely(n - 1 >= 18 or n + scale > 18 or n + scale > <size_t>codec.precision):
        return False
    if rarely(not digits_before(value + negative + n, n, &whole)):
        return False
    if scale:
        if rarely(value[negative + n] != c"." or not digits_before(value + length, scale, &fraction)):
            return False
    store_decimal(slot, whole * TENS[scale] + fraction, negative)
    return True


cdef inline bint numeric_binary(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint64_t header, word = 0
    cdef size_t n, i
    cdef int64_t weight, shift
    cdef uint16_t group = 0, sign
    if rarely(length < HEADER or length > HEADER + 8 or codec.scale > 18):
        return False
    header = be64(value)
    n = header >> 48
    weight = <int16_t>(header >> 32)
    sign = <uint16_t>(header >> 16)
    shift = DEC_DIGITS * (weight - <int64_t>n + 1) + codec.scale
    if rarely(length != HEADER + 2 * n or (sign != NUMERIC_POS) & (sign != NUMERIC_NEG)):
        return False
    # Then no digit is hidden, and all digits with the shift are a word's.
    if rarely(<int32_t>(header & 0xFFFF) != codec.scale or DEC_DIGITS * (weight + 1) + codec.scale > 18):
        return False
    if n == 0:
        store_decimal(slot, 0, False)
        return True
    for i in range(n - 1):
        group = be16(value + HEADER + 2 * i)
        if rarely(group >= NBASE):
            return False
        word = word * NBASE + group
    group = be16(value + HEADER + 2 * (n - 1))
    if rarely(group >= NBASE or shift < -3):
        return False
    if shift >= 0:
        word = (word * NBASE + group) * TENS[shift]
    else:
        if rarely(group % <uint16_t>TENS[-shift]):
            return False
        word = word * TENS[DEC_DIGITS + shift] + group // <uint16_t>TENS[-shift]
    store_decimal(slot, word, sign == NUMERIC_NEG)
    return codec.precision > 18 or word < TENS[codec.precision]


cdef size_t numeric_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(numeric_text, numeric_binary, sizeof(Wide), cells, start, out, codec)


cdef bint numeric_codec(str name, Codec *codec):
    """Fill in the decoders of a codec of this family; False for a name of another."""
    if name != "numeric":
        return False
    codec.from_text, codec.from_binary, codec.block = numeric_from_text, numeric_from_binary, numeric_block
    return True
