"""interval: text of all four IntervalStyles, and binary.

No two styles print the same text for different intervals, so that each text shows its style. Text that interval_in
would understand differently under different settings (`-1 days 02:03:04`) is never printed, and is refused.
"""

from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from pgdecode._native.arrow.column_builder cimport Column, mark, put_int32, put_int64
from pgdecode._native.codecs.codec cimport Codec, add_codec
from pgdecode._native.cursor cimport Cursor, be32, be64, bytes_left, cursor_of
from pgdecode._native.fault cimport (
    FAULT_BAD_VALUE, FAULT_SETTING, FAULT_TOO_HIGH, FAULT_TOO_LOW, FAULT_WRONG_SIZE, OK, FaultCode, unlikely,
)
from pgdecode._native.literals.clock cimport US_PER_SECOND, is_digit

cdef extern from *:
    """
    #define MAX_HOURS INT64_C(2562047788)  /* in int64 microseconds */
    """
    const int64_t MAX_HOURS

cdef enum:
    MAX_DIGITS = 10  # of MAX_HOURS

cdef enum Unit:
    YEARS
    MONTHS
    DAYS
    HOURS
    MINUTES
    SECONDS
    N_UNITS

cdef struct Interval:
    int64_t months
    int64_t days
    int64_t us

cdef struct Number:
    int sign         # of the text: -1, 1, or 0 if there is none
    int n_digits
    int64_t whole    # magnitude
    int64_t us       # of a fraction of seconds
    bint fractional


cdef inline bint at_end(const Cursor *cursor) noexcept nogil:
    return cursor.at == cursor.end


cdef inline bint take_byte(Cursor *cursor, uint8_t byte) noexcept nogil:
    """Skip a byte, if it comes next."""
    if cursor.at == cursor.end or cursor.at[0] != byte:
        return False
    cursor.at += 1
    return True


cdef bint take_digits(Cursor *cursor, Number *number) noexcept nogil:
    """Read 1-10 digits."""
    number.whole = 0
    number.n_digits = 0
    while cursor.at != cursor.end and is_digit(cursor.at[0]):
        if number.n_digits == MAX_DIGITS:
            return False
        number.whole = number.whole * 10 + (cursor.at[0] - c"0")
        number.n_digits += 1
        cursor.at += 1
    return number.n_digits > 0


cdef bint take_fraction(Cursor *cursor, Number *number) noexcept nogil:
    """Read a point and 1-6 digits, if there is a point."""
    cdef int64_t unit = US_PER_SECOND
    number.us = 0
    number.fractional = take_byte(cursor, c".")
    if not number.fractional:
        return True
    while unit > 1 and cursor.at != cursor.end and is_digit(cursor.at[0]):
        unit //= 10
        number.us += (cursor.at[0] - c"0") * unit
        cursor.at += 1
    return unit < US_PER_SECOND


cdef bint take_number(Cursor *cursor, Number *number) noexcept nogil:
    """Read a whole number with an optional sign."""
    number.sign = -1 if take_byte(cursor, c"-") else take_byte(cursor, c"+")
    number.us = 0
    number.fractional = False
    return take_digits(cursor, number)


cdef bint take_clock(Cursor *cursor, Number *hours, int64_t *us) noexcept nogil:
    """Read `:MM:SS[.ffffff]` after hours.

    The result is the microseconds of the whole time, with the sign of the hours.
    """
    cdef Number minutes, seconds
    cdef uint64_t size
    if not take_byte(cursor, c":") or not take_digits(cursor, &minutes) or not take_byte(cursor, c":"):
        return False
    if not take_digits(cursor, &seconds) or not take_fraction(cursor, &seconds):
        return False
    if minutes.n_digits != 2 or seconds.n_digits != 2 or minutes.whole > 59 or seconds.whole > 59:
        return False
    if hours.whole > MAX_HOURS:
        return False
    size = <uint64_t>((hours.whole * 60 + minutes.whole) * 60 + seconds.whole) * US_PER_SECOND + <uint64_t>seconds.us
    if hours.sign < 0:
        us[0] = <int64_t>(0 - size)
        return size <= <uint64_t>INT64_MAX + 1
    us[0] = <int64_t>size
    return size <= <uint64_t>INT64_MAX


cdef bint add(Interval *interval, Unit unit, int sign, const Number *number) noexcept nogil:
    """Add units; False past int64. Months and days are checked when they are appended."""
    cdef int64_t us
    if number.fractional and unit != SECONDS:
        return False
    if unit == YEARS:
        interval.months += sign * number.whole * 12
    elif unit == MONTHS:
        interval.months += sign * number.whole
    elif unit == DAYS:
        interval.days += sign * number.whole
    else:
        if unit == HOURS:
            if number.whole > MAX_HOURS:
                return False
            us = number.whole * 3600 * US_PER_SECOND
        else:
            us = number.whole * (60 if unit == MINUTES else 1) * US_PER_SECOND + number.us
        us *= sign
        if (interval.us > INT64_MAX - us) if us > 0 else (interval.us < INT64_MIN - us):
            return False
        interval.us += us
    return True


cdef Unit take_unit(Cursor *cursor) noexcept nogil:
    """Read the name of a unit, in the singular or plural; N_UNITS if there is none."""
    cdef const char *names = b"yearmon day hourmin sec "
    cdef size_t length
    cdef int i
    for i in range(<int>N_UNITS):
        length = 4 if i == YEARS or i == HOURS else 3
        if bytes_left(cursor[0]) >= length and memcmp(cursor.at, names + 4 * i, length) == 0:
            for _ in range(length):
                cursor.at += 1
            take_byte(cursor, c"s")
            return <Unit>i
    return N_UNITS


cdef FaultCode verbose_from_text(Cursor cursor, Interval *interval) noexcept nogil:
    """Read the text after `@` in style postgres_verbose: ` 1 year -2 days 3.5 secs ago`."""
    cdef int ago = 1
    cdef int before = -1
    cdef Number number
    cdef Unit unit
    if bytes_left(cursor) == 2 and memcmp(cursor.at, b" 0", 2) == 0:
        return OK
    if bytes_left(cursor) > 4 and memcmp(cursor.end - 4, b" ago", 4) == 0:
        ago = -1
        cursor.end -= 4
    while True:
        if not take_byte(&cursor, c" ") or not take_number(&cursor, &number) or not take_fraction(&cursor, &number):
            return FAULT_BAD_VALUE
        if not take_byte(&cursor, c" "):
            return FAULT_BAD_VALUE
        unit = take_unit(&cursor)
        if unit == N_UNITS or <int>unit <= before or number.sign > 0:
            return FAULT_BAD_VALUE
        # `ago` negates all fields, so that the first one has no sign. Before 15, the first field keeps its sign if it
        # is -2147483648, which cannot be negated. The sign of hours after it could then mean either.
        if number.sign and (before < 0 or ago < 0 and unit == HOURS and number.whole == -<int64_t>INT32_MIN):
            return FAULT_BAD_VALUE
        if not add(interval, unit, -ago if number.sign else ago, &number):
            return FAULT_BAD_VALUE
        if at_end(&cursor):
            return OK
        before = unit


cdef FaultCode iso_8601_from_text(Cursor cursor, Interval *interval) noexcept nogil:
    """Read the text after `P` in style iso_8601: `1Y-2M3DT4H5M-6.789S`."""
    cdef const char *names = b"YMDHMS"
    cdef int next_unit = YEARS
    cdef Number number
    while True:
        if next_unit < HOURS and take_byte(&cursor, c"T"):
            next_unit = HOURS
        if not take_number(&cursor, &number) or not take_fraction(&cursor, &number):
            return FAULT_BAD_VALUE
        while True:
            # This unit is after the last one of its half: days before the T, seconds after it.
            if next_unit == N_UNITS:
                return FAULT_BAD_VALUE
            if take_byte(&cursor, <uint8_t>names[next_unit]):
                break
            next_unit += 1
            if next_unit == HOURS:
                return FAULT_BAD_VALUE
        if not add(interval, <Unit>next_unit, -1 if number.sign < 0 else 1, &number):
            return FAULT_BAD_VALUE
        if at_end(&cursor):
            return OK
        next_unit += 1
        if next_unit == HOURS and not take_byte(&cursor, c"T"):
            return FAULT_BAD_VALUE


cdef FaultCode postgres_from_text(Cursor cursor, Number number, Interval *interval) noexcept nogil:
    """Read the text after the first number in style postgres: `-1 years +2 mons 3 days 04:05:06`."""
    cdef bint negative = number.sign < 0
    cdef int n_signs = 0
    cdef int before = -1
    cdef Unit unit
    while True:
        n_signs += number.sign != 0
        if take_byte(&cursor, c" "):
            unit = take_unit(&cursor)
            if <int>unit <= before or unit > DAYS or not add(interval, unit, -1 if number.sign < 0 else 1, &number):
                return FAULT_BAD_VALUE
            if not at_end(&cursor):
                before = unit
                if not take_byte(&cursor, c" ") or not take_number(&cursor, &number):
                    return FAULT_BAD_VALUE
                continue
        elif not take_clock(&cursor, &number, &interval.us) or not at_end(&cursor):
            return FAULT_BAD_VALUE
        # IntervalStyle sql_standard would apply a single leading sign to all fields (DecodeInterval).
        return FAULT_SETTING if negative and n_signs == 1 and before >= 0 else OK


cdef FaultCode sql_standard_from_text(Cursor cursor, Number number, Interval *interval) noexcept nogil:
    """Read the text after the first number in style sql_standard: `1-2`, `-3 4:05:06`, or `+1-2 -3 +4:05:06`."""
    cdef Number months, days
    cdef int sign = -1 if number.sign < 0 else 1
    if take_byte(&cursor, c"-"):
        if not take_digits(&cursor, &months) or months.whole > 11:
            return FAULT_BAD_VALUE
        interval.months = sign * (number.whole * 12 + months.whole)
        if at_end(&cursor):
            return OK if number.sign <= 0 else FAULT_BAD_VALUE
        if not take_byte(&cursor, c" ") or not take_number(&cursor, &days) or not take_byte(&cursor, c" "):
            return FAULT_BAD_VALUE
        interval.days = days.whole if days.sign > 0 else -days.whole
        sign = days.sign
        days = number
        if not take_number(&cursor, &number) or not take_clock(&cursor, &number, &interval.us) or not at_end(&cursor):
            return FAULT_BAD_VALUE
        # All three signs are printed. With only a leading minus, the setting would decide to which fields it applies.
        if days.sign and sign and number.sign:
            return OK
        return FAULT_SETTING if days.sign < 0 and not sign and not number.sign else FAULT_BAD_VALUE
    # A single sign applies to both fields.
    interval.days = sign * number.whole
    if not take_byte(&cursor, c" ") or not take_digits(&cursor, &days):
        return FAULT_BAD_VALUE
    days.sign = number.sign
    if number.sign > 0 or not take_clock(&cursor, &days, &interval.us) or not at_end(&cursor):
        return FAULT_BAD_VALUE
    # This style does not pad hours. Padded text would mean something else under style postgres.
    if number.sign and days.n_digits > 1 and days.whole < 10:
        return FAULT_SETTING
    return OK


cdef FaultCode put_interval(Column *out, const Interval *interval) noexcept nogil:
    """Append three fields. If all are at their limits, they are infinity since 17; before, a finite interval."""
    cdef FaultCode code
    cdef int64_t months = interval.months
    cdef int64_t days = interval.days
    if months < INT32_MIN or months > INT32_MAX or days < INT32_MIN or days > INT32_MAX:
        return FAULT_BAD_VALUE
    if interval.us == INT64_MAX and months == INT32_MAX and days == INT32_MAX:
        return FAULT_TOO_HIGH
    if interval.us == INT64_MIN and months == INT32_MIN and days == INT32_MIN:
        return FAULT_TOO_LOW
    code = put_int32(&out.children[0], <int32_t>months)
    if code == OK:
        code = put_int32(&out.children[1], <int32_t>days)
    if code == OK:
        code = put_int64(&out.children[2], interval.us)
    return code if code != OK else mark(out, 1)


cdef FaultCode interval_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append months, days and microseconds of text in any IntervalStyle.

    Faults: TOO_HIGH, TOO_LOW for infinities; SETTING if the meaning depends on IntervalStyle; BAD_VALUE. Source:
    EncodeInterval, utils/adt/datetime.c.
    """
    cdef Cursor cursor = cursor_of(value, length)
    cdef Number number
    cdef Interval interval
    cdef FaultCode code
    cdef const uint8_t *p
    interval.months = interval.days = interval.us = 0
    if take_byte(&cursor, c"@"):
        code = verbose_from_text(cursor, &interval)
    elif take_byte(&cursor, c"P"):
        code = iso_8601_from_text(cursor, &interval)
    elif length == 8 and memcmp(value, b"infinity", 8) == 0:
        return FAULT_TOO_HIGH
    elif length == 9 and memcmp(value, b"-infinity", 9) == 0:
        return FAULT_TOO_LOW
    elif not take_number(&cursor, &number):
        return FAULT_BAD_VALUE
    elif at_end(&cursor):
        code = OK if length == 1 and number.whole == 0 else FAULT_BAD_VALUE
    else:
        p = cursor.at
        if p[0] == c"-" or p[0] == c" " and bytes_left(cursor) > 1 and is_digit(p[1]):
            code = sql_standard_from_text(cursor, number, &interval)
        else:
            code = postgres_from_text(cursor, number, &interval)
    return put_interval(out, &interval) if code == OK else code


cdef FaultCode interval_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append months, days and microseconds of 16 bytes, big-endian: int64 microseconds, int32 days, int32 months.

    Faults: WRONG_SIZE; TOO_HIGH, TOO_LOW for infinities. Source: interval_recv, utils/adt/timestamp.c.
    """
    cdef Interval interval
    if unlikely(length != 16):
        return FAULT_WRONG_SIZE
    interval.us = <int64_t>be64(value)
    interval.days = <int32_t>be32(value + 8)
    interval.months = <int32_t>be32(value + 12)
    return put_interval(out, &interval)


add_codec("interval", interval_from_text, interval_from_binary)
