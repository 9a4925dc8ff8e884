"""What replaces pgdecode._native.memory.buffers under the fuzzer: `malloc` alone, so that AddressSanitizer sees each
block's end."""

from cpython.ref cimport PyObject
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from pgdecode._native.fault cimport FAULT_NO_MEMORY, OK
from pgdecode._native.memory.buffers cimport SLACK

cdef size_t n_live = 0


cdef FaultCode grow(Bytes *bytes, size_t capacity) noexcept nogil:
    """Move to room for exactly `capacity` bytes and the slack; under AddressSanitizer the block always moves."""
    global n_live
    cdef void *block = realloc(bytes.owner, capacity + SLACK)
    if block == NULL:
        return FAULT_NO_MEMORY
    n_live += bytes.owner == NULL
    bytes.owner = <PyObject *>block
    bytes.data = <uint8_t *>block
    bytes.capacity = capacity
    return OK


cdef FaultCode open_zeroed(Bytes *bytes, size_t size) noexcept nogil:
    if grow(bytes, size) != OK:
        return FAULT_NO_MEMORY
    memset(bytes.data, 0, size)
    bytes.size = size
    return OK


cdef void free_bytes(Bytes *bytes) noexcept nogil:
    global n_live
    n_live -= bytes.owner != NULL
    free(bytes.owner)
    bytes.owner = NULL


cdef size_t live_blocks() noexcept nogil:
    return n_live
