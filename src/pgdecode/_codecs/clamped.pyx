"""Values past an Arrow type's range as the nearest one in it, also where they are elements or bounds.

The codec is around that of a date, a time or the like, its `element`, and puts the lowest or the highest value where
that one says that a value is too low or too high: the furthest that both PostgreSQL and the Arrow type have. So values
keep their order, and none becomes the lowest int64, which is no time in NumPy.
"""

from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, uint8_t

from pgdecode._codec cimport Codec
from pgdecode._codecs.clock cimport (
    END_DATE, MIN_DAY, MIN_TIMESTAMP, UNIX_TO_POSTGRES_DAYS, UNIX_TO_POSTGRES_US, US_PER_DAY,
)
from pgdecode._codecs.wide cimport Wide, put_decimal, wide_shift
from pgdecode._column cimport Column, mark, put_int32, put_int64, take_back
from pgdecode._fault cimport FAULT_BAD_VALUE, FAULT_TOO_HIGH, FAULT_TOO_LOW, OK, FaultCode

cdef enum:
    # OIDs from pg_type.
    DATE = 1082
    TIME = 1083
    TIMESTAMP = 1114
    TIMESTAMPTZ = 1184
    INTERVAL = 1186
    NUMERIC = 1700


cdef FaultCode put_extreme_interval(Column *out, bint high) noexcept nogil:
    """Months, days and microseconds all at their ends, as which PostgreSQL 17 stores the infinity itself."""
    cdef FaultCode code = put_int32(&out.children[0], INT32_MAX if high else INT32_MIN)
    if code == OK:
        code = put_int32(&out.children[1], INT32_MAX if high else INT32_MIN)
    if code == OK:
        code = put_int64(&out.children[2], INT64_MAX if high else INT64_MIN)
    return code if code != OK else mark(out, 1)


cdef FaultCode put_nines(Column *out, bint high, int32_t precision) noexcept nogil:
    """The largest decimal of a precision, whatever its scale."""
    cdef Wide wide
    wide.low = 1
    wide.high = 0
    wide_shift(&wide, <size_t>precision)
    wide.high -= wide.low == 0
    wide.low -= 1
    return put_decimal(out, wide, not high)


cdef FaultCode put_extreme(Column *out, bint high, const Codec *codec) noexcept nogil:
    """Append the lowest value of a type, or the highest."""
    if codec.oid == DATE:
        return put_int32(out, <int32_t>(END_DATE - 1 if high else MIN_DAY) + UNIX_TO_POSTGRES_DAYS)
    if codec.oid == TIME:
        return put_int64(out, US_PER_DAY - 1 if high else 0)
    if codec.oid == TIMESTAMP or codec.oid == TIMESTAMPTZ:
        # Arrow's range ends 30 years before PostgreSQL's.
        return put_int64(out, INT64_MAX if high else MIN_TIMESTAMP + UNIX_TO_POSTGRES_US)
    if codec.oid == INTERVAL:
        return put_extreme_interval(out, high)
    return put_nines(out, high, codec.precision) if codec.oid == NUMERIC else FAULT_BAD_VALUE


cdef FaultCode clamped_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append a value or the one nearest to it. Faults: the type's own but TOO_LOW and TOO_HIGH."""
    cdef size_t n = out.n
    cdef FaultCode code = codec.element.from_text(value, length, out, codec.element)
    if code == FAULT_TOO_LOW or code == FAULT_TOO_HIGH:
        take_back(out, n)
        return put_extreme(out, code == FAULT_TOO_HIGH, codec)
    return code


cdef FaultCode clamped_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a value or the one nearest to it. Faults: the type's own but TOO_LOW and TOO_HIGH."""
    cdef size_t n = out.n
    cdef FaultCode code = codec.element.from_binary(value, length, out, codec.element)
    if code == FAULT_TOO_LOW or code == FAULT_TOO_HIGH:
        take_back(out, n)
        return put_extreme(out, code == FAULT_TOO_HIGH, codec)
    return code


cdef bint clamped_codec(str name, Codec *codec):
    """Fill the decoders of the codec; whether it is this one."""
    if name != "clamped":
        return False
    codec.from_text, codec.from_binary = clamped_from_text, clamped_from_binary
    return True
