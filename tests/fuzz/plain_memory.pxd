"""What replaces pgdecode._native.memory.buffers under the fuzzer: `malloc` alone, so that AddressSanitizer sees each
block's end."""

from libc.stddef cimport size_t

from pgdecode._native.fault cimport FaultCode
from pgdecode._native.memory.buffers cimport Bytes


cdef FaultCode grow(Bytes *bytes, size_t capacity) noexcept nogil
cdef FaultCode open_zeroed(Bytes *bytes, size_t size) noexcept nogil
cdef void free_bytes(Bytes *bytes) noexcept nogil
cdef size_t live_blocks() noexcept nogil
