"""Functions that write PostgreSQL's text for binary values."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from pgdecode._native.arrow.column_builder cimport Column
from pgdecode._native.cursor cimport put_le64
from pgdecode._native.fault cimport FAULT_LIMIT_BATCH, FAULT_LIMIT_VALUE, FAULT_NO_MEMORY, OK, FaultCode, unlikely
from pgdecode._native.memory.buffers cimport reserve

cdef extern from *:
    """
    static const char PGDECODE_PAIRS[] =
        "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
        "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
    """
    const char *PAIRS "PGDECODE_PAIRS"  # the digits of 0 to 99

cdef enum:
    MAX_RENDERED = 0x3FFFFFFF  # bytes: the longest text of a server, MaxAllocSize (utils/memutils.h)
    MAX_DIGITS = 20          # of a uint64_t
    TEN_TO_8 = 100000000


cdef inline FaultCode reserve_text(Column *column, size_t length) noexcept nogil:
    """Reserve `length` bytes after the data. The caller writes them and then adds to the size."""
    if unlikely(length > MAX_RENDERED):
        return FAULT_LIMIT_VALUE
    if unlikely(length > <size_t>0x7FFFFFFF - column.data.size):
        return FAULT_LIMIT_BATCH
    return FAULT_NO_MEMORY if unlikely(reserve(&column.data, length) != OK) else OK


cdef inline uint8_t *write_byte(uint8_t *at, uint8_t byte) noexcept nogil:
    """Write one byte. Like all of these functions, it returns the position after its output."""
    at[0] = byte
    return at + 1


cdef inline uint8_t *write_decimal(uint8_t *at, uint64_t number) noexcept nogil:
    """Write an unsigned number without leading zeros: at most MAX_DIGITS bytes."""
    cdef size_t length = 1
    cdef uint64_t power = 10
    cdef uint8_t *end
    cdef uint8_t *to
    while length < MAX_DIGITS and number >= power:
        # The last product overflows; the length is compared first then.
        power *= 10
        length += 1
    end = at + length
    to = end
    while number >= 10:
        to -= 2
        memcpy(to, PAIRS + 2 * (number % 100), 2)
        number //= 100
    if to != at:
        at[0] = <uint8_t>(c"0" + number)
    return end


cdef inline uint64_t two_digits(uint64_t number) noexcept nogil:
    """The digits of a number below 100 with leading zeros, the first one in the lowest byte."""
    cdef const uint8_t *pair = <const uint8_t *>PAIRS + 2 * number
    return pair[0] | <uint64_t>pair[1] << 8


cdef inline uint64_t four_digits(uint64_t number) noexcept nogil:
    """The digits of a number below 10^4, as those of `two_digits`."""
    # The product divides exactly by 100: 10486 / 2^20 is close enough to 1/100 for numbers below 10^4.
    cdef uint64_t hundreds = number * 10486 >> 20
    return two_digits(hundreds) | two_digits(number - 100 * hundreds) << 16


cdef inline uint64_t eight_digits(uint64_t number) noexcept nogil:
    """The digits of a number below 10^8, as those of `two_digits`."""
    # As above: 109951163 / 2^40 for numbers below 10^8.
    cdef uint64_t upper = number * 109951163 >> 40
    return four_digits(upper) | four_digits(number - 10000 * upper) << 32


cdef inline uint8_t *write_number(uint8_t *at, uint64_t number) noexcept nogil:
    """Write as `write_decimal` does, with few branches on the number of digits. All MAX_DIGITS bytes may be written."""
    cdef size_t length
    if number < 100:
        memcpy(at, PAIRS + 2 * number + (number < 10), 2)
        return at + 1 + (number >= 10)
    if number < TEN_TO_8:
        length = 3 + (number >= 1000) + (number >= 10000) + (number >= 100000) + (number >= 1000000)
        length += number >= 10000000
        put_le64(at, eight_digits(number) >> 8 * (8 - length))
        return at + length
    at = write_decimal(at, number // TEN_TO_8)
    put_le64(at, eight_digits(number % TEN_TO_8))
    return at + 8


cdef inline uint8_t *write_signed(uint8_t *at, int64_t number) noexcept nogil:
    """Write the digits of an integer, with its sign if it is negative: up to MAX_DIGITS + 1 bytes."""
    # Without sign, a digit overwrites it.
    at[0] = c"-"
    # Negated as unsigned, so that the smallest number has a magnitude too.
    return write_number(at + (number < 0), 0 - <uint64_t>number if number < 0 else <uint64_t>number)


cdef inline uint8_t *write_padded(uint8_t *at, uint64_t number, uint64_t smallest) noexcept nogil:
    """Write a number with leading zeros, with as many digits as `smallest`, a power of ten."""
    while smallest > 1 and number < smallest:
        at = write_byte(at, c"0")
        smallest //= 10
    return write_decimal(at, number)


cdef inline uint8_t hex_digit(unsigned int nibble, uint8_t a) noexcept nogil:
    """The digit for 0 to 15. `a` is the letter for ten, in either case."""
    return <uint8_t>(c"0" + nibble if nibble < 10 else a + nibble - 10)


cdef inline uint8_t *write_byte_in_hex(uint8_t *at, uint8_t byte) noexcept nogil:
    """Write two digits in lower case."""
    at[0] = hex_digit(byte >> 4, c"a")
    at[1] = hex_digit(byte & 15, c"a")
    return at + 2


cdef inline uint8_t *write_hex(uint8_t *at, uint64_t number, uint8_t a) noexcept nogil:
    """Write a number in hexadecimal without leading zeros."""
    cdef int shift = 60
    while shift and not number >> shift:
        shift -= 4
    while shift >= 0:
        at[0] = hex_digit(number >> shift & 15, a)
        at += 1
        shift -= 4
    return at
