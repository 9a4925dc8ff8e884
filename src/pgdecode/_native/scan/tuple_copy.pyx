"""Copies the cells of tuples in blocks of constant size, into memory that is reserved for many rows."""

from libc.string cimport memset

from pgdecode._native.arrow.builder cimport expect_cells
from pgdecode._native.fault cimport OK


cdef void open_tuple_copy(
    TupleCopy *copy, TupleBuilder *builder, const Walk *walk, int64_t row, int64_t n_rows, size_t n_bytes
) noexcept nogil:
    """Reserve memory for the tuples of some rows, with so many bytes in all."""
    cdef size_t most
    memset(copy, 0, sizeof(copy[0]))
    copy.builder = builder
    copy.max_columns = walk.rules.max_columns
    copy.ready = builder == NULL
    if builder == NULL or builder.rows.offsets.data == NULL:
        return
    most = min(n_bytes, copy.max_columns * <size_t>n_rows)
    if expect_cells(builder, row, n_bytes, most) != OK:
        return
    copy.ready = True
    copy.collect = COLLECT_VALUES if builder.wants_values else COLLECT_FORMATS
    copy.n_cells = <int64_t>builder.letters.size
    copy.letters = builder.letters.data
    if builder.wants_values:
        copy.ends = <int32_t *>builder.ends.data + 1
        copy.values = builder.values.data


cdef void close_tuple_copy(const TupleCopy *copy) noexcept nogil:
    """Count what has been written."""
    if copy.letters == NULL:
        return
    copy.builder.letters.size = <size_t>copy.n_cells
    if copy.values != NULL:
        copy.builder.ends.size = (<size_t>copy.n_cells + 1) * sizeof(int32_t)
        copy.builder.values.size = <size_t>copy.ends[copy.n_cells - 1]


cdef const uint8_t *copy_values(const TupleCopy *copy, const uint8_t *p, const uint8_t *end) noexcept nogil:
    return copy_cells(copy, p, end, COLLECT_VALUES)


cdef const uint8_t *copy_formats(const TupleCopy *copy, const uint8_t *p, const uint8_t *end) noexcept nogil:
    """Write only the formats, or nothing of old or new tuples that are not requested."""
    if copy.collect == COLLECT_NOTHING:
        return copy_cells(copy, p, end, COLLECT_NOTHING)
    return copy_cells(copy, p, end, COLLECT_FORMATS)
