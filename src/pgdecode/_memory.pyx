"""Growable memory from pyarrow's pool: it reuses pages from batch to batch, and counts what Python still holds.

Called a few times per batch and column, so taking the GIL here costs nothing that could be measured.
"""

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uintptr_t
from libc.string cimport memset

from pgdecode._fault cimport FAULT_NO_MEMORY

import pyarrow as pa


cdef FaultCode grow(Bytes *bytes, size_t capacity) noexcept nogil:
    """Move to room for `capacity` bytes and the slack; what was written stays."""
    with gil:
        try:
            if bytes.owner == NULL:
                owner = pa.allocate_buffer(capacity + SLACK, resizable=True)
                Py_INCREF(owner)
                bytes.owner = <PyObject *>owner
            else:
                owner = <object>bytes.owner
                owner.resize(capacity + SLACK)
            bytes.data = <uint8_t *><uintptr_t>owner.address
            bytes.capacity = capacity
            return OK
        except BaseException:
            # The pool raises MemoryError; whatever else comes up, there is no memory to write to.
            return FAULT_NO_MEMORY


cdef FaultCode open_zeroed(Bytes *bytes, size_t size) noexcept nogil:
    """Room for exactly `size` bytes, all zero: no old memory shows under nulls."""
    if grow(bytes, size) != OK:
        return FAULT_NO_MEMORY
    memset(bytes.data, 0, size)
    bytes.size = size
    return OK


cdef object hand_over(Bytes *bytes):
    """The bytes as a pyarrow buffer, which then owns them; None where none were ever reserved."""
    if bytes.owner == NULL:
        return None
    owner = <object>bytes.owner
    Py_DECREF(owner)
    bytes.owner = NULL
    bytes.data = NULL
    # The padding that Arrow may read, up to 64 bytes, must not show old memory either: resize() zeroes it.
    owner.resize(bytes.size, shrink_to_fit=bytes.capacity > 2 * bytes.size)
    return owner


cdef void free_bytes(Bytes *bytes) noexcept:
    if bytes.owner != NULL:
        owner = <object>bytes.owner
        Py_DECREF(owner)
        bytes.owner = NULL
