"""Days, times of day and offsets written in digits, as PostgreSQL prints them under DateStyle ISO."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pgdecode._native.cursor cimport put_le64
from pgdecode._native.literals.clock cimport US_PER_SECOND
from pgdecode._native.literals.rendering cimport PAIRS, eight_digits, write_byte, write_decimal


cdef inline uint8_t *write_two(uint8_t *at, uint64_t number) noexcept nogil:
    """Write a number below 100 with two digits."""
    memcpy(at, PAIRS + 2 * number, 2)
    return at + 2


cdef inline uint8_t *write_hours(uint8_t *at, uint64_t hours) noexcept nogil:
    """Write two digits, or more if necessary."""
    return write_two(at, hours) if hours < 100 else write_decimal(at, hours)


cdef inline uint8_t *write_clock(uint8_t *at, uint64_t us) noexcept nogil:
    """Write microseconds as HH:MM:SS and the fraction without trailing zeros. Hours have two or more digits.

    Two bytes more than a fraction of six digits may be written.
    """
    cdef uint64_t seconds = us // US_PER_SECOND
    cdef uint64_t fraction = us % US_PER_SECOND
    at = write_byte(write_hours(at, seconds // 3600), c":")
    at = write_byte(write_two(at, seconds // 60 % 60), c":")
    at = write_two(at, seconds % 60)
    if fraction:
        put_le64(write_byte(at, c"."), eight_digits(100 * fraction))
        at += 7
        while (at - 1)[0] == c"0":
            at -= 1
    return at


cdef inline uint8_t *write_offset(uint8_t *at, int64_t east) noexcept nogil:
    """Write seconds east of Greenwich as +HH[:MM[:SS]] (EncodeTimezone, utils/adt/datetime.c)."""
    cdef uint64_t seconds = <uint64_t>(-east if east < 0 else east)
    at = write_hours(write_byte(at, c"-" if east < 0 else c"+"), seconds // 3600)
    if seconds % 3600:
        at = write_two(write_byte(at, c":"), seconds // 60 % 60)
    if seconds % 60:
        at = write_two(write_byte(at, c":"), seconds % 60)
    return at


cdef inline uint8_t *write_day(uint8_t *at, int64_t days, bint *before_christ) noexcept nogil:
    """Write a day since 2000-01-01, not before 4801-03-01 BC, as YYYY-MM-DD. Returns whether BC must follow."""
    # Years begin in March here, as in clock.pxd, so that the leap day is the last of a year; 4800 is added to them.
    # Source: C. Neri, L. Schneider, "Euclidean affine functions and their application to calendar algorithms", 2023.
    cdef uint64_t quarters = 4 * <uint64_t>(days + 2483589) + 3  # 2000-01-01 - 4801-03-01 BC
    cdef uint64_t of_century = <uint64_t>2939745 * (quarters % 146097 | 3)  # 2^32 for each year
    cdef uint64_t day = <uint32_t>of_century // <uint32_t>11758980   # of the year
    cdef uint64_t month = 2141 * day + 197913                  # 2^16 for each month
    cdef uint64_t year = 100 * (quarters // 146097) + (of_century >> 32) + (day >= 306)
    before_christ[0] = year <= 4800
    year = 4801 - year if before_christ[0] else year - 4800
    at = write_two(write_two(at, year // 100), year % 100) if year < 10000 else write_decimal(at, year)
    at = write_two(write_byte(at, c"-"), (month >> 16) - (12 if day >= 306 else 0))
    return write_two(write_byte(at, c"-"), (month & 0xFFFF) // 2141 + 1)
