"""Growable Arrow buffers: what a column is written into, row by row, before pyarrow takes the memory over.

A builder that no row fills allocates nothing. Rows are filled in ascending order, at most once each;
`undo_row` takes the newest row back.

A builder of a part takes some rows of a batch, while other threads take others (see _part): what has its place by the
row's number it writes into the whole's memory, and only what is appended into memory of its own, which `threads/merge`
puts behind that of the rows before.
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
    BUILDER_LIST   # offsets only: the items are in builders of their own

cdef struct OpenLock:
    # Which thread opens a column of the whole: the one that has the lock.
    PyThread_type_lock lock
    int64_t n_placed     # rows in front, of which no part will fill another column

cdef struct Builder:
    BuilderType type
    int64_t n_rows       # of a part, the rows from `first_row` up to this one
    int64_t first_row
    int64_t next_row     # TEXT, LIST: offsets are written for all rows before this one
    Bytes validity       # one bit a row, all 0 at first
    Bytes values         # BOOL: one bit a row; INT16, INT64. 0 where null, so that no old memory shows
    Bytes offsets        # TEXT, LIST: n_rows + 1 int32
    Bytes data           # TEXT: the bytes; LIST of int64: the items
    Builder *whole          # of a part: the owner of its validity, values and offsets; else NULL
    OpenLock *open_lock     # of a part

cdef enum:
    CELL_LEAD = 13  # tag, relation OID, N, K or O, count of columns; the cell's kind and length

cdef struct Cell:
    # A tuple column where it lies in its payload.
    const uint8_t *value     # NULL for n and u; at least CELL_LEAD bytes of the payload stand before it
    uint32_t length
    uint8_t kind

cdef struct TupleBuilder:
    # TupleData: the list of values and the string of their formats share offsets and validity.
    Builder rows
    Cell *cells          # if not NULL, the next tuple's columns are only indexed here, and there must be `n_cells`
    uint16_t n_cells
    bint has_unchanged   # whether an indexed cell is u
    bint wants_values
    Bytes letters        # one format a cell
    Bytes bits           # one bit a cell: whether it has a value; from the letters, when all are there
    Bytes ends           # int32 a cell: where its value ends
    Bytes values

cdef struct ColumnsBuilder:
    # Columns of Relation messages, a list of structs.
    Builder rows
    Bytes flags          # int16 each
    Bytes name_ends      # int32 each
    Bytes names
    Bytes type_ids       # int64 each
    Bytes type_modifiers  # int32 each


cdef enum:
    WORD_BYTES = 31
    NO_WORD = 0xFF

cdef struct Word:
    # One of a few strings that a column repeats, padded with zeros to SLACK bytes, so that one block copies it.
    char[WORD_BYTES] text
    uint8_t length

cdef struct WordBuilder:
    # A string column of few words: a byte a row while scanning, NO_WORD where null.
    int64_t n_rows       # as in Builder, as are the next two
    int64_t first_row
    WordBuilder *whole
    Bytes indexes        # of a part, this and the next two are the whole's
    Bytes bits
    Bytes ends
    Bytes text


cdef inline size_t width_of(const Builder *builder) noexcept nogil:
    """Bytes a row takes; 0 where it takes a bit."""
    return 8 if builder.type == BUILDER_INT64 else 2 if builder.type == BUILDER_INT16 else 0


cdef FaultCode open_builder(Builder *builder) noexcept nogil
cdef void share(Builder *part) noexcept nogil
cdef bint is_open(const Builder *builder) noexcept nogil


cdef inline size_t items_in(const Builder *builder) noexcept nogil:
    """Bytes of text, or items of lists that are not in builders of their own."""
    return builder.data.size // sizeof(int64_t) if builder.type == BUILDER_LIST else builder.data.size


cdef inline size_t columns_in(const ColumnsBuilder *builder) noexcept nogil:
    return builder.flags.size // sizeof(int16_t)


cdef inline void set_valid(Builder *builder, int64_t row) noexcept nogil:
    builder.validity.data[row >> 3] |= <uint8_t>(1 << (row & 7))


cdef inline void pad_offsets(Builder *builder, int64_t row, int32_t end) noexcept nogil:
    """Write the starts of all rows up to and including `row`."""
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
    """Start the list of this row; the caller then appends its items."""
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
    """Start the row's tuple: room for `n` cells and for all the `left` bytes of its payload."""
    cdef size_t n_cells = builder.letters.size
    if n > left:
        # The claimed count does not fit: the walk will fault, and needs no more room than this.
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
    """Make room for the tuples of some rows from `row` on, of so many bytes in all and of at most so many cells."""
    cdef int64_t n_done = row - builder.rows.first_row
    cdef int64_t n_rows = builder.rows.n_rows - builder.rows.first_row
    if most > n_bytes:
        most = n_bytes
    if builder.letters.size + most > <size_t>0x7FFFFFFF or builder.values.size + n_bytes > <size_t>0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if reserve_likely(&builder.letters, most, n_done, n_rows) != OK:
        return FAULT_NO_MEMORY
    if builder.wants_values:
        # Of a part, the rows may have been opened by another.
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

cdef int open_words(WordBuilder *builder, int64_t n_rows, bint as_text) except -1
cdef FaultCode write_words(WordBuilder *builder, const Word *words, size_t n_words) noexcept nogil
cdef FaultCode mark_cells(TupleBuilder *builder) noexcept nogil

cdef tuple finish_words(WordBuilder *builder)
cdef tuple finish_builder(Builder *builder)
cdef tuple finish_tuple(TupleBuilder *builder)
cdef tuple finish_columns(ColumnsBuilder *builder)

cdef void free_builder(Builder *builder) noexcept
cdef void free_words(WordBuilder *builder) noexcept
cdef void free_tuple(TupleBuilder *builder) noexcept
cdef void free_columns(ColumnsBuilder *builder) noexcept
