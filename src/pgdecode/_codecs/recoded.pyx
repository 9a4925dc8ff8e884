"""Values whose text is of another client_encoding than UTF8: converted first, then decoded by the codec within.

The text form is converted as a whole, before quotes and braces are looked for: the second byte of a character can be
a backslash or a brace in SJIS, BIG5, GBK and their kin. In the binary form only what is text is converted: where the
whole value is (the version byte of a jsonb is ASCII), by `recoded_text`; inside hstore and the like by their codecs.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

from pgdecode._charset cimport to_utf8
from pgdecode._codec cimport Codec
from pgdecode._column cimport Column
from pgdecode._fault cimport OK, FaultCode


cdef FaultCode recoded_from_text(const uint8_t *value, size_t length, Column *out, const Codec *codec) noexcept nogil:
    """Append one value of any type. Faults: ENCODING, and those of the codec within."""
    cdef FaultCode code = to_utf8(codec.charset, &value, &length)
    return codec.element.from_text(value, length, out, codec.element) if code == OK else code


cdef FaultCode recoded_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append one value of any type, of which nothing is to be converted here. Faults: those of the codec within."""
    return codec.element.from_binary(value, length, out, codec.element)


cdef FaultCode recoded_text_from_text(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append one text that has been converted already, with what it stands in. Faults: those of the codec within."""
    return codec.element.from_text(value, length, out, codec.element)


cdef FaultCode recoded_text_from_binary(
    const uint8_t *value, size_t length, Column *out, const Codec *codec
) noexcept nogil:
    """Append one value that is text throughout. Faults: ENCODING, and those of the codec within."""
    cdef FaultCode code = to_utf8(codec.charset, &value, &length)
    return codec.element.from_binary(value, length, out, codec.element) if code == OK else code


cdef bint recoded_codec(str name, Codec *codec):
    """Fill in the decoders of a codec of this family; False for a name of another."""
    if name == "recoded":
        codec.from_text, codec.from_binary = recoded_from_text, recoded_from_binary
    elif name == "recoded_text":
        codec.from_text, codec.from_binary = recoded_text_from_text, recoded_text_from_binary
    else:
        return False
    return True
