"""Ranges of dates and times, and functions that read their digits: eight bytes at a time, without loops."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pgdecode._native.cursor cimport be16, be64
from pgdecode._native.fault cimport unlikely

cdef extern from *:
    """
    /* The server's ranges (datatype/timestamp.h) since 2000-01-01: Julian day 0, which is 4714-11-24 BC, to before
       5874898-01-01 for dates and before 294277-01-01 for timestamps. */
    #define MIN_DAY (-2451545)
    #define END_DATE 2145031949
    #define END_TIMESTAMP_DAY 106751983
    #define US_PER_DAY INT64_C(86400000000)
    #define MIN_TIMESTAMP (MIN_DAY * US_PER_DAY)
    #define END_TIMESTAMP (END_TIMESTAMP_DAY * US_PER_DAY)
    #define UNIX_TO_POSTGRES_US INT64_C(946684800000000)
    """
    const int64_t MIN_DAY
    const int64_t END_DATE
    const int64_t END_TIMESTAMP_DAY
    const int64_t US_PER_DAY
    const int64_t MIN_TIMESTAMP
    const int64_t END_TIMESTAMP
    const int64_t UNIX_TO_POSTGRES_US  # 10957 days

cdef enum:
    UNIX_TO_POSTGRES_DAYS = 10957    # 2000-01-01 - 1970-01-01
    US_PER_SECOND = 1000000
    # Zone offsets are below 168 hours: SET TimeZone takes as much (getsecs, timezone/localtime.c), and prints it.
    ZONE_LIMIT_SECONDS = 604800
    MAX_YEAR_DIGITS = 7              # 5874897, the last year of a date

# A word of text is XORed with the expected pattern ('0' for any digit), which leaves the values of digits, and zeros.
# Adding 0x76 to a digit's byte, and 0x7f to a separator's, sets the high bit of bytes that are not as expected. A carry
# into the next byte requires a byte above 0x80, whose own high bit is set. Ten times each digit plus the next digit
# makes numbers of two digits: at most 99, so that bytes never carry.


cdef inline uint64_t pairs(uint64_t digits) noexcept nogil:
    """Numbers of two digits, each in the byte of its second digit."""
    return (digits >> 8) * 10 + digits


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return <uint8_t>(byte - 0x30) <= 9


cdef inline bint clock_from_text(const uint8_t *text, int64_t *hour, int64_t *minute, int64_t *second) noexcept nogil:
    """Read `HH:MM:SS`, eight bytes. Returns whether they have that form. The caller checks the ranges."""
    cdef uint64_t word = be64(text) ^ <uint64_t>0x30303A30303A3030
    cdef uint64_t fields = pairs(word)
    hour[0] = <int64_t>(fields >> 48 & 0xFF)
    minute[0] = <int64_t>(fields >> 24 & 0xFF)
    second[0] = <int64_t>(fields & 0xFF)
    return (word + <uint64_t>0x76767F76767F7676 | word) & <uint64_t>0x8080808080808080 == 0


cdef inline bint fraction_from_text(const uint8_t *text, size_t start, size_t end, int64_t *us) noexcept nogil:
    """Read the text after the seconds in [start, end): nothing, or a point and 1-6 digits. `end` is 8 or more."""
    cdef size_t n = end - start
    cdef uint64_t word
    us[0] = 0
    if n == 0:
        return True
    if unlikely((n < 2) | (n > 7) | (text[start] != c".")):
        return False
    # The last eight bytes contain all digits. The bytes before the point are masked, missing digits are zeros.
    n -= 1
    word = be64(text + end - 8) ^ <uint64_t>0x3030303030303030
    word = (word & ((<uint64_t>1 << (8 * n)) - 1)) << (8 * (6 - n))
    if unlikely((word + <uint64_t>0x7676767676767676 | word) & <uint64_t>0x8080808080808080):
        return False
    word = pairs(word) & <uint64_t>0x00FF00FF00FF00FF
    word = (word >> 16) * 100 + word & <uint64_t>0x0000FFFF0000FFFF
    us[0] = <int64_t>((word >> 32) * 10000 + (word & 0xFFFF))
    return True


cdef inline size_t year_digits(const uint8_t *text, size_t length) noexcept nogil:
    """Number of bytes before the first hyphen, 4-7, if a month and a day can follow; otherwise 0."""
    cdef size_t n = 4
    if unlikely(length < 10):
        return 0
    while unlikely(text[n] != c"-"):
        n += 1
        if n > MAX_YEAR_DIGITS or length < n + 6:
            return 0
    return n


cdef inline bint days_from_text(const uint8_t *text, size_t n_year, bint before_christ, int64_t *days) noexcept nogil:
    """Read `YYYY-MM-DD` into days since 1970-01-01. Returns whether the proleptic Gregorian calendar has that day."""
    cdef uint64_t word = be64(text + n_year - 2) ^ <uint64_t>0x30302D30302D3030
    cdef uint64_t fields = pairs(word)
    cdef uint64_t month = fields >> 24 & 0xFF
    cdef uint64_t day = fields & 0xFF
    cdef uint64_t year = 0
    cdef uint64_t leap, last, early
    cdef uint8_t bad = (word + <uint64_t>0x76767F76767F7676 | word) & <uint64_t>0x8080808080808080 != 0
    cdef size_t i
    if unlikely(n_year != 4):
        # PostgreSQL pads years to four digits, never to more.
        bad |= text[0] == c"0"
        for i in range(n_year - 2):
            bad |= not is_digit(text[i])
            year = year * 10 + <uint64_t>(text[i] - c"0")
    else:
        bad |= not (is_digit(text[0]) & is_digit(text[1]))
        year = <uint64_t>(text[0] - c"0") * 10 + <uint64_t>(text[1] - c"0")
    year = year * 100 + (fields >> 48 & 0xFF)
    bad |= year == 0
    # 4800 years are twelve cycles of the calendar, and make all years positive.
    if unlikely(before_christ):
        bad |= year > 4800
        year = 4801 - year
    else:
        year += 4800
    # Months come in any order, so that a branch on them would be mispredicted.
    leap = <uint64_t>((year & 3 == 0) & ((year % 25 != 0) | (year & 15 == 0)))
    last = (30 | (month + (month >> 3) & 1)) - <uint64_t>(month == 2) * (2 - leap)
    if unlikely(bad | (month - 1 > 11) | (day - 1 >= last)):
        return False
    # Years begin in March here, so that the leap day is the last of a year.
    early = month < 3
    year -= early
    month = month + 12 * early - 3
    # 2472632 days = 1970-01-01 - 4801-03-01 BC
    days[0] = <int64_t>(365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day) - 2472633
    return True


cdef extern from *:
    """
    #include <stdint.h>
    #define PGDECODE_TENS(of, from, leap) \
        of(from, leap), of(from + 1, leap), of(from + 2, leap), of(from + 3, leap), of(from + 4, leap), \
        of(from + 5, leap), of(from + 6, leap), of(from + 7, leap), of(from + 8, leap), of(from + 9, leap)
    #define PGDECODE_HUNDRED(of, leap) \
        PGDECODE_TENS(of, 0, leap), PGDECODE_TENS(of, 10, leap), PGDECODE_TENS(of, 20, leap), \
        PGDECODE_TENS(of, 30, leap), PGDECODE_TENS(of, 40, leap), PGDECODE_TENS(of, 50, leap), \
        PGDECODE_TENS(of, 60, leap), PGDECODE_TENS(of, 70, leap), PGDECODE_TENS(of, 80, leap), \
        PGDECODE_TENS(of, 90, leap)

    /* By a year's first two digits: days from 1970-01-01 to the day before its century. A century has 24 leap days,
       and one more if its number is divisible by four; 719529 days = 1970-01-01 since the day before 0000-01-01. */
    #define PGDECODE_CENTURY(c, leap) (36524 * (c) + ((c) + 3) / 4 - 719529)
    static const int32_t pgdecode_centuries[128] = {PGDECODE_HUNDRED(PGDECODE_CENTURY, 0)};

    /* By its last two, 128 further where the century's first year is a leap year: days of the century before the year,
       times 2, and whether it is a leap year itself. */
    #define PGDECODE_YEAR(y, leap) \
        ((365 * (y) + ((y) + 3) / 4 - ((y) != 0 && !(leap))) * 2 + ((y) == 0 ? (leap) : (y) % 4 == 0))
    static const uint32_t pgdecode_years[256] = {
        PGDECODE_HUNDRED(PGDECODE_YEAR, 0), [128] = PGDECODE_HUNDRED(PGDECODE_YEAR, 1)};

    /* By month, 128 further in a leap year: days of the year before it, times 32, and its own, none for no month. */
    #define PGDECODE_MONTHS(leap) \
        0, 31, 31 * 32 + 28 + leap, (59 + leap) * 32 + 31, (90 + leap) * 32 + 30, (120 + leap) * 32 + 31, \
        (151 + leap) * 32 + 30, (181 + leap) * 32 + 31, (212 + leap) * 32 + 31, (243 + leap) * 32 + 30, \
        (273 + leap) * 32 + 31, (304 + leap) * 32 + 30, (334 + leap) * 32 + 31
    static const uint16_t pgdecode_months[256] = {PGDECODE_MONTHS(0), [128] = PGDECODE_MONTHS(1)};
    """
    const int32_t CENTURIES "pgdecode_centuries"[128]
    const uint32_t YEARS "pgdecode_years"[256]
    const uint16_t MONTHS "pgdecode_months"[256]

cdef enum:
    FIRST_DAY = -719162  # 0001-01-01 since 1970-01-01


cdef inline bint days_from_date(const uint8_t *text, int64_t *days) noexcept nogil:
    """Read ten bytes `YYYY-MM-DD` into days since 1970-01-01, as `days_from_text` does, with tables."""
    cdef uint64_t word = be64(text + 2) ^ <uint64_t>0x30302D30302D3030
    cdef uint64_t fields = pairs(word)
    cdef uint64_t early = be16(text) ^ 0x3030
    cdef uint64_t century = (early >> 8) * 10 + (early & 0xFF) & 0x7F
    cdef uint64_t bad = (word + <uint64_t>0x76767F76767F7676 | word) | (early + 0x7676 | early)
    cdef uint64_t leap = century & 3 == 0
    cdef uint32_t year = YEARS[leap << 7 | (fields >> 48 & 0x7F)]
    cdef uint64_t month = MONTHS[(year & 1) << 7 | (fields >> 24 & 0x7F)]
    cdef uint64_t day = fields & 0xFF
    days[0] = CENTURIES[century] + <int64_t>(year >> 1) + <int64_t>(month >> 5) + <int64_t>day
    return not (bad & <uint64_t>0x8080808080808080 | (day - 1 >= (month & 31)) | (days[0] < FIRST_DAY))


cdef inline bint zone_from_text(const uint8_t *text, size_t length, int64_t *east) noexcept nogil:
    """Read all of `+HH[:MM[:SS]]`, whose hours may have three digits, into seconds east of Greenwich."""
    cdef size_t n_hour = 2 if length < 4 or text[3] == c":" else 3
    cdef size_t at
    cdef int64_t seconds = 0
    cdef int64_t unit = 3600
    if unlikely(length < 1 + n_hour or (text[0] != c"+") & (text[0] != c"-")):
        return False
    for at in range(1, 1 + n_hour):
        if unlikely(not is_digit(text[at])):
            return False
        seconds = seconds * 10 + (text[at] - c"0")
    seconds *= 3600
    at = 1 + n_hour
    while unlikely(at != length):
        unit //= 60
        if unit == 0 or length - at < 3 or text[at] != c":" or not is_digit(text[at + 1]) or not is_digit(text[at + 2]):
            return False
        if text[at + 1] > c"5":
            return False
        seconds += ((text[at + 1] - c"0") * 10 + (text[at + 2] - c"0")) * unit
        at += 3
    east[0] = -seconds if text[0] == c"-" else seconds
    return seconds < ZONE_LIMIT_SECONDS


cdef inline size_t zone_start(const uint8_t *text, size_t start, size_t end) noexcept nogil:
    """The start of the offset in a fraction and an offset in [start, end); `end` without offset."""
    cdef size_t at = start
    if end - start >= 3 and ((text[end - 3] == c"+") | (text[end - 3] == c"-")):
        return end - 3
    # A fraction has at most seven bytes.
    while at != end and at - start < 8:
        if text[at] == c"+" or text[at] == c"-":
            return at
        at += 1
    return end
