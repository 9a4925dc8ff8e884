"""Hands finished sinks to Python as Arrow buffers, and takes rows back after a fault."""

from libc.stdint cimport uint64_t
from libc.string cimport memchr, memset

from pgdecode._memory cimport SLACK, free_bytes, hand_over

from pgdecode import errors


cdef object own_offsets(Sink *sink, int32_t end):
    """Offsets with the rows after the last filled one padded."""
    pad_offsets(sink, sink.n_rows, end)
    sink.offsets.size = (<size_t>sink.n_rows + 1) * sizeof(int32_t)
    return hand_over(&sink.offsets)


cdef object own_items(Bytes *bytes):
    """What was appended; an empty buffer where nothing was."""
    if bytes.owner == NULL and grow(bytes, 0) != OK:
        raise MemoryError()
    return hand_over(bytes)


cdef object own_ends(Bytes *ends):
    """Arrow offsets from the ends of the items; the 0 in front of them came with the first one."""
    if ends.size == 0 and append_int32(ends, 0) != OK:
        raise MemoryError()
    return hand_over(ends)


cdef bint is_open(const Sink *sink) noexcept nogil:
    return sink.values.data != NULL or sink.offsets.data != NULL


cdef tuple finish_sink(Sink *sink):
    """(validity, values) or (validity, offsets, data), or None where no row was filled."""
    cdef int64_t row
    cdef Bytes bits
    if not is_open(sink):
        return None
    validity = hand_over(&sink.validity)
    if sink.type == SINK_TEXT or sink.type == SINK_LIST:
        end = sink.data.size if sink.type == SINK_TEXT else sink.data.size // sizeof(int64_t)
        return validity, own_offsets(sink, <int32_t>end), own_items(&sink.data)
    if sink.type == SINK_BOOL:
        memset(&bits, 0, sizeof(bits))
        if open_zeroed(&bits, <size_t>(sink.n_rows + 7) // 8) != OK:
            raise MemoryError()
        for row in range(sink.n_rows):
            bits.data[row >> 3] |= <uint8_t>(sink.values.data[row] << (row & 7))
        return validity, hand_over(&bits)
    return validity, hand_over(&sink.values)


cdef int open_words(WordSink *sink, int64_t n_rows) except -1:
    sink.n_rows = n_rows
    if grow(&sink.indexes, <size_t>n_rows) != OK:
        raise MemoryError()
    memset(sink.indexes.data, NO_WORD, <size_t>n_rows)
    return 0


cdef tuple finish_words(WordSink *sink, const Word *words, size_t n_words):
    """(validity, offsets, data), or None where the column is not wanted."""
    cdef Word[NO_WORD + 1] table
    cdef uint8_t[NO_WORD + 1] lengths
    cdef int64_t row, n = sink.n_rows
    cdef size_t i, total = 0
    cdef Bytes bits, ends, text
    if sink.indexes.data == NULL:
        return None
    # Where a row is null stands a word without letters, so that no row is to be looked at twice.
    memset(table, 0, sizeof(table))
    memset(lengths, 0, sizeof(lengths))
    for i in range(n_words):
        table[i] = words[i]
        lengths[i] = words[i].length
    for row in range(n):
        total += lengths[sink.indexes.data[row]]
    if total > 0x7FFFFFFF:
        raise errors.BatchTooLarge(errors.BatchTooLarge.wording.format(field="kind"))
    memset(&bits, 0, sizeof(bits))
    memset(&ends, 0, sizeof(ends))
    memset(&text, 0, sizeof(text))
    ends.size = (<size_t>n + 1) * sizeof(int32_t)
    text.size = total
    try:
        bits.size = <size_t>(n + 7) // 8
        if grow(&bits, bits.size) != OK or grow(&ends, ends.size) != OK or grow(&text, total) != OK:
            raise MemoryError()
        write_words(sink, table, <int32_t *>ends.data, text.data)
        mark_words(sink, bits.data)
        return hand_over(&bits), hand_over(&ends), hand_over(&text)
    finally:
        free_bytes(&bits)
        free_bytes(&ends)
        free_bytes(&text)


cdef void write_words(const WordSink *sink, const Word *words, int32_t *ends, uint8_t *text) noexcept nogil:
    cdef const uint8_t *indexes = sink.indexes.data
    cdef const Word *word
    cdef int64_t row, n = sink.n_rows
    cdef uint32_t size = 0
    for row in range(n):
        ends[row] = <int32_t>size
        # The whole word, its length included: the next one, or the slack at the end, takes what is too much.
        word = &words[indexes[row]]
        memcpy(text + size, word.text, SLACK)
        size += word.length
    ends[n] = <int32_t>size


cdef void mark_words(const WordSink *sink, uint8_t *bits) noexcept nogil:
    """One bit a row; few rows are null, and the bits after the last row stay zero."""
    cdef const uint8_t *indexes = sink.indexes.data
    cdef const uint8_t *end = indexes + sink.n_rows
    cdef const uint8_t *null = indexes
    memset(bits, 0xFF, <size_t>sink.n_rows // 8)
    if sink.n_rows & 7:
        bits[sink.n_rows // 8] = <uint8_t>((1 << (sink.n_rows & 7)) - 1)
    while null != end:
        null = <const uint8_t *>memchr(null, NO_WORD, <size_t>(end - null))
        if null == NULL:
            break
        bits[(null - indexes) >> 3] &= <uint8_t>~(1 << ((null - indexes) & 7))
        null += 1


cdef tuple finish_tuple(TupleSink *sink):
    """(validity, offsets, letters, n_cells, cell validity, cell offsets, values), or None where no row was filled."""
    cdef size_t n_cells = sink.letters.size
    cdef Bytes bits
    if not is_open(&sink.rows):
        return None
    cells = ()
    if sink.wants_values:
        memset(&bits, 0, sizeof(bits))
        if open_zeroed(&bits, (n_cells + 7) // 8) != OK:
            raise MemoryError()
        pack_valid_letters(sink.letters.data, n_cells, bits.data)
        cells = (hand_over(&bits), own_ends(&sink.ends), own_items(&sink.values))
    validity = hand_over(&sink.rows.validity)
    offsets = own_offsets(&sink.rows, <int32_t>n_cells)
    return (validity, offsets, own_items(&sink.letters), n_cells, *cells)


cdef void pack_valid_letters(const uint8_t *letters, size_t n, uint8_t *bits) noexcept nogil:
    """One bit a cell: 1 for t (0x74) and b (0x62), 0 for n (0x6e) and u (0x75).

    Bit 3 is set in n alone and bit 0 in u alone, so a cell has a value where neither is.
    """
    cdef size_t i, whole = n // 8
    cdef uint64_t word = 0
    cdef uint8_t rest = 0
    for i in range(whole):
        memcpy(&word, letters + 8 * i, 8)
        word = ~(word | (word >> 3)) & <uint64_t>0x0101010101010101
        # The multiplication gathers the eight lowest bits into the top byte, first letter lowest.
        bits[i] = <uint8_t>((word * <uint64_t>0x0102040810204080) >> 56)
    for i in range(whole * 8, n):
        rest |= <uint8_t>((~(letters[i] | (letters[i] >> 3)) & 1) << (i & 7))
    if n & 7:
        bits[whole] = rest


cdef tuple finish_columns(ColumnsSink *sink):
    """(validity, offsets, n, flags, name offsets, names, type_ids, type_modifiers), or None where no row was filled."""
    cdef size_t n = sink.flags.size // sizeof(int16_t)
    if not is_open(&sink.rows):
        return None
    return (
        hand_over(&sink.rows.validity),
        own_offsets(&sink.rows, <int32_t>n),
        n,
        own_items(&sink.flags),
        own_ends(&sink.name_ends),
        own_items(&sink.names),
        own_items(&sink.type_ids),
        own_items(&sink.type_modifiers),
    )


cdef FaultCode open_columns(ColumnsSink *sink, int64_t row, size_t n) noexcept nogil:
    """Start the row's list of `n` columns; nothing is reserved by the count."""
    cdef size_t n_before = sink.flags.size // sizeof(int16_t)
    if n_before + n > <size_t>0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if sink.name_ends.size == 0 and append_int32(&sink.name_ends, 0) != OK:
        return FAULT_NO_MEMORY
    return put_list(&sink.rows, row, n_before)


cdef FaultCode put_column(
    ColumnsSink *sink, int16_t flags, const uint8_t *name, size_t length, int64_t type_id, int32_t type_modifier
) noexcept nogil:
    if sink.names.size + length > <size_t>0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if (
        append_int16(&sink.flags, flags) != OK
        or append_int64(&sink.type_ids, type_id) != OK
        or append_int32(&sink.type_modifiers, type_modifier) != OK
        or reserve(&sink.names, length) != OK
    ):
        return FAULT_NO_MEMORY
    memcpy(sink.names.data + sink.names.size, name, length)
    sink.names.size += length
    return append_int32(&sink.name_ends, <int32_t>sink.names.size)


cdef void undo_row(Sink *sink, int64_t row, size_t item_width) noexcept nogil:
    """Make the row null again; `item_width` is the width of what the offsets count (1 for text)."""
    cdef size_t width = width_of(sink)
    if sink.validity.data == NULL:
        return
    sink.validity.data[row >> 3] &= <uint8_t>~(1 << (row & 7))
    if sink.values.data != NULL:
        memset(sink.values.data + <size_t>row * width, 0, width)
    elif sink.offsets.data != NULL and sink.next_row == row + 1:
        sink.data.size = <size_t>(<int32_t *>sink.offsets.data)[row] * item_width
        sink.next_row = row


cdef void undo_tuple(TupleSink *sink, int64_t row) noexcept nogil:
    cdef size_t n_cells
    cdef int32_t end = 0
    if sink.rows.offsets.data == NULL or sink.rows.next_row != row + 1:
        return
    n_cells = <size_t>(<int32_t *>sink.rows.offsets.data)[row]
    sink.letters.size = n_cells
    if sink.wants_values and sink.ends.size:
        sink.ends.size = (n_cells + 1) * sizeof(int32_t)
        memcpy(&end, sink.ends.data + n_cells * sizeof(int32_t), sizeof(int32_t))
        sink.values.size = <size_t>end
    undo_row(&sink.rows, row, 1)


cdef void undo_columns(ColumnsSink *sink, int64_t row) noexcept nogil:
    cdef size_t n
    cdef int32_t end = 0
    if sink.rows.offsets.data == NULL or sink.rows.next_row != row + 1:
        return
    n = <size_t>(<int32_t *>sink.rows.offsets.data)[row]
    if sink.name_ends.size:
        sink.name_ends.size = (n + 1) * sizeof(int32_t)
        memcpy(&end, sink.name_ends.data + n * sizeof(int32_t), sizeof(int32_t))
    sink.names.size = <size_t>end
    # A fault inside a column leaves some of its parts written: all are cut to the same count.
    sink.flags.size = n * sizeof(int16_t)
    sink.type_ids.size = n * sizeof(int64_t)
    sink.type_modifiers.size = n * sizeof(int32_t)
    undo_row(&sink.rows, row, 1)


cdef void free_sink(Sink *sink) noexcept:
    free_bytes(&sink.validity)
    free_bytes(&sink.values)
    free_bytes(&sink.offsets)
    free_bytes(&sink.data)


cdef void free_words(WordSink *sink) noexcept:
    free_bytes(&sink.indexes)


cdef void free_tuple(TupleSink *sink) noexcept:
    free_sink(&sink.rows)
    free_bytes(&sink.letters)
    free_bytes(&sink.ends)
    free_bytes(&sink.values)


cdef void free_columns(ColumnsSink *sink) noexcept:
    free_sink(&sink.rows)
    free_bytes(&sink.flags)
    free_bytes(&sink.name_ends)
    free_bytes(&sink.names)
    free_bytes(&sink.type_ids)
    free_bytes(&sink.type_modifiers)
