"""Walks the cells of a tuple one by one: into a builder, into an index of cells, or only to check them."""

from libc.stdint cimport int16_t, int32_t, int64_t
from libc.string cimport memcpy

from pgdecode._native.arrow.builder cimport open_tuple
from pgdecode._native.arrow.payload_array cimport Span
from pgdecode._native.cursor cimport be16, bytes_left, take
from pgdecode._native.fault cimport (
    FAULT_ARITY, FAULT_BAD_COLUMN_KIND, FAULT_LIMIT_COLUMNS, FAULT_LIMIT_VALUE, FAULT_NO_MEMORY, OK, keep_fault,
)
from pgdecode._native.wire.envelope_builder cimport fail, fail_in_builder, fail_truncated
from pgdecode._native.wire.variable_length_fields cimport value_of
from pgdecode._native.wire.wire_plan cimport PART_CELL

cdef enum:
    LENGTH_BYTES = 4  # of a value


cdef Cursor fail_in_cell(Walk *walk, const Op *op, const uint8_t *kind, const uint8_t *end, int32_t i) noexcept nogil:
    """Report the fault of the cell at `kind`, which `take_cell` has refused."""
    cdef Cursor cursor
    cdef Span value
    cursor.at = kind
    cursor.end = end
    if take(&cursor, 1) == NULL:
        return fail_truncated(walk, op.label + PART_CELL, cursor, 1, i)
    if kind[0] != c"t" and kind[0] != c"b":
        return fail(walk, FAULT_BAD_COLUMN_KIND, op.label + PART_CELL, kind, 0, kind[0], i)
    return value_of(walk, op.label + PART_CELL, cursor, &value, i)


cdef inline void copy_short(uint8_t *target, const uint8_t *value, size_t length, size_t readable) noexcept nogil:
    """Copy at most 16 bytes. Most values are short, and block copies of constant size cost less than a call.

    `readable` bytes of the payload can be read from the start of the value on, and no more are read. The builder has
    slack for the bytes that are written after the value.
    """
    cdef size_t i
    if readable >= 16:
        memcpy(target, value, 16)
    elif length >= 8:
        # Two block copies, which may overlap.
        memcpy(target, value, 8)
        memcpy(target + length - 8, value + length - 8, 8)
    elif length >= 4:
        memcpy(target, value, 4)
        memcpy(target + length - 4, value + length - 4, 4)
    else:
        for i in range(length):
            target[i] = value[i]


cdef inline Cursor walk_cells(
    Walk *walk, const Op *op, Cursor cursor, uint16_t n, TupleBuilder *builder, Collect collect
) noexcept nogil:
    """Check `n` cells, and append the requested parts to the builder.

    Callers pass a constant for `collect`, so that each variant is compiled as its own loop. A single loop with a branch
    for each cell takes up to 40 % more instructions for a message (rows of twelve columns as binary views, without
    tuples).
    """
    cdef size_t max_value_bytes = walk.rules.max_value_bytes
    cdef Cell single
    cdef Cell *cell = &single
    cdef uint8_t *letters = NULL
    cdef int32_t *ends = NULL
    cdef uint8_t *start = NULL
    cdef uint8_t *values = NULL
    cdef const uint8_t *first
    cdef uint8_t unchanged = 0
    cdef int32_t i
    if collect == COLLECT_CELLS:
        cell = builder.cells
    elif collect != COLLECT_NOTHING:
        letters = builder.letters.data + builder.letters.size
    if collect == COLLECT_VALUES:
        ends = <int32_t *>(builder.ends.data + builder.ends.size)
        start = builder.values.data
        values = start + builder.values.size
    for i in range(n):
        first = cursor.at
        if unlikely(not take_cell(&cursor, max_value_bytes, cell)):
            return fail_in_cell(walk, op, first, cursor.end, i)
        if collect == COLLECT_CELLS:
            unchanged |= cell.kind == c"u"
            cell += 1
        elif collect != COLLECT_NOTHING:
            letters[i] = cell.kind
        if collect == COLLECT_VALUES:
            if cell.value != NULL:
                if cell.length <= 16:
                    copy_short(values, cell.value, cell.length, <size_t>(cursor.end - cell.value))
                else:
                    memcpy(values, cell.value, cell.length)
                values += cell.length
            ends[i] = <int32_t>(values - start)
    if collect == COLLECT_CELLS:
        builder.has_unchanged = unchanged
    elif collect != COLLECT_NOTHING:
        builder.letters.size += n
    if collect == COLLECT_VALUES:
        builder.ends.size += n * sizeof(int32_t)
        builder.values.size = <size_t>(values - start)
    return cursor


cdef Cursor put_cells(Walk *walk, const Op *op, Cursor cursor, uint16_t n, TupleBuilder *builder) noexcept nogil:
    """Read the cells after their count. If `builder` is NULL, they are only checked."""
    cdef FaultCode code
    if builder == NULL:
        return walk_cells(walk, op, cursor, n, builder, COLLECT_NOTHING)
    if builder.cells != NULL:
        if n != builder.n_cells:
            # The count is the two bytes before the cursor.
            return fail(walk, FAULT_ARITY, op.label, cursor.at - 2, builder.n_cells, n, -1)
        return walk_cells(walk, op, cursor, n, builder, COLLECT_CELLS)
    code = open_tuple(builder, walk.row, n, bytes_left(cursor))
    if unlikely(code != OK):
        return fail_in_builder(walk, code, op.label)
    if builder.wants_values:
        return walk_cells(walk, op, cursor, n, builder, COLLECT_VALUES)
    return walk_cells(walk, op, cursor, n, builder, COLLECT_FORMATS)


cdef Cursor tuple_field(Walk *walk, const Op *op, Cursor cursor, TupleBuilder *builder) noexcept nogil:
    """Read TupleData: Int16 count, then for each column a kind and, for t and b, an Int32 length and the value."""
    cdef const uint8_t *p = take(&cursor, 2)
    cdef uint16_t n
    if unlikely(p == NULL):
        return fail_truncated(walk, op.label, cursor, 2, -1)
    n = be16(p)
    if unlikely(n > walk.rules.max_columns):
        return fail(walk, FAULT_LIMIT_COLUMNS, op.label, p, walk.rules.max_columns, n, -1)
    return put_cells(walk, op, cursor, n, builder)


cdef FaultCode remove_long_values(
    Cell *cells, size_t n, const uint8_t *payload, Fault fault, bint by_column, bint only_first, Faults *faults
) noexcept nogil:
    """Make values that are longer than `fault.expected` null, and keep their faults.

    `fault` also has the tag, the row, the relation and the label, of the first column if `by_column`. With
    `only_first`, stop at the first fault and return it.
    """
    cdef int16_t label = fault.label
    cdef size_t c
    fault.code = FAULT_LIMIT_VALUE
    for c in range(n):
        if cells[c].value == NULL or cells[c].length <= <size_t>fault.expected:
            continue
        fault.label = <int16_t>(label + c) if by_column else label
        fault.column = <int32_t>c
        fault.offset = <size_t>(cells[c].value - payload) - LENGTH_BYTES
        fault.seen = <int64_t>cells[c].length
        if keep_fault(faults, &fault) != OK:
            return FAULT_NO_MEMORY
        if only_first:
            return FAULT_LIMIT_VALUE
        cells[c].value = NULL
        cells[c].kind = c"n"
    return OK
