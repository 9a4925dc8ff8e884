"""numeric as float8, on request: rounded once, to the nearest, from either form."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t

from pgdecode._codec cimport Codec
from pgdecode._codecs._numeric cimport DEC_DIGITS, Groups, take_groups
from pgdecode._codecs.floats cimport float8_of_literal
from pgdecode._codecs.literal cimport Literal, scan_literal
from pgdecode._column cimport Column, put_fixed
from pgdecode._cursor cimport be16
from pgdecode._fault cimport (
    FAULT_OUT_OF_RANGE,
    FAULT_TOO_HIGH,
    FAULT_TOO_LOW,
    FAULT_UNREPRESENTABLE,
    OK,
    FaultCode,
)

cdef enum:
    # 804 digits: as _exact.EXACT_DIGITS has it, what follows 800 digits only says "a bit more".
    MAX_GROUPS = 201


cdef FaultCode put_literal(Column *out, Literal *literal) noexcept nogil:
    """Append the float8 nearest to a literal; one that no float8 is near to is a fault, as in numeric_float8."""
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
    """Append the float8 nearest to a numeric's text; NaN and infinities are themselves.

    Faults: BAD_VALUE; TOO_HIGH and TOO_LOW past the largest float8, UNREPRESENTABLE below the smallest. Source:
    numeric_float8, utils/adt/numeric.c.
    """
    cdef Literal literal
    cdef FaultCode code = scan_literal(value, length, &literal)
    return put_literal(out, &literal) if code == OK else code


cdef FaultCode numeric_float8_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append the float8 nearest to a numeric's groups of digits; NaN and infinities are themselves.

    Faults: WRONG_SIZE, BAD_VALUE; the others as of its text. Source: numeric_send, utils/adt/numeric.c.
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


cdef bint numeric_floats_codec(str name, Codec *codec):
    """Fill in the decoders of a codec of this family; False for a name of another."""
    if name != "numeric_float8":
        return False
    codec.from_text, codec.from_binary = numeric_float8_from_text, numeric_float8_from_binary
    return True
