"""Opens typed columns for an Arrow type, takes items back, and finishes columns into Arrow arrays."""

from libc.stdlib cimport calloc, free

from pgdecode._memory cimport free_bytes, grow, hand_over

import pyarrow as pa


cdef FaultCode put_null(Column *column) noexcept nogil:
    """Append a null; under it stand zeros, empty strings and lists, and nulls in a struct's children."""
    cdef FaultCode code = OK
    cdef int i
    if column.shape == SHAPE_FIXED:
        code = reserve(&column.values, <size_t>column.width)
        if code == OK:
            memset(column.values.data + column.values.size, 0, <size_t>column.width)
            column.values.size += <size_t>column.width
    elif column.shape == SHAPE_BYTES:
        code = put_end(column, column.data.size)
    elif column.shape == SHAPE_LIST:
        code = put_end(column, column.children[0].n)
    else:
        for i in range(column.n_children):
            code = put_null(&column.children[i])
            if code != OK:
                return code
    return code if code != OK else mark(column, 0)


cdef size_t end_of(const Column *column, size_t n) noexcept nogil:
    """Where item n starts, in bytes or children."""
    cdef int32_t end = 0
    if column.ends.size > n * sizeof(end):
        memcpy(&end, column.ends.data + n * sizeof(end), sizeof(end))
    return <size_t>end


cdef void take_back(Column *column, size_t n) noexcept nogil:
    """Cut the column to its first n items, also where the last one is half written."""
    cdef size_t i
    cdef int child
    for i in range(n, column.n):
        column.n_null -= not column.valid.data[i]
    if column.n > n:
        column.n = n
        column.valid.size = n
    if column.shape == SHAPE_FIXED:
        column.values.size = n * <size_t>column.width
    elif column.shape == SHAPE_STRUCT:
        for child in range(column.n_children):
            take_back(&column.children[child], n)
    else:
        if column.shape == SHAPE_BYTES:
            column.data.size = end_of(column, n)
        else:
            take_back(&column.children[0], end_of(column, n))
        if column.ends.size:
            column.ends.size = (n + 1) * sizeof(int32_t)


cdef list children_of(object arrow_type):
    """Types of the child columns: a map's one child is a struct of key and value."""
    if pa.types.is_map(arrow_type):
        return [pa.struct([arrow_type.key_field, arrow_type.item_field])]
    return [arrow_type.field(i).type for i in range(arrow_type.num_fields)]


cdef int open_column(Column *column, object arrow_type) except -1:
    """Make a zeroed Column ready for an Arrow type; `free_column` may be called whatever happens here."""
    cdef int i
    types = pa.types
    memset(column, 0, sizeof(Column))
    if types.is_string(arrow_type) or types.is_binary(arrow_type):
        column.shape = SHAPE_BYTES
        return 0
    if not types.is_nested(arrow_type):
        column.shape = SHAPE_FIXED
        column.width = 1 if types.is_boolean(arrow_type) else arrow_type.bit_width // 8
        return 0
    column.shape = SHAPE_STRUCT if types.is_struct(arrow_type) else SHAPE_LIST
    children = children_of(arrow_type)
    column.children = <Column *>calloc(len(children) + 1, sizeof(Column))
    if column.children == NULL:
        raise MemoryError()
    column.n_children = len(children)
    for i in range(column.n_children):
        open_column(&column.children[i], children[i])
    return 0


cdef object packed(const Bytes *bytes):
    """Bits of bytes that are 0 or 1."""
    cdef Bytes bits
    cdef size_t i
    cdef size_t n = bytes.size
    memset(&bits, 0, sizeof(bits))
    if grow(&bits, (n + 7) // 8) != OK:
        raise MemoryError()
    bits.size = (n + 7) // 8
    memset(bits.data, 0, bits.size)
    with nogil:
        for i in range(n):
            bits.data[i >> 3] |= <uint8_t>(bytes.data[i] << (i & 7))
    return hand_over(&bits)


cdef object finish_column(Column *column, object arrow_type):
    """The Arrow array; the column keeps nothing of it."""
    cdef int i
    cdef size_t n = column.n
    validity = packed(&column.valid) if column.n_null else None
    if column.shape == SHAPE_FIXED:
        values = packed(&column.values) if pa.types.is_boolean(arrow_type) else hand_over(&column.values)
        buffers = [validity, pa.py_buffer(b"") if values is None else values]
        return pa.Array.from_buffers(arrow_type, n, buffers, column.n_null)
    if column.shape == SHAPE_STRUCT:
        children = children_of(arrow_type)
        arrays = [finish_column(&column.children[i], children[i]) for i in range(column.n_children)]
        return pa.Array.from_buffers(arrow_type, n, [validity], column.n_null, children=arrays)
    ends = pa.py_buffer(bytes(4)) if column.ends.size == 0 else hand_over(&column.ends)
    if column.shape == SHAPE_BYTES:
        data = pa.py_buffer(b"") if column.data.owner == NULL else hand_over(&column.data)
        return pa.Array.from_buffers(arrow_type, n, [validity, ends, data], column.n_null)
    items = finish_column(&column.children[0], children_of(arrow_type)[0])
    return pa.Array.from_buffers(arrow_type, n, [validity, ends], column.n_null, children=[items])


cdef void free_column(Column *column) noexcept:
    cdef int i
    free_bytes(&column.valid)
    free_bytes(&column.values)
    free_bytes(&column.ends)
    free_bytes(&column.data)
    for i in range(column.n_children):
        free_column(&column.children[i])
    free(column.children)
    column.children = NULL
    column.n_children = 0
