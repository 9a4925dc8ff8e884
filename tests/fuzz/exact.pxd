"""Blocks of exact size for what the code under test reads, and the end of a run that found something.

Each value and payload lies in a block from malloc that is exactly as long as it is: behind the bytes of a Python bytes
object there is a NUL, behind those of an Arrow buffer padding, and a read of one byte too many would go unseen there.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t
from libc.stdio cimport fprintf, stderr
from libc.stdlib cimport abort, malloc
from libc.string cimport memcpy, memset

# What a native module gives to the driver.
ctypedef void (*Target)(const uint8_t *data, size_t size) noexcept nogil

cdef struct Block:
    uint8_t *owner
    uint8_t *data


cdef inline void fail(const char *what) noexcept nogil:
    """End the process, as a sanitizer would."""
    fprintf(stderr, "fuzz: %s\n", what)
    abort()


cdef inline Block exact(const uint8_t *data, size_t size, size_t lead) noexcept nogil:
    """A copy of the bytes that ends where its block ends, with `lead` zeros in front; `owner` is for free()."""
    cdef Block block
    cdef size_t whole = size + lead
    # malloc(0) gives a byte that may be read: of nothing, the address is that behind a block of one byte.
    block.owner = <uint8_t *>malloc(whole if whole else 1)
    if block.owner == NULL:
        fail("no memory")
    block.data = block.owner + (lead if whole else 1)
    memset(block.owner, 0, lead)
    if size:
        memcpy(block.data, data, size)
    return block
