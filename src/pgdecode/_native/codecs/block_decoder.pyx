"""Decodes a column of a block of rows: the loops of block decoders, and the function that runs them."""

from pgdecode._native.arrow.column_builder cimport likely_text, put_null, take_back
from pgdecode._native.memory.buffers cimport reserve


cdef size_t reserve_value(Column *out, size_t size, size_t length) noexcept nogil:
    """Reserve memory after `size` bytes of data for a value of that length. Returns the new capacity, or 0."""
    cdef size_t more = length + MOST_RENDERED
    out.data.size = size
    if more > out.data.capacity - size:
        more = max(more, min(likely_text(size, out.n, out.expected), <size_t>MAX_DATA - size))
    if more > <size_t>MAX_DATA - size or reserve(&out.data, more) != OK:
        return 0
    return out.data.capacity if out.data.capacity < <size_t>MAX_DATA else <size_t>MAX_DATA


cdef FaultCode decode_cells(const Cells *cells, size_t *at, Column *out, const Codec *codec) noexcept nogil:
    """Append the values of cells from `at` on. After a fault, `at` is the bad cell, and the column ends before it."""
    cdef FaultCode code
    cdef const Cell *cell
    cdef size_t n
    while at[0] < cells.n:
        if codec.block != NULL:
            at[0] = codec.block(cells, at[0], out, codec)
            if at[0] == cells.n:
                break
        cell = cells.first + at[0] * cells.stride
        n = out.n
        if cell.value == NULL:
            code = put_null(out)
        elif cell.kind == c"t":
            code = codec.from_text(cell.value, cell.length, out, codec)
        else:
            code = codec.from_binary(cell.value, cell.length, out, codec)
        if code != OK:
            take_back(out, n)
            return code
        at[0] += 1
    return OK
