"""Addresses and identifiers of fixed size: uuid, inet, cidr, macaddr, macaddr8, pg_lsn and tid."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy

from pgdecode._native.arrow.column_builder cimport Column, put_bytes
from pgdecode._native.codecs.block_decoder cimport bytes_block
from pgdecode._native.codecs.codec cimport Cells, Codec, add_codec
from pgdecode._native.cursor cimport be16, be32, be64
from pgdecode._native.fault cimport FAULT_BAD_VALUE, FAULT_WRONG_SIZE, FaultCode, unlikely
from pgdecode._native.literals.rendering cimport MAX_DIGITS, write_byte, write_byte_in_hex, write_decimal, write_hex

cdef enum:
    PGSQL_AF_INET = 2   # utils/inet.h: these two are the same on every platform
    PGSQL_AF_INET6 = 3
    MAX_INET_TEXT = 49  # xxxx:xxxx:xxxx:xxxx:xxxx:xxxx:255.255.255.255/128


cdef inline bint is_digit(uint8_t byte) noexcept nogil:
    return c"0" <= byte <= c"9"


cdef inline bint is_hex(uint8_t byte, uint8_t a) noexcept nogil:
    """Whether a byte is a hexadecimal digit in the case of `a`."""
    return is_digit(byte) or a <= byte <= a + 5


cdef FaultCode uuid_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one uuid as uuid_out writes it: 8-4-4-4-12 digits in lower case. Faults: BAD_VALUE.

    Source: utils/adt/uuid.c.
    """
    cdef size_t i
    cdef bint wrong = length != 36
    if wrong:
        return FAULT_BAD_VALUE
    for i in range(36):
        if i == 8 or i == 13 or i == 18 or i == 23:
            wrong |= value[i] != c"-"
        else:
            wrong |= not is_hex(value[i], c"a")
    return FAULT_BAD_VALUE if wrong else put_bytes(out, value, 36)


cdef FaultCode uuid_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one uuid: 16 bytes. Faults: WRONG_SIZE. Source: uuid_send, utils/adt/uuid.c."""
    cdef uint8_t[36] text
    cdef uint8_t *at = text
    cdef size_t i
    if length != 16:
        return FAULT_WRONG_SIZE
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            at = write_byte(at, c"-")
        at = write_byte_in_hex(at, value[i])
    return put_bytes(out, text, 36)


cdef inline uint64_t unlike_hex(uint64_t word) noexcept nogil:
    """High bits of the bytes that are not lower-case hexadecimal digits."""
    cdef uint64_t low = word & <uint64_t>0x7F7F7F7F7F7F7F7F
    # The high bit is set: from 0 on, past 9; from a on, past f.
    cdef uint64_t digit = (low + <uint64_t>0x5050505050505050) & ~(low + <uint64_t>0x4646464646464646)
    cdef uint64_t letter = (low + <uint64_t>0x1F1F1F1F1F1F1F1F) & ~(low + <uint64_t>0x1919191919191919)
    return (word | ~(digit | letter)) & <uint64_t>0x8080808080808080


cdef inline uint8_t *uuid_text(const uint8_t *value, size_t length, uint8_t *to, const Codec *codec) noexcept nogil:
    cdef uint64_t unlike, word
    if unlikely(length != 36):
        return NULL
    # Bytes 8, 13, 18 and 23 must be hyphens; they are then treated as digits.
    word = be64(value + 8) ^ <uint64_t>0x2D000000002D0000
    unlike = word & <uint64_t>0xFF00000000FF0000 | unlike_hex(word | <uint64_t>0x3000000000300000)
    word = be64(value + 16) ^ <uint64_t>0x00002D000000002D
    unlike |= word & <uint64_t>0x0000FF00000000FF | unlike_hex(word | <uint64_t>0x0000300000000030)
    unlike |= unlike_hex(be64(value)) | unlike_hex(be64(value + 24)) | unlike_hex(be64(value + 28))
    memcpy(to, value, 36)
    return NULL if unlikely(unlike) else to + 36


cdef extern from *:
    """
    /* Sixteen bytes as 32 hexadecimal digits in lower case with hyphens, 36 bytes, and up to four more behind them.
       PGDECODE_PLAIN_SHIFTS builds the branch for other processors. */
    #if defined(__SSE2__) && !defined(PGDECODE_PLAIN_SHIFTS)
    #include <emmintrin.h>
    static inline __m128i pgdecode_digits(__m128i halves)
    {
        /* From ten on, a letter is 0x27 further than a digit. */
        __m128i letters = _mm_and_si128(_mm_cmpgt_epi8(halves, _mm_set1_epi8(9)), _mm_set1_epi8(0x27));
        return _mm_add_epi8(_mm_add_epi8(halves, _mm_set1_epi8('0')), letters);
    }
    static inline void pgdecode_put_uuid(uint8_t *to, const uint8_t *value)
    {
        __m128i bytes = _mm_loadu_si128((const __m128i *)value);
        __m128i low = _mm_and_si128(bytes, _mm_set1_epi8(15));
        __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
        __m128i first = pgdecode_digits(_mm_unpacklo_epi8(high, low));
        __m128i last = pgdecode_digits(_mm_unpackhi_epi8(high, low));
        /* What a store writes too far is written over by the next. */
        _mm_storel_epi64((__m128i *)to, first);
        _mm_storel_epi64((__m128i *)(to + 9), _mm_srli_si128(first, 8));
        _mm_storel_epi64((__m128i *)(to + 14), _mm_srli_si128(first, 12));
        _mm_storel_epi64((__m128i *)(to + 19), last);
        _mm_storeu_si128((__m128i *)(to + 24), _mm_srli_si128(last, 4));
        to[8] = to[13] = to[18] = to[23] = '-';
    }
    #else
    static inline uint64_t pgdecode_digits(uint32_t four)
    {
        uint64_t word = four;
        word = (word << 16 | word) & UINT64_C(0x0000FFFF0000FFFF);
        word = (word << 8 | word) & UINT64_C(0x00FF00FF00FF00FF);
        word = (word << 4 | word) & UINT64_C(0x0F0F0F0F0F0F0F0F);
        /* Past 9, six more set bit 4; from there a letter is 0x27 further than a digit. */
        return word + UINT64_C(0x3030303030303030)
               + 0x27 * ((word + UINT64_C(0x0606060606060606)) >> 4 & UINT64_C(0x0101010101010101));
    }
    static inline void pgdecode_put_uuid(uint8_t *to, const uint8_t *value)
    {
        uint64_t second = pgdecode_digits(pgdecode_be32(value + 4));
        uint64_t third = pgdecode_digits(pgdecode_be32(value + 8));
        pgdecode_put_be64(to, pgdecode_digits(pgdecode_be32(value)));
        pgdecode_put_be64(to + 9, second);
        pgdecode_put_be64(to + 14, second << 32);
        pgdecode_put_be64(to + 19, third);
        pgdecode_put_be64(to + 24, third << 32);
        pgdecode_put_be64(to + 28, pgdecode_digits(pgdecode_be32(value + 12)));
        to[8] = to[13] = to[18] = to[23] = '-';
    }
    #endif
    """
    void put_uuid "pgdecode_put_uuid"(uint8_t *to, const uint8_t *value) noexcept nogil


cdef inline uint8_t *uuid_binary(const uint8_t *value, size_t length, uint8_t *to, const Codec *codec) noexcept nogil:
    if unlikely(length != 16):
        return NULL
    put_uuid(to, value)
    return to + 36


cdef size_t uuid_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return bytes_block(uuid_text, uuid_binary, cells, start, out, codec)


cdef FaultCode inet_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one inet or cidr unchanged, if it has only letters of addresses. Faults: BAD_VALUE.

    Source: network_out, utils/adt/network.c.
    """
    cdef size_t i
    cdef bint separated = False
    if length > MAX_INET_TEXT:
        return FAULT_BAD_VALUE
    for i in range(length):
        if value[i] == c"." or value[i] == c":":
            separated = True
        elif not is_hex(value[i], c"a") and value[i] != c"/":
            return FAULT_BAD_VALUE
    return put_bytes(out, value, length) if separated else FAULT_BAD_VALUE


cdef uint8_t *write_inet4(uint8_t *at, const uint8_t *address) noexcept nogil:
    """Write four bytes as 1.2.3.4."""
    cdef int i
    for i in range(4):
        if i:
            at = write_byte(at, c".")
        at = write_decimal(at, address[i])
    return at


cdef uint8_t *write_inet6(uint8_t *at, const uint8_t *address) noexcept nogil:
    """Write sixteen bytes as pg_inet_net_ntop does (port/inet_net_ntop.c).

    The first longest run of two or more zero words is ::. The last four bytes are IPv4 if that run requires it.
    """
    cdef uint16_t[8] words
    cdef int i, base, n
    cdef int run = 0
    words[0] = 0
    base = -1
    n = 1
    for i in range(8):
        words[i] = be16(address + 2 * i)
        run = 0 if words[i] else run + 1
        if run > n:
            n = run
            base = i + 1 - run
    i = 0
    while i < 8:
        if i == base:
            at = write_byte(at, c":")
            i += n
            if i == 8:
                at = write_byte(at, c":")
            continue
        if i:
            at = write_byte(at, c":")
        if i == 6 and base == 0 and (n == 6 or (n == 5 and words[5] == 0xFFFF)):
            return write_inet4(at, address + 12)
        at = write_hex(at, words[i], c"a")
        i += 1
    return at


cdef FaultCode put_inet(const uint8_t *value, size_t length, Column *out, bint is_cidr) noexcept nogil:
    """Append one address: family, prefix length, a flag that the server ignores too, address size, address."""
    cdef uint8_t[MAX_INET_TEXT + 16] text
    cdef uint8_t *at = text
    cdef const uint8_t *address = value + 4
    cdef unsigned int bits, size, i, kept
    if unlikely(length < 4):
        return FAULT_WRONG_SIZE
    if value[0] != PGSQL_AF_INET and value[0] != PGSQL_AF_INET6:
        return FAULT_BAD_VALUE
    size = 4 if value[0] == PGSQL_AF_INET else 16
    bits = value[1]
    if unlikely(length != 4 + size):
        return FAULT_WRONG_SIZE
    if unlikely(bits > 8 * size or value[3] != size):
        return FAULT_BAD_VALUE
    if is_cidr:
        for i in range(bits // 8, size):
            kept = bits - 8 * i if bits > 8 * i else 0
            if address[i] & (0xFF >> kept):
                return FAULT_BAD_VALUE
    at = write_inet4(at, address) if size == 4 else write_inet6(at, address)
    if is_cidr or bits != 8 * size:
        at = write_decimal(write_byte(at, c"/"), bits)
    return put_bytes(out, text, <size_t>(at - text))


cdef FaultCode inet_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one inet: 8 or 20 bytes. The full prefix length is not printed.

    Faults: WRONG_SIZE, BAD_VALUE as network_recv, utils/adt/network.c.
    """
    return put_inet(value, length, out, False)


cdef FaultCode cidr_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one cidr: 8 or 20 bytes, without bits to the right of the prefix.

    Faults: WRONG_SIZE, BAD_VALUE as network_recv, utils/adt/network.c.
    """
    return put_inet(value, length, out, True)


cdef FaultCode put_mac_text(const uint8_t *value, size_t length, Column *out, size_t size) noexcept nogil:
    """Append pairs of digits, separated by colons, unchanged."""
    cdef size_t i
    if length != 3 * size - 1:
        return FAULT_BAD_VALUE
    for i in range(length):
        if not (value[i] == c":" if i % 3 == 2 else is_hex(value[i], c"a")):
            return FAULT_BAD_VALUE
    return put_bytes(out, value, length)


cdef FaultCode put_mac(const uint8_t *value, size_t length, Column *out, size_t size) noexcept nogil:
    """Append 6 or 8 bytes in hexadecimal, separated by colons."""
    cdef uint8_t[24] text
    cdef uint8_t *at = text
    cdef size_t i
    if length != size:
        return FAULT_WRONG_SIZE
    for i in range(size):
        if i:
            at = write_byte(at, c":")
        at = write_byte_in_hex(at, value[i])
    return put_bytes(out, text, <size_t>(at - text))


cdef FaultCode macaddr_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one macaddr unchanged: 17 bytes. Faults: BAD_VALUE. Source: macaddr_out, utils/adt/mac.c."""
    return put_mac_text(value, length, out, 6)


cdef FaultCode macaddr_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one macaddr: 6 bytes. Faults: WRONG_SIZE. Source: macaddr_send, utils/adt/mac.c."""
    return put_mac(value, length, out, 6)


cdef FaultCode macaddr8_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one macaddr8 unchanged: 23 bytes. Faults: BAD_VALUE. Source: macaddr8_out, utils/adt/mac8.c."""
    return put_mac_text(value, length, out, 8)


cdef FaultCode macaddr8_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append one macaddr8: 8 bytes. Faults: WRONG_SIZE, also for 6 bytes, which only macaddr8_recv accepts.

    Source: macaddr8_send, utils/adt/mac8.c.
    """
    return put_mac(value, length, out, 8)


cdef FaultCode pg_lsn_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one pg_lsn unchanged: two halves of 1 to 8 digits in upper case. Faults: BAD_VALUE.

    Source: pg_lsn_out, utils/adt/pg_lsn.c.
    """
    cdef size_t i
    cdef size_t slash = length
    for i in range(length):
        if value[i] == c"/" and slash == length:
            slash = i
        elif not is_hex(value[i], c"A"):
            return FAULT_BAD_VALUE
    if not (1 <= slash <= 8 and slash + 2 <= length <= slash + 9):
        return FAULT_BAD_VALUE
    return put_bytes(out, value, length)


cdef FaultCode pg_lsn_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one pg_lsn: 8 bytes, big-endian. Faults: WRONG_SIZE. Source: pg_lsn_send, utils/adt/pg_lsn.c."""
    cdef uint8_t[2 * MAX_DIGITS] text
    cdef uint8_t *at
    if length != 8:
        return FAULT_WRONG_SIZE
    at = write_byte(write_hex(text, be32(value), c"A"), c"/")
    at = write_hex(at, be32(value + 4), c"A")
    return put_bytes(out, text, <size_t>(at - text))


cdef FaultCode tid_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one tid unchanged: (block,offset). Faults: BAD_VALUE. Source: tidout, utils/adt/tid.c."""
    cdef uint64_t[2] numbers
    cdef size_t i
    cdef size_t comma = 0
    numbers[0] = numbers[1] = 0
    if not 5 <= length <= 18 or value[0] != c"(" or value[length - 1] != c")":
        return FAULT_BAD_VALUE
    for i in range(1, length - 1):
        if value[i] == c"," and not comma:
            comma = i
        elif is_digit(value[i]):
            # There are at most 16 digits: no overflow before the limits are checked.
            numbers[comma != 0] = numbers[comma != 0] * 10 + (value[i] - c"0")
        else:
            return FAULT_BAD_VALUE
    if comma < 2 or comma == length - 2 or numbers[0] > <uint64_t>0xFFFFFFFF or numbers[1] > 0xFFFF:
        return FAULT_BAD_VALUE
    return put_bytes(out, value, length)


cdef FaultCode tid_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one tid: block in 4 bytes, offset in 2. Faults: WRONG_SIZE. Source: tidsend, utils/adt/tid.c."""
    cdef uint8_t[2 * MAX_DIGITS] text
    cdef uint8_t *at
    if length != 6:
        return FAULT_WRONG_SIZE
    at = write_decimal(write_byte(text, c"("), be32(value))
    at = write_decimal(write_byte(at, c","), be16(value + 4))
    at = write_byte(at, c")")
    return put_bytes(out, text, <size_t>(at - text))


add_codec("uuid", uuid_from_text, uuid_from_binary, uuid_block)
add_codec("inet", inet_from_text, inet_from_binary)
add_codec("cidr", inet_from_text, cidr_from_binary)
add_codec("macaddr", macaddr_from_text, macaddr_from_binary)
add_codec("macaddr8", macaddr8_from_text, macaddr8_from_binary)
add_codec("pg_lsn", pg_lsn_from_text, pg_lsn_from_binary)
add_codec("tid", tid_from_text, tid_from_binary)
