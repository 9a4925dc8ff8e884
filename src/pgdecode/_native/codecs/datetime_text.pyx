"""Dates, times and intervals in PostgreSQL's own text, under DateStyle ISO, IntervalStyle postgres and TimeZone UTC."""

from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, strlen

from pgdecode._native.arrow.column_builder cimport Column, put_bytes
from pgdecode._native.codecs.codec cimport Codec
from pgdecode._native.codecs.text cimport text_from_text
from pgdecode._native.cursor cimport be32, be64
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_WRONG_SIZE, FaultCode, unlikely
from pgdecode._native.literals.calendar cimport write_clock, write_day
from pgdecode._native.literals.clock cimport END_DATE, END_TIMESTAMP, MIN_DAY, MIN_TIMESTAMP, US_PER_DAY
from pgdecode._native.literals.rendering cimport write_byte, write_decimal

cdef enum:
    MOMENT_BYTES = 35    # 294276-12-31 23:59:59.999999+00 BC, if there were one
    INTERVAL_BYTES = 96  # -178956970 years -8 mons +2147483647 days -2562047788:00:54.775808


cdef uint8_t *write_text(uint8_t *at, const char *text) noexcept nogil:
    """Write a text that ends with a NUL, without it."""
    cdef size_t length = strlen(text)
    memcpy(at, text, length)
    return at + length


cdef FaultCode put_infinity(Column *out, bint negative) noexcept nogil:
    return put_bytes(out, b"-infinity", 9) if negative else put_bytes(out, b"infinity", 8)


cdef FaultCode date_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append YYYY-MM-DD, BC behind it or not, or an infinity.

    Faults: WRONG_SIZE, BAD_VALUE past the server's range. Source: date_out, utils/adt/date.c.
    """
    cdef uint8_t[MOMENT_BYTES] text
    cdef uint8_t *at
    cdef bint before_christ = False
    cdef int32_t days
    if unlikely(length != 4):
        return FAULT_WRONG_SIZE
    days = <int32_t>be32(value)
    if unlikely(days == INT32_MAX or days == INT32_MIN):
        return put_infinity(out, days < 0)
    if unlikely(days < MIN_DAY or days >= END_DATE):
        return FAULT_BAD_VALUE
    at = write_day(text, days, &before_christ)
    if before_christ:
        at = write_text(at, b" BC")
    return put_bytes(out, text, <size_t>(at - text))


cdef FaultCode time_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append HH:MM:SS[.ffffff], 24:00:00 at most. Faults: WRONG_SIZE, BAD_VALUE. Source: time_out, utils/adt/date.c."""
    cdef uint8_t[MOMENT_BYTES] text
    cdef uint64_t us
    if unlikely(length != 8):
        return FAULT_WRONG_SIZE
    us = be64(value)
    if unlikely(us > <uint64_t>US_PER_DAY):
        return FAULT_BAD_VALUE
    return put_bytes(out, text, <size_t>(write_clock(text, us) - text))


cdef inline FaultCode put_moment(const uint8_t *value, size_t length, Column *out, const char *zone) noexcept nogil:
    """Append a timestamp and the text of its zone. Faults: WRONG_SIZE, BAD_VALUE past the server's range."""
    cdef uint8_t[MOMENT_BYTES] text
    cdef uint8_t *at
    cdef bint before_christ = False
    cdef int64_t us
    cdef uint64_t since
    if unlikely(length != 8):
        return FAULT_WRONG_SIZE
    us = <int64_t>be64(value)
    if unlikely(us == INT64_MAX or us == INT64_MIN):
        return put_infinity(out, us < 0)
    if unlikely(us < MIN_TIMESTAMP or us >= END_TIMESTAMP):
        return FAULT_BAD_VALUE
    # From the first day on, so that the division rounds down.
    since = <uint64_t>us - <uint64_t>MIN_TIMESTAMP
    at = write_day(text, <int64_t>(since // <uint64_t>US_PER_DAY) + MIN_DAY, &before_christ)
    at = write_clock(write_byte(at, c" "), since % <uint64_t>US_PER_DAY)
    at = write_text(at, zone)
    if before_christ:
        at = write_text(at, b" BC")
    return put_bytes(out, text, <size_t>(at - text))


cdef FaultCode timestamp_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append YYYY-MM-DD HH:MM:SS[.ffffff][ BC] or an infinity.

    Faults: WRONG_SIZE, BAD_VALUE past the server's range. Source: timestamp_out, utils/adt/timestamp.c.
    """
    return put_moment(value, length, out, b"")


cdef FaultCode timestamptz_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append YYYY-MM-DD HH:MM:SS[.ffffff]+00[ BC], as a session with TimeZone UTC has it, or an infinity.

    Faults: as timestamp's. Source: timestamptz_out, utils/adt/timestamp.c.
    """
    return put_moment(value, length, out, b"+00")


cdef uint8_t *write_part(
    uint8_t *at, int32_t number, const char *unit, bint first, bint *after_negative
) noexcept nogil:
    """Write a part of an interval that is not 0, with a sign where the part before it was negative.

    Source: AddPostgresIntPart, utils/adt/datetime.c.
    """
    if number == 0:
        return at
    if not first:
        at = write_byte(at, c" ")
    if number < 0:
        at = write_byte(at, c"-")
    elif after_negative[0]:
        at = write_byte(at, c"+")
    at = write_decimal(at, 0 - <uint64_t>number if number < 0 else <uint64_t>number)
    at = write_text(write_byte(at, c" "), unit)
    if number != 1:
        at = write_byte(at, c"s")
    after_negative[0] = number < 0
    return at


cdef FaultCode interval_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append `1 year 2 mons -3 days +04:05:06.7`, or an infinity, which before 17 was a finite interval.

    Faults: WRONG_SIZE. Source: EncodeInterval, utils/adt/datetime.c.
    """
    cdef uint8_t[INTERVAL_BYTES] text
    cdef uint8_t *at = text
    cdef bint after_negative = False
    cdef int64_t us
    cdef int32_t days, months
    if unlikely(length != 16):
        return FAULT_WRONG_SIZE
    us = <int64_t>be64(value)
    days = <int32_t>be32(value + 8)
    months = <int32_t>be32(value + 12)
    if us == INT64_MAX and days == INT32_MAX and months == INT32_MAX:
        return put_infinity(out, False)
    if us == INT64_MIN and days == INT32_MIN and months == INT32_MIN:
        return put_infinity(out, True)
    at = write_part(at, months // 12, b"year", True, &after_negative)
    at = write_part(at, months % 12, b"mon", at == text, &after_negative)
    at = write_part(at, days, b"day", at == text, &after_negative)
    if us or at == text:
        if at != text:
            at = write_byte(at, c" ")
        if us < 0:
            at = write_byte(at, c"-")
        elif after_negative:
            at = write_byte(at, c"+")
        at = write_clock(at, 0 - <uint64_t>us if us < 0 else <uint64_t>us)
    return put_bytes(out, text, <size_t>(at - text))


cdef bint moment_forms_codec(str name, Codec *codec):
    """Fill the decoders of a codec of this family; whether it is one."""
    if name == "date_text":
        codec.from_binary = date_text_from_binary
    elif name == "time_text":
        codec.from_binary = time_text_from_binary
    elif name == "timestamp_text":
        codec.from_binary = timestamp_text_from_binary
    elif name == "timestamptz_text":
        codec.from_binary = timestamptz_text_from_binary
    elif name == "interval_text":
        codec.from_binary = interval_text_from_binary
    else:
        return False
    codec.from_text = text_from_text
    return True
