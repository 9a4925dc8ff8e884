"""Growable Arrow buffers, which a scan fills row by row before pyarrow owns them.

A builder that no row fills allocates nothing. Rows are filled in ascending order, at most once each. `undo_row` removes
the last row.

With several threads, the builder of a part takes some rows of the batch (see scan/partial_batch). It writes data with
one value per row straight into the output's memory. It appends other data to its own memory, and `threads/merge`
copies that behind the data of the rows before.
"""

from cpython.pythread cimport PyThread_type_lock
from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy

from pgdecode._native.fault cimport FAULT_LIMIT_BATCH, FAULT_NO_MEMORY, OK, FaultCode, unlikely
from pgdecode._native.memory.buffers cimport Bytes, grow, reserve, reserve_likely

cdef enum BuilderType:
    BUILDER_BOOL
    BUILDER_INT16
    BUILDER_INT64
    BUILDER_TEXT   # utf8 or binary: offsets and bytes
    BUILDER_LIST   # offsets only: the items have their own builders

cdef struct OpenLock:
    # The thread that has the lock opens a column of the output.
    PyThread_type_lock lock
    int64_t n_placed     # rows at the front; no part will fill another column for them

cdef struct Builder:
    BuilderType type
    int64_t n_rows       # of a part, the number of its last row plus 1
    int64_t first_row
    int64_t next_row     # TEXT, LIST: offsets are written for all rows before this one
    Bytes validity       # one bit for each row, initially 0
    Bytes values         # BOOL: one bit for each row; INT16, INT64. 0 for nulls, so that no old memory shows
    Bytes offsets        # TEXT, LIST: n_rows + 1 int32
    Bytes data           # TEXT: the bytes; LIST of int64: the items
    Builder *output          # of a part: the owner of its validity, values and offsets; otherwise NULL
    OpenLock *open_lock     # of a part

cdef enum:
    CELL_LEAD = 13  # tag, relation OID, N, K or O, count of columns; the cell's kind and length

cdef struct Cell:
    # A tuple column, which stays in its payload.
    const uint8_t *value     # NULL for n and u; at least CELL_LEAD bytes of the payload are in front of it
    uint32_t length
    uint8_t kind

cdef struct TupleBuilder:
    # TupleData: the list of values and the string of their formats share offsets and validity.
    Builder rows
    Cell *cells          # if not NULL, the next tuple's columns are only indexed here, and there must be `n_cells`
    uint16_t n_cells
    bint has_unchanged   # whether an indexed cell is u
    bint wants_values
    Bytes letters        # one format for each cell
    Bytes bits           # one bit for each cell: whether it has a value; made from the letters at the end
    Bytes ends           # one int32 for each cell: the end of its value
    Bytes values

cdef struct ColumnsBuilder:
    # Columns of Relation messages, a list of structs.
    Builder rows
    Bytes flags          # int16
    Bytes name_ends      # int32
    Bytes names
    Bytes type_ids       # int64
    Bytes type_modifiers  # int32


cdef enum:
    KEYWORD_BYTES = 31
    NO_KEYWORD = 0xFF

cdef struct Keyword:
    # One of the few strings of a column, padded with zeros to SLACK bytes, so that one block copy writes it.
    char[KEYWORD_BYTES] text
    uint8_t length

cdef struct KeywordBuilder:
    # A string column with few different strings: one byte for each row while scanning, NO_KEYWORD for null.
    int64_t n_rows       # as in Builder, like the next two
    int64_t first_row
    KeywordBuilder *output
    Bytes indexes        # of a part, this and the next two belong to the output
    Bytes bits
    Bytes ends
    Bytes text


cdef inline size_t width_of(const Builder *builder) noexcept nogil:
    """Bytes of a row; 0 if it has one bit."""
    return 8 if builder.type == BUILDER_INT64 else 2 if builder.type == BUILDER_INT16 else 0


cdef FaultCode open_builder(Builder *builder) noexcept nogil
cdef void share(Builder *part) noexcept nogil
cdef bint is_open(const Builder *builder) noexcept nogil


cdef inline size_t items_in(const Builder *builder) noexcept nogil:
    """Bytes of text, or items of lists that have no builder of their own."""
    return builder.data.size // sizeof(int64_t) if builder.type == BUILDER_LIST else builder.data.size


cdef inline size_t columns_in(const ColumnsBuilder *builder) noexcept nogil:
    return builder.flags.size // sizeof(int16_t)


cdef inline void set_valid(Builder *builder, int64_t row) noexcept nogil:
    builder.validity.data[row >> 3] |= <uint8_t>(1 << (row & 7))


cdef inline void pad_offsets(Builder *builder, int64_t row, int32_t end) noexcept nogil:
    """Write the starts of all rows up to `row`, inclusive."""
    cdef int32_t *offsets = <int32_t *>builder.offsets.data
    cdef int64_t i
    for i in range(builder.next_row, row + 1):
        offsets[i] = end
    builder.next_row = row + 1


cdef inline FaultCode put_text(Builder *builder, int64_t row, const uint8_t *text, size_t length) noexcept nogil:
    if unlikely(builder.offsets.data == NULL) and open_builder(builder) != OK:
        return FAULT_NO_MEMORY
    if builder.data.size + length > <size_t>0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if reserve(&builder.data, length) != OK:
        return FAULT_NO_MEMORY
    pad_offsets(builder, row, <int32_t>builder.data.size)
    if length:
        memcpy(builder.data.data + builder.data.size, text, length)
    builder.data.size += length
    set_valid(builder, row)
    return OK


cdef inline FaultCode put_list(Builder *builder, int64_t row, size_t items_before) noexcept nogil:
    """Start the list of a row. The caller then appends its items."""
    if unlikely(builder.offsets.data == NULL) and open_builder(builder) != OK:
        return FAULT_NO_MEMORY
    pad_offsets(builder, row, <int32_t>items_before)
    set_valid(builder, row)
    return OK


cdef inline FaultCode append_int64(Bytes *bytes, int64_t value) noexcept nogil:
    if reserve(bytes, sizeof(value)) != OK:
        return FAULT_NO_MEMORY
    memcpy(bytes.data + bytes.size, &value, sizeof(value))
    bytes.size += sizeof(value)
    return OK


cdef inline FaultCode append_int32(Bytes *bytes, int32_t value) noexcept nogil:
    if reserve(bytes, sizeof(value)) != OK:
        return FAULT_NO_MEMORY
    memcpy(bytes.data + bytes.size, &value, sizeof(value))
    bytes.size += sizeof(value)
    return OK


cdef inline FaultCode append_int16(Bytes *bytes, int16_t value) noexcept nogil:
    if reserve(bytes, sizeof(value)) != OK:
        return FAULT_NO_MEMORY
    memcpy(bytes.data + bytes.size, &value, sizeof(value))
    bytes.size += sizeof(value)
    return OK


cdef inline FaultCode open_tuple(TupleBuilder *builder, int64_t row, size_t n, size_t left) noexcept nogil:
    """Start the tuple of a row: reserve memory for `n` cells and for the `left` bytes of its payload."""
    cdef size_t n_cells = builder.letters.size
    if n > left:
        # The claimed count does not fit. The walk will find the fault, and needs no more memory than this.
        n = left
    if n_cells + n > <size_t>0x7FFFFFFF or builder.values.size + left > <size_t>0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if put_list(&builder.rows, row, n_cells) != OK or reserve(&builder.letters, n) != OK:
        return FAULT_NO_MEMORY
    if builder.wants_values:
        if builder.ends.size == 0 and append_int32(&builder.ends, 0) != OK:
            return FAULT_NO_MEMORY
        if reserve(&builder.ends, n * sizeof(int32_t)) != OK or reserve(&builder.values, left) != OK:
            return FAULT_NO_MEMORY
    return OK


cdef inline FaultCode expect_cells(TupleBuilder *builder, int64_t row, size_t n_bytes, size_t most) noexcept nogil:
    """Reserve memory for tuples of rows from `row` on, with so many bytes in all and at most so many cells."""
    cdef int64_t n_done = row - builder.rows.first_row
    cdef int64_t n_rows = builder.rows.n_rows - builder.rows.first_row
    if most > n_bytes:
        most = n_bytes
    if builder.letters.size + most > <size_t>0x7FFFFFFF or builder.values.size + n_bytes > <size_t>0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if reserve_likely(&builder.letters, most, n_done, n_rows) != OK:
        return FAULT_NO_MEMORY
    if builder.wants_values:
        # Another part may have opened the rows.
        if builder.ends.size == 0 and append_int32(&builder.ends, 0) != OK:
            return FAULT_NO_MEMORY
        if reserve_likely(&builder.ends, most * sizeof(int32_t), n_done, n_rows) != OK:
            return FAULT_NO_MEMORY
        if reserve_likely(&builder.values, n_bytes, n_done, n_rows) != OK:
            return FAULT_NO_MEMORY
    pad_offsets(&builder.rows, row - 1, <int32_t>builder.letters.size)
    return OK


cdef FaultCode open_columns(ColumnsBuilder *builder, int64_t row, size_t n) noexcept nogil
cdef FaultCode put_column(
    ColumnsBuilder *builder, int16_t flags, const uint8_t *name, size_t length, int64_t type_id, int32_t type_modifier
) noexcept nogil

cdef void undo_row(Builder *builder, int64_t row, size_t item_width) noexcept nogil
cdef void undo_tuple(TupleBuilder *builder, int64_t row) noexcept nogil
cdef void undo_columns(ColumnsBuilder *builder, int64_t row) noexcept nogil

cdef int open_keywords(KeywordBuilder *builder, int64_t n_rows, bint as_text) except -1
cdef FaultCode write_keywords(KeywordBuilder *builder, const Keyword *words, size_t n_keywords) noexcept nogil
cdef FaultCode mark_cells(TupleBuilder *builder) noexcept nogil

cdef tuple finish_keywords(KeywordBuilder *builder)
cdef tuple finish_builder(Builder *builder)
cdef tuple finish_tuple(TupleBuilder *builder)
cdef tuple finish_columns(ColumnsBuilder *builder)

cdef void free_builder(Builder *builder) noexcept
cdef void free_keywords(KeywordBuilder *builder) noexcept
cdef void free_tuple(TupleBuilder *builder) noexcept
cdef void free_columns(ColumnsBuilder *builder) noexcept
