"""Converts text in another client_encoding to UTF-8, with a Python codec."""

from cpython.ref cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

from pgdecode._native.fault cimport OK, FaultCode

cdef struct Charset:
    PyObject *decode   # from bytes to str, one reference; NULL: only ASCII can be converted
    PyObject *text     # the last converted text, which owns the bytes that were returned


cdef inline bint is_ascii(const uint8_t *text, size_t length) noexcept nogil:
    cdef uint8_t seen = 0
    cdef size_t i
    for i in range(length):
        seen |= text[i]
    return seen < 0x80


cdef FaultCode convert(Charset *charset, const uint8_t **text, size_t *length) noexcept nogil


cdef inline FaultCode to_utf8(Charset *charset, const uint8_t **text, size_t *length) noexcept nogil:
    """Replace text by its UTF-8, which is valid until the next call. ASCII stays, and all text if charset is NULL.

    Faults: ENCODING for bytes that the encoding does not have.
    """
    if charset == NULL or is_ascii(text[0], length[0]):
        return OK
    return convert(charset, text, length)


cdef int open_charset(Charset *charset, object decode) except -1
cdef void free_charset(Charset *charset) noexcept
