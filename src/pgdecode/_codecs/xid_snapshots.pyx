"""Snapshots of transactions: pg_snapshot, and txid_snapshot as it was called before."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pgdecode._codec cimport Codec
from pgdecode._codecs._rendering cimport MAX_DIGITS, make_room, write_byte, write_decimal
from pgdecode._codecs.texts cimport text_from_text
from pgdecode._column cimport Column, end_bytes
from pgdecode._cursor cimport be32, be64
from pgdecode._fault cimport FAULT_BAD_VALUE, FAULT_WRONG_SIZE, OK, FaultCode

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
    code = make_room(out, (MAX_DIGITS + 1) * (<size_t>n + 2))
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
