"""Growable memory from pyarrow's pool, which reuses pages from batch to batch and counts the memory in use.

These functions run a few times per batch and column, so that taking the GIL has no measurable cost.
"""

from cpython.exc cimport PyErr_Clear
from cpython.ref cimport Py_DECREF
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from pgdecode._native.fault cimport FAULT_NO_MEMORY

import pyarrow as pa

cdef extern from "Python.h":
    # Declared as plain C functions, whose results tell whether an exception is set. Catching an exception as Python
    # does needs memory, and an exception in a function that cannot raise would be lost, with OK as the result.
    PyObject *PyObject_CallFunction(PyObject *callable, const char *format, ...)
    PyObject *PyObject_CallMethod(PyObject *object, const char *name, const char *format, ...)
    PyObject *PyObject_GetAttrString(PyObject *object, const char *name)
    void *PyLong_AsVoidPtr(PyObject *number)
    void Py_DECREF_C "Py_DECREF"(PyObject *object)

cdef enum:
    ALIGNMENT = 64  # of pieces of an arena, and of `data`
    PAGE = 4096

cdef object allocate = pa.allocate_buffer


cdef FaultCode grow(Bytes *bytes, size_t capacity) noexcept nogil:
    """Move to memory of `capacity` bytes and the slack. The contents are kept."""
    cdef FaultCode code
    if bytes.arena != NULL:
        return grow_own(bytes, capacity)
    with gil:
        code = grow_owner(bytes, capacity)
        if code != OK:
            # The pool raises MemoryError. After any other exception, there is no memory either.
            PyErr_Clear()
    return code


cdef bint is_in_arena(const Bytes *bytes) noexcept nogil:
    return bytes.arena.first <= bytes.data < bytes.arena.end


cdef size_t taken_by(size_t capacity) noexcept nogil:
    """Bytes of an arena that a piece of `capacity` bytes needs."""
    return (capacity + SLACK + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


cdef void copy_to(void *to, const Bytes *bytes) noexcept nogil:
    if bytes.size:
        memcpy(to, bytes.data, bytes.size)


cdef FaultCode grow_own(Bytes *bytes, size_t capacity) noexcept nogil:
    """Grow as `grow` does. The last piece grows in place; the former memory of other pieces is not used again."""
    cdef Arena *arena = bytes.arena
    cdef size_t needed = taken_by(capacity)
    cdef bint is_last = is_in_arena(bytes) and bytes.data + taken_by(bytes.capacity) == arena.at
    cdef uint8_t *first = bytes.data if is_last else arena.at
    cdef void *moved
    if needed <= <size_t>(arena.end - first):
        moved = first
        arena.at = first + needed
        if not is_last:
            copy_to(moved, bytes)
    elif is_in_arena(bytes):
        moved = malloc(needed)
        if moved != NULL:
            copy_to(moved, bytes)
    else:
        moved = realloc(bytes.data, needed)
    if moved == NULL:
        return FAULT_NO_MEMORY
    bytes.data = <uint8_t *>moved
    bytes.capacity = capacity
    return OK


cdef FaultCode grow_owner(Bytes *bytes, size_t capacity) noexcept:
    cdef Py_ssize_t size
    cdef PyObject *found
    cdef void *address
    if bytes.owner == NULL and capacity >= PAGE:
        # The pool aligns large buffers to pages. The columns of a row would then compete for the same few cache lines.
        # So buffers begin at different offsets, which depend on the address of `bytes`.
        bytes.start = <uintptr_t>bytes // sizeof(Bytes) * ALIGNMENT % PAGE
    size = <Py_ssize_t>(bytes.start + capacity + SLACK)
    if bytes.owner == NULL:
        bytes.owner = PyObject_CallFunction(<PyObject *>allocate, "nOi", size, <PyObject *>None, 1)
        if bytes.owner == NULL:
            return FAULT_NO_MEMORY
    else:
        found = PyObject_CallMethod(bytes.owner, "resize", "n", size)
        if found == NULL:
            return FAULT_NO_MEMORY
        Py_DECREF_C(found)
    found = PyObject_GetAttrString(bytes.owner, "address")
    address = PyLong_AsVoidPtr(found) if found != NULL else NULL
    if found != NULL:
        Py_DECREF_C(found)
    if address == NULL:
        # The memory may have moved to an unknown address: nothing may be written any more.
        bytes.data = NULL
        bytes.capacity = bytes.size
        return FAULT_NO_MEMORY
    bytes.data = <uint8_t *><uintptr_t>address + bytes.start
    bytes.capacity = capacity
    return OK


cdef FaultCode grow_likely(Bytes *bytes, size_t extra, double a_row, int64_t n_done, int64_t n_rows) noexcept nogil:
    """Reserve `extra` more bytes, or enough for all rows at the average size of the rows so far, if that is more.

    The first rows may be the longest: up to FEW_ROWS rows, the estimate is at most eight times what is needed now.
    """
    cdef size_t needed = bytes.size + extra
    cdef size_t half_more = bytes.capacity + (bytes.capacity >> 1)
    # An eighth more than the average, because rows differ.
    cdef double likely = 1.125 * a_row * <double>n_rows + <double>extra
    if n_done < FEW_ROWS:
        likely = min(likely, 8.0 * <double>needed)
    likely = min(likely, <double>0x7FFFFFFF)
    return grow(bytes, max(needed, half_more, <size_t>likely))


cdef FaultCode open_zeroed(Bytes *bytes, size_t size) noexcept nogil:
    """Allocate exactly `size` bytes of zeros, so that no old memory shows under nulls."""
    if grow(bytes, size) != OK:
        return FAULT_NO_MEMORY
    memset(bytes.data, 0, size)
    bytes.size = size
    return OK


cdef object hand_over(Bytes *bytes):
    """Make a pyarrow buffer that owns the memory; None if none was ever reserved."""
    if bytes.owner == NULL:
        return None
    if bytes.data != NULL:
        # Old memory must not show in front of the values, or in the padding that Arrow may read. The pool allocates
        # whole multiples of the alignment.
        memset(bytes.data - bytes.start, 0, bytes.start)
        memset(bytes.data + bytes.size, 0, (ALIGNMENT - bytes.size % ALIGNMENT) % ALIGNMENT)
    owner = <object>bytes.owner
    Py_DECREF(owner)
    bytes.owner = NULL
    bytes.data = NULL
    start, bytes.start = bytes.start, 0
    owner.resize(start + bytes.size, shrink_to_fit=bytes.capacity > 2 * bytes.size)
    return owner.slice(start) if start else owner


cdef void free_bytes(Bytes *bytes) noexcept:
    if bytes.arena != NULL:
        if not is_in_arena(bytes):
            free(bytes.data)
        bytes.data = NULL
    if bytes.owner != NULL:
        owner = <object>bytes.owner
        Py_DECREF(owner)
        bytes.owner = NULL


cdef int open_arenas(Arenas *arenas, Py_ssize_t n, size_t size) except -1:
    """Make n arenas of `size` bytes. `free_arenas` may be called after an error, if the struct was zero before."""
    cdef Py_ssize_t i
    size = (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    arenas.items = <Arena *>calloc(<size_t>n, sizeof(Arena))
    if arenas.items == NULL or grow(&arenas.block, <size_t>n * size) != OK:
        raise MemoryError()
    arenas.n = n
    for i in range(n):
        arenas.items[i].first = arenas.items[i].at = arenas.block.data + <size_t>i * size
        arenas.items[i].end = arenas.items[i].at + size
    return 0


cdef void free_arenas(Arenas *arenas) noexcept:
    free(arenas.items)
    free_bytes(&arenas.block)
