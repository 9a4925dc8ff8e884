"""Bit strings: bit and varbit."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

from pgdecode._codec cimport Codec
from pgdecode._codecs._rendering cimport make_room
from pgdecode._column cimport Column, end_bytes, put_bytes
from pgdecode._cursor cimport be32
from pgdecode._fault cimport FAULT_BAD_VALUE, FAULT_WRONG_SIZE, OK, FaultCode, rarely

cdef enum:
    VARBITMAXLEN = 0x7FFFFFF8  # utils/varbit.h: INT_MAX - BITS_PER_BYTE + 1


cdef bint bits_codec(str name, Codec *codec):
    """Fill in the decoders of a codec of this family; False for a name of another."""
    if name != "bit" and name != "varbit":
        return False
    codec.from_text = varbit_from_text
    codec.from_binary = varbit_from_binary
    return True


cdef FaultCode varbit_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one bit or varbit as it is: zeros and ones. Faults: BAD_VALUE. Source: varbit_out, utils/adt/varbit.c."""
    cdef size_t i
    cdef uint8_t other = 0
    for i in range(length):
        other |= value[i] ^ c"0"
    return FAULT_BAD_VALUE if other > 1 else put_bytes(out, value, length)


cdef FaultCode varbit_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one bit or varbit: the number of bits in 4 bytes, then the bits, the first in a byte's highest.

    Bits that fill up the last byte are not looked at, as by the server. Faults: WRONG_SIZE, BAD_VALUE past
    VARBITMAXLEN, LIMIT_VALUE. Source: varbit_send and varbit_recv, utils/adt/varbit.c.
    """
    cdef const uint8_t *bytes = value + 4
    cdef uint32_t n_bits, i
    cdef uint8_t *to
    cdef FaultCode code
    if rarely(length < 4):
        return FAULT_WRONG_SIZE
    n_bits = be32(value)
    if rarely(n_bits > <uint32_t>VARBITMAXLEN):
        return FAULT_BAD_VALUE
    if rarely(length - 4 != (<size_t>n_bits + 7) >> 3):
        return FAULT_WRONG_SIZE
    code = make_room(out, n_bits)
    if code != OK:
        return code
    to = out.data.data + out.data.size
    for i in range(n_bits):
        to[i] = c"0" + (bytes[i >> 3] >> (7 - (i & 7)) & 1)
    out.data.size += n_bits
    return end_bytes(out)
