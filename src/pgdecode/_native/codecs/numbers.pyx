"""bool, integers, OIDs, xid8 and money. floats.pyx has the floats."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pgdecode._native.arrow.column_builder cimport Column, put_bool, put_bytes, put_int16, put_int32, put_int64
from pgdecode._native.codecs.block_decoder cimport fixed_block, word32_binary, word64_binary
from pgdecode._native.codecs.codec cimport Cells, Codec, add_codec
from pgdecode._native.cursor cimport be16, be32, be64
from pgdecode._native.fault cimport (
    FAULT_BAD_VALUE,
    FAULT_ENCODING,
    FAULT_LIMIT_VALUE,
    FAULT_OUT_OF_RANGE,
    FAULT_UNREPRESENTABLE,
    FAULT_WRONG_SIZE,
    OK,
    FaultCode,
    unlikely,
)
from pgdecode._native.literals.digits cimport digits_before, skip_digits
from pgdecode._native.literals.int128 cimport TENS, WORD_DIGITS, Int128, put_decimal
from pgdecode._native.memory.utf8 cimport utf8_prefix

cdef enum:
    MAX_INT16 = 0x7FFF
    MAX_INT32 = 0x7FFFFFFF
    MAX_TEXT = 67108864  # bytes: 64 MiB, the longest rendering


cdef bint is_text(const uint8_t *value, size_t length, const char *text, size_t n) noexcept nogil:
    cdef size_t i
    if length != n:
        return False
    for i in range(n):
        if value[i] != <uint8_t>text[i]:
            return False
    return True


cdef FaultCode bool_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a bool: `t` or `f`; also `true` and `false`, as XML and JSON write it.

    Faults: BAD_VALUE. Source: boolout, utils/adt/bool.c.
    """
    if length == 1 and (value[0] == c"t" or value[0] == c"f"):
        return put_bool(out, value[0] == c"t")
    if is_text(value, length, b"true", 4):
        return put_bool(out, True)
    if is_text(value, length, b"false", 5):
        return put_bool(out, False)
    return FAULT_BAD_VALUE


cdef FaultCode bool_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a bool: one byte, 0 or 1. The server would accept any other byte as true, but never sends one.

    Faults: WRONG_SIZE, BAD_VALUE. Source: boolsend, utils/adt/bool.c.
    """
    if unlikely(length != 1):
        return FAULT_WRONG_SIZE
    if unlikely(value[0] > 1):
        return FAULT_BAD_VALUE
    return put_bool(out, value[0])


cdef FaultCode long_magnitude(const uint8_t *digits, size_t n, uint64_t *magnitude) noexcept nogil:
    """Check more digits than always fit into a word: there may be leading zeros, or too many. Faults: OUT_OF_RANGE."""
    while n > WORD_DIGITS and digits[0] == c"0":
        digits += 1
        n -= 1
    # Twenty digits that start with 1 may fit. They have been read modulo 2**64: if they do not fit, the result is below
    # 2 * 10**18; if they do, it is at least 10**19.
    if n > WORD_DIGITS + 1 or n > WORD_DIGITS and (digits[0] != c"1" or magnitude[0] < TENS[WORD_DIGITS]):
        return FAULT_OUT_OF_RANGE
    return OK


cdef inline FaultCode take_integer(
    const uint8_t *value, size_t length, bint *negative, uint64_t *magnitude
) noexcept nogil:
    """Read all of `[+-]digits`. Faults: BAD_VALUE, OUT_OF_RANGE past 64 bits."""
    cdef const uint8_t *start
    cdef const uint8_t *end = value + length
    if unlikely(length == 0):
        return FAULT_BAD_VALUE
    # Without branches, because signs are not predictable.
    negative[0] = value[0] == c"-"
    start = value + (negative[0] | (value[0] == c"+"))
    magnitude[0] = 0
    if unlikely(skip_digits(start, end, magnitude) != end or start == end):
        return FAULT_BAD_VALUE
    return OK if end - start <= WORD_DIGITS else long_magnitude(start, <size_t>(end - start), magnitude)


cdef inline FaultCode take_signed(
    const uint8_t *value, size_t length, uint64_t largest, int64_t *number
) noexcept nogil:
    """Read an integer from -largest - 1 to largest."""
    cdef bint negative = False
    cdef uint64_t magnitude = 0
    cdef FaultCode code = take_integer(value, length, &negative, &magnitude)
    if unlikely(code != OK):
        return code
    if unlikely(magnitude > largest + negative):
        return FAULT_OUT_OF_RANGE
    number[0] = <int64_t>((magnitude ^ (0 - <uint64_t>negative)) + <uint64_t>negative)
    return OK


cdef inline FaultCode take_unsigned(
    const uint8_t *value, size_t length, uint64_t largest, uint64_t *number
) noexcept nogil:
    """Read an integer from 0 to largest. The server accepts negative ones on input, but never prints them."""
    cdef bint negative = False
    cdef FaultCode code = take_integer(value, length, &negative, number)
    if unlikely(code != OK):
        return code
    return FAULT_OUT_OF_RANGE if unlikely(number[0] > largest or negative and number[0]) else OK


cdef FaultCode int2_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append an int2: digits with an optional sign.

    Faults: BAD_VALUE, OUT_OF_RANGE. Source: int2in, utils/adt/int.c.
    """
    cdef int64_t number = 0
    cdef FaultCode code = take_signed(value, length, MAX_INT16, &number)
    return put_int16(out, <int16_t>number) if code == OK else code


cdef FaultCode int2_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append an int2: two bytes, big-endian. Faults: WRONG_SIZE. Source: int2send, utils/adt/int.c."""
    return put_int16(out, <int16_t>be16(value)) if length == 2 else FAULT_WRONG_SIZE


cdef FaultCode int4_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append an int4: digits with an optional sign.

    Faults: BAD_VALUE, OUT_OF_RANGE. Source: int4in, utils/adt/int.c.
    """
    cdef int64_t number = 0
    cdef FaultCode code = take_signed(value, length, MAX_INT32, &number)
    return put_int32(out, <int32_t>number) if code == OK else code


cdef FaultCode int4_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append an int4: four bytes, big-endian. Faults: WRONG_SIZE. Source: int4send, utils/adt/int.c."""
    return put_int32(out, <int32_t>be32(value)) if length == 4 else FAULT_WRONG_SIZE


cdef FaultCode int8_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append an int8: digits with an optional sign.

    Faults: BAD_VALUE, OUT_OF_RANGE. Source: int8in, utils/adt/int8.c.
    """
    cdef int64_t number = 0
    cdef FaultCode code = take_signed(value, length, <uint64_t>0x7FFFFFFFFFFFFFFF, &number)
    return put_int64(out, number) if code == OK else code


cdef FaultCode int8_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append an int8: eight bytes, big-endian. Faults: WRONG_SIZE. Source: int8send, utils/adt/int8.c."""
    return put_int64(out, <int64_t>be64(value)) if length == 8 else FAULT_WRONG_SIZE


cdef FaultCode oid_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append an oid, xid or cid to a column of int64: digits, at most 4294967295.

    Faults: BAD_VALUE, OUT_OF_RANGE. Sources: oidout, utils/adt/oid.c; xidout and cidout, utils/adt/xid.c.
    """
    cdef uint64_t number = 0
    cdef FaultCode code = take_unsigned(value, length, <uint64_t>0xFFFFFFFF, &number)
    return put_int64(out, <int64_t>number) if code == OK else code


cdef FaultCode oid_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append an oid, xid or cid to a column of int64: four bytes, big-endian, unsigned.

    Faults: WRONG_SIZE. Sources: oidsend, utils/adt/oid.c; xidsend and cidsend, utils/adt/xid.c.
    """
    return put_int64(out, <int64_t>be32(value)) if length == 4 else FAULT_WRONG_SIZE


cdef FaultCode put_xid8(Column *out, uint64_t number) noexcept nogil:
    cdef Int128 wide
    wide.low = number
    wide.high = 0
    return put_decimal(out, wide, False)


cdef FaultCode xid8_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append an xid8 to a column of decimal128(20, 0): digits, below 2**64.

    Faults: BAD_VALUE, OUT_OF_RANGE. Source: xid8out, utils/adt/xid.c.
    """
    cdef uint64_t number = 0
    cdef FaultCode code = take_unsigned(value, length, <uint64_t>0xFFFFFFFFFFFFFFFF, &number)
    return put_xid8(out, number) if code == OK else code


cdef FaultCode xid8_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append an xid8 to a column of decimal128(20, 0): eight bytes, big-endian, unsigned.

    Faults: WRONG_SIZE. Source: xid8send, utils/adt/xid.c.
    """
    return put_xid8(out, be64(value)) if length == 8 else FAULT_WRONG_SIZE


cdef FaultCode money_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a money to a column of strings, as printed under any lc_monetary.

    Faults: BAD_VALUE if empty, LIMIT_VALUE, ENCODING. Source: cash_out, utils/adt/cash.c.
    """
    if unlikely(length == 0):
        return FAULT_BAD_VALUE
    if unlikely(length > MAX_TEXT):
        return FAULT_LIMIT_VALUE
    return put_bytes(out, value, length) if utf8_prefix(value, length) == length else FAULT_ENCODING


cdef FaultCode money_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Refuse a money: eight bytes, big-endian, in a unit that depends on the server's lc_monetary.

    Faults: WRONG_SIZE, otherwise UNREPRESENTABLE. Source: cash_send, utils/adt/cash.c.
    """
    return FAULT_UNREPRESENTABLE if length == 8 else FAULT_WRONG_SIZE


# -- blocks: what servers send, and nothing else; see block_decoder --------------------------------------------------

cdef inline bint bool_text(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint8_t is_true
    if unlikely(length != 1):
        return False
    is_true = value[0] == c"t"
    slot[0] = is_true
    # A comparison with both letters would be a branch, and would be mispredicted.
    return value[0] == c"f" + is_true * (c"t" - c"f")


cdef inline bint bool_binary(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    if unlikely(length != 1):
        return False
    slot[0] = value[0]
    return value[0] <= 1


cdef inline bint signed_before(
    const uint8_t *value, size_t length, size_t most_digits, uint64_t largest, uint64_t *number
) noexcept nogil:
    """Read `[-]digits` in two's complement. False if there are more digits than the type's largest number has."""
    cdef uint64_t negative
    cdef uint64_t magnitude = 0
    cdef size_t n
    if unlikely(length == 0):
        return False
    negative = value[0] == c"-"
    n = length - negative
    if unlikely(n - 1 >= most_digits or not digits_before(value + length, n, &magnitude)):
        return False
    number[0] = (magnitude ^ (0 - negative)) + negative
    return magnitude <= largest + negative


cdef inline bint int2_text(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint64_t number = 0
    cdef bint is_common = signed_before(value, length, 5, MAX_INT16, &number)
    cdef uint16_t narrow = <uint16_t>number
    memcpy(slot, &narrow, sizeof(narrow))
    return is_common


cdef inline bint int4_text(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint64_t number = 0
    cdef bint is_common = signed_before(value, length, 10, MAX_INT32, &number)
    cdef uint32_t narrow = <uint32_t>number
    memcpy(slot, &narrow, sizeof(narrow))
    return is_common


cdef inline bint int8_text(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint64_t number = 0
    cdef bint is_common = signed_before(value, length, 19, <uint64_t>0x7FFFFFFFFFFFFFFF, &number)
    memcpy(slot, &number, sizeof(number))
    return is_common


cdef inline bint oid_text(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint64_t number = 0
    if unlikely(length - 1 >= 10 or not digits_before(value + length, length, &number)):
        return False
    memcpy(slot, &number, sizeof(number))
    return number <= <uint64_t>0xFFFFFFFF


cdef inline bint int2_binary(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint16_t number
    if unlikely(length != sizeof(number)):
        return False
    number = be16(value)
    memcpy(slot, &number, sizeof(number))
    return True


cdef inline bint oid_binary(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef uint64_t number
    if unlikely(length != 4):
        return False
    number = be32(value)
    memcpy(slot, &number, sizeof(number))
    return True


cdef size_t bool_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(bool_text, bool_binary, 1, cells, start, out, codec)


cdef size_t int2_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(int2_text, int2_binary, 2, cells, start, out, codec)


cdef size_t int4_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(int4_text, word32_binary, 4, cells, start, out, codec)


cdef size_t int8_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(int8_text, word64_binary, 8, cells, start, out, codec)


cdef size_t oid_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(oid_text, oid_binary, 8, cells, start, out, codec)


add_codec("bool", bool_from_text, bool_from_binary, bool_block)
add_codec("int2", int2_from_text, int2_from_binary, int2_block)
add_codec("int4", int4_from_text, int4_from_binary, int4_block)
add_codec("int8", int8_from_text, int8_from_binary, int8_block)
add_codec("oid", oid_from_text, oid_from_binary, oid_block)
add_codec("xid8", xid8_from_text, xid8_from_binary)
add_codec("money", money_from_text, money_from_binary)
