"""Types that are text or bytes on the wire: text, varchar, jsonb, ltree, "char", bytea, bits, names of OIDs."""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

from pgdecode._native.arrow.column_builder cimport Column, end_bytes, put_bytes
from pgdecode._native.codecs.block_decoder cimport bytes_block
from pgdecode._native.codecs.codec cimport Cells, Codec, add_codec
from pgdecode._native.cursor cimport be32, be64, put_be64
from pgdecode._native.fault cimport (
    FAULT_BAD_VALUE, FAULT_ENCODING, FAULT_UNKNOWN_TYPE, FAULT_WRONG_SIZE, OK, FaultCode, unlikely,
)
from pgdecode._native.literals.hex_digits cimport pack_digits, put_hex
from pgdecode._native.literals.rendering cimport MAX_DIGITS, reserve_text, write_decimal
from pgdecode._native.memory.utf8 cimport is_plain, utf8_prefix


cdef FaultCode check_text(const uint8_t *text, size_t length) noexcept nogil:
    """Check that bytes are text as PostgreSQL has it. Faults: BAD_VALUE for a NUL, ENCODING if not UTF-8."""
    if is_plain(text, length):
        return OK
    if memchr(text, 0, length) != NULL:
        return FAULT_BAD_VALUE
    return OK if utf8_prefix(text, length) == length else FAULT_ENCODING


cdef FaultCode text_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one text unchanged. Faults: BAD_VALUE for a NUL, ENCODING. Source: textin, utils/adt/varlena.c."""
    cdef FaultCode code = check_text(value, length)
    return put_bytes(out, value, length) if code == OK else code


cdef FaultCode text_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one text, whose two forms are the same. Faults and source: those of text_from_text; textsend."""
    return text_from_text(value, length, out, codec)


cdef FaultCode opaque_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Refuse the binary form of a type that is known only by its OID: the bytes have no meaning. Text is kept."""
    return FAULT_UNKNOWN_TYPE


cdef FaultCode versioned_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append one jsonb, jsonpath, ltree, lquery or ltxtquery: a version byte, always 1, then the text.

    Faults: WRONG_SIZE if empty, BAD_VALUE for another version or a NUL, ENCODING.
    Source: jsonb_send, utils/adt/jsonb.c.
    """
    if unlikely(length == 0):
        return FAULT_WRONG_SIZE
    if unlikely(value[0] != 1):
        return FAULT_BAD_VALUE
    return text_from_text(value + 1, length - 1, out, codec)


cdef FaultCode put_char(Column *out, uint8_t byte) noexcept nogil:
    """Append a "char" as PostgreSQL 15 and later write it: a byte that is not ASCII is \\ooo in octal."""
    cdef uint8_t[4] octal
    if not byte & 0x80:
        return put_bytes(out, &byte, byte != 0)
    octal[0] = c"\\"
    octal[1] = <uint8_t>(c"0" + (byte >> 6))
    octal[2] = <uint8_t>(c"0" + (byte >> 3 & 7))
    octal[3] = <uint8_t>(c"0" + (byte & 7))
    return put_bytes(out, octal, 4)


cdef inline int octal_value(const uint8_t *digits) noexcept nogil:
    """The byte of three octal digits; -1 for other characters."""
    if not (c"0" <= digits[0] <= c"3" and c"0" <= digits[1] <= c"7" and c"0" <= digits[2] <= c"7"):
        return -1
    return (digits[0] - c"0") << 6 | (digits[1] - c"0") << 3 | (digits[2] - c"0")


cdef FaultCode char_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one "char": nothing for a NUL, the byte itself (past ASCII too, before PostgreSQL 15), or \\ooo.

    Faults: BAD_VALUE for anything else. Source: charin and charout, utils/adt/char.c.
    """
    cdef int byte
    if length == 0:
        return put_bytes(out, value, 0)
    if length == 1 and value[0]:
        return put_char(out, value[0])
    if length == 4 and value[0] == c"\\":
        byte = octal_value(value + 1)
        if byte >= 0:
            return put_char(out, <uint8_t>byte)
    return FAULT_BAD_VALUE


cdef FaultCode char_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one "char": its byte, 0 for an empty one. Faults: WRONG_SIZE. Source: charsend, utils/adt/char.c."""
    return put_char(out, value[0]) if length == 1 else FAULT_WRONG_SIZE


cdef FaultCode put_hex_bytes(const uint8_t *digits, size_t length, Column *out) noexcept nogil:
    """Append the bytes of pairs of hexadecimal digits. Faults: BAD_VALUE."""
    cdef size_t n = length >> 1
    cdef FaultCode code = FAULT_BAD_VALUE if length & 1 else reserve_text(out, n)
    if code != OK:
        return code
    if not put_hex(digits, length, out.data.data + out.data.size):
        return FAULT_BAD_VALUE
    out.data.size += n
    return end_bytes(out)


cdef FaultCode put_escaped_bytes(const uint8_t *text, size_t length, Column *out) noexcept nogil:
    """Append the bytes of the escape format, where \\\\ is a backslash and \\ooo a byte outside ' ' to '~'."""
    cdef const uint8_t *end = text + length
    cdef uint8_t *to
    cdef int byte
    cdef FaultCode code = reserve_text(out, length)
    if code != OK:
        return code
    to = out.data.data + out.data.size
    while text < end:
        byte = text[0]
        if not c" " <= byte <= c"~":
            return FAULT_BAD_VALUE
        if byte != c"\\":
            text += 1
        elif end - text >= 2 and text[1] == c"\\":
            text += 2
        else:
            byte = octal_value(text + 1) if end - text >= 4 else -1
            if byte < 0:
                return FAULT_BAD_VALUE
            text += 4
        to[0] = <uint8_t>byte
        to += 1
    out.data.size = <size_t>(to - out.data.data)
    return end_bytes(out)


cdef FaultCode bytea_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one bytea, written by either bytea_output: \\x and hexadecimal digits, or the escape format.

    Faults: BAD_VALUE, LIMIT_VALUE. Source: byteaout, utils/adt/varlena.c.
    """
    # The escape format writes a backslash twice, so it never begins with \x.
    if length >= 2 and value[0] == c"\\" and value[1] == c"x":
        return put_hex_bytes(value + 2, length - 2, out)
    return put_escaped_bytes(value, length, out)


cdef FaultCode bytea_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one bytea unchanged. Faults: none. Source: byteasend, utils/adt/varlena.c."""
    return put_bytes(out, value, length)


cdef FaultCode reg_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append the OID of a regclass, regtype or the like in decimal: 4 bytes, big-endian.

    The text form is the name, which only the server's catalog has. So the two forms differ. Faults: WRONG_SIZE.
    Source: regclasssend, utils/adt/regproc.c.
    """
    cdef uint8_t[MAX_DIGITS] digits
    if length != 4:
        return FAULT_WRONG_SIZE
    return put_bytes(out, digits, <size_t>(write_decimal(digits, be32(value)) - digits))


# -- blocks: see block_decoder ---------------------------------------------------------------------------------------

cdef inline uint64_t unlike_text(uint64_t word) noexcept nogil:
    """High bits of bytes that are NUL or not ASCII, and perhaps of some after a NUL; 0 if there are none."""
    return (word | (word - <uint64_t>0x0101010101010101)) & <uint64_t>0x8080808080808080


cdef inline uint64_t copy_word(const uint8_t *text, uint8_t *to) noexcept nogil:
    """Copy eight bytes. Returns whether they are plain."""
    cdef uint64_t word = 0
    memcpy(&word, text, 8)
    memcpy(to, &word, 8)
    return unlike_text(word)


cdef uint8_t *copy_other_text(const uint8_t *value, size_t length, uint8_t *to) noexcept nogil:
    """Copy text that is long or not ASCII. NULL if it is not text."""
    if check_text(value, length) != OK:
        return NULL
    memcpy(to, value, length)
    return to + length


cdef inline uint8_t *copy_text(const uint8_t *value, size_t length, uint8_t *to, const Codec *codec) noexcept nogil:
    """Copy text as words, which may overlap, so that few branches depend on the length."""
    cdef uint64_t word, unlike
    if length <= 8:
        if length == 0:
            return to
        # The word that ends with the text. Ones replace the bytes that are not in it.
        word = be64(value + length - 8) << (64 - 8 * length)
        put_be64(to, word)
        unlike = unlike_text(word | <uint64_t>0x0101010101010101 >> 8 * (length - 1) >> 8)
    elif length <= 16:
        unlike = copy_word(value, to) | copy_word(value + length - 8, to + length - 8)
    elif length <= 32:
        unlike = copy_word(value, to) | copy_word(value + 8, to + 8)
        unlike |= copy_word(value + length - 16, to + length - 16) | copy_word(value + length - 8, to + length - 8)
    else:
        return copy_other_text(value, length, to)
    return copy_other_text(value, length, to) if unlikely(unlike) else to + length


cdef inline uint8_t *copy_versioned(
    const uint8_t *value, size_t length, uint8_t *to, const Codec *codec
) noexcept nogil:
    if unlikely(length == 0 or value[0] != 1):
        return NULL
    return copy_text(value + 1, length - 1, to, codec)


cdef inline uint8_t *hex_bytes(const uint8_t *value, size_t length, uint8_t *to, const Codec *codec) noexcept nogil:
    """Decode bytes of the hex format, eight digits at a time."""
    cdef const uint8_t *at
    cdef const uint8_t *end = value + length
    cdef uint64_t wrong = 0
    cdef uint64_t four
    cdef size_t rest
    if unlikely(length < 2 or length & 1 or value[0] != c"\\" or value[1] != c"x"):
        return NULL
    at = value + 2
    while end - at >= 8:
        four = pack_digits(be64(at), &wrong)
        put_be64(to, four << 32)
        at += 8
        to += 4
    rest = <size_t>(end - at)
    if rest:
        # The word that ends with the digits. Zeros replace the bytes that are not in it.
        four = be64(end - 8) & (<uint64_t>1 << 8 * rest) - 1
        four = pack_digits(four | <uint64_t>0x3030303030303030 << 8 * rest, &wrong)
        put_be64(to, four << (64 - 4 * rest))
        to += rest >> 1
    return NULL if unlikely(wrong) else to


cdef inline uint8_t *copy_bytes(const uint8_t *value, size_t length, uint8_t *to, const Codec *codec) noexcept nogil:
    memcpy(to, value, length)
    return to + length


cdef size_t text_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return bytes_block(copy_text, copy_text, cells, start, out, codec)


cdef size_t versioned_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return bytes_block(copy_text, copy_versioned, cells, start, out, codec)


cdef size_t bytea_block(const Cells *cells, size_t start, Column *out, const Codec *codec) noexcept nogil:
    return bytes_block(hex_bytes, copy_bytes, cells, start, out, codec)


cdef enum:
    VARBITMAXLEN = 0x7FFFFFF8  # utils/varbit.h: INT_MAX - BITS_PER_BYTE + 1


cdef FaultCode varbit_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one bit or varbit unchanged: zeros and ones. Faults: BAD_VALUE. Source: varbit_out, utils/adt/varbit.c."""
    cdef size_t i
    cdef uint8_t other = 0
    for i in range(length):
        other |= value[i] ^ c"0"
    return FAULT_BAD_VALUE if other > 1 else put_bytes(out, value, length)


cdef FaultCode varbit_from_binary(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one bit or varbit: the number of bits in 4 bytes, then the bits, the first in a byte's highest.

    The padding bits of the last byte are ignored, as by the server. Faults: WRONG_SIZE, BAD_VALUE past VARBITMAXLEN,
    LIMIT_VALUE. Source: varbit_send and varbit_recv, utils/adt/varbit.c.
    """
    cdef const uint8_t *bytes = value + 4
    cdef uint32_t n_bits, i
    cdef uint8_t *to
    cdef FaultCode code
    if unlikely(length < 4):
        return FAULT_WRONG_SIZE
    n_bits = be32(value)
    if unlikely(n_bits > <uint32_t>VARBITMAXLEN):
        return FAULT_BAD_VALUE
    if unlikely(length - 4 != (<size_t>n_bits + 7) >> 3):
        return FAULT_WRONG_SIZE
    code = reserve_text(out, n_bits)
    if code != OK:
        return code
    to = out.data.data + out.data.size
    for i in range(n_bits):
        to[i] = c"0" + (bytes[i >> 3] >> (7 - (i & 7)) & 1)
    out.data.size += n_bits
    return end_bytes(out)


add_codec("text", text_from_text, text_from_binary, text_block)
add_codec("jsonb", text_from_text, versioned_from_binary, versioned_block)
add_codec("jsonpath", text_from_text, versioned_from_binary, versioned_block)
add_codec("ltree", text_from_text, versioned_from_binary, versioned_block)
add_codec("char", char_from_text, char_from_binary)
add_codec("bytea", bytea_from_text, bytea_from_binary, bytea_block)
add_codec("opaque", text_from_text, opaque_from_binary)
add_codec("reg", text_from_text, reg_from_binary)
add_codec("bit", varbit_from_text, varbit_from_binary)
add_codec("varbit", varbit_from_text, varbit_from_binary)
