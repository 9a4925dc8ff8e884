"""The text that PostgreSQL 12 and later write for floats: the shortest decimal that reads back as the same value.

The server's Ryu (common/d2s.c, common/f2s.c) differs from other shortest forms in one rule, which is followed here: it
never writes a decimal exactly halfway between two floats, so 1e23 is 9.999999999999999e+22. Most values have at most 15
digits, or 6 as a float4; one division finds these. The others are found by free-format printing with exact integers
(Steele and White 1990, Burger and Dybvig 1996). The range of a double limits the intermediate numbers.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pgdecode._native.fault cimport unlikely
from pgdecode._native.literals.int128 cimport TENS
from pgdecode._native.literals.rendering cimport MAX_DIGITS, write_byte, write_decimal

cdef enum:
    # 2^1074 (the smallest double's denominator) times 2^2, or 2^1024 times 10, and up to 31 bits to align: 1109 bits.
    LIMBS = 36
    FIXED_FROM = -4  # exponents written without an e, up to the number of digits that are always kept
    DOUBLE_DIGITS = 15  # common/d2s.c, to_chars
    SINGLE_DIGITS = 6   # common/f2s.c, to_chars

cdef struct Natural:
    int n  # used limbs, without leading zeros
    uint32_t[LIMBS] limb

cdef struct Decimal:
    uint64_t digits
    int exponent  # of ten, for the last digit


cdef void multiply(Natural *number, uint32_t factor) noexcept nogil:
    cdef uint64_t carry = 0
    cdef int i
    for i in range(number.n):
        carry += <uint64_t>number.limb[i] * factor
        number.limb[i] = <uint32_t>carry
        carry >>= 32
    if carry:
        number.limb[number.n] = <uint32_t>carry
        number.n += 1


cdef void multiply_by_power_of_ten(Natural *number, int exponent) noexcept nogil:
    while exponent >= 9:
        multiply(number, 1000000000)
        exponent -= 9
    while exponent > 0:
        multiply(number, 10)
        exponent -= 1


cdef void shift_left(Natural *number, int n_bits) noexcept nogil:
    cdef int whole = n_bits >> 5
    cdef int part = n_bits & 31
    cdef int i
    multiply(number, <uint32_t>1 << part)
    if not whole or not number.n:
        return
    i = number.n
    while i > 0:
        i -= 1
        number.limb[i + whole] = number.limb[i]
    for i in range(whole):
        number.limb[i] = 0
    number.n += whole


cdef Natural natural(uint64_t value) noexcept nogil:
    cdef Natural number
    number.limb[0] = <uint32_t>value
    number.limb[1] = <uint32_t>(value >> 32)
    number.n = 2 if value >> 32 else 1 if value else 0
    return number


cdef int compare(const Natural *a, const Natural *b) noexcept nogil:
    cdef int i = a.n
    if a.n != b.n:
        return 1 if a.n > b.n else -1
    while i > 0:
        i -= 1
        if a.limb[i] != b.limb[i]:
            return 1 if a.limb[i] > b.limb[i] else -1
    return 0


cdef void add(Natural *number, const Natural *other) noexcept nogil:
    cdef uint64_t carry = 0
    cdef int i = 0
    while i < number.n or i < other.n or carry:
        carry += number.limb[i] if i < number.n else 0
        carry += other.limb[i] if i < other.n else 0
        number.limb[i] = <uint32_t>carry
        carry >>= 32
        i += 1
        if i > number.n:
            number.n = i


cdef void subtract_times(Natural *number, const Natural *other, uint32_t factor) noexcept nogil:
    """Subtract `factor` times a number that has no more limbs. The difference is not negative."""
    cdef uint64_t product, borrow
    cdef uint64_t carry = 0
    cdef int i
    borrow = 0
    for i in range(number.n):
        product = carry
        if i < other.n:
            product += <uint64_t>other.limb[i] * factor
        carry = product >> 32
        borrow = <uint64_t>number.limb[i] - <uint32_t>product - borrow
        number.limb[i] = <uint32_t>borrow
        borrow = borrow >> 63
    while number.n and not number.limb[number.n - 1]:
        number.n -= 1


cdef uint32_t take_digit(Natural *rest, const Natural *scale) noexcept nogil:
    """Divide `rest` by `scale`, whose highest limb is at least 2^27 and below 2^28. The quotient is below ten."""
    cdef uint32_t digit
    if rest.n < scale.n:
        return 0
    # At most one too small: the highest limb is large enough for a good estimate (Juckett 2014).
    digit = rest.limb[scale.n - 1] // (scale.limb[scale.n - 1] + 1)
    if digit:
        subtract_times(rest, scale, digit)
    while compare(rest, scale) >= 0:
        subtract_times(rest, scale, 1)
        digit += 1
    return digit


cdef int bit_length(uint64_t value) noexcept nogil:
    cdef int n = 0
    while value:
        value >>= 1
        n += 1
    return n


cdef int floor_log10_of_power_of_two(int exponent) noexcept nogil:
    # 1292913986 = log10(2) * 2^32, so precise that no exponent of a double is rounded to a wrong integer.
    return <int>((<int64_t>exponent * 1292913986) >> 32)


cdef Decimal exact_digits(uint64_t mantissa, int exponent, bint at_power) noexcept nogil:
    """The shortest decimal strictly between the midpoints to the doubles below and above mantissa * 2^exponent.

    The value is `rest` / `scale`, and the distances to the midpoints are `down` and `up` over the same scale. At a
    power of two (`at_power`), the double below is half as far away as the one above.
    """
    cdef Natural rest = natural(mantissa)
    cdef Natural scale = natural(1)
    cdef Natural down = natural(1)
    cdef Natural up, sum
    cdef Decimal decimal
    cdef uint32_t digit = 0
    cdef int extra = 2 if at_power else 1
    cdef int order, power, align
    cdef bint low = False
    cdef bint high = False
    power = floor_log10_of_power_of_two(exponent + bit_length(mantissa) - 1) + 1
    shift_left(&rest, extra + (exponent if exponent > 0 else 0))
    shift_left(&scale, extra + (-exponent if exponent < 0 else 0))
    if exponent > 0:
        shift_left(&down, exponent)
    if power > 0:
        multiply_by_power_of_ten(&scale, power)
    else:
        multiply_by_power_of_ten(&rest, -power)
        multiply_by_power_of_ten(&down, -power)
    up = down
    if at_power:
        multiply(&up, 2)
    sum = rest
    add(&sum, &up)
    if compare(&sum, &scale) > 0:
        multiply(&scale, 10)
        power += 1
    # Shift the highest limb of the scale to 28 bits, as take_digit requires.
    align = (28 - bit_length(scale.limb[scale.n - 1])) & 31
    shift_left(&scale, align)
    shift_left(&rest, align)
    shift_left(&down, align)
    shift_left(&up, align)
    decimal.digits = 0
    while True:
        multiply(&rest, 10)
        multiply(&down, 10)
        multiply(&up, 10)
        digit = take_digit(&rest, &scale)
        power -= 1
        sum = rest
        add(&sum, &up)
        low = compare(&rest, &down) < 0
        high = compare(&sum, &scale) > 0
        if low or high:
            break
        decimal.digits = decimal.digits * 10 + digit
    if low and high:
        multiply(&rest, 2)
        order = compare(&rest, &scale)
        high = order > 0 or (order == 0 and digit & 1)
    decimal.digits = decimal.digits * 10 + digit + high
    decimal.exponent = power
    return decimal


cdef inline bint reads_back(double read, double value, int n_most) noexcept nogil:
    """Whether a decimal, to which `read` is the nearest double, has the value as the nearest number of its type."""
    cdef uint64_t bits = 0
    if n_most == DOUBLE_DIGITS:
        return read == value
    # If the double is halfway between two float4, it does not show on which side the decimal is.
    memcpy(&bits, &read, 8)
    return <double><float>read == value and bits & 0x1FFFFFFF != 0x10000000


cdef bint few_digits(double value, int log10, int n_most, Decimal *decimal) noexcept nogil:
    """Whether a decimal of at most `n_most` digits reads back as the value.

    There is only one such decimal: the shortest.

    It is not a midpoint between two doubles, which would need 54 bits.
    """
    cdef double power = 1
    cdef double rounded
    cdef int places, _i
    cdef uint64_t digits
    for _i in range(log10 if log10 > 0 else 0):
        power *= 10
    if log10 >= 0 and value >= power * 10:
        log10 += 1
    elif log10 < 0:
        for _i in range(-log10 - 1):
            power *= 10
        log10 += value * power >= 1
    places = n_most - 1 - log10
    power = 1
    # Powers of ten up to 10^22 are exact, so that the division below is rounded once, like reading the decimal.
    for _i in range(places):
        power *= 10
    digits = <uint64_t>(value * power + 0.5)
    rounded = <double>digits
    if digits >= TENS[n_most] or not reads_back(rounded / power, value, n_most):
        return False
    while digits % 10 == 0:
        digits //= 10
        places -= 1
    decimal.digits = digits
    decimal.exponent = -places
    return True


cdef uint8_t *write_layout(uint8_t *at, Decimal decimal, int n_most) noexcept nogil:
    """Write digits as printf's %g with `n_most` digits does: fixed, or with an exponent of two or more digits."""
    cdef uint8_t[MAX_DIGITS] digits
    cdef int n = <int>(write_decimal(digits, decimal.digits) - digits)
    cdef int leading = decimal.exponent + n - 1
    cdef int i, _i
    if FIXED_FROM <= leading < n_most:
        if leading < 0:
            at = write_byte(write_byte(at, c"0"), c".")
            for _i in range(-leading - 1):
                at = write_byte(at, c"0")
        for i in range(n):
            if i == leading + 1 and i:
                at = write_byte(at, c".")
            at = write_byte(at, digits[i])
        for _i in range(decimal.exponent):
            at = write_byte(at, c"0")
        return at
    for i in range(n):
        if i == 1:
            at = write_byte(at, c".")
        at = write_byte(at, digits[i])
    at = write_byte(write_byte(at, c"e"), c"-" if leading < 0 else c"+")
    leading = -leading if leading < 0 else leading
    if leading < 10:
        at = write_byte(at, c"0")
    return write_decimal(at, leading)


cdef size_t write_shortest(
    uint8_t *text, double value, bint negative, uint64_t fraction, int biased, int n_bits, int n_most
) noexcept nogil:
    """Write a magnitude that is finite and not 0, of a type with `n_bits` of stored fraction.

    The value is mantissa * 2^exponent. A subnormal has the smallest exponent and no implied bit.
    """
    cdef int bias = 1023 if n_most == DOUBLE_DIGITS else 127
    cdef int exponent = (biased if biased else 1) - bias - n_bits
    cdef double below = 1e15 if n_most == DOUBLE_DIGITS else 1e6
    cdef Decimal decimal
    cdef uint8_t *at = text
    if negative:
        at = write_byte(at, c"-")
    if unlikely(not 1e-5 <= value < below) or not few_digits(
        value, floor_log10_of_power_of_two(biased - bias), n_most, &decimal
    ):
        if biased:
            decimal = exact_digits(fraction | <uint64_t>1 << n_bits, exponent, fraction == 0 and biased > 1)
        else:
            decimal = exact_digits(fraction, exponent, False)
    return <size_t>(write_layout(at, decimal, n_most) - text)


cdef size_t write_special(uint8_t *text, bint negative, bint infinite, bint nan) noexcept nogil:
    """Write NaN, an infinity or 0."""
    cdef uint8_t *at = text
    if nan:
        memcpy(at, b"NaN", 3)
        return 3
    if negative:
        at = write_byte(at, c"-")
    if infinite:
        memcpy(at, b"Infinity", 8)
        return <size_t>(at - text) + 8
    return <size_t>(write_byte(at, c"0") - text)


cdef size_t write_float8(uint8_t *text, double value) noexcept nogil:
    """Write a float8 as float8out does with extra_float_digits above 0. Returns the length."""
    cdef uint64_t bits = 0
    cdef uint64_t fraction
    cdef int biased
    memcpy(&bits, &value, 8)
    biased = <int>(bits >> 52) & 0x7FF
    fraction = bits & ((<uint64_t>1 << 52) - 1)
    if unlikely(biased == 0x7FF or value == 0):
        return write_special(text, bits >> 63, biased == 0x7FF, biased == 0x7FF and fraction)
    return write_shortest(text, -value if bits >> 63 else value, bits >> 63, fraction, biased, 52, DOUBLE_DIGITS)


cdef size_t write_float4(uint8_t *text, float value) noexcept nogil:
    """Write a float4 as float4out does with extra_float_digits above 0. Returns the length."""
    cdef uint32_t bits = 0
    cdef uint32_t fraction
    cdef int biased
    memcpy(&bits, &value, 4)
    biased = <int>(bits >> 23) & 0xFF
    fraction = bits & 0x7FFFFF
    if unlikely(biased == 0xFF or value == 0):
        return write_special(text, bits >> 31, biased == 0xFF, biased == 0xFF and fraction)
    return write_shortest(text, -value if bits >> 31 else value, bits >> 31, fraction, biased, 23, SINGLE_DIGITS)
