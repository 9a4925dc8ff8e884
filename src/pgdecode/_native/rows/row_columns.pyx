"""Rows of one relation as typed columns: the output, or the part of one thread."""

from libc.stdint cimport int32_t
from libc.stdlib cimport calloc, free

from pgdecode._native.arrow.column_builder cimport (
    SHAPE_BYTES,
    SHAPE_FIXED,
    SHAPE_LIST,
    SHAPE_STRUCT,
    empty_column,
    end_of,
    expect,
    free_column,
    keep_bits,
    length_of,
    likely_text,
    open_as,
    open_bits,
    open_column,
    open_ends,
    open_items,
    postpone_nulls,
    write_postponed_nulls,
    write_struct_nulls,
)
from pgdecode._native.fault cimport FAULT_LIMIT_BATCH, FAULT_LIMIT_EXPANSION, FAULT_NO_MEMORY, OK, keep_fault
from pgdecode._native.memory.bits cimport fill_bits, put_between, put_borders
from pgdecode._native.memory.buffers cimport has_capacity, reserve
from pgdecode._native.memory.non_temporal_copy cimport add_uncached, copy_uncached

cdef enum:
    MOST_TIMES = 4  # times the bytes of all payloads: limit of the expected text; the first rows may be the longest


cdef int open_rowset(RowSet *rows, list types, int64_t expected, bint in_parts) except -1:
    """Open columns of these Arrow types for `n_rows` rows, perhaps in parts. `rows` is zero."""
    cdef int i
    rows.columns = <Column *>calloc(len(types), sizeof(Column))
    if rows.columns == NULL:
        raise MemoryError()
    rows.n_columns = len(types)
    for i in range(rows.n_columns):
        open_column(&rows.columns[i], types[i])
        if in_parts:
            keep_bits(&rows.columns[i])
        expect(&rows.columns[i], <size_t>expected)
    return 0


cdef FaultCode open_part(RowSet *part, const RowSet *output, int64_t expected, Arena *arena) noexcept nogil:
    """Open columns of the same types as another row set, in memory of an arena."""
    cdef int i
    part.columns = <Column *>calloc(<size_t>output.n_columns, sizeof(Column))
    if part.columns == NULL:
        return FAULT_NO_MEMORY
    part.n_columns = output.n_columns
    part.most_text = output.most_text
    for i in range(part.n_columns):
        if open_as(&part.columns[i], &output.columns[i], arena) != OK:
            return FAULT_NO_MEMORY
        expect(&part.columns[i], <size_t>expected)
    return OK


cdef void empty_rowset(RowSet *rows) noexcept nogil:
    cdef int i
    for i in range(rows.n_columns):
        empty_column(&rows.columns[i])
    rows.faults.n = 0
    rows.text = 0


cdef bint fits_rowset(const RowSet *rows, const RowSet *part) noexcept nogil:
    """Whether there is memory for the rows of a part."""
    cdef int i
    for i in range(rows.n_columns):
        if not fits_column(&rows.columns[i], &part.columns[i], 0):
            return False
    return True


cdef FaultCode place_rowset(RowSet *rows, RowSet *part) noexcept nogil:
    """Assign the rows of a part their position, after all others. Faults: LIMIT_BATCH, LIMIT_EXPANSION, NO_MEMORY."""
    cdef FaultCode code
    cdef double share
    cdef size_t k
    cdef int i
    if part.text > rows.most_text - rows.text:
        return FAULT_LIMIT_EXPANSION
    share = share_expected(rows, part)
    for i in range(rows.n_columns):
        code = place_column(&rows.columns[i], &part.columns[i], share)
        if code != OK:
            return code
    for k in range(part.faults.n):
        if keep_fault(&rows.faults, &part.faults.items[k]) != OK:
            return FAULT_NO_MEMORY
    rows.text += part.text
    return OK


cdef double share_expected(const RowSet *rows, const RowSet *part) noexcept nogil:
    """The share of the text to expect, if all rows are like the rows so far."""
    cdef size_t n = length_of(&rows.columns[OP]) + length_of(&part.columns[OP])
    cdef double text = <double>(rows.text + part.text) / <double>(n + 1) * <double>rows.columns[OP].expected
    return min(1.0, MOST_TIMES * <double>rows.n_bytes / (text + 1.0))


cdef void write_rowset(const RowSet *rows, const RowSet *part) noexcept nogil:
    """Copy the rows of a part to their position."""
    cdef int i
    for i in range(rows.n_columns):
        write_column(&rows.columns[i], &part.columns[i])


cdef void free_rowset(RowSet *rows) noexcept:
    cdef int i
    for i in range(rows.n_columns):
        free_column(&rows.columns[i])
    free(rows.columns)
    free(rows.faults.items)


# -- columns ---------------------------------------------------------------------------------------------------------

cdef bint fits_column(const Column *to, const Column *part, size_t n_nulls) noexcept nogil:
    """Whether there is memory for all items of another column, after `n_before` nulls and the postponed ones."""
    cdef size_t n
    cdef int child
    if part.n == 0:
        return True
    n_nulls += to.postponed
    n = n_nulls + part.n
    if (n_nulls or part.valid.size or to.valid.size) and not has_capacity(
        &to.valid, (to.n + n + 7) // 8 - to.valid.size
    ):
        return False
    if to.shape == SHAPE_FIXED:
        return has_capacity(&to.values, n * <size_t>to.width)
    if to.shape != SHAPE_STRUCT and not has_capacity(&to.ends, n * sizeof(int32_t)):
        return False
    if to.shape == SHAPE_BYTES:
        return part.data.size == 0 or has_capacity(&to.data, part.data.size)
    for child in range(to.n_children):
        if not fits_column(&to.children[child], &part.children[child], n_nulls if to.shape == SHAPE_STRUCT else 0):
            return False
    return True


cdef FaultCode place_column(Column *to, Column *part, double share) noexcept nogil:
    """Assign all items of a part's column their position after this one's. Faults: LIMIT_BATCH, NO_MEMORY."""
    cdef FaultCode code = OK
    cdef int child
    if part.n:
        code = write_struct_nulls(to) if to.shape == SHAPE_STRUCT else write_postponed_nulls(to)
        part.at = to.n
        if code == OK:
            code = place_values(to, part, share)
        for child in range(to.n_children):
            if code == OK:
                code = place_column(&to.children[child], &part.children[child], share)
        if code == OK:
            code = place_validity(to, part)
        if code == OK:
            to.n += part.n
            to.n_null += part.n_null
    postpone_nulls(to, part.postponed)
    return code


cdef FaultCode place_values(Column *to, Column *part, double share) noexcept nogil:
    """Place the data of items, except their children. There is at least one item."""
    cdef FaultCode code
    if to.shape == SHAPE_STRUCT:
        return OK
    if to.shape == SHAPE_LIST:
        return place_ends(to, part, to.children[0].n)
    if to.shape == SHAPE_FIXED:
        if open_items(to, part.n) != OK:
            return FAULT_NO_MEMORY
        to.values.size += part.values.size
        return OK
    code = place_ends(to, part, to.data.size)
    return code if code != OK else place_data(to, part, share)


cdef FaultCode place_ends(Column *to, Column *part, size_t before) noexcept nogil:
    """Place the ends of items, whose bytes or children follow those of this column."""
    # They have 32 bits.
    if before + end_of(part, part.n) > <size_t>0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if open_ends(to, part.n) != OK:
        return FAULT_NO_MEMORY
    part.before = before
    to.ends.size += part.n * sizeof(int32_t)
    return OK


cdef FaultCode place_data(Column *to, const Column *part, double share) noexcept nogil:
    cdef size_t size = to.data.size + part.data.size
    cdef size_t more
    if part.data.size and not has_capacity(&to.data, part.data.size):
        more = part.data.size + <size_t>(share * <double>likely_text(size, to.n + part.n, to.expected))
        more = min(more, <size_t>0x7FFFFFFF - to.data.size)
        if reserve(&to.data, more) != OK:
            return FAULT_NO_MEMORY
    to.data.size += part.data.size
    return OK


cdef FaultCode place_validity(Column *to, const Column *part) noexcept nogil:
    """Set items valid that are not null in the part."""
    if part.valid.size == 0 and to.valid.size == 0:
        return OK
    if open_bits(to, part.n) != OK:
        return FAULT_NO_MEMORY
    if part.valid.size:
        put_borders(to.valid.data, to.n, part.valid.data, part.n, False)
    else:
        fill_bits(to.valid.data, to.n, part.n, 1)
    return OK


cdef void write_column(const Column *to, const Column *part) noexcept nogil:
    """Copy all items of another column, which does not change, to their position."""
    cdef size_t width = <size_t>to.width
    cdef int child
    if part.n == 0:
        return
    if to.shape == SHAPE_FIXED:
        copy_uncached(to.values.data + part.at * width, part.values.data, part.values.size)
    elif to.shape == SHAPE_BYTES:
        write_ends(to, part)
        if part.data.size:
            copy_uncached(to.data.data + part.before, part.data.data, part.data.size)
    elif to.shape == SHAPE_LIST:
        write_ends(to, part)
    for child in range(to.n_children):
        write_column(&to.children[child], &part.children[child])
    if part.valid.size:
        put_between(to.valid.data, part.at, part.valid.data, part.n, False)


cdef void write_ends(const Column *to, const Column *part) noexcept nogil:
    cdef int32_t *ends = <int32_t *>to.ends.data + 1 + part.at
    add_uncached(ends, <const int32_t *>part.ends.data + 1, part.n, <int32_t>part.before)
