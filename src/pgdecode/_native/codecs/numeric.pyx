"""numeric: as decimals without rounding, as float8, and as PostgreSQL's text."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy

from pgdecode._native.arrow.column_builder cimport Column, add_bytes, end_bytes, put_bytes, put_fixed
from pgdecode._native.codecs.block_decoder cimport fixed_block
from pgdecode._native.codecs.codec cimport Cells, Codec, add_codec
from pgdecode._native.codecs.floats cimport float8_of_literal
from pgdecode._native.cursor cimport be16, be64
from pgdecode._native.fault cimport (
    FAULT_LIMIT_VALUE, FAULT_OUT_OF_RANGE, FAULT_TOO_HIGH, FAULT_TOO_LOW, FAULT_UNREPRESENTABLE, OK,
    FaultCode, unlikely,
)
from pgdecode._native.literals.decimal_literal cimport KIND_FINITE, KIND_NAN, Kind, Literal, scan_literal
from pgdecode._native.literals.digits cimport digits_before
from pgdecode._native.literals.int128 cimport (
    TENS, WORD_DIGITS, Int128, put_decimal, int128_append, int128_digits, int128_shift,
)


cdef FaultCode special_fault(Kind kind, bint negative) noexcept nogil:
    """The fault of NaN or an infinity in a decimal."""
    if kind == KIND_NAN:
        return FAULT_UNREPRESENTABLE
    return FAULT_TOO_LOW if negative else FAULT_TOO_HIGH


cdef FaultCode fits(int64_t top, int64_t bottom, bint negative, const Codec *codec) noexcept nogil:
    """Whether digits from 10**(top - 1) down to 10**bottom, neither of them 0, fit the decimal."""
    if top + codec.scale > codec.precision:
        return FAULT_TOO_LOW if negative else FAULT_TOO_HIGH
    return FAULT_UNREPRESENTABLE if bottom + codec.scale < 0 else OK


cdef FaultCode put_any_literal(Column *out, Literal *literal, const Codec *codec) noexcept nogil:
    """Append a literal of any form to a column of decimals."""
    cdef Int128 wide
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
        int128_digits(&wide, literal.whole, literal.n_whole)
        int128_digits(&wide, literal.fraction, literal.n_fraction)
        int128_shift(&wide, <size_t>(bottom + codec.scale))
    return put_decimal(out, wide, literal.negative)


cdef FaultCode numeric_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a numeric to a column of decimals: a decimal literal, all of whose digits must fit.

    Faults: BAD_VALUE, OUT_OF_RANGE for numbers that a numeric cannot have, UNREPRESENTABLE for digits beyond the scale
    and NaN, TOO_LOW and TOO_HIGH beyond the precision and for infinities. Source: numeric_in, utils/adt/numeric.c.
    """
    cdef Literal literal
    cdef Int128 wide
    cdef int64_t missing
    cdef FaultCode code = scan_literal(value, length, &literal)
    if unlikely(code != OK):
        return code
    missing = codec.scale - <int64_t>literal.n_fraction
    # The output of a column of numeric(p, s), up to 19 digits: the word that has been read is the decimal.
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
            int128_append(&wide, TENS[missing], 0)
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
    cdef Int128 wide
    cdef uint64_t word = 0
    cdef int64_t top, shift
    cdef size_t i, last
    cdef uint16_t group
    cdef FaultCode code = take_groups(value, length, &groups)
    if unlikely(code != OK):
        return code
    if unlikely(groups.kind != KIND_FINITE):
        return special_fault(groups.kind, groups.negative)
    wide.low = wide.high = 0
    if groups.n == 0:
        return put_decimal(out, wide, False)
    top = DEC_DIGITS * <int64_t>groups.weight + group_digits(be16(groups.digits))
    code = fits(top, bottom_of(&groups), groups.negative, codec)
    if unlikely(code != OK):
        return code
    # At most 38 digits are left, so at most 11 groups. The first four fit into a word.
    last = groups.n - 1
    for i in range(last):
        group = be16(groups.digits + 2 * i)
        if i < 4:
            word = word * NBASE + group
            wide.low = word
        else:
            int128_append(&wide, NBASE, group)
    group = be16(groups.digits + 2 * last)
    shift = DEC_DIGITS * (groups.weight - <int64_t>last) + codec.scale
    if shift >= 0:
        int128_append(&wide, NBASE, group)
        int128_shift(&wide, <size_t>shift)
    else:
        # The last digits of the group are zeros beyond the scale, as bottom_of has checked.
        int128_append(&wide, TENS[DEC_DIGITS + shift], group // TENS[-shift])
    return put_decimal(out, wide, groups.negative)


# -- blocks: decimals of a word, with as many digits behind the point as the column has; see block_decoder -----------

cdef inline void store_decimal(uint8_t *slot, uint64_t magnitude, bint negative) noexcept nogil:
    """Write a decimal128 of less than 2**63."""
    cdef uint64_t sign = 0 - <uint64_t>negative
    cdef Int128 wide
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
    if unlikely(length <= n_behind):
        return False
    negative = value[0] == c"-"
    n = length - n_behind - negative
    if unlikely(n - 1 >= 18 or n + scale > 18 or n + scale > <size_t>codec.precision):
        return False
    if unlikely(not digits_before(value + negative + n, n, &whole)):
        return False
    if scale:
        if unlikely(value[negative + n] != c"." or not digits_before(value + length, scale, &fraction)):
            return False
    store_decimal(slot, whole * TENS[scale] + fraction, negative)
    return True


cdef inline bint numeric_binary(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint64_t header, word = 0
    cdef size_t n, i
    cdef int64_t weight, shift
    cdef uint16_t group = 0, sign
    if unlikely(length < HEADER or length > HEADER + 8 or codec.scale > 18):
        return False
    header = be64(value)
    n = header >> 48
    weight = <int16_t>(header >> 32)
    sign = <uint16_t>(header >> 16)
    shift = DEC_DIGITS * (weight - <int64_t>n + 1) + codec.scale
    if unlikely(length != HEADER + 2 * n or (sign != NUMERIC_POS) & (sign != NUMERIC_NEG)):
        return False
    # No digit is hidden then, and all digits with the shift fit into a word.
    if unlikely(<int32_t>(header & 0xFFFF) != codec.scale or DEC_DIGITS * (weight + 1) + codec.scale > 18):
        return False
    if n == 0:
        store_decimal(slot, 0, False)
        return True
    for i in range(n - 1):
        group = be16(value + HEADER + 2 * i)
        if unlikely(group >= NBASE):
            return False
        word = word * NBASE + group
    group = be16(value + HEADER + 2 * (n - 1))
    if unlikely(group >= NBASE or shift < -3):
        return False
    if shift >= 0:
        word = (word * NBASE + group) * TENS[shift]
    else:
        if unlikely(group % <uint16_t>TENS[-shift]):
            return False
        word = word * TENS[DEC_DIGITS + shift] + group // <uint16_t>TENS[-shift]
    store_decimal(slot, word, sign == NUMERIC_NEG)
    return codec.precision > 18 or word < TENS[codec.precision]


cdef size_t numeric_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(numeric_text, numeric_binary, sizeof(Int128), cells, start, out, codec)


cdef enum:
    # 804 digits: see floats.EXACT_DIGITS.
    MAX_GROUPS = 201


cdef FaultCode put_literal(Column *out, Literal *literal) noexcept nogil:
    """Append the float8 nearest to a literal. Literals without a near float8 are faults, as in numeric_float8."""
    cdef uint64_t bits = 0
    cdef FaultCode code = float8_of_literal(literal, &bits)
    if code == FAULT_OUT_OF_RANGE:
        if bits == 0:
            return FAULT_UNREPRESENTABLE
        return FAULT_TOO_LOW if literal.negative else FAULT_TOO_HIGH
    if bits == <uint64_t>1 << 63:
        # numeric has no -0.
        bits = 0
    return put_fixed(out, &bits, sizeof(bits)) if code == OK else code


cdef FaultCode numeric_float8_from_text(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append the float8 nearest to a numeric's text, which may be NaN or infinite.

    Faults: BAD_VALUE; TOO_HIGH and TOO_LOW past the largest float8, UNREPRESENTABLE below the smallest. Source:
    numeric_float8, utils/adt/numeric.c.
    """
    cdef Literal literal
    cdef FaultCode code = scan_literal(value, length, &literal)
    return put_literal(out, &literal) if code == OK else code


cdef FaultCode numeric_float8_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append the float8 nearest to a numeric's groups of digits, which may be NaN or infinite.

    Faults: WRONG_SIZE, BAD_VALUE; the others as for its text. Source: numeric_send, utils/adt/numeric.c.
    """
    cdef uint8_t[MAX_GROUPS * DEC_DIGITS + 1] digits
    cdef Groups groups
    cdef Literal literal
    cdef uint16_t group
    cdef size_t i
    cdef size_t n
    cdef FaultCode code = take_groups(value, length, &groups)
    if code != OK:
        return code
    n = groups.n if groups.n < <size_t>MAX_GROUPS else <size_t>MAX_GROUPS
    literal.kind = groups.kind
    literal.negative = groups.negative
    literal.word = 0
    literal.whole = literal.fraction = digits
    literal.n_fraction = 0
    literal.n_whole = DEC_DIGITS * n
    literal.exponent = DEC_DIGITS * (groups.weight - <int64_t>n + 1)
    for i in range(n):
        group = be16(groups.digits + 2 * i)
        literal.word = literal.word * 10000 + group
        digits[4 * i] = <uint8_t>(c"0" + group // 1000)
        digits[4 * i + 1] = <uint8_t>(c"0" + group // 100 % 10)
        digits[4 * i + 2] = <uint8_t>(c"0" + group // 10 % 10)
        digits[4 * i + 3] = <uint8_t>(c"0" + group % 10)
    if n < groups.n:
        # The last group is not 0.
        digits[literal.n_whole] = c"1"
        literal.n_whole += 1
        literal.exponent -= 1
    return put_literal(out, &literal)


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
    """Append a numeric to a column of strings: a decimal literal unchanged; NaN and Infinity as printed.

    Faults: BAD_VALUE, OUT_OF_RANGE for numbers that a numeric cannot have, LIMIT_VALUE. Source: numeric_in,
    utils/adt/numeric.c.
    """
    cdef Literal literal
    cdef FaultCode code
    if unlikely(length > MAX_TEXT):
        return FAULT_LIMIT_VALUE
    code = scan_literal(value, length, &literal)
    if unlikely(code != OK):
        return code
    if unlikely(literal.kind != KIND_FINITE):
        return put_special(out, literal.kind, literal.negative)
    # Fewer digits than this are never too many.
    if unlikely(length > NUMERIC_DSCALE_MAX or literal.exponent):
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
    """The i-th group; groups before the first and after the last are 0."""
    return be16(groups.digits + 2 * i) if 0 <= i < <int32_t>groups.n else 0


cdef FaultCode add_groups(Column *out, const Groups *groups, int32_t i, size_t n_digits) noexcept nogil:
    """Add `n` digits of the groups from the i-th on."""
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
    """Append a numeric to a column of strings, as the server prints it: dscale digits after the point, no -0.

    The int16 weight and 14 bits of dscale limit the text to 147,457 bytes for any value. Faults: WRONG_SIZE, BAD_VALUE.
    Source: get_str_from_var, utils/adt/numeric.c.
    """
    cdef Groups groups
    cdef uint8_t first[DEC_DIGITS]
    cdef int hidden
    cdef FaultCode code = take_groups(value, length, &groups)
    if unlikely(code != OK):
        return code
    if unlikely(groups.kind != KIND_FINITE):
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


add_codec("numeric", numeric_from_text, numeric_from_binary, numeric_block)
add_codec("numeric_float8", numeric_float8_from_text, numeric_float8_from_binary)
add_codec("numeric_text", numeric_text_from_text, numeric_text_from_binary)
