"""A column of Arrow as bytes: where each value is in its buffers. For hashes and keys of rows."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from pgdecode._native.fault cimport unlikely

cdef struct ColumnBuffers:
    # `width` is the bytes of a value; 0 if `offsets` has the ends of values, of 4 or 8 bytes each.
    const uint8_t *validity
    const uint8_t *values
    const uint8_t *offsets
    Py_ssize_t width
    Py_ssize_t offset_width
    size_t size      # of `values`
    int64_t first    # offset of the array


cdef inline int view_column(ColumnBuffers *column, tuple buffers, Py_ssize_t n, list views) except -1:
    """Point to the buffers of a column, which have at least n values from its offset on.

    They are (width of a value, or 0; width of an offset; offset of the array; validity or None, values, offsets or
    None). `views` keeps them alive.
    """
    cdef const uint8_t[::1] view
    width, offset_width, first, validity, values, offsets = buffers
    memset(column, 0, sizeof(ColumnBuffers))
    column.width, column.offset_width, column.first = width, offset_width, first
    if width < 0 or first < 0 or (not width and offset_width not in (4, 8)):
        raise ValueError("values of such a width are not read")
    if validity is not None:
        view = memoryview(validity).cast("B")
        if 8 * view.shape[0] < first + n:
            raise ValueError("the Arrow array's validity is too short")
        column.validity = &view[0] if view.shape[0] else NULL
        views.append(view)
    if values is not None:
        view = memoryview(values).cast("B")
        column.size = <size_t>view.shape[0]
        column.values = &view[0] if view.shape[0] else NULL
        views.append(view)
    if width and column.size < <size_t>(width * (first + n)):
        raise ValueError("the Arrow array's values are too short")
    if not width and n:
        view = memoryview(offsets).cast("B")
        if view.shape[0] < offset_width * (first + n + 1):
            raise ValueError("the Arrow array's offsets are too short")
        column.offsets = &view[0]
        views.append(view)
    return 0


cdef inline bint is_valid(const ColumnBuffers *column, int64_t row) noexcept nogil:
    cdef int64_t at = column.first + row
    return column.validity == NULL or (column.validity[at >> 3] >> (at & 7)) & 1


cdef inline bint find_value(
    const ColumnBuffers *column, int64_t row, const uint8_t **value, uint64_t *length
) noexcept nogil:
    """Find the bytes of a value. False if the offsets are wrong."""
    cdef int64_t at = column.first + row
    cdef int64_t first = 0, end = 0
    if column.width:
        length[0] = <uint64_t>column.width
        value[0] = column.values + at * column.width
        return True
    memcpy(&first, column.offsets + at * column.offset_width, column.offset_width)
    memcpy(&end, column.offsets + (at + 1) * column.offset_width, column.offset_width)
    if unlikely(first < 0 or end < first or <size_t>end > column.size):
        return False
    length[0] = <uint64_t>(end - first)
    value[0] = column.values + first
    return True


cdef inline uint64_t mixed(uint64_t value) noexcept nogil:
    """Spread the bits of a number (splitmix64)."""
    value = (value ^ (value >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * <uint64_t>0x94D049BB133111EB
    return value ^ (value >> 31)
