"""float4 and float8: text of any length, rounded correctly with integers, and IEEE 754 bits.

The digits times a power of five with 128 bits decide nearly all literals (D. Lemire, "Number Parsing at a Gigabyte
per Second", 2021; no fallback is needed up to 19 digits: N. Mushtak and D. Lemire, 2023). For longer literals, 19
digits are a lower bound, and the next larger number is an upper bound. If they are rounded differently, the literal is
compared exactly with the midpoint. The result does not depend on the processor's rounding mode or, unlike strtod's, on
the locale.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove, memset

from pgdecode._native.arrow.column_builder cimport Column, put_fixed
from pgdecode._native.codecs.block_decoder cimport fixed_block, word32_binary, word64_binary
from pgdecode._native.codecs.codec cimport Cells, Codec, add_codec
from pgdecode._native.cursor cimport be32, be64
from pgdecode._native.fault cimport (
    FAULT_OUT_OF_RANGE, FAULT_TOO_HIGH, FAULT_TOO_LOW, FAULT_WRONG_SIZE, OK, FaultCode, unlikely,
)
from pgdecode._native.literals.decimal_literal cimport KIND_FINITE, KIND_NAN, Literal, scan_literal, skip_zeros
from pgdecode._native.literals.digits cimport digits_before
from pgdecode._native.literals.int128 cimport TENS, WORD_DIGITS, leading_zeros, product

cdef enum:
    FIRST_POWER = -342   # 10**19 times a smaller power of ten is below half the smallest float8
    LAST_POWER = 308     # a larger power of ten is no float8
    N_POWERS = 651

# Powers of five in 128 bits, normalised, high word first: rounded down, but up for negative powers. The table is filled
# once, below.
cdef uint64_t FIVES[2 * N_POWERS]

cdef struct Format:
    int bits        # of the stored mantissa
    int bias        # of the exponent
    int infinite    # the exponent of infinity
    int64_t first   # powers of ten outside of these make every word 0 or infinite
    int64_t last
    int64_t first_tie   # powers of ten outside of these do not make a word a midpoint between two floats
    int64_t last_tie
    uint64_t largest    # the largest float, cut to 17 digits ...
    int64_t power       # ... times ten to this power
    int most_digits     # digits that a server writes at extra_float_digits = 0: FLT_DIG, DBL_DIG


cdef int fill_powers() except -1:
    """Fill the table with Python's integers."""
    cdef int at = 0
    for power in range(FIRST_POWER, LAST_POWER + 1):
        five = 5 ** abs(power)
        size = five.bit_length()
        if power >= 0:
            wide = five << 128 - size if size <= 128 else five >> size - 128
        else:
            wide = (1 << size + 127) // five + 1
        FIVES[at] = wide >> 64
        FIVES[at + 1] = wide & 0xFFFFFFFFFFFFFFFF
        at += 2
    return 0


fill_powers()


cdef inline Format format_of(bint single) noexcept nogil:
    """The differences between the two types.

    `single` is a constant for callers, so that the compiler knows the result.
    """
    cdef Format format
    format.bits = 23 if single else 52
    format.bias = 127 if single else 1023
    format.infinite = 0xFF if single else 0x7FF
    format.first = -64 if single else FIRST_POWER
    format.last = 38 if single else LAST_POWER
    format.first_tie = -17 if single else -4
    format.last_tie = 10 if single else 23
    # 3.4028234663852885981e38 and 1.7976931348623157081e308
    format.largest = 34028234663852885 if single else 17976931348623157
    format.power = 22 if single else 292
    format.most_digits = 6 if single else 15
    return format


cdef inline uint64_t infinity(bint single) noexcept nogil:
    """Bits of infinity."""
    cdef Format format = format_of(single)
    return <uint64_t>format.infinite << format.bits


cdef inline uint64_t nearest(uint64_t word, int64_t power, bint single) noexcept nogil:
    """Bits of the float nearest to word * 10**power, the even one of two; infinity past the largest."""
    cdef Format format = format_of(single)
    cdef uint64_t precision = <uint64_t>0xFFFFFFFFFFFFFFFF >> (format.bits + 3)
    cdef uint64_t low, high = 0, more = 0, mantissa
    cdef const uint64_t *five
    cdef int zeros, shift
    cdef int64_t exponent
    if word == 0 or power < format.first:
        return 0
    if power > format.last:
        return infinity(single)
    zeros = leading_zeros(word)
    word <<= zeros
    five = &FIVES[2 * (power - FIRST_POWER)]
    low = product(word, five[0], &high)
    if unlikely(high & precision == precision):
        # A carry from the lower half may reach the relevant bits.
        product(word, five[1], &more)
        low += more
        high += low < more
    shift = <int>(high >> 63) + 64 - format.bits - 3
    mantissa = high >> shift
    # 217706 / 2**16 is log2(10): floor(power * log2(10)), exact for these powers.
    exponent = ((217706 * power) >> 16) + 63 + <int64_t>(high >> 63) - zeros + format.bias
    if unlikely(exponent <= 0):
        if exponent <= -63:
            return 0
        mantissa >>= 1 - exponent
        return (mantissa + (mantissa & 1)) >> 1
    if unlikely(low <= 1 and mantissa & 3 == 1) and format.first_tie <= power <= format.last_tie:
        if mantissa << shift == high:
            mantissa &= ~<uint64_t>1
    mantissa = (mantissa + (mantissa & 1)) >> 1
    # The leading bit of the mantissa is added to the exponent, and so is a carry of the rounding.
    mantissa += <uint64_t>(exponent - 1) << format.bits
    return mantissa if mantissa < infinity(single) else infinity(single)


cdef uint64_t exactly(const Literal *literal, uint64_t lower, bint single) noexcept nogil:
    """Bits of the float nearest to a literal between a float and the next one, the even one of two."""
    cdef Format format = format_of(single)
    cdef int64_t exponent = <int64_t>(lower >> format.bits)
    cdef uint64_t mantissa = lower & ((<uint64_t>1 << format.bits) - 1)
    cdef int order
    if exponent:
        mantissa |= <uint64_t>1 << format.bits
    else:
        exponent = 1
    order = order_of(literal, 2 * mantissa + 1, exponent - format.bias - format.bits - 1)
    return lower + 1 if order > 0 or (order == 0 and lower & 1) else lower


cdef uint64_t nearest_of_many(Literal *literal, bint single) noexcept nogil:
    """Bits of the float nearest to a literal with more digits than fit into a word."""
    cdef uint64_t word = 0, lower
    cdef int64_t power
    cdef size_t n, i
    skip_zeros(literal)
    n = literal.n_whole + literal.n_fraction
    power = literal.exponent - <int64_t>literal.n_fraction
    if n <= WORD_DIGITS:
        return nearest(literal.word, power, single)
    for i in range(<size_t>WORD_DIGITS):
        word = word * 10 + (
            literal.whole[i] if i < literal.n_whole else literal.fraction[i - literal.n_whole]
        ) - 0x30
    power += <int64_t>(n - WORD_DIGITS)
    lower = nearest(word, power, single)
    return lower if nearest(word + 1, power, single) == lower else exactly(literal, lower, single)


cdef inline FaultCode round_literal(Literal *literal, bint single, uint64_t *bits) noexcept nogil:
    """Round a literal to the bits of a float.

    Faults: OUT_OF_RANGE if the result is infinity, or 0 for another literal.
    """
    cdef Format format = format_of(single)
    cdef bint nonzero
    if unlikely(literal.kind != KIND_FINITE):
        # A quiet NaN, as get_float8_nan makes it (utils/float.h).
        bits[0] = infinity(single) | <uint64_t>(literal.kind == KIND_NAN) << (format.bits - 1)
    else:
        if literal.n_whole + literal.n_fraction <= WORD_DIGITS:
            bits[0] = nearest(literal.word, literal.exponent - <int64_t>literal.n_fraction, single)
            nonzero = literal.word != 0
        else:
            bits[0] = nearest_of_many(literal, single)
            nonzero = literal.n_whole + literal.n_fraction != 0
        if unlikely(bits[0] >= infinity(single) or bits[0] == 0 and nonzero):
            return FAULT_OUT_OF_RANGE
    if literal.negative:
        bits[0] |= <uint64_t>(format.infinite + 1) << format.bits
    return OK


cdef FaultCode float8_of_literal(Literal *literal, uint64_t *bits) noexcept nogil:
    return round_literal(literal, False, bits)


cdef bint is_largest_rounded(const Literal *literal, bint single) noexcept nogil:
    """Whether a literal is the largest float, rounded to as few digits as a server writes at extra_float_digits < 1.

    For a float8 of PostgreSQL 10 and 11 by default, it is 1.79769313486232e+308, which is too large for a float8.
    """
    cdef Format format = format_of(single)
    cdef int64_t power = literal.exponent - <int64_t>literal.n_fraction - format.power
    cdef uint64_t word = literal.word
    cdef uint64_t unit
    cdef int n
    if literal.n_whole + literal.n_fraction > <size_t>WORD_DIGITS:
        return False
    # Convert to units of the largest float's last digit of 17, if it is a whole number of them.
    while power > 0 and word and word < TENS[18]:
        word *= 10
        power -= 1
    while power < 0 and word % 10 == 0 and word:
        word //= 10
        power += 1
    if power != 0:
        return False
    for n in range(1, format.most_digits + 1):
        unit = TENS[17 - n]
        if word == (format.largest + unit // 2) // unit * unit:
            return True
    return False


cdef inline FaultCode take_float(
    const uint8_t *value, size_t length, bint single, uint64_t *bits
) noexcept nogil:
    """Read the text of a float into its bits.

    Faults: BAD_VALUE; TOO_HIGH and TOO_LOW for the largest float written with too few digits; OUT_OF_RANGE for all
    other literals that are rounded to infinity or to 0.
    """
    cdef Literal literal
    cdef FaultCode code = scan_literal(value, length, &literal)
    if unlikely(code != OK):
        return code
    code = round_literal(&literal, single, bits)
    if unlikely(code == FAULT_OUT_OF_RANGE) and bits[0] and is_largest_rounded(&literal, single):
        return FAULT_TOO_LOW if literal.negative else FAULT_TOO_HIGH
    return code


cdef FaultCode float4_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a float4: a decimal literal, NaN or Infinity, rounded once.

    Faults: BAD_VALUE; OUT_OF_RANGE past the largest float4 or below the smallest, TOO_HIGH and TOO_LOW if it is the
    largest, rounded. Sources: float4in and float4out, utils/adt/float.c.
    """
    cdef uint64_t bits = 0
    cdef uint32_t narrow
    cdef FaultCode code = take_float(value, length, True, &bits)
    if unlikely(code != OK):
        return code
    narrow = <uint32_t>bits
    return put_fixed(out, &narrow, sizeof(narrow))


cdef FaultCode float4_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a float4: four bytes of IEEE 754, big-endian; a NaN keeps its bits.

    Faults: WRONG_SIZE. Source: float4send, utils/adt/float.c.
    """
    cdef uint32_t bits
    if unlikely(length != 4):
        return FAULT_WRONG_SIZE
    bits = be32(value)
    return put_fixed(out, &bits, sizeof(bits))


cdef FaultCode float8_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a float8: a decimal literal, NaN or Infinity.

    Faults: BAD_VALUE; OUT_OF_RANGE past the largest float8 or below the smallest, TOO_HIGH and TOO_LOW if it is the
    largest, rounded. Sources: float8in and float8out, utils/adt/float.c.
    """
    cdef uint64_t bits = 0
    cdef FaultCode code = take_float(value, length, False, &bits)
    return put_fixed(out, &bits, sizeof(bits)) if code == OK else code


cdef FaultCode float8_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a float8: eight bytes of IEEE 754, big-endian; a NaN keeps its bits.

    Faults: WRONG_SIZE. Source: float8send, utils/adt/float.c.
    """
    cdef uint64_t bits
    if unlikely(length != 8):
        return FAULT_WRONG_SIZE
    bits = be64(value)
    return put_fixed(out, &bits, sizeof(bits))


# -- blocks: see block_decoder ---------------------------------------------------------------------------------------

cdef inline bint float_text(const uint8_t *value, size_t length, bint single, uint64_t *bits) noexcept nogil:
    """Read `[-]digits[.digits]` of at most 19 digits, 1 to 8 of them before the point."""
    cdef Format format = format_of(single)
    cdef uint64_t negative, points, word = 0, fraction = 0
    cdef size_t n, n_whole, n_fraction
    if unlikely(length == 0):
        return False
    negative = value[0] == c"-"
    n = length - negative
    if unlikely(n - 1 >= 20):
        return False
    # The first eight bytes, with points as zeros. The high bit of the first zero marks its position.
    points = be64(value + length - 8) << (64 - 8 * n) if n <= 8 else be64(value + negative)
    points ^= <uint64_t>0x2E2E2E2E2E2E2E2E
    points = (points - <uint64_t>0x0101010101010101) & ~points & <uint64_t>0x8080808080808080
    if points == 0:
        # There is no point, or it is not in these bytes.
        if n > 8 or not digits_before(value + length, n, &word):
            return False
        n_fraction = 0
    else:
        n_whole = <size_t>leading_zeros(points) >> 3
        n_fraction = n - n_whole - 1
        if unlikely(n_whole == 0 or n_fraction - 1 >= 17 or value[negative + n_whole] != c"."):
            return False
        if unlikely(not digits_before(value + negative + n_whole, n_whole, &word)):
            return False
        if unlikely(not digits_before(value + length, n_fraction, &fraction) or n_whole + n_fraction > WORD_DIGITS):
            return False
        word = word * TENS[n_fraction] + fraction
    bits[0] = nearest(word, -<int64_t>n_fraction, single) | negative * (<uint64_t>(format.infinite + 1) << format.bits)
    return True


cdef inline bint float4_text(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint64_t bits = 0
    cdef bint is_common = float_text(value, length, True, &bits)
    cdef uint32_t narrow = <uint32_t>bits
    memcpy(slot, &narrow, sizeof(narrow))
    return is_common


cdef inline bint float8_text(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint64_t bits = 0
    cdef bint is_common = float_text(value, length, False, &bits)
    memcpy(slot, &bits, sizeof(bits))
    return is_common


cdef size_t float4_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(float4_text, word32_binary, 4, cells, start, out, codec)


cdef size_t float8_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(float8_text, word64_binary, 8, cells, start, out, codec)


cdef enum:
    # The midpoint between two float8 has at most 767 digits. Digits after 800 matter only if any is not 0.
    EXACT_DIGITS = 800
    # 801 digits are 2661 bits, and the number to compare has nearly the same size: 84 limbs.
    N_LIMBS = 96

cdef struct Big:
    uint32_t limbs[N_LIMBS]  # the lowest first
    size_t n


cdef void big_append(Big *big, uint32_t factor, uint32_t addend) noexcept nogil:
    """Multiply by a word and add another."""
    cdef uint64_t carry = addend
    cdef size_t i
    for i in range(big.n):
        carry += <uint64_t>big.limbs[i] * factor
        big.limbs[i] = <uint32_t>carry
        carry >>= 32
    if carry and big.n < N_LIMBS:
        big.limbs[big.n] = <uint32_t>carry
        big.n += 1


cdef void big_fives(Big *big, int64_t n) noexcept nogil:
    """Multiply by 5**n."""
    while n >= 13:
        big_append(big, 1220703125, 0)  # 5**13
        n -= 13
    while n > 0:
        big_append(big, 5, 0)
        n -= 1


cdef void big_twos(Big *big, int64_t n) noexcept nogil:
    """Multiply by 2**n."""
    cdef size_t limbs = <size_t>(n >> 5)
    big_append(big, <uint32_t>1 << (n & 31), 0)
    if limbs and big.n + limbs <= N_LIMBS:
        memmove(&big.limbs[limbs], big.limbs, big.n * sizeof(uint32_t))
        memset(big.limbs, 0, limbs * sizeof(uint32_t))
        big.n += limbs


cdef int big_order(const Big *a, const Big *b) noexcept nogil:
    """-1, 0 or 1 as a is less than, equal to or greater than b."""
    cdef size_t i
    if a.n != b.n:
        return -1 if a.n < b.n else 1
    for i in range(a.n, 0, -1):
        if a.limbs[i - 1] != b.limbs[i - 1]:
            return -1 if a.limbs[i - 1] < b.limbs[i - 1] else 1
    return 0


cdef int64_t take_digits(const Literal *literal, Big *big) noexcept nogil:
    """Make an integer of the first `EXACT_DIGITS` digits, and a last 1 if others follow. Returns its power of ten."""
    cdef size_t n = literal.n_whole + literal.n_fraction
    cdef size_t kept = n if n < <size_t>EXACT_DIGITS else <size_t>EXACT_DIGITS
    cdef size_t i
    cdef uint8_t digit
    big.n = 0
    for i in range(n):
        digit = literal.whole[i] if i < literal.n_whole else literal.fraction[i - literal.n_whole]
        if i < kept:
            big_append(big, 10, digit - 0x30)
        elif digit != c"0":
            big_append(big, 10, 1)
            kept += 1
            break
    return literal.exponent - <int64_t>literal.n_fraction + <int64_t>n - <int64_t>kept


cdef int order_of(const Literal *literal, uint64_t mantissa, int64_t exponent) noexcept nogil:
    """-1, 0 or 1 as a literal's magnitude is less than, equal to or greater than mantissa * 2**exponent.

    The literal is an integer times a power of ten. Each side is multiplied by the powers that keep both integers, and
    the integers are compared.
    """
    cdef Big number, other
    cdef int64_t power = take_digits(literal, &number)
    other.n = 0
    big_append(&other, 0, <uint32_t>(mantissa >> 32))
    big_twos(&other, 32)
    big_append(&other, 1, <uint32_t>mantissa)
    big_fives(&number, power)
    big_fives(&other, -power)
    big_twos(&number, power - exponent if power > exponent else 0)
    big_twos(&other, exponent - power if power < exponent else 0)
    return big_order(&number, &other)


add_codec("float4", float4_from_text, float4_from_binary, float4_block)
add_codec("float8", float8_from_text, float8_from_binary, float8_block)
