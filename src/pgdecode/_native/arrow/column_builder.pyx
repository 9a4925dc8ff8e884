"""Opens typed columns for an Arrow type, removes items, and makes Arrow arrays of finished columns."""

from libc.stdlib cimport calloc, free

from pgdecode._native.cursor cimport le64
from pgdecode._native.memory.bits cimport fill_bits, gathered
from pgdecode._native.memory.buffers cimport FEW_ROWS, free_bytes, hand_over

import pyarrow as pa

from pgdecode.arrow.null_arrays import null_array


cdef uint8_t *validity_for(Column *column, size_t n) noexcept nogil:
    """Validity bytes of the next n items, all 1; NULL without memory. The caller sets the size."""
    cdef size_t written = column.valid.size
    cdef size_t most = column.n + n
    if column.valid.data == NULL and column.expected > most:
        most = column.expected
    if reserve(&column.valid, most - written) != OK:
        return NULL
    memset(column.valid.data + written, 1, column.n - written + n)
    return column.valid.data + column.n


cdef FaultCode open_bits(Column *column, size_t n) noexcept nogil:
    """Reserve bits of validity for n more items, which the caller writes. Items before the first null get theirs."""
    cdef size_t needed = (column.n + n + 7) // 8
    cdef size_t most = needed
    if column.valid.data == NULL and column.expected > column.n + n:
        most = (column.expected + 7) // 8
    if reserve(&column.valid, most - column.valid.size) != OK:
        return FAULT_NO_MEMORY
    if column.valid.size == 0:
        fill_bits(column.valid.data, 0, column.n, 1)
    column.valid.size = needed
    return OK


cdef FaultCode mark_beside_nulls(Column *column, uint8_t valid) noexcept nogil:
    """Count one more item of a column that has nulls, or its first null."""
    cdef uint8_t *validity = validity_for(column, 1)
    if validity == NULL:
        return FAULT_NO_MEMORY
    validity[0] = valid
    column.n += 1
    column.n_null += not valid
    column.valid.size = column.n
    return OK


cdef void keep_bits(Column *column) noexcept nogil:
    """Let an empty column keep its validity in bits. Then only nulls and parts are appended."""
    cdef int i
    column.in_bits = True
    for i in range(column.n_children):
        keep_bits(&column.children[i])


cdef void expect(Column *column, size_t n) noexcept nogil:
    """Set the expected number of items, with nulls. The children of a struct have the same number."""
    cdef int i
    column.expected = n
    if column.shape == SHAPE_STRUCT:
        for i in range(column.n_children):
            expect(&column.children[i], n)


cdef void limit_text(Column *column, size_t more) noexcept nogil:
    """Set how many more bytes of text, or of other data without constant width, a column may have."""
    cdef int i
    if column.shape == SHAPE_BYTES:
        column.most = <size_t>0x7FFFFFFF
        if more < column.most - column.data.size:
            column.most = column.data.size + more
    for i in range(column.n_children):
        limit_text(&column.children[i], more)


cdef size_t text_in(const Column *column) noexcept nogil:
    """Bytes of text, and of other data without constant width, in a column."""
    # A column with children has no data of its own, but uses the buffer as scratch memory.
    cdef size_t total = column.data.size if column.shape == SHAPE_BYTES else 0
    cdef int i
    for i in range(column.n_children):
        total += text_in(&column.children[i])
    return total


cdef size_t length_of(const Column *column) noexcept nogil:
    return column.n + column.postponed


cdef size_t likely_text(size_t size, size_t n, size_t expected) noexcept nogil:
    """Estimate how many more bytes there will be, from the average length of the n items so far."""
    cdef size_t likely = 0
    if n and expected > n:
        likely = size // n * (expected - n) + size // 8
    # The first items may be the longest.
    return likely if n >= FEW_ROWS else min(likely, 7 * size)


cdef FaultCode open_items(Column *column, size_t n) noexcept nogil:
    """Reserve memory for n more values of constant width, at first for all expected ones."""
    cdef size_t most = column.expected if column.values.data == NULL and column.expected > n else n
    return reserve(&column.values, most * <size_t>column.width)


cdef FaultCode open_ends(Column *column, size_t n) noexcept nogil:
    """Reserve memory for n more ends, at first for all expected ones, and write the 0 before the first end."""
    cdef size_t most = column.expected if column.ends.data == NULL and column.expected > n else n
    if column.ends.size:
        return reserve(&column.ends, most * sizeof(int32_t))
    if reserve(&column.ends, (most + 1) * sizeof(int32_t)) != OK:
        return FAULT_NO_MEMORY
    memset(column.ends.data, 0, sizeof(int32_t))
    column.ends.size = sizeof(int32_t)
    return OK


cdef FaultCode mark_nulls(Column *column, size_t n) noexcept nogil:
    """Count n more nulls, whose values have been written."""
    cdef uint8_t *validity
    if column.in_bits:
        if open_bits(column, n) != OK:
            return FAULT_NO_MEMORY
        fill_bits(column.valid.data, column.n, n, 0)
    else:
        validity = validity_for(column, n)
        if validity == NULL:
            return FAULT_NO_MEMORY
        memset(validity, 0, n)
        column.valid.size = column.n + n
    column.n += n
    column.n_null += n
    return OK


cdef FaultCode put_nulls(Column *column, size_t n) noexcept nogil:
    """Append n nulls. Their values are zeros, empty strings or lists, or nulls in the children of a struct."""
    cdef FaultCode code
    cdef size_t width = <size_t>column.width
    cdef int32_t end = 0
    cdef size_t i
    cdef int child
    if column.shape == SHAPE_FIXED:
        if open_items(column, n) != OK:
            return FAULT_NO_MEMORY
        memset(column.values.data + column.values.size, 0, n * width)
        column.values.size += n * width
    elif column.shape == SHAPE_STRUCT:
        for child in range(column.n_children):
            code = put_nulls(&column.children[child], n)
            if code != OK:
                return code
    else:
        if open_ends(column, n) != OK:
            return FAULT_NO_MEMORY
        end = <int32_t>(column.data.size if column.shape == SHAPE_BYTES else column.children[0].n)
        for i in range(n):
            memcpy(column.ends.data + column.ends.size + i * sizeof(end), &end, sizeof(end))
        column.ends.size += n * sizeof(end)
    return mark_nulls(column, n)


cdef FaultCode mark_many(Column *column, size_t n) noexcept nogil:
    """Count n more items without nulls, whose values have been written."""
    if column.valid.size:
        if validity_for(column, n) == NULL:
            return FAULT_NO_MEMORY
        column.valid.size = column.n + n
    column.n += n
    return OK


cdef FaultCode put_empty_lists(Column *column, size_t n) noexcept nogil:
    cdef int32_t end = <int32_t>column.children[0].n
    cdef size_t i
    if open_ends(column, n) != OK:
        return FAULT_NO_MEMORY
    for i in range(n):
        memcpy(column.ends.data + column.ends.size + i * sizeof(end), &end, sizeof(end))
    column.ends.size += n * sizeof(end)
    return mark_many(column, n)


cdef FaultCode put_null(Column *column) noexcept nogil:
    return put_nulls(column, 1)


cdef void postpone_nulls(Column *column, size_t n) noexcept nogil:
    """Append n nulls, but write them only before another item. A column with only nulls never writes them."""
    column.postponed += n


cdef FaultCode write_struct_nulls(Column *column) noexcept nogil:
    """Write the postponed nulls of a struct, and postpone those of its children."""
    cdef size_t n = column.postponed
    cdef int i
    if n == 0:
        return OK
    column.postponed = 0
    for i in range(column.n_children):
        postpone_nulls(&column.children[i], n)
    return mark_nulls(column, n)


cdef FaultCode write_postponed_nulls(Column *column) noexcept nogil:
    """Write the postponed nulls. This comes before anything else is appended."""
    cdef size_t n = column.postponed
    if n == 0:
        return OK
    column.postponed = 0
    return put_nulls(column, n)


cdef size_t end_of(const Column *column, size_t n) noexcept nogil:
    """The start of item n, in bytes or children."""
    cdef int32_t end = 0
    if column.ends.size > n * sizeof(end):
        memcpy(&end, column.ends.data + n * sizeof(end), sizeof(end))
    return <size_t>end


cdef void take_back(Column *column, size_t n) noexcept nogil:
    """Cut the column to its first n items. The last item may be incomplete."""
    cdef size_t i
    cdef int child
    if column.n > n:
        if column.valid.size:
            for i in range(n, column.n):
                column.n_null -= not column.valid.data[i]
            column.valid.size = n
        column.n = n
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
    """Types of the child columns. A map has one child, a struct of key and value."""
    if pa.types.is_map(arrow_type):
        return [pa.struct([arrow_type.key_field, arrow_type.item_field])]
    return [arrow_type.field(i).type for i in range(arrow_type.num_fields)]


cdef int open_column(Column *column, object arrow_type) except -1:
    """Prepare a zeroed Column for an Arrow type. `free_column` may be called after an error."""
    cdef int i
    types = pa.types
    memset(column, 0, sizeof(Column))
    column.most = <size_t>0x7FFFFFFF
    if types.is_string(arrow_type) or types.is_binary(arrow_type):
        column.shape = SHAPE_BYTES
        return 0
    if not types.is_nested(arrow_type):
        column.shape = SHAPE_FIXED
        column.is_bool = types.is_boolean(arrow_type)
        column.width = 1 if column.is_bool else arrow_type.bit_width // 8
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


cdef FaultCode open_as(Column *column, const Column *like, Arena *arena) noexcept nogil:
    """Prepare a zeroed Column for the type of another column, in memory of an arena.

    Its memory is never handed over. `free_column` may be called after an error.
    """
    cdef int i
    column.shape = like.shape
    column.width = like.width
    column.is_bool = like.is_bool
    column.most = <size_t>0x7FFFFFFF
    column.valid.arena = column.values.arena = column.ends.arena = column.data.arena = arena
    if like.n_children == 0:
        return OK
    column.children = <Column *>calloc(<size_t>like.n_children, sizeof(Column))
    if column.children == NULL:
        return FAULT_NO_MEMORY
    column.n_children = like.n_children
    for i in range(column.n_children):
        if open_as(&column.children[i], &like.children[i], arena) != OK:
            return FAULT_NO_MEMORY
    return OK


cdef void empty_column(Column *column) noexcept nogil:
    """Remove all items, and keep the memory. Validity is bytes from now on."""
    cdef int i
    column.in_bits = False
    column.n = column.n_null = column.postponed = 0
    column.valid.size = column.values.size = column.ends.size = column.data.size = 0
    for i in range(column.n_children):
        empty_column(&column.children[i])


cdef void pack(Bytes *bytes) noexcept nogil:
    """Replace bytes that are 0 or 1 by bits."""
    cdef size_t i
    cdef size_t n = bytes.size
    cdef uint8_t last = 0
    for i in range(n // 8):
        bytes.data[i] = gathered(le64(bytes.data + 8 * i))
    for i in range(n - n % 8, n):
        last |= <uint8_t>(bytes.data[i] << (i & 7))
    if n % 8:
        bytes.data[n // 8] = last
    bytes.size = (n + 7) // 8


cdef FaultCode seal_column(Column *column) noexcept nogil:
    """Write postponed nulls, unless there is nothing else, and pack validity and bools into bits."""
    cdef FaultCode code
    cdef int i
    if column.sealed or column.n == 0 and column.postponed:
        return OK
    code = write_struct_nulls(column) if column.shape == SHAPE_STRUCT else write_postponed_nulls(column)
    if code != OK:
        return code
    for i in range(column.n_children):
        code = seal_column(&column.children[i])
        if code != OK:
            return code
    if column.n_null and not column.in_bits:
        pack(&column.valid)
    if column.is_bool and column.n:
        pack(&column.values)
    column.sealed = True
    return OK


cdef object finish_column(Column *column, object arrow_type):
    """Make the Arrow array, which then owns the memory."""
    cdef size_t n
    cdef FaultCode code
    if column.postponed and column.n == 0:
        return null_array(column.postponed, arrow_type)
    with nogil:
        code = seal_column(column)
    if code != OK:
        raise MemoryError()
    n = column.n
    validity = hand_over(&column.valid) if column.n_null else None
    if column.shape == SHAPE_FIXED:
        values = hand_over(&column.values)
        buffers = [validity, pa.py_buffer(b"") if values is None else values]
        return pa.Array.from_buffers(arrow_type, n, buffers, column.n_null)
    if column.shape == SHAPE_STRUCT:
        arrays = [finish_column(&column.children[i], type) for i, type in enumerate(children_of(arrow_type))]
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
