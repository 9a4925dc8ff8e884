"""Rows of one relation as typed columns: what one thread has decoded, or all of them."""

from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from pgdecode._column cimport (
    SHAPE_FIXED,
    SHAPE_LIST,
    SHAPE_STRUCT,
    empty_column,
    end_of,
    expect,
    free_column,
    likely_text,
    open_as,
    open_column,
    open_ends,
    open_items,
    postpone_nulls,
    settle,
    settle_own,
    validity_for,
)
from pgdecode._fault cimport FAULT_LIMIT_BATCH, FAULT_LIMIT_EXPANSION, FAULT_NO_MEMORY, OK, keep_fault
from pgdecode._memory cimport reserve


cdef int open_rowset(RowSet *rows, list types, int64_t expected) except -1:
    """Open columns of these Arrow types, for so many rows; `rows` is all zero."""
    cdef int i
    rows.columns = <Column *>calloc(len(types), sizeof(Column))
    if rows.columns == NULL:
        raise MemoryError()
    rows.n_columns = len(types)
    for i in range(rows.n_columns):
        open_column(&rows.columns[i], types[i])
        expect(&rows.columns[i], <size_t>expected)
    return 0


cdef FaultCode open_part(RowSet *part, const RowSet *whole, int64_t expected, Arena *arena) noexcept nogil:
    """Open columns as another has them, in memory of an arena."""
    cdef int i
    part.columns = <Column *>calloc(<size_t>whole.n_columns, sizeof(Column))
    if part.columns == NULL:
        return FAULT_NO_MEMORY
    part.n_columns = whole.n_columns
    part.most_text = whole.most_text
    for i in range(part.n_columns):
        if open_as(&part.columns[i], &whole.columns[i], arena) != OK:
            return FAULT_NO_MEMORY
        expect(&part.columns[i], <size_t>expected)
    return OK


cdef void empty_rowset(RowSet *rows) noexcept nogil:
    cdef int i
    for i in range(rows.n_columns):
        empty_column(&rows.columns[i])
    rows.faults.n = 0
    rows.text = 0


cdef FaultCode append_rowset(RowSet *rows, const RowSet *part) noexcept nogil:
    """Append the rows of a part. Faults: LIMIT_BATCH, LIMIT_EXPANSION, NO_MEMORY."""
    cdef FaultCode code
    cdef size_t k
    cdef int i
    if part.text > rows.most_text - rows.text:
        return FAULT_LIMIT_EXPANSION
    for i in range(rows.n_columns):
        code = append_column(&rows.columns[i], &part.columns[i])
        if code != OK:
            return code
    for k in range(part.faults.n):
        if keep_fault(&rows.faults, &part.faults.items[k]) != OK:
            return FAULT_NO_MEMORY
    rows.text += part.text
    return OK


cdef void free_rowset(RowSet *rows) noexcept:
    cdef int i
    for i in range(rows.n_columns):
        free_column(&rows.columns[i])
    free(rows.columns)
    free(rows.faults.items)


# -- columns ---------------------------------------------------------------------------------------------------------

cdef FaultCode append_ends(Column *to, const Column *part, size_t shift) noexcept nogil:
    """Append the ends of another column's items, whose bytes or children come behind so many of this one's."""
    cdef const int32_t *ends
    cdef int32_t *own
    cdef size_t i
    if shift + end_of(part, part.n) > <size_t>0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if open_ends(to, part.n) != OK:
        return FAULT_NO_MEMORY
    ends = <const int32_t *>(part.ends.data + sizeof(int32_t))
    own = <int32_t *>(to.ends.data + to.ends.size)
    for i in range(part.n):
        own[i] = <int32_t>shift + ends[i]
    to.ends.size += part.n * sizeof(int32_t)
    return OK


cdef FaultCode append_values(Column *to, const Column *part) noexcept nogil:
    """Append what another column's items are made of but for their children; it has some."""
    cdef FaultCode code
    cdef size_t more
    if to.shape == SHAPE_STRUCT:
        return OK
    if to.shape == SHAPE_LIST:
        return append_ends(to, part, to.children[0].n)
    if to.shape == SHAPE_FIXED:
        if open_items(to, part.n) != OK:
            return FAULT_NO_MEMORY
        memcpy(to.values.data + to.values.size, part.values.data, part.values.size)
        to.values.size += part.values.size
        return OK
    code = append_ends(to, part, to.data.size)
    if code != OK or part.data.size == 0:
        return code
    if part.data.size > to.data.capacity - to.data.size:
        more = min(max(part.data.size, likely_text(to)), <size_t>0x7FFFFFFF - to.data.size)
        if reserve(&to.data, more) != OK:
            return FAULT_NO_MEMORY
    memcpy(to.data.data + to.data.size, part.data.data, part.data.size)
    to.data.size += part.data.size
    return OK


cdef FaultCode append_validity(Column *to, const Column *part) noexcept nogil:
    cdef uint8_t *validity
    if part.valid.size == 0 and to.valid.size == 0:
        return OK
    validity = validity_for(to, part.n)
    if validity == NULL:
        return FAULT_NO_MEMORY
    if part.valid.size:
        memcpy(validity, part.valid.data, part.n)
    to.valid.size = to.n + part.n
    return OK


cdef FaultCode append_column(Column *to, const Column *part) noexcept nogil:
    """Append all items of another column of the same type, which stays as it is. Faults: LIMIT_BATCH, NO_MEMORY."""
    cdef FaultCode code = OK
    cdef int child
    if part.n:
        code = settle_own(to) if to.shape == SHAPE_STRUCT else settle(to)
        if code == OK:
            code = append_values(to, part)
        for child in range(to.n_children):
            if code == OK:
                code = append_column(&to.children[child], &part.children[child])
        if code == OK:
            code = append_validity(to, part)
        if code == OK:
            to.n += part.n
            to.n_null += part.n_null
    postpone_nulls(to, part.postponed)
    return code
