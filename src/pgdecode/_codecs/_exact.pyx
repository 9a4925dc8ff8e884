"""Exact comparison of a literal of any length with a number of binary floating point, by integers of many limbs."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memmove, memset

from pgdecode._codecs.literal cimport Literal

cdef enum:
    # A float8 and the halfway to the next have at most 767 digits: digits past these 800 only say "a bit more".
    EXACT_DIGITS = 800
    # 801 digits are 2661 bits, and what they are compared with is nearly the same number: 84 limbs.
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
    """Make an integer of the first `EXACT_DIGITS` digits, and a last 1 if others follow; the power of ten it is of."""
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

    The literal is an integer times a power of ten. What of the powers is not common to both is multiplied in on the
    side that keeps integers, and the integers are compared.
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
