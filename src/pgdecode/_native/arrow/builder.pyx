"""Makes Arrow buffers of finished builders, and removes rows after a fault."""

from cpython.pythread cimport WAIT_LOCK, PyThread_acquire_lock, PyThread_release_lock
from libc.string cimport memchr, memset

from pgdecode._native.fault cimport unlikely
from pgdecode._native.memory.bits cimport put_between, put_borders
from pgdecode._native.memory.buffers cimport SLACK, free_bytes, hand_over, open_zeroed

cdef enum:
    SHORT_KEYWORD = 8  # letters: few kinds of messages have more


cdef object own_offsets(Builder *builder, int32_t end):
    """Offsets, padded for the rows after the last filled one."""
    pad_offsets(builder, builder.n_rows, end)
    builder.offsets.size = (<size_t>builder.n_rows + 1) * sizeof(int32_t)
    return hand_over(&builder.offsets)


cdef object own_items(Bytes *bytes):
    """The appended bytes; an empty buffer if there are none."""
    if bytes.owner == NULL and grow(bytes, 0) != OK:
        raise MemoryError()
    return hand_over(bytes)


cdef object own_ends(Bytes *ends):
    """Arrow offsets from the ends of items. The first item has added the 0 in front."""
    if ends.size == 0 and append_int32(ends, 0) != OK:
        raise MemoryError()
    return hand_over(ends)


cdef bint is_open(const Builder *builder) noexcept nogil:
    return builder.values.data != NULL or builder.offsets.data != NULL


cdef FaultCode open_builder(Builder *builder) noexcept nogil:
    """Allocate memory for all rows of the batch, when the first row is filled. A part opens it for all parts.

    Validity is zero. The caller writes offsets and values of constant width for all of its rows.
    """
    cdef FaultCode code = OK
    cdef Builder *output = builder.output
    if output == NULL:
        return allocate(builder, 0)
    PyThread_acquire_lock(builder.open_lock.lock, WAIT_LOCK)
    if not is_open(output):
        code = allocate(output, builder.open_lock.n_placed)
    if code == OK:
        share(builder)
    PyThread_release_lock(builder.open_lock.lock)
    return code


cdef void share(Builder *part) noexcept nogil:
    """Let a part write to the memory that the output has opened and still owns."""
    part.validity.data = part.output.validity.data
    part.values.data = part.output.values.data
    part.offsets.data = part.output.offsets.data


cdef FaultCode allocate(Builder *builder, int64_t n_before) noexcept nogil:
    """Allocate memory for a column that the first `n_before` rows do not fill."""
    cdef size_t n = <size_t>builder.n_rows
    cdef size_t width = width_of(builder)
    if open_zeroed(&builder.validity, (n + 7) // 8) != OK:
        return FAULT_NO_MEMORY
    if builder.type == BUILDER_BOOL:
        return open_zeroed(&builder.values, (n + 7) // 8)
    if builder.type == BUILDER_TEXT or builder.type == BUILDER_LIST:
        if grow(&builder.offsets, (n + 1) * sizeof(int32_t)) != OK:
            return FAULT_NO_MEMORY
        memset(builder.offsets.data, 0, <size_t>n_before * sizeof(int32_t))
        return OK
    if grow(&builder.values, n * width) != OK:
        return FAULT_NO_MEMORY
    builder.values.size = n * width
    memset(builder.values.data, 0, <size_t>n_before * width)
    return OK


cdef tuple finish_builder(Builder *builder):
    """(validity, values) or (validity, offsets, data); None if no row was filled."""
    if not is_open(builder):
        return None
    validity = hand_over(&builder.validity)
    if builder.type == BUILDER_TEXT or builder.type == BUILDER_LIST:
        return validity, own_offsets(builder, <int32_t>items_in(builder)), own_items(&builder.data)
    return validity, hand_over(&builder.values)


cdef int open_keywords(KeywordBuilder *builder, int64_t n_rows, bint as_text) except -1:
    """Allocate a byte for each row, and memory for the validity and offsets of text, if that is requested."""
    builder.n_rows = n_rows
    builder.indexes.size = <size_t>n_rows
    builder.bits.size = <size_t>(n_rows + 7) // 8
    builder.ends.size = (<size_t>n_rows + 1) * sizeof(int32_t)
    if grow(&builder.indexes, builder.indexes.size) != OK:
        raise MemoryError()
    if as_text and (grow(&builder.bits, builder.bits.size) != OK or grow(&builder.ends, builder.ends.size) != OK):
        raise MemoryError()
    return 0


cdef FaultCode write_keywords(KeywordBuilder *builder, const Keyword *keywords, size_t n_keywords) noexcept nogil:
    """Append the text of all rows of the builder: validity, the start of each row, and the letters."""
    cdef Keyword[NO_KEYWORD + 1] table
    cdef uint8_t[NO_KEYWORD + 1] lengths
    cdef const uint8_t *indexes = builder.indexes.data
    cdef int32_t *starts = <int32_t *>builder.ends.data
    cdef const Keyword *keyword
    cdef int64_t row
    cdef size_t i, total = 0
    cdef size_t size = builder.text.size
    cdef int64_t n_rows = builder.n_rows if builder.output == NULL else builder.output.n_rows
    cdef uint8_t *text
    # A null row has a label without letters, so that the loop has no branch for it.
    memset(table, 0, sizeof(table))
    memset(lengths, 0, sizeof(lengths))
    for i in range(n_keywords):
        table[i] = keywords[i]
        lengths[i] = keywords[i].length
    for row in range(builder.first_row, builder.n_rows):
        total += lengths[indexes[row]]
    if size + total > 0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if reserve_likely(&builder.text, total, builder.first_row, n_rows) != OK:
        return FAULT_NO_MEMORY
    text = builder.text.data
    for row in range(builder.first_row, builder.n_rows):
        starts[row] = <int32_t>size
        # Block copies: the next label, or the slack at the end, overwrites the excess bytes.
        keyword = &table[indexes[row]]
        memcpy(text + size, keyword.text, SHORT_KEYWORD)
        if unlikely(keyword.length > SHORT_KEYWORD):
            memcpy(text + size + SHORT_KEYWORD, keyword.text + SHORT_KEYWORD, SLACK - SHORT_KEYWORD)
        size += keyword.length
    builder.text.size = size
    mark_keywords(builder)
    return OK


cdef void mark_keywords(KeywordBuilder *builder) noexcept nogil:
    """Write one bit for each row. Few rows are null. The bits after the last row stay zero."""
    cdef const uint8_t *indexes = builder.indexes.data
    cdef const uint8_t *end = indexes + builder.n_rows
    cdef const uint8_t *null = indexes + builder.first_row
    cdef uint8_t *bits = builder.bits.data
    memset(bits + builder.first_row // 8, 0xFF, <size_t>(builder.n_rows // 8 - builder.first_row // 8))
    if builder.n_rows & 7:
        bits[builder.n_rows // 8] = <uint8_t>((1 << (builder.n_rows & 7)) - 1)
    while null != end:
        null = <const uint8_t *>memchr(null, NO_KEYWORD, <size_t>(end - null))
        if null == NULL:
            break
        bits[(null - indexes) >> 3] &= <uint8_t>~(1 << ((null - indexes) & 7))
        null += 1


cdef tuple finish_keywords(KeywordBuilder *builder):
    """(validity, offsets, data) of the text; None if the column is not requested."""
    if builder.indexes.data == NULL:
        return None
    (<int32_t *>builder.ends.data)[builder.n_rows] = <int32_t>builder.text.size
    return hand_over(&builder.bits), hand_over(&builder.ends), own_items(&builder.text)


cdef tuple finish_tuple(TupleBuilder *builder):
    """(validity, offsets, letters, n_cells, cell validity, cell offsets, values); None if no row was filled."""
    cdef size_t n_cells = builder.letters.size
    if not is_open(&builder.rows):
        return None
    cells = ()
    if builder.wants_values:
        cells = (own_items(&builder.bits), own_ends(&builder.ends), own_items(&builder.values))
    validity = hand_over(&builder.rows.validity)
    offsets = own_offsets(&builder.rows, <int32_t>n_cells)
    return (validity, offsets, own_items(&builder.letters), n_cells, *cells)


cdef FaultCode mark_cells(TupleBuilder *builder) noexcept nogil:
    """Write the bits of all cells, from their letters."""
    cdef size_t n = builder.letters.size
    if not builder.wants_values or n == 0:
        return OK
    if reserve(&builder.bits, (n + 7) // 8) != OK:
        return FAULT_NO_MEMORY
    put_between(builder.bits.data, 0, builder.letters.data, n, True)
    put_borders(builder.bits.data, 0, builder.letters.data, n, True)
    builder.bits.size = (n + 7) // 8
    return OK


cdef tuple finish_columns(ColumnsBuilder *builder):
    """(validity, offsets, n, flags, name offsets, names, type_ids, type_modifiers); None if no row was filled."""
    cdef size_t n = columns_in(builder)
    if not is_open(&builder.rows):
        return None
    return (
        hand_over(&builder.rows.validity),
        own_offsets(&builder.rows, <int32_t>n),
        n,
        own_items(&builder.flags),
        own_ends(&builder.name_ends),
        own_items(&builder.names),
        own_items(&builder.type_ids),
        own_items(&builder.type_modifiers),
    )


cdef FaultCode open_columns(ColumnsBuilder *builder, int64_t row, size_t n) noexcept nogil:
    """Start the list of `n` columns of a row. The count reserves nothing."""
    cdef size_t n_before = columns_in(builder)
    if n_before + n > <size_t>0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if builder.name_ends.size == 0 and append_int32(&builder.name_ends, 0) != OK:
        return FAULT_NO_MEMORY
    return put_list(&builder.rows, row, n_before)


cdef FaultCode put_column(
    ColumnsBuilder *builder, int16_t flags, const uint8_t *name, size_t length, int64_t type_id, int32_t type_modifier
) noexcept nogil:
    if builder.names.size + length > <size_t>0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if (
        append_int16(&builder.flags, flags) != OK
        or append_int64(&builder.type_ids, type_id) != OK
        or append_int32(&builder.type_modifiers, type_modifier) != OK
        or reserve(&builder.names, length) != OK
    ):
        return FAULT_NO_MEMORY
    memcpy(builder.names.data + builder.names.size, name, length)
    builder.names.size += length
    return append_int32(&builder.name_ends, <int32_t>builder.names.size)


cdef void undo_row(Builder *builder, int64_t row, size_t item_width) noexcept nogil:
    """Make a row null again. `item_width` is the width of what the offsets count (1 for text)."""
    cdef size_t width = width_of(builder)
    if not is_open(builder):
        return
    builder.validity.data[row >> 3] &= <uint8_t>~(1 << (row & 7))
    if builder.type == BUILDER_BOOL:
        builder.values.data[row >> 3] &= <uint8_t>~(1 << (row & 7))
    elif builder.values.data != NULL:
        memset(builder.values.data + <size_t>row * width, 0, width)
    elif builder.next_row == row + 1:
        builder.data.size = <size_t>(<int32_t *>builder.offsets.data)[row] * item_width
        builder.next_row = row


cdef void undo_tuple(TupleBuilder *builder, int64_t row) noexcept nogil:
    cdef size_t n_cells
    cdef int32_t end = 0
    if builder.rows.offsets.data == NULL or builder.rows.next_row != row + 1:
        return
    n_cells = <size_t>(<int32_t *>builder.rows.offsets.data)[row]
    builder.letters.size = n_cells
    if builder.wants_values and builder.ends.size:
        builder.ends.size = (n_cells + 1) * sizeof(int32_t)
        memcpy(&end, builder.ends.data + n_cells * sizeof(int32_t), sizeof(int32_t))
        builder.values.size = <size_t>end
    undo_row(&builder.rows, row, 1)


cdef void undo_columns(ColumnsBuilder *builder, int64_t row) noexcept nogil:
    cdef size_t n
    cdef int32_t end = 0
    if builder.rows.offsets.data == NULL or builder.rows.next_row != row + 1:
        return
    n = <size_t>(<int32_t *>builder.rows.offsets.data)[row]
    if builder.name_ends.size:
        builder.name_ends.size = (n + 1) * sizeof(int32_t)
        memcpy(&end, builder.name_ends.data + n * sizeof(int32_t), sizeof(int32_t))
    builder.names.size = <size_t>end
    # After a fault inside a column, some lists have one item more. All are cut to the same length.
    builder.flags.size = n * sizeof(int16_t)
    builder.type_ids.size = n * sizeof(int64_t)
    builder.type_modifiers.size = n * sizeof(int32_t)
    undo_row(&builder.rows, row, 1)


cdef void free_builder(Builder *builder) noexcept:
    free_bytes(&builder.validity)
    free_bytes(&builder.values)
    free_bytes(&builder.offsets)
    free_bytes(&builder.data)


cdef void free_keywords(KeywordBuilder *builder) noexcept:
    free_bytes(&builder.indexes)
    free_bytes(&builder.bits)
    free_bytes(&builder.ends)
    free_bytes(&builder.text)


cdef void free_tuple(TupleBuilder *builder) noexcept:
    free_builder(&builder.rows)
    free_bytes(&builder.letters)
    free_bytes(&builder.bits)
    free_bytes(&builder.ends)
    free_bytes(&builder.values)


cdef void free_columns(ColumnsBuilder *builder) noexcept:
    free_builder(&builder.rows)
    free_bytes(&builder.flags)
    free_bytes(&builder.name_ends)
    free_bytes(&builder.names)
    free_bytes(&builder.type_ids)
    free_bytes(&builder.type_modifiers)
