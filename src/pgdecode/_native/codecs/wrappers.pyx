"""Codecs around another one: they transcode text, or replace values beyond an Arrow type's range by the nearest one."""

from libc.stddef cimport size_t
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32_t, uint8_t, uint32_t, uint64_t

from pgdecode._native.arrow.column_builder cimport Column, mark, put_fixed, put_int32, put_int64, take_back
from pgdecode._native.codecs.codec cimport (
    DATE, FLOAT4, FLOAT8, INTERVAL, NUMERIC, TIME, TIMESTAMP, TIMESTAMPTZ, Cells, Codec, add_codec,
)
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_TOO_HIGH, FAULT_TOO_LOW, OK, FaultCode
from pgdecode._native.literals.clock cimport (
    END_DATE, MIN_DAY, MIN_TIMESTAMP, UNIX_TO_POSTGRES_DAYS, UNIX_TO_POSTGRES_US, US_PER_DAY,
)
from pgdecode._native.literals.int128 cimport Int128, put_decimal, int128_shift
from pgdecode._native.memory.transcoding cimport to_utf8

# The text form is converted completely, before quotes and braces are searched: the second byte of a character can be a
# backslash or a brace in SJIS, BIG5, GBK and others. In the binary form, only text is converted: by `transcoded_text`
# if the whole value is text (the version byte of a jsonb is ASCII), and by the codecs of hstore and others inside them.

cdef FaultCode transcoded_from_text(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append one value of any type. Faults: ENCODING, and those of the inner codec."""
    cdef FaultCode code = to_utf8(codec.charset, &value, &length)
    return codec.element.from_text(value, length, out, codec.element) if code == OK else code


cdef FaultCode transcoded_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append one value of any type, without a conversion here. Faults: those of the inner codec."""
    return codec.element.from_binary(value, length, out, codec.element)


cdef FaultCode transcoded_text_from_text(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append one text that has been converted with its container. Faults: those of the inner codec."""
    return codec.element.from_text(value, length, out, codec.element)


cdef FaultCode transcoded_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append one value that is only text. Faults: ENCODING, and those of the inner codec."""
    cdef FaultCode code = to_utf8(codec.charset, &value, &length)
    return codec.element.from_binary(value, length, out, codec.element) if code == OK else code


# The inner codec, `element`, is that of a date, a time or the like. If a value is too low or too high for it, the
# lowest or highest value is appended that both PostgreSQL and the Arrow type have. So values keep their order, and none
# becomes the lowest int64, which NumPy reads as not a time.


cdef FaultCode put_extreme_interval(Column *out, bint high) noexcept nogil:
    """Append the limits of months, days and microseconds, with which PostgreSQL 17 stores infinity."""
    cdef FaultCode code = put_int32(&out.children[0], INT32_MAX if high else INT32_MIN)
    if code == OK:
        code = put_int32(&out.children[1], INT32_MAX if high else INT32_MIN)
    if code == OK:
        code = put_int64(&out.children[2], INT64_MAX if high else INT64_MIN)
    return code if code != OK else mark(out, 1)


cdef FaultCode put_nines(Column *out, bint high, int32_t precision) noexcept nogil:
    """The largest decimal of a precision, for any scale."""
    cdef Int128 wide
    wide.low = 1
    wide.high = 0
    int128_shift(&wide, <size_t>precision)
    wide.high -= wide.low == 0
    wide.low -= 1
    return put_decimal(out, wide, not high)


cdef FaultCode put_largest_float4(Column *out, bint high) noexcept nogil:
    cdef uint32_t bits = 0x7F7FFFFF if high else <uint32_t>0xFF7FFFFF
    return put_fixed(out, &bits, sizeof(bits))


cdef FaultCode put_largest_float8(Column *out, bint high) noexcept nogil:
    cdef uint64_t bits = <uint64_t>0x7FEFFFFFFFFFFFFF | (0 if high else <uint64_t>1 << 63)
    return put_fixed(out, &bits, sizeof(bits))


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
    if codec.oid == FLOAT4:
        return put_largest_float4(out, high)
    # A numeric without precision is a float8.
    if codec.oid == FLOAT8 or codec.oid == NUMERIC and codec.precision == 0:
        return put_largest_float8(out, high)
    return put_nines(out, high, codec.precision) if codec.oid == NUMERIC else FAULT_BAD_VALUE


cdef FaultCode saturating_from_text(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a value, or the nearest one. Faults: those of the inner codec except TOO_LOW and TOO_HIGH."""
    cdef size_t n = out.n
    cdef FaultCode code = codec.element.from_text(value, length, out, codec.element)
    if code == FAULT_TOO_LOW or code == FAULT_TOO_HIGH:
        take_back(out, n)
        return put_extreme(out, code == FAULT_TOO_HIGH, codec)
    return code


cdef FaultCode saturating_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a value, or the nearest one. Faults: those of the inner codec except TOO_LOW and TOO_HIGH."""
    cdef size_t n = out.n
    cdef FaultCode code = codec.element.from_binary(value, length, out, codec.element)
    if code == FAULT_TOO_LOW or code == FAULT_TOO_HIGH:
        take_back(out, n)
        return put_extreme(out, code == FAULT_TOO_HIGH, codec)
    return code


cdef size_t saturating_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    """Decode a block with the inner codec. The decoders above handle values out of its range."""
    return start if codec.element.block == NULL else codec.element.block(cells, start, out, codec.element)


add_codec("transcoded", transcoded_from_text, transcoded_from_binary)
add_codec("transcoded_text", transcoded_text_from_text, transcoded_text_from_binary)
add_codec("saturating", saturating_from_text, saturating_from_binary, saturating_block)
