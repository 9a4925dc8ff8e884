"""Text of another client_encoding than UTF8, made UTF-8 by a Python codec."""

from cpython.ref cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

from pgdecode._native.fault cimport OK, FaultCode

cdef struct Charset:
    PyObject *decode   # from bytes to str, one reference; NULL where only ASCII has a known meaning
    PyObject *text     # what was converted last; the bytes that were handed out are its own


cdef inline bint is_ascii(const uint8_t *text, size_t length) noexcept nogil:
    cdef uint8_t seen = 0
    cdef size_t i
    for i in range(length):
        seen |= text[i]
    return seen < 0x80


cdef FaultCode convert(Charset *charset, const uint8_t **text, size_t *length) noexcept nogil


cdef inline FaultCode to_utf8(Charset *charset, const uint8_t **text, size_t *length) noexcept nogil:
    """Put UTF-8 in place of text, good until the next is converted; ASCII, and all where charset is NULL, stays.

    Faults: ENCODING for bytes that the encoding has no character for.
    """
    if charset == NULL or is_ascii(text[0], length[0]):
        return OK
    return convert(charset, text, length)


cdef int open_charset(Charset *charset, object decode) except -1
cdef void free_charset(Charset *charset) noexcept
