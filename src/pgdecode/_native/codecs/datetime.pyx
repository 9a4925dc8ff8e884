"""date, time, timetz, timestamp and timestamptz: text of DateStyle ISO, and binary."""

from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

from pgdecode._native.arrow.column_builder cimport Column, put_bytes, put_int32, put_int64
from pgdecode._native.codecs.block_decoder cimport fixed_block
from pgdecode._native.codecs.codec cimport Cells, Codec, add_codec
from pgdecode._native.cursor cimport be32, be64
from pgdecode._native.fault cimport (
    FAULT_BAD_VALUE, FAULT_SETTING, FAULT_TOO_HIGH, FAULT_TOO_LOW, FAULT_WRONG_SIZE, FaultCode, unlikely,
)
from pgdecode._native.literals.calendar cimport write_clock, write_offset
from pgdecode._native.literals.clock cimport (
    END_DATE,
    END_TIMESTAMP,
    END_TIMESTAMP_DAY,
    MIN_DAY,
    MIN_TIMESTAMP,
    UNIX_TO_POSTGRES_DAYS,
    UNIX_TO_POSTGRES_US,
    US_PER_DAY,
    US_PER_SECOND,
    ZONE_LIMIT_SECONDS,
    clock_from_text,
    days_from_date,
    days_from_text,
    fraction_from_text,
    is_digit,
    year_digits,
    zone_from_text,
    zone_start,
)

cdef enum:
    # A zone can move the local date seven days past the range. Later dates are refused before they could overflow.
    ZONE_DAYS = 7


cdef bint is_letter(uint8_t byte) noexcept nogil:
    return <uint8_t>((byte | 0x20) - c"a") < 26


cdef bint of_other_style(const uint8_t *value, size_t length) noexcept nogil:
    """Whether text looks like DateStyle SQL (29/02/2024), German (29.02.2024) or Postgres (29-02-2024, Thu Feb 29)."""
    cdef const char *weekdays = b"SunMonTueWedThuFriSat"
    cdef size_t i, n_year
    if length < 10:
        return False
    if value[3] == c" ":
        for i in range(0, 21, 3):
            if memcmp(value, weekdays + i, 3) == 0:
                return True
    if (value[2] == c"/" or value[2] == c"." or value[2] == c"-") and value[2] == value[5]:
        for i in range(10):
            if i != 2 and i != 5 and not is_digit(value[i]):
                return False
        return True
    # ISO, except for the name of a zone.
    n_year = year_digits(value, length)
    if n_year == 0 or length < n_year + 19 or not is_digit(value[0]) or not is_digit(value[n_year + 14]):
        return False
    i = n_year + 15
    while i < length and i < n_year + 22 and (value[i] == c"." or is_digit(value[i])):
        i += 1
    if length - i < 4 or value[i] != c" ":
        return False
    return is_letter(value[i + 1]) and is_letter(value[i + 2]) and is_letter(value[i + 3])


cdef FaultCode why_not(const uint8_t *value, size_t length) noexcept nogil:
    """The fault of text that is not a date or timestamp of style ISO.

    A separate function, so that decoders stay small.
    """
    if length == 8 and memcmp(value, b"infinity", 8) == 0:
        return FAULT_TOO_HIGH
    if length == 9 and memcmp(value, b"-infinity", 9) == 0:
        return FAULT_TOO_LOW
    return FAULT_SETTING if of_other_style(value, length) else FAULT_BAD_VALUE


cdef inline bint ends_before_christ(const uint8_t *value, size_t length) noexcept nogil:
    return value[length - 1] == c"C" and value[length - 2] == c"B" and value[length - 3] == c" "


cdef FaultCode date_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append days since 1970-01-01 of `YYYY-MM-DD[ BC]`, four or more year digits.

    Faults: TOO_HIGH, TOO_LOW for infinities; SETTING for other DateStyles; BAD_VALUE. Source: date_out,
    utils/adt/date.c.
    """
    cdef int64_t days = 0
    cdef bint before_christ = False
    cdef size_t n_year = year_digits(value, length)
    if unlikely(n_year == 0):
        return why_not(value, length)
    if unlikely(length != n_year + 6):
        before_christ = True
        if length != n_year + 9 or not ends_before_christ(value, length):
            return why_not(value, length)
    if unlikely(not days_from_text(value, n_year, before_christ, &days)):
        return why_not(value, length)
    if unlikely(days < MIN_DAY + UNIX_TO_POSTGRES_DAYS or days >= END_DATE + UNIX_TO_POSTGRES_DAYS):
        return FAULT_BAD_VALUE
    return put_int32(out, <int32_t>days)


cdef FaultCode date_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append days since 1970-01-01 of four bytes, big-endian days since 2000-01-01.

    Faults: WRONG_SIZE; TOO_HIGH, TOO_LOW for infinities; BAD_VALUE past the server's range. Source: date_recv,
    utils/adt/date.c.
    """
    cdef int32_t days
    if unlikely(length != 4):
        return FAULT_WRONG_SIZE
    days = <int32_t>be32(value)
    if unlikely(days == INT32_MAX):
        return FAULT_TOO_HIGH
    if unlikely(days == INT32_MIN):
        return FAULT_TOO_LOW
    if unlikely(days < MIN_DAY or days >= END_DATE):
        return FAULT_BAD_VALUE
    return put_int32(out, days + UNIX_TO_POSTGRES_DAYS)


cdef FaultCode time_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append microseconds since midnight of `HH:MM:SS[.ffffff]`.

    Faults: TOO_HIGH for 24:00:00, also written 23:59:60; BAD_VALUE. Source: time_out, utils/adt/date.c.
    """
    cdef int64_t hour = 0
    cdef int64_t minute = 0
    cdef int64_t second = 0
    cdef int64_t us = 0
    if unlikely(length < 8 or not clock_from_text(value, &hour, &minute, &second)):
        return FAULT_BAD_VALUE
    if unlikely((hour > 24) | (minute > 59) | (second > 60) or not fraction_from_text(value, 8, length, &us)):
        return FAULT_BAD_VALUE
    us += (hour * 3600 + minute * 60 + second) * US_PER_SECOND
    if unlikely(us >= US_PER_DAY):
        return FAULT_TOO_HIGH if us == US_PER_DAY else FAULT_BAD_VALUE
    return put_int64(out, us)


cdef FaultCode time_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append microseconds since midnight of eight bytes, big-endian.

    Faults: WRONG_SIZE; TOO_HIGH for 24:00:00; BAD_VALUE. Source: time_recv, utils/adt/date.c.
    """
    cdef int64_t us
    if unlikely(length != 8):
        return FAULT_WRONG_SIZE
    us = <int64_t>be64(value)
    if unlikely(us < 0 or us >= US_PER_DAY):
        return FAULT_TOO_HIGH if us == US_PER_DAY else FAULT_BAD_VALUE
    return put_int64(out, us)


cdef inline bint time_of_day(const uint8_t *text, size_t length, int64_t *us) noexcept nogil:
    """Read `HH:MM:SS[.ffffff]` of a day."""
    cdef int64_t hour = 0
    cdef int64_t minute = 0
    cdef int64_t second = 0
    if unlikely(not clock_from_text(text, &hour, &minute, &second)):
        return False
    if unlikely((hour > 23) | (minute > 59) | (second > 59) or not fraction_from_text(text, 8, length, us)):
        return False
    us[0] += (hour * 3600 + minute * 60 + second) * US_PER_SECOND
    return True


cdef inline FaultCode put_moment(Column *out, int64_t us) noexcept nogil:
    """Append microseconds since 1970-01-01 of finite microseconds since 2000-01-01."""
    if unlikely(us < MIN_TIMESTAMP or us >= END_TIMESTAMP):
        return FAULT_BAD_VALUE
    # int64 since 1970 ends in January 294247, 30 years before the server's range.
    if unlikely(us > INT64_MAX - UNIX_TO_POSTGRES_US):
        return FAULT_TOO_HIGH
    return put_int64(out, us + UNIX_TO_POSTGRES_US)


cdef inline FaultCode put_moment_of_text(const uint8_t *value, size_t length, Column *out, bint zoned) noexcept nogil:
    """Append a timestamp of `YYYY-MM-DD HH:MM:SS[.ffffff][+HH[:MM[:SS]]][ BC]`. Only zoned types have the offset."""
    cdef int64_t days = 0
    cdef int64_t us = 0
    cdef int64_t east = 0
    cdef size_t end = length
    cdef size_t clock_end
    cdef bint before_christ = False
    cdef size_t n_year = year_digits(value, length)
    cdef size_t start = n_year + 15
    if unlikely(n_year == 0 or length < start):
        return why_not(value, length)
    if unlikely(value[length - 1] == c"C"):
        before_christ = ends_before_christ(value, length)
        end -= 3
        if not before_christ or end < start:
            return why_not(value, length)
    clock_end = end
    if zoned:
        clock_end = zone_start(value, start, end)
        if unlikely(not zone_from_text(value + clock_end, end - clock_end, &east)):
            return why_not(value, length)
    if unlikely(value[n_year + 6] != c" " or not days_from_text(value, n_year, before_christ, &days)):
        return why_not(value, length)
    # Unlike times, timestamps are printed from a day and a time of that day, so that 24:00:00 and second 60 do not
    # occur.
    if unlikely(not time_of_day(value + n_year + 7, clock_end - n_year - 7, &us)):
        return why_not(value, length)
    days -= UNIX_TO_POSTGRES_DAYS
    if unlikely(days < MIN_DAY - ZONE_DAYS or days >= END_TIMESTAMP_DAY + ZONE_DAYS):
        return FAULT_BAD_VALUE
    us += days * US_PER_DAY - east * US_PER_SECOND
    return put_moment(out, us)


cdef inline FaultCode put_moment_of_binary(const uint8_t *value, size_t length, Column *out) noexcept nogil:
    cdef int64_t us
    if unlikely(length != 8):
        return FAULT_WRONG_SIZE
    us = <int64_t>be64(value)
    if unlikely(us == INT64_MAX):
        return FAULT_TOO_HIGH
    if unlikely(us == INT64_MIN):
        return FAULT_TOO_LOW
    return put_moment(out, us)


cdef FaultCode timestamp_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append microseconds since 1970-01-01 of `YYYY-MM-DD HH:MM:SS[.ffffff][ BC]`.

    Faults: TOO_HIGH, TOO_LOW for infinities and past int64; SETTING for other DateStyles; BAD_VALUE. Source:
    timestamp_out, utils/adt/timestamp.c.
    """
    return put_moment_of_text(value, length, out, False)


cdef FaultCode timestamp_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append microseconds since 1970-01-01 of eight bytes, big-endian microseconds since 2000-01-01.

    Faults: WRONG_SIZE; TOO_HIGH, TOO_LOW for infinities and past int64; BAD_VALUE past the server's range. Source:
    timestamp_recv, utils/adt/timestamp.c.
    """
    return put_moment_of_binary(value, length, out)


cdef FaultCode timestamptz_from_text(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append microseconds since 1970-01-01 UTC of `YYYY-MM-DD HH:MM:SS[.ffffff]+HH[:MM[:SS]][ BC]`.

    Faults: as timestamp's; SETTING also for a named zone. Source: timestamptz_out, utils/adt/timestamp.c.
    """
    return put_moment_of_text(value, length, out, True)


cdef FaultCode timestamptz_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append microseconds since 1970-01-01 UTC of eight bytes; layout and faults are timestamp's.

    Source: timestamptz_recv, utils/adt/timestamp.c.
    """
    return put_moment_of_binary(value, length, out)


# -- blocks: years of four digits, offsets of whole hours; see block_decoder -----------------------------------------

cdef inline bint date_text(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef int64_t days = 0
    cdef int32_t narrow
    if unlikely(length != 10 or not days_from_date(value, &days)):
        return False
    narrow = <int32_t>days
    memcpy(slot, &narrow, sizeof(narrow))
    return True


cdef inline bint date_binary(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef int32_t days
    if unlikely(length != sizeof(days)):
        return False
    days = <int32_t>be32(value)
    if unlikely(days < MIN_DAY or days >= END_DATE):
        return False
    days += UNIX_TO_POSTGRES_DAYS
    memcpy(slot, &days, sizeof(days))
    return True


cdef inline bint moment(const uint8_t *text, size_t length, int64_t *us) noexcept nogil:
    """Read `YYYY-MM-DD HH:MM:SS[.ffffff]`, 19 bytes or more, into microseconds since 1970-01-01."""
    cdef int64_t days = 0
    if unlikely(not days_from_date(text, &days) or text[10] != c" "):
        return False
    if unlikely(not time_of_day(text + 11, length - 11, us)):
        return False
    us[0] += days * US_PER_DAY
    return True


cdef inline bint time_text(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef int64_t us = 0
    if unlikely(length < 8 or not time_of_day(value, length, &us)):
        return False
    memcpy(slot, &us, sizeof(us))
    return True


cdef inline bint time_binary(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef int64_t us
    if unlikely(length != sizeof(us)):
        return False
    us = <int64_t>be64(value)
    memcpy(slot, &us, sizeof(us))
    return 0 <= us < US_PER_DAY


cdef inline bint timestamp_text(const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec) noexcept nogil:
    cdef int64_t us = 0
    if unlikely(length < 19 or not moment(value, length, &us)):
        return False
    memcpy(slot, &us, sizeof(us))
    return True


cdef inline bint timestamptz_text(
    const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec
) noexcept nogil:
    cdef const uint8_t *zone
    cdef int64_t us = 0
    cdef int64_t east
    if unlikely(length < 22 or not moment(value, length - 3, &us)):
        return False
    zone = value + length - 3
    if unlikely((zone[0] != c"+") & (zone[0] != c"-") or not (is_digit(zone[1]) & is_digit(zone[2]))):
        return False
    east = (zone[1] - c"0") * 10 + (zone[2] - c"0")
    us -= (-east if zone[0] == c"-" else east) * 3600 * US_PER_SECOND
    memcpy(slot, &us, sizeof(us))
    return True


cdef inline bint timestamp_binary(
    const uint8_t *value, size_t length, uint8_t *slot, const Codec *codec
) noexcept nogil:
    cdef int64_t us
    if unlikely(length != sizeof(us)):
        return False
    us = <int64_t>be64(value)
    if unlikely(us < MIN_TIMESTAMP or us >= END_TIMESTAMP or us > INT64_MAX - UNIX_TO_POSTGRES_US):
        return False
    us += UNIX_TO_POSTGRES_US
    memcpy(slot, &us, sizeof(us))
    return True


cdef size_t date_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(date_text, date_binary, 4, cells, start, out, codec)


cdef size_t time_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(time_text, time_binary, 8, cells, start, out, codec)


cdef size_t timestamp_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(timestamp_text, timestamp_binary, 8, cells, start, out, codec)


cdef size_t timestamptz_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return fixed_block(timestamptz_text, timestamp_binary, 8, cells, start, out, codec)


cdef enum:
    TIMETZ_BYTES = 25  # 24:00:00.000000+167:59:59


cdef FaultCode put_timetz(Column *out, int64_t us, int64_t east) noexcept nogil:
    """Append a time of day with its offset, as timetz_out prints it (EncodeTimeOnly, utils/adt/datetime.c)."""
    cdef uint8_t[TIMETZ_BYTES] text
    cdef uint8_t *at = write_offset(write_clock(text, <uint64_t>us), east)
    return put_bytes(out, text, <size_t>(at - text))


cdef FaultCode timetz_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append `HH:MM:SS[.ffffff]+HH[:MM[:SS]]` as text, the way the server prints it; 24:00:00 is the last one.

    Faults: BAD_VALUE. Source: timetz_out, utils/adt/date.c.
    """
    cdef int64_t hour = 0
    cdef int64_t minute = 0
    cdef int64_t second = 0
    cdef int64_t us = 0
    cdef int64_t east = 0
    cdef size_t end
    if unlikely(length < 8 or not clock_from_text(value, &hour, &minute, &second)):
        return FAULT_BAD_VALUE
    end = zone_start(value, 8, length)
    if unlikely(not zone_from_text(value + end, length - end, &east)):
        return FAULT_BAD_VALUE
    if unlikely((hour > 24) | (minute > 59) | (second > 60) or not fraction_from_text(value, 8, end, &us)):
        return FAULT_BAD_VALUE
    us += (hour * 3600 + minute * 60 + second) * US_PER_SECOND
    return FAULT_BAD_VALUE if us > US_PER_DAY else put_timetz(out, us, east)


cdef FaultCode timetz_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append as text 12 bytes, big-endian: int64 microseconds since midnight, int32 seconds west of Greenwich.

    Faults: WRONG_SIZE, BAD_VALUE. Source: timetz_recv, utils/adt/date.c; it takes 16 hours of offset, but timetz_send
    sends what TimeZone may have given, which is more.
    """
    cdef int64_t us, west
    if unlikely(length != 12):
        return FAULT_WRONG_SIZE
    us = <int64_t>be64(value)
    west = <int32_t>be32(value + 8)
    if unlikely(us < 0 or us > US_PER_DAY):
        return FAULT_BAD_VALUE
    if unlikely(west <= -ZONE_LIMIT_SECONDS or west >= ZONE_LIMIT_SECONDS):
        return FAULT_BAD_VALUE
    return put_timetz(out, us, -west)


add_codec("date", date_from_text, date_from_binary, date_block)
add_codec("time", time_from_text, time_from_binary, time_block)
add_codec("timestamp", timestamp_from_text, timestamp_from_binary, timestamp_block)
add_codec("timestamptz", timestamptz_from_text, timestamptz_from_binary, timestamptz_block)
add_codec("timetz", timetz_from_text, timetz_from_binary)
