"""Finds the parts of decimal literals, the text of float and numeric columns, in one pass."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint64_t

from pgdecode._native.fault cimport FAULT_BAD_VALUE, OK, FaultCode, unlikely
from pgdecode._native.literals.digits cimport skip_digits

cdef enum Kind:
    KIND_FINITE
    KIND_NAN
    KIND_INFINITE

cdef struct Literal:
    Kind kind
    bint negative
    uint64_t word            # all digits as one integer, modulo 2**64: exact up to 19 digits
    const uint8_t *whole     # digits before the point
    size_t n_whole
    const uint8_t *fraction  # digits after it
    size_t n_fraction
    int64_t exponent         # as written: the number is multiplied by 10**exponent


cdef inline bint is_word(const uint8_t *text, size_t length, const char *word, size_t word_length) noexcept nogil:
    """Whether text is a word, given in lower case, in any case."""
    cdef size_t i
    if length != word_length:
        return False
    for i in range(length):
        if (text[i] | 0x20) != <uint8_t>word[i]:
            return False
    return True


cdef inline FaultCode scan_special(const uint8_t *text, size_t length, bint signed, Literal *out) noexcept nogil:
    """Read NaN, which has no sign, or Infinity or inf."""
    if is_word(text, length, b"infinity", 8) or is_word(text, length, b"inf", 3):
        out.kind = KIND_INFINITE
        return OK
    if not signed and is_word(text, length, b"nan", 3):
        out.kind = KIND_NAN
        return OK
    return FAULT_BAD_VALUE


cdef inline FaultCode scan_exponent(const uint8_t *at, const uint8_t *end, int64_t *exponent) noexcept nogil:
    """Read the text after the e: an optional sign, and digits to the end."""
    cdef bint negative = False
    cdef int64_t power = 0
    cdef uint8_t digit
    if at != end and (at[0] == c"-" or at[0] == c"+"):
        negative = at[0] == c"-"
        at += 1
    if at == end:
        return FAULT_BAD_VALUE
    while at != end:
        digit = <uint8_t>(at[0] - 0x30)
        if digit > 9:
            return FAULT_BAD_VALUE
        # Above 2**40, it outweighs all digits that a value of 1 GiB can have, and need not grow.
        if power < <int64_t>1 << 40:
            power = power * 10 + digit
        at += 1
    exponent[0] = -power if negative else power
    return OK


cdef inline FaultCode scan_literal(const uint8_t *value, size_t length, Literal *out) noexcept nogil:
    """Find the parts of `[+-]digits[.digits][e[+-]digits]`, or of NaN and Infinity in any case.

    All of the value is read. The digits may be missing on one side of the point. Blanks are BAD_VALUE, and so are
    hexadecimal digits and underscores, which newer servers accept but never print. Sources: float8in_internal,
    utils/adt/float.c; numeric_in, utils/adt/numeric.c.
    """
    cdef const uint8_t *at = value
    cdef const uint8_t *end = value + length
    cdef uint64_t word = 0
    cdef bint signed = length and (value[0] == c"-" or value[0] == c"+")
    out.kind = KIND_FINITE
    out.negative = signed and value[0] == c"-"
    at += signed
    out.whole = at
    at = skip_digits(at, end, &word)
    out.n_whole = <size_t>(at - out.whole)
    out.fraction = at
    if at != end and at[0] == c".":
        at += 1
        out.fraction = at
        at = skip_digits(at, end, &word)
    out.n_fraction = <size_t>(at - out.fraction)
    out.word = word
    out.exponent = 0
    if unlikely(out.n_whole + out.n_fraction == 0):
        return scan_special(value + signed, length - signed, signed, out)
    if at == end:
        return OK
    return scan_exponent(at + 1, end, &out.exponent) if (at[0] | 0x20) == c"e" else FAULT_BAD_VALUE


cdef inline void skip_zeros(Literal *literal) noexcept nogil:
    """Remove leading zeros. The zeros after the point count in the exponent."""
    while literal.n_whole and literal.whole[0] == c"0":
        literal.whole += 1
        literal.n_whole -= 1
    if literal.n_whole:
        return
    # Changing n_fraction moves the fraction's last digit (exponent - n_fraction), so the exponent changes too.
    while literal.n_fraction and literal.fraction[0] == c"0":
        literal.fraction += 1
        literal.n_fraction -= 1
        literal.exponent -= 1
