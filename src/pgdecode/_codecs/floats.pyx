"""float4 and float8: text rounded correctly whatever its length, by integers alone, and IEEE 754 bits.

The digits times a power of five with 128 bits decide nearly every literal (D. Lemire, "Number Parsing at a Gigabyte
per Second", 2021; that no fallback is needed up to 19 digits: N. Mushtak and D. Lemire, 2023). Of longer literals 19
digits are a lower bound, and one more in the last place an upper; where the two round apart, the literal is compared
with the number halfway between, exactly. No step asks the processor's rounding mode, or the locale as strtod does.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pgdecode._block cimport fixed_block
from pgdecode._codec cimport Cells, Codec
from pgdecode._codecs._exact cimport order_of
from pgdecode._codecs.digits cimport digits_before
from pgdecode._codecs.literal cimport KIND_FINITE, KIND_NAN, Literal, scan_literal, skip_zeros
from pgdecode._codecs.wide cimport TENS, WORD_DIGITS, leading_zeros, product
from pgdecode._column cimport Column, put_fixed
from pgdecode._cursor cimport be32, be64
from pgdecode._fault cimport FAULT_OUT_OF_RANGE, FAULT_WRONG_SIZE, OK, FaultCode, rarely

cdef enum:
    FIRST_POWER = -342   # 10**19 times a smaller power of ten is below half the smallest float8
    LAST_POWER = 308     # a larger power of ten is no float8
    N_POWERS = 651

# Powers of five in 128 bits, the highest of them set, high word first: rounded down, but up where negative.
# Filled once, below, and constant from then on.
cdef uint64_t FIVES[2 * N_POWERS]

cdef struct Format:
    int bits        # of the stored mantissa
    int bias        # of the exponent
    int infinite    # the exponent of infinity
    int64_t first   # powers of ten outside of these make every word 0 or infinite
    int64_t last
    int64_t first_tie   # powers of ten outside of these leave no word halfway between two floats
    int64_t last_tie


cdef int fill_powers() except -1:
    """Fill the table by Python's integers."""
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
    """What the two types differ in; `single` is known where this is compiled, and so then is all of it."""
    cdef Format format
    format.bits = 23 if single else 52
    format.bias = 127 if single else 1023
    format.infinite = 0xFF if single else 0x7FF
    format.first = -64 if single else FIRST_POWER
    format.last = 38 if single else LAST_POWER
    format.first_tie = -17 if single else -4
    format.last_tie = 10 if single else 23
    return format


cdef inline uint64_t infinity(bint single) noexcept nogil:
    """Bits of infinity."""
    cdef Format format = format_of(single)
    return <uint64_t>format.infinite << format.bits


cdef inline uint64_t nearest(uint64_t word, int64_t power, bint single) noexcept nogil:
    """Bits of the float nearest to word * 10**power, of two the even one; infinity past the largest."""
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
    if rarely(high & precision == precision):
        # A carry from the lower half may reach the bits that count.
        product(word, five[1], &more)
        low += more
        high += low < more
    shift = <int>(high >> 63) + 64 - format.bits - 3
    mantissa = high >> shift
    # 217706 / 2**16 is log2(10): floor(power * log2(10)), exact for these powers.
    exponent = ((217706 * power) >> 16) + 63 + <int64_t>(high >> 63) - zeros + format.bias
    if rarely(exponent <= 0):
        if exponent <= -63:
            return 0
        mantissa >>= 1 - exponent
        return (mantissa + (mantissa & 1)) >> 1
    if rarely(low <= 1 and mantissa & 3 == 1) and format.first_tie <= power <= format.last_tie:
        if mantissa << shift == high:
            mantissa &= ~<uint64_t>1
    mantissa = (mantissa + (mantissa & 1)) >> 1
    # The mantissa's leading bit is added to the exponent, and so is a carry of the rounding.
    mantissa += <uint64_t>(exponent - 1) << format.bits
    return mantissa if mantissa < infinity(single) else infinity(single)


cdef uint64_t exactly(const Literal *literal, uint64_t lower, bint single) noexcept nogil:
    """Bits of the float nearest to a literal that lies between a float and the next, of two the even one."""
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
    """Bits of the float nearest to a literal of more digits than a word holds."""
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
    """Round a literal to a float's bits. Faults: OUT_OF_RANGE for what rounds to infinity or 0, which bits then is."""
    cdef Format format = format_of(single)
    cdef bint nonzero
    if rarely(literal.kind != KIND_FINITE):
        # A quiet NaN, as get_float8_nan makes it (utils/float.h).
        bits[0] = infinity(single) | <uint64_t>(literal.kind == KIND_NAN) << (format.bits - 1)
    else:
        if literal.n_whole + literal.n_fraction <= WORD_DIGITS:
            bits[0] = nearest(literal.word, literal.exponent - <int64_t>literal.n_fraction, single)
            nonzero = literal.word != 0
        else:
            bits[0] = nearest_of_many(literal, single)
            nonzero = literal.n_whole + literal.n_fraction != 0
        if rarely(bits[0] >= infinity(single) or bits[0] == 0 and nonzero):
            return FAULT_OUT_OF_RANGE
    if literal.negative:
        bits[0] |= <uint64_t>(format.infinite + 1) << format.bits
    return OK


cdef FaultCode float8_of_literal(Literal *literal, uint64_t *bits) noexcept nogil:
    return round_literal(literal, False, bits)


cdef inline FaultCode take_float(
    const uint8_t *value, size_t length, bint single, uint64_t *bits
) noexcept nogil:
    """Read a float's text into its bits. Faults: BAD_VALUE, OUT_OF_RANGE for what rounds to infinity or to 0."""
    cdef Literal literal
    cdef FaultCode code = scan_literal(value, length, &literal)
    return code if rarely(code != OK) else round_literal(&literal, single, bits)


cdef FaultCode float4_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a float4: a decimal literal, NaN or Infinity, rounded once.

    Faults: BAD_VALUE, OUT_OF_RANGE past the largest float4 or below the smallest. Source: float4in, utils/adt/float.c.
    """
    cdef uint64_t bits = 0
    cdef uint32_t narrow
    cdef FaultCode code = take_float(value, length, True, &bits)
    if rarely(code != OK):
        return code
    narrow = <uint32_t>bits
    return put_fixed(out, &narrow, sizeof(narrow))


cdef FaultCode float4_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a float4: four bytes of IEEE 754, big-endian; a NaN keeps its bits.

    Faults: WRONG_SIZE. Source: float4send, utils/adt/float.c.
    """
    cdef uint32_t bits
    if rarely(length != 4):
        return FAULT_WRONG_SIZE
    bits = be32(value)
    return put_fixed(out, &bits, sizeof(bits))


cdef FaultCode float8_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a float8: a decimal literal, NaN or Infinity.

    Faults: BAD_VALUE, OUT_OF_RANGE past the largest float8 or below the smallest. Source: float8in, utils/adt/float.c.
    """
    cdef uint64_t bits = 0
    cdef FaultCode code = take_float(value, length, False, &bits)
    return put_fixed(out, &bits, sizeof(bits)) if code == OK else code


cdef FaultCode float8_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a float8: eight bytes of IEEE 754, big-endian; a NaN keeps its bits.

    Faults: WRONG_SIZE. Source: float8send, utils/adt/float.c.
    """
    cdef uint64_t bits
    if rarely(length != 8):
        return FAULT_WRONG_SIZE
    bits = be64(value)
    return put_fixed(out, &bits, sizeof(bits))


# -- blocks: see _block ----------------------------------------------------------------------------------------------

cdef inline bint float_text(const uint8_t *value, size_t length, bint single, uint64_t *bits) noexcept nogil:
    """Read `[-]digits[.digits]` of at most 19 digits, 1 to 8 of them before the point."""
    cdef Format format = format_of(single)
    cdef uint64_t negative, points, word = 0, fraction = 0
    cdef size_t n, n_whole, n_fraction
    if rarely(length == 0):
        return False
    negative = value[0] == c"-"
    n = length - negative
    if rarely(n - 1 >= 20):
        return False
    # The first eight bytes without the points in them; the high bit of the first 0 tells where that was.
    points = be64(value + length - 8) << (64 - 8 * n) if n <= 8 else be64(value + negative)
    points ^= <uint64_t>0x2E2E2E2E2E2E2E2E
    points = (points - <uint64_t>0x0101010101010101) & ~points & <uint64_t>0x8080808080808080
    if points == 0:
        # No point, or one too far behind.
        if n > 8 or not digits_before(value + length, n, &word):
            return False
        n_fraction = 0
    else:
        n_whole = <size_t>leading_zeros(points) >> 3
        n_fraction = n - n_whole - 1
        if rarely(n_whole == 0 or n_fraction - 1 >= 17 or value[negative + n_whole] != c"."):
            return False
        if rarely(not digits_before(value + negative + n_whole, n_whole, &word)):
            return False
        if rarely(not digits_before(value + length, n_fraction, &fraction) or n_whole + n_fraction > WORD_DIGITS):
            return False
        word = word * TENS[n_fraction] + fraction
    bits[0] = nearest(word, -<int64_t>n_fraction, single) | negative * (<uint64_t>(format.infinite + 1) << format.bits)
    return True


cdef inline bint float4_text(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint64_t bits = 0
    cdef bint usual = float_text(value, length, True, &bits)
    cdef uint32_t narrow = <uint32_t>bits
    memcpy(slot, &narrow, sizeof(narrow))
    return usual


cdef inline bint float8_text(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint64_t bits = 0
    cdef bint usual = float_text(value, length, False, &bits)
    memcpy(slot, &bits, sizeof(bits))
    return usual


cdef inline bint float4_binary(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint32_t bits
    if rarely(length != sizeof(bits)):
        return False
    bits = be32(value)
    memcpy(slot, &bits, sizeof(bits))
    return True


cdef inline bint float8_binary(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint64_t bits
    if rarely(length != sizeof(bits)):
        return False
    bits = be64(value)
    memcpy(slot, &bits, sizeof(bits))
    return True


cdef size_t float4_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(float4_text, float4_binary, 4, cells, start, out, codec)


cdef size_t float8_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(float8_text, float8_binary, 8, cells, start, out, codec)


cdef bint floats_codec(str name, Codec *codec):
    """Fill the decoders of float4 or float8; whether it is one of them."""
    if name == "float4":
        codec.from_text, codec.from_binary, codec.block = float4_from_text, float4_from_binary, float4_block
    elif name == "float8":
        codec.from_text, codec.from_binary, codec.block = float8_from_text, float8_from_binary, float8_block
    else:
        return False
    return True
