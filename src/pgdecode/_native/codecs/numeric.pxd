"""numeric: its limits, and the groups of four digits of its binary form."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t

from pgdecode._native.cursor cimport be16
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_OUT_OF_RANGE, FAULT_WRONG_SIZE, OK, FaultCode, unlikely
from pgdecode._native.literals.decimal_literal cimport KIND_FINITE, KIND_INFINITE, KIND_NAN, Kind, Literal, skip_zeros

cdef enum:
    # numeric.c: signs as sent, groups, and limits of what is stored.
    NUMERIC_POS = 0x0000
    NUMERIC_NEG = 0x4000
    NUMERIC_NAN = 0xC000
    NUMERIC_PINF = 0xD000
    NUMERIC_NINF = 0xF000
    NUMERIC_DSCALE_MAX = 0x3FFF
    NUMERIC_MAX_WHOLE = 131072  # digits before the point: 4 * (NUMERIC_WEIGHT_MAX + 1)
    NBASE = 10000
    DEC_DIGITS = 4              # of a group
    HEADER = 8                  # bytes: count, weight, sign, dscale

cdef struct Groups:
    # A numeric in binary: groups of four digits without zero groups at either end, big-endian, unaligned.
    Kind kind
    bint negative
    const uint8_t *digits
    size_t n
    int32_t weight          # of the first group, in powers of NBASE
    int32_t dscale          # digits to show after the point


cdef inline FaultCode trim(Literal *literal) noexcept nogil:
    """Remove zeros at both ends of the digits. Faults: OUT_OF_RANGE for numbers that a numeric cannot have."""
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


cdef inline int64_t bottom_of(const Groups *groups) noexcept nogil:
    """The power of ten of the last digit other than 0."""
    cdef int64_t group = DEC_DIGITS * (groups.weight - <int64_t>groups.n + 1)
    return group + trailing_zeros(be16(groups.digits + 2 * (groups.n - 1)))


cdef inline FaultCode take_groups(const uint8_t *value, size_t length, Groups *out) noexcept nogil:
    """Read the binary form of a numeric, all of it.

    Faults: WRONG_SIZE without the complete header; BAD_VALUE for a wrong count of groups, for a group, sign or dscale
    that the server refuses, for groups of NaN and infinities, and for digits beyond the dscale (which the server would
    cut off, but never sends). Source: numeric_recv and numeric_send, utils/adt/numeric.c.
    """
    cdef uint16_t sign
    cdef size_t i
    if unlikely(length < HEADER):
        return FAULT_WRONG_SIZE
    out.n = be16(value)
    out.weight = <int16_t>be16(value + 2)
    sign = be16(value + 4)
    out.dscale = be16(value + 6)
    out.digits = value + HEADER
    out.negative = sign == NUMERIC_NEG or sign == NUMERIC_NINF
    out.kind = KIND_FINITE
    if unlikely(length - HEADER != 2 * out.n or out.dscale > NUMERIC_DSCALE_MAX):
        return FAULT_BAD_VALUE
    if unlikely(sign != NUMERIC_POS and sign != NUMERIC_NEG):
        if sign != NUMERIC_NAN and sign != NUMERIC_PINF and sign != NUMERIC_NINF:
            return FAULT_BAD_VALUE
        out.kind = KIND_NAN if sign == NUMERIC_NAN else KIND_INFINITE
        return FAULT_BAD_VALUE if out.n else OK
    for i in range(out.n):
        if unlikely(be16(out.digits + 2 * i) >= NBASE):
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
    elif unlikely(bottom_of(out) < -out.dscale):
        return FAULT_BAD_VALUE
    return OK
