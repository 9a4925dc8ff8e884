"""Rows of one relation as typed columns: what one thread has decoded, or all of them."""

from libc.stdlib cimport calloc, free

from pgdecode._column cimport (
    append_column,
    empty_column,
    expect,
    free_column,
    open_as,
    open_column,
)
from pgdecode._fault cimport FAULT_LIMIT_EXPANSION, FAULT_NO_MEMORY, OK, keep_fault


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
