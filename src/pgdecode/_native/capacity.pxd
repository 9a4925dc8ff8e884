"""Growable arrays of items, in memory from the system's allocator."""

from libc.stddef cimport size_t
from libc.stdlib cimport realloc

cdef enum:
    LEAST_CAPACITY = 64  # items


cdef inline bint ensure_capacity(
    void **items, size_t n, size_t *capacity, size_t width, size_t expected
) noexcept nogil:
    """Reserve memory for item `n`; the first time, for all expected items. False without memory."""
    cdef size_t wanted
    cdef void *moved
    if n < capacity[0]:
        return True
    wanted = 2 * capacity[0] if capacity[0] else max(<size_t>LEAST_CAPACITY, expected)
    moved = realloc(items[0], wanted * width)
    if moved == NULL:
        return False
    items[0] = moved
    capacity[0] = wanted
    return True
