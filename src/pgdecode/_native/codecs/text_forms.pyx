"""Binary values as PostgreSQL's text: what the server prints for numbers, bytes, times and transaction snapshots.

Dates, times and intervals are those of DateStyle ISO, IntervalStyle postgres and TimeZone UTC. Each codec has the name
of the typed column's codec with `_text`. Values of constant size have writers; the maps of changes call these directly.
"""

from libc.stddef cimport size_t
from libc.stdint cimport (
    INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t,
)
from libc.string cimport memcpy, strlen

from pgdecode._native.arrow.column_builder cimport Column, add_bytes, end_bytes, put_bytes
from pgdecode._native.codecs.codec cimport CODECS, MOST_WRITTEN, Codec, CodecEntry, TextWriter, add_codec
from pgdecode._native.codecs.text cimport text_from_text
from pgdecode._native.cursor cimport be16, be32, be64
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_WRONG_SIZE, OK, FaultCode, unlikely
from pgdecode._native.literals.calendar cimport write_clock, write_day
from pgdecode._native.literals.clock cimport END_DATE, END_TIMESTAMP, MIN_DAY, MIN_TIMESTAMP, US_PER_DAY
from pgdecode._native.literals.rendering cimport (
    MAX_DIGITS, reserve_text, write_byte, write_byte_in_hex, write_decimal, write_number, write_signed,
)
from pgdecode._native.literals.shortest_float cimport write_float4, write_float8

cdef enum:
    CHUNK = 256          # bytes of a bytea written at a time
    INTERVAL_BYTES = 96  # -178956970 years -8 mons +2147483647 days -2562047788:00:54.775808
    HEAD = 20            # bytes of a pg_snapshot: the number of transactions in progress, xmin and xmax


# Writers of values of constant size; `written_from_binary` is the decoder of all of them.

cdef FaultCode written_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append the text of a value of constant size. Faults: WRONG_SIZE, BAD_VALUE."""
    cdef uint8_t[MOST_WRITTEN] text
    cdef uint8_t *end
    if unlikely(length != codec.binary_bytes):
        return FAULT_WRONG_SIZE
    end = codec.write_binary(value, length, text)
    return FAULT_BAD_VALUE if unlikely(end == NULL) else put_bytes(out, text, <size_t>(end - text))


cdef uint8_t *write_bool(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil:
    """Write `t` or `f`. Source: boolout, utils/adt/bool.c."""
    if unlikely(length != 1 or value[0] > 1):
        return NULL
    return write_byte(to, c"t" if value[0] else c"f")


cdef uint8_t *write_int2(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil:
    """Write an int2. Source: int2out, utils/adt/int.c."""
    return write_signed(to, <int16_t>be16(value)) if length == 2 else NULL


cdef uint8_t *write_int4(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil:
    """Write an int4. Source: int4out, utils/adt/int.c."""
    return write_signed(to, <int32_t>be32(value)) if length == 4 else NULL


cdef uint8_t *write_int8(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil:
    """Write an int8. Source: int8out, utils/adt/int8.c."""
    return write_signed(to, <int64_t>be64(value)) if length == 8 else NULL


cdef uint8_t *write_oid(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil:
    """Write an oid, xid or cid. Source: oidout, utils/adt/oid.c."""
    return write_number(to, be32(value)) if length == 4 else NULL


cdef uint8_t *write_xid8(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil:
    """Write an xid8. Source: xid8out, utils/adt/xid.c."""
    return write_number(to, be64(value)) if length == 8 else NULL


cdef uint8_t *write_float4_form(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil:
    """Write a float4, as of PostgreSQL 12. Source: float4out, utils/adt/float.c."""
    cdef uint32_t bits
    cdef float number = 0
    if unlikely(length != 4):
        return NULL
    bits = be32(value)
    memcpy(&number, &bits, sizeof(number))
    return to + write_float4(to, number)


cdef uint8_t *write_float8_form(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil:
    """Write a float8, as of PostgreSQL 12. Source: float8out, utils/adt/float.c."""
    cdef uint64_t bits
    cdef double number = 0
    if unlikely(length != 8):
        return NULL
    bits = be64(value)
    memcpy(&number, &bits, sizeof(number))
    return to + write_float8(to, number)


cdef FaultCode bytea_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a bytea as bytea_output hex has it. Faults: none. Source: byteaout, utils/adt/varlena.c."""
    cdef uint8_t[2 * CHUNK] text
    cdef uint8_t *at
    cdef size_t i
    cdef FaultCode code = add_bytes(out, b"\\x", 2)
    at = text
    for i in range(length):
        at = write_byte_in_hex(at, value[i])
        if at - text == 2 * CHUNK:
            code = add_bytes(out, text, 2 * CHUNK)
            if code != OK:
                return code
            at = text
    if code == OK:
        code = add_bytes(out, text, <size_t>(at - text))
    return code if code != OK else end_bytes(out)


# -- dates, times and intervals ----------------------------------------------------------------------------------------

cdef uint8_t *write_text(uint8_t *at, const char *text) noexcept nogil:
    """Write a text that ends with a NUL, without it."""
    cdef size_t length = strlen(text)
    memcpy(at, text, length)
    return at + length


cdef uint8_t *write_infinity(uint8_t *at, bint negative) noexcept nogil:
    return write_text(at, b"-infinity" if negative else b"infinity")


cdef uint8_t *write_date(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil:
    """Write YYYY-MM-DD, perhaps with BC, or an infinity. NULL beyond the server's range, too.

    Source: date_out, utils/adt/date.c.
    """
    cdef uint8_t *at
    cdef bint before_christ = False
    cdef int32_t days
    if unlikely(length != 4):
        return NULL
    days = <int32_t>be32(value)
    if unlikely(days == INT32_MAX or days == INT32_MIN):
        return write_infinity(to, days < 0)
    if unlikely(days < MIN_DAY or days >= END_DATE):
        return NULL
    at = write_day(to, days, &before_christ)
    return write_text(at, b" BC") if before_christ else at


cdef uint8_t *write_time(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil:
    """Write HH:MM:SS[.ffffff], 24:00:00 at most. Source: time_out, utils/adt/date.c."""
    cdef uint64_t us
    if unlikely(length != 8):
        return NULL
    us = be64(value)
    return NULL if unlikely(us > <uint64_t>US_PER_DAY) else write_clock(to, us)


cdef inline uint8_t *write_moment(const uint8_t *value, size_t length, uint8_t *to, const char *zone) noexcept nogil:
    """Write a timestamp and the text of its zone. NULL beyond the server's range, too."""
    cdef uint8_t *at
    cdef bint before_christ = False
    cdef int64_t us
    cdef uint64_t since
    if unlikely(length != 8):
        return NULL
    us = <int64_t>be64(value)
    if unlikely(us == INT64_MAX or us == INT64_MIN):
        return write_infinity(to, us < 0)
    if unlikely(us < MIN_TIMESTAMP or us >= END_TIMESTAMP):
        return NULL
    # Counted from the first day on, so that the division rounds down.
    since = <uint64_t>us - <uint64_t>MIN_TIMESTAMP
    at = write_day(to, <int64_t>(since // <uint64_t>US_PER_DAY) + MIN_DAY, &before_christ)
    at = write_clock(write_byte(at, c" "), since % <uint64_t>US_PER_DAY)
    at = write_text(at, zone)
    return write_text(at, b" BC") if before_christ else at


cdef uint8_t *write_timestamp(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil:
    """Write YYYY-MM-DD HH:MM:SS[.ffffff][ BC] or an infinity. Source: timestamp_out, utils/adt/timestamp.c."""
    return write_moment(value, length, to, b"")


cdef uint8_t *write_timestamptz(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil:
    """Write YYYY-MM-DD HH:MM:SS[.ffffff]+00[ BC], as a session with TimeZone UTC prints it, or an infinity.

    Source: timestamptz_out, utils/adt/timestamp.c.
    """
    return write_moment(value, length, to, b"+00")


cdef uint8_t *write_part(
    uint8_t *at, int32_t number, const char *unit, bint first, bint *after_negative
) noexcept nogil:
    """Write a part of an interval that is not 0, with a sign if the part before it was negative.

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
        return put_bytes(out, text, <size_t>(write_infinity(text, False) - text))
    if us == INT64_MIN and days == INT32_MIN and months == INT32_MIN:
        return put_bytes(out, text, <size_t>(write_infinity(text, True) - text))
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


cdef FaultCode pg_snapshot_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append one snapshot as xmin:xmax:xid,xid. Binary: Int32 number of transactions, Int64 xmin and xmax, Int64 xids.

    A repeated xid is printed once, as by the server. Faults: WRONG_SIZE; BAD_VALUE for an xid out of order or range;
    LIMIT_VALUE. Source: pg_snapshot_recv and pg_snapshot_out, utils/adt/xid8funcs.c.
    """
    cdef uint64_t xmin, xmax, xid
    cdef uint64_t last = 0
    cdef uint32_t i, n
    cdef uint8_t *at
    cdef FaultCode code
    if length < HEAD:
        return FAULT_WRONG_SIZE
    n = be32(value)
    if (length - HEAD) % 8 or n != (length - HEAD) // 8:
        return FAULT_WRONG_SIZE
    xmin = be64(value + 4)
    xmax = be64(value + 12)
    if xmin == 0 or xmax < xmin:
        return FAULT_BAD_VALUE
    code = reserve_text(out, (MAX_DIGITS + 1) * (<size_t>n + 2))
    if code != OK:
        return code
    at = write_byte(write_decimal(out.data.data + out.data.size, xmin), c":")
    at = write_byte(write_decimal(at, xmax), c":")
    for i in range(n):
        xid = be64(value + HEAD + 8 * <size_t>i)
        if xid < last or xid < xmin or xid >= xmax:
            return FAULT_BAD_VALUE
        if xid == last:
            continue
        at = write_decimal(write_byte(at, c",") if last else at, xid)
        last = xid
    out.data.size = <size_t>(at - out.data.data)
    return end_bytes(out)


cdef int add_writer(str name, TextWriter write, size_t n_bytes) except -1:
    """Add the text form of a type whose values have `n_bytes` bytes."""
    cdef Codec *codec
    add_codec(name, text_from_text, written_from_binary)
    codec = &(<CodecEntry>CODECS[name]).codec
    codec.write_binary, codec.binary_bytes = write, n_bytes
    return 0


add_codec("bytea_text", text_from_text, bytea_text_from_binary)
add_codec("interval_text", text_from_text, interval_text_from_binary)
add_codec("pg_snapshot", text_from_text, pg_snapshot_from_binary)
add_writer("bool_text", write_bool, 1)
add_writer("int2_text", write_int2, 2)
add_writer("int4_text", write_int4, 4)
add_writer("int8_text", write_int8, 8)
add_writer("oid_text", write_oid, 4)
add_writer("xid8_text", write_xid8, 8)
add_writer("float4_text", write_float4_form, 4)
add_writer("float8_text", write_float8_form, 8)
add_writer("date_text", write_date, 4)
add_writer("time_text", write_time, 8)
add_writer("timestamp_text", write_timestamp, 8)
add_writer("timestamptz_text", write_timestamptz, 8)
