"""money, with a scale from the caller. The number of digits of its fraction depends on the server's lc_monetary."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from pgdecode._native.arrow.column_builder cimport Column, put_bytes
from pgdecode._native.codecs.codec cimport Codec, add_codec
from pgdecode._native.codecs.text cimport text_from_text
from pgdecode._native.cursor cimport be64
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_OUT_OF_RANGE, FAULT_WRONG_SIZE, OK, FaultCode, unlikely
from pgdecode._native.literals.clock cimport is_digit
from pgdecode._native.literals.int128 cimport TENS, Int128, put_decimal
from pgdecode._native.literals.rendering cimport MAX_DIGITS, write_byte, write_decimal, write_padded

cdef struct Amount:
    uint64_t magnitude  # in units of the last digit
    bint negative


cdef FaultCode take_text(const uint8_t *value, size_t length, int32_t scale, Amount *out) noexcept nogil:
    """Read an amount as printed under any lc_monetary: its digits, with any text between and around them.

    A minus sign (ASCII's or U+2212) or parentheses make it negative. Faults: BAD_VALUE without digits, or if the last
    run of digits does not have the length of the scale; OUT_OF_RANGE past int64. Source: cash_out, utils/adt/cash.c.
    """
    cdef size_t n_digits = 0
    cdef size_t n_last = 0
    cdef bint in_digits = False
    cdef uint64_t most = <uint64_t>0x7FFFFFFFFFFFFFFF
    cdef uint64_t digit
    cdef size_t i
    out.magnitude = 0
    out.negative = False
    for i in range(length):
        if not is_digit(value[i]):
            in_digits = False
            if value[i] == c"-" or value[i] == c"(" or length - i >= 3 and memcmp(value + i, b"\xe2\x88\x92", 3) == 0:
                out.negative = True
            continue
        digit = value[i] - 0x30
        # The lowest int64 has a larger magnitude than the highest, and its sign may come after it.
        if unlikely(out.magnitude > (most + 1 - digit) // 10):
            return FAULT_OUT_OF_RANGE
        out.magnitude = out.magnitude * 10 + digit
        n_digits += 1
        n_last = n_last + 1 if in_digits else 1
        in_digits = True
    if n_digits == 0 or scale and (n_last != <size_t>scale or n_digits == n_last):
        return FAULT_BAD_VALUE
    return FAULT_OUT_OF_RANGE if out.magnitude > most + out.negative else OK


cdef FaultCode take_binary(const uint8_t *value, size_t length, Amount *out) noexcept nogil:
    """Read eight bytes, big-endian. Faults: WRONG_SIZE. Source: cash_send, utils/adt/cash.c."""
    cdef int64_t number
    if unlikely(length != 8):
        return FAULT_WRONG_SIZE
    number = <int64_t>be64(value)
    out.negative = number < 0
    out.magnitude = 0 - <uint64_t>number if number < 0 else <uint64_t>number
    return OK


cdef FaultCode put_number(Column *out, const Amount *amount) noexcept nogil:
    """Append an amount to a column of decimals."""
    cdef Int128 wide
    wide.low = amount.magnitude
    wide.high = 0
    return put_decimal(out, wide, amount.negative)


cdef FaultCode put_text(Column *out, const Amount *amount, int32_t scale) noexcept nogil:
    """Append an amount to a column of strings, printed like a numeric: without currency and groups."""
    cdef uint8_t[MAX_DIGITS + 3] text
    cdef uint8_t *at = text
    if amount.negative:
        at = write_byte(at, c"-")
    at = write_decimal(at, amount.magnitude // TENS[scale])
    if scale:
        at = write_padded(write_byte(at, c"."), amount.magnitude % TENS[scale], TENS[scale - 1])
    return put_bytes(out, text, <size_t>(at - text))


cdef FaultCode money_decimal_from_text(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a money to a column of decimals. Faults: BAD_VALUE, OUT_OF_RANGE."""
    cdef Amount amount
    cdef FaultCode code = take_text(value, length, codec.scale, &amount)
    return put_number(out, &amount) if code == OK else code


cdef FaultCode money_decimal_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a money to a column of decimals. Faults: WRONG_SIZE."""
    cdef Amount amount
    cdef FaultCode code = take_binary(value, length, &amount)
    return put_number(out, &amount) if code == OK else code


cdef FaultCode money_decimal_text_from_text(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a money to a column of strings. Faults: BAD_VALUE, OUT_OF_RANGE."""
    cdef Amount amount
    cdef FaultCode code = take_text(value, length, codec.scale, &amount)
    return put_text(out, &amount, codec.scale) if code == OK else code


cdef FaultCode money_decimal_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a money to a column of strings. Faults: WRONG_SIZE."""
    cdef Amount amount
    cdef FaultCode code = take_binary(value, length, &amount)
    return put_text(out, &amount, codec.scale) if code == OK else code


add_codec("money_decimal", money_decimal_from_text, money_decimal_from_binary)
add_codec("money_decimal_text", money_decimal_text_from_text, money_decimal_text_from_binary)
# The text form as the server printed it, with its currency. The binary form does not have that.
add_codec("money_as_sent", text_from_text, money_decimal_text_from_binary)
