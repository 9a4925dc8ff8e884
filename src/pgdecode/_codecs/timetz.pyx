"""timetz, a time of day with an offset: text, also from binary, as Arrow has no such type."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from pgdecode._codec cimport Codec
from pgdecode._codecs.calendar cimport write_clock, write_offset
from pgdecode._codecs.clock cimport (
    US_PER_DAY,
    US_PER_SECOND,
    ZONE_LIMIT_SECONDS,
    clock_from_text,
    fraction_from_text,
    zone_from_text,
    zone_start,
)
from pgdecode._column cimport Column, put_bytes
from pgdecode._cursor cimport be32, be64
from pgdecode._fault cimport FAULT_BAD_VALUE, FAULT_WRONG_SIZE, FaultCode, rarely

cdef enum:
    TIMETZ_BYTES = 25  # 24:00:00.000000+167:59:59


cdef FaultCode put_timetz(Column *out, int64_t us, int64_t east) noexcept nogil:
    """Append a time of day with its offset as timetz_out prints it (EncodeTimeOnly, utils/adt/datetime.c)."""
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
    if rarely(length < 8 or not clock_from_text(value, &hour, &minute, &second)):
        return FAULT_BAD_VALUE
    end = zone_start(value, 8, length)
    if rarely(not zone_from_text(value + end, length - end, &east)):
        return FAULT_BAD_VALUE
    if rarely((hour > 24) | (minute > 59) | (second > 60) or not fraction_from_text(value, 8, end, &us)):
        return FAULT_BAD_VALUE
    us += (hour * 3600 + minute * 60 + second) * US_PER_SECOND
    return FAULT_BAD_VALUE if us > US_PER_DAY else put_timetz(out, us, east)


cdef FaultCode timetz_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append as text 12 bytes, big-endian: int64 microseconds since midnight, int32 seconds west of Greenwich.

    Faults: WRONG_SIZE, BAD_VALUE. Source: timetz_recv, utils/adt/date.c; it takes 16 hours of offset, but timetz_send
    sends what TimeZone may have given, which is more.
    """
    cdef int64_t us, west
    if rarely(length != 12):
        return FAULT_WRONG_SIZE
    us = <int64_t>be64(value)
    west = <int32_t>be32(value + 8)
    if rarely(us < 0 or us > US_PER_DAY):
        return FAULT_BAD_VALUE
    if rarely(west <= -ZONE_LIMIT_SECONDS or west >= ZONE_LIMIT_SECONDS):
        return FAULT_BAD_VALUE
    return put_timetz(out, us, -west)


cdef bint timetz_codec(str name, Codec *codec):
    """Fill the decoders of timetz; whether it is it."""
    if name != "timetz":
        return False
    codec.from_text, codec.from_binary = timetz_from_text, timetz_from_binary
    return True
