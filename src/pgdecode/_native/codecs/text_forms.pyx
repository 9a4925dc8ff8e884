"""Numbers and bytes in PostgreSQL's own text: what the server prints for the binary values of bool, bytea and the like.

Each codec is named after that of the typed column, `<codec>_text`, as numeric_text is.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from pgdecode._native.arrow.column_builder cimport Column, add_bytes, end_bytes, put_bytes
from pgdecode._native.codecs.codec cimport Codec
from pgdecode._native.codecs.text cimport text_from_text
from pgdecode._native.cursor cimport be16, be32, be64
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_WRONG_SIZE, OK, FaultCode, unlikely
from pgdecode._native.literals.rendering cimport (
    MAX_DIGITS, ensure_capacity, write_byte, write_byte_in_hex, write_decimal,
)
from pgdecode._native.literals.shortest_float cimport MAX_FLOAT_TEXT, write_float4, write_float8

cdef enum:
    CHUNK = 256  # bytes of a bytea written at a time


cdef FaultCode put_signed(Column *out, int64_t number) noexcept nogil:
    """Append an integer's digits, with its sign if it is negative."""
    cdef uint8_t[1 + MAX_DIGITS] text
    cdef uint8_t *at = text
    if number < 0:
        at = write_byte(at, c"-")
    # Turned as unsigned, so that the smallest number has a magnitude too.
    at = write_decimal(at, 0 - <uint64_t>number if number < 0 else <uint64_t>number)
    return put_bytes(out, text, <size_t>(at - text))


cdef FaultCode put_unsigned(Column *out, uint64_t number) noexcept nogil:
    cdef uint8_t[MAX_DIGITS] text
    return put_bytes(out, text, <size_t>(write_decimal(text, number) - text))


cdef FaultCode bool_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append `t` or `f`. Faults: WRONG_SIZE, BAD_VALUE past 1. Source: boolout, utils/adt/bool.c."""
    if unlikely(length != 1):
        return FAULT_WRONG_SIZE
    if unlikely(value[0] > 1):
        return FAULT_BAD_VALUE
    return put_bytes(out, b"t" if value[0] else b"f", 1)


cdef FaultCode int2_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append an int2. Faults: WRONG_SIZE. Source: int2out, utils/adt/int.c."""
    return put_signed(out, <int16_t>be16(value)) if length == 2 else FAULT_WRONG_SIZE


cdef FaultCode int4_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append an int4. Faults: WRONG_SIZE. Source: int4out, utils/adt/int.c."""
    return put_signed(out, <int32_t>be32(value)) if length == 4 else FAULT_WRONG_SIZE


cdef FaultCode int8_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append an int8. Faults: WRONG_SIZE. Source: int8out, utils/adt/int8.c."""
    return put_signed(out, <int64_t>be64(value)) if length == 8 else FAULT_WRONG_SIZE


cdef FaultCode oid_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append an oid, xid or cid. Faults: WRONG_SIZE. Source: oidout, utils/adt/oid.c."""
    return put_unsigned(out, be32(value)) if length == 4 else FAULT_WRONG_SIZE


cdef FaultCode xid8_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append an xid8. Faults: WRONG_SIZE. Source: xid8out, utils/adt/xid.c."""
    return put_unsigned(out, be64(value)) if length == 8 else FAULT_WRONG_SIZE


cdef FaultCode float4_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a float4, as of PostgreSQL 12. Faults: WRONG_SIZE. Source: float4out, utils/adt/float.c."""
    cdef uint8_t[MAX_FLOAT_TEXT] text
    cdef uint32_t bits
    cdef float number = 0
    if unlikely(length != 4):
        return FAULT_WRONG_SIZE
    bits = be32(value)
    memcpy(&number, &bits, sizeof(number))
    return put_bytes(out, text, write_float4(text, number))


cdef FaultCode float8_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append a float8, as of PostgreSQL 12. Faults: WRONG_SIZE. Source: float8out, utils/adt/float.c."""
    cdef uint8_t[MAX_FLOAT_TEXT] text
    cdef uint64_t bits
    cdef double number = 0
    if unlikely(length != 8):
        return FAULT_WRONG_SIZE
    bits = be64(value)
    memcpy(&number, &bits, sizeof(number))
    return put_bytes(out, text, write_float8(text, number))


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


cdef bint forms_codec(str name, Codec *codec):
    """Fill the decoders of a codec of this family; whether it is one."""
    if name == "bool_text":
        codec.from_binary = bool_text_from_binary
    elif name == "int2_text":
        codec.from_binary = int2_text_from_binary
    elif name == "int4_text":
        codec.from_binary = int4_text_from_binary
    elif name == "int8_text":
        codec.from_binary = int8_text_from_binary
    elif name == "oid_text":
        codec.from_binary = oid_text_from_binary
    elif name == "xid8_text":
        codec.from_binary = xid8_text_from_binary
    elif name == "float4_text":
        codec.from_binary = float4_text_from_binary
    elif name == "float8_text":
        codec.from_binary = float8_text_from_binary
    elif name == "bytea_text":
        codec.from_binary = bytea_text_from_binary
    else:
        return False
    codec.from_text = text_from_text
    return True


cdef enum:
    HEAD = 20  # bytes: the number of transactions in progress, xmin and xmax


cdef bint xid_snapshots_codec(str name, Codec *codec):
    """Fill in the decoders of a codec of this family; False for a name of another."""
    if name != "pg_snapshot":
        return False
    codec.from_text, codec.from_binary = text_from_text, pg_snapshot_from_binary
    return True


cdef FaultCode pg_snapshot_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append one snapshot as xmin:xmax:xid,xid. In binary, Int32 transactions, Int64 xmin and xmax, and Int64 for each.

    One that comes twice is printed once, as by the server. Faults: WRONG_SIZE; BAD_VALUE for an xid out of order or
    range; LIMIT_VALUE. Source: pg_snapshot_recv and pg_snapshot_out, utils/adt/xid8funcs.c.
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
    code = ensure_capacity(out, (MAX_DIGITS + 1) * (<size_t>n + 2))
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
