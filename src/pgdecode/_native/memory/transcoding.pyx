"""Converts text to UTF-8 with Python's codecs, one value at a time. ASCII is never converted."""

from cpython.ref cimport Py_DECREF, Py_INCREF

from pgdecode._native.fault cimport FAULT_ENCODING, FAULT_NO_MEMORY

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL


cdef void keep(Charset *charset, object text) noexcept:
    """Keep a reference to the text, and release the one before."""
    before = charset.text
    Py_INCREF(text)
    charset.text = <PyObject *>text
    if before != NULL:
        Py_DECREF(<object>before)


cdef FaultCode convert(Charset *charset, const uint8_t **text, size_t *length) noexcept nogil:
    cdef Py_ssize_t size = 0
    if charset.decode == NULL:
        return FAULT_ENCODING
    with gil:
        try:
            found = (<object>charset.decode)((<const char *>text[0])[:length[0]])
            text[0] = <const uint8_t *>PyUnicode_AsUTF8AndSize(found, &size)
            length[0] = <size_t>size
            keep(charset, found)
            return OK
        except UnicodeError:
            return FAULT_ENCODING
        except BaseException:
            # Codecs raise only MemoryError. After any other exception, there is no text either.
            return FAULT_NO_MEMORY


cdef int open_charset(Charset *charset, object decode) except -1:
    """Prepare a zeroed Charset. `decode` is a function from bytes to str, or None if only ASCII can be converted."""
    if decode is not None:
        Py_INCREF(decode)
        charset.decode = <PyObject *>decode
    return 0


cdef void free_charset(Charset *charset) noexcept:
    if charset.decode != NULL:
        Py_DECREF(<object>charset.decode)
    if charset.text != NULL:
        Py_DECREF(<object>charset.text)
    charset.decode = charset.text = NULL
