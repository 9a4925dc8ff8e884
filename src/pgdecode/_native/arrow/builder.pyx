"""Hands finished sinks to Python as Arrow buffers, and takes rows back after a fault."""

from cpython.pythread cimport WAIT_LOCK, PyThread_acquire_lock, PyThread_release_lock
from libc.string cimport memchr, memset

from pgdecode._native.memory.bits cimport put_between, put_borders
from pgdecode._native.memory.buffers cimport SLACK, free_bytes, hand_over, open_zeroed


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


cdef FaultCode open_sink(Sink *sink) noexcept nogil:
    """First fill: memory for all rows of the batch, which a part opens for all parts.

    Validity is zero. Offsets and values of constant width are the caller's to write in all of its rows.
    """
    cdef FaultCode code = OK
    cdef Sink *whole = sink.whole
    if whole == NULL:
        return allocate(sink, 0)
    PyThread_acquire_lock(sink.opening.lock, WAIT_LOCK)
    if not is_open(whole):
        code = allocate(whole, sink.opening.n_placed)
    if code == OK:
        share(sink)
    PyThread_release_lock(sink.opening.lock)
    return code


cdef void share(Sink *part) noexcept nogil:
    """Let a part write to what the whole has opened, and still owns."""
    part.validity.data = part.whole.validity.data
    part.values.data = part.whole.values.data
    part.offsets.data = part.whole.offsets.data


cdef FaultCode allocate(Sink *sink, int64_t n_before) noexcept nogil:
    """Memory for a column that none of the first `n_before` rows fills."""
    cdef size_t n = <size_t>sink.n_rows
    cdef size_t width = width_of(sink)
    if open_zeroed(&sink.validity, (n + 7) // 8) != OK:
        return FAULT_NO_MEMORY
    if sink.type == SINK_BOOL:
        return open_zeroed(&sink.values, (n + 7) // 8)
    if sink.type == SINK_TEXT or sink.type == SINK_LIST:
        if grow(&sink.offsets, (n + 1) * sizeof(int32_t)) != OK:
            return FAULT_NO_MEMORY
        memset(sink.offsets.data, 0, <size_t>n_before * sizeof(int32_t))
        return OK
    if grow(&sink.values, n * width) != OK:
        return FAULT_NO_MEMORY
    sink.values.size = n * width
    memset(sink.values.data, 0, <size_t>n_before * width)
    return OK


cdef tuple finish_sink(Sink *sink):
    """(validity, values) or (validity, offsets, data), or None where no row was filled."""
    if not is_open(sink):
        return None
    validity = hand_over(&sink.validity)
    if sink.type == SINK_TEXT or sink.type == SINK_LIST:
        return validity, own_offsets(sink, <int32_t>items_in(sink)), own_items(&sink.data)
    return validity, hand_over(&sink.values)


cdef int open_words(WordSink *sink, int64_t n_rows, bint as_text) except -1:
    """Memory for a byte a row, and for the validity and offsets of text if there will be any."""
    sink.n_rows = n_rows
    sink.indexes.size = <size_t>n_rows
    sink.bits.size = <size_t>(n_rows + 7) // 8
    sink.ends.size = (<size_t>n_rows + 1) * sizeof(int32_t)
    if grow(&sink.indexes, sink.indexes.size) != OK:
        raise MemoryError()
    if as_text and (grow(&sink.bits, sink.bits.size) != OK or grow(&sink.ends, sink.ends.size) != OK):
        raise MemoryError()
    return 0


cdef FaultCode write_words(WordSink *sink, const Word *words, size_t n_words) noexcept nogil:
    """Append text from the bytes of all the sink's rows: its validity, where each row starts, and the letters."""
    cdef Word[NO_WORD + 1] table
    cdef uint8_t[NO_WORD + 1] lengths
    cdef const uint8_t *indexes = sink.indexes.data
    cdef int32_t *starts = <int32_t *>sink.ends.data
    cdef const Word *word
    cdef int64_t row
    cdef size_t i, total = 0
    cdef size_t size = sink.text.size
    cdef int64_t n_rows = sink.n_rows if sink.whole == NULL else sink.whole.n_rows
    cdef uint8_t *text
    # Where a row is null stands a word without letters, so that no row is to be looked at twice.
    memset(table, 0, sizeof(table))
    memset(lengths, 0, sizeof(lengths))
    for i in range(n_words):
        table[i] = words[i]
        lengths[i] = words[i].length
    for row in range(sink.first_row, sink.n_rows):
        total += lengths[indexes[row]]
    if size + total > 0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if reserve_likely(&sink.text, total, sink.first_row, n_rows) != OK:
        return FAULT_NO_MEMORY
    text = sink.text.data
    for row in range(sink.first_row, sink.n_rows):
        starts[row] = <int32_t>size
        # The whole word, its length included: the next one, or the slack at the end, takes what is too much.
        word = &table[indexes[row]]
        memcpy(text + size, word.text, SLACK)
        size += word.length
    sink.text.size = size
    mark_words(sink)
    return OK


cdef void mark_words(WordSink *sink) noexcept nogil:
    """One bit a row; few rows are null, and the bits after the last row stay zero."""
    cdef const uint8_t *indexes = sink.indexes.data
    cdef const uint8_t *end = indexes + sink.n_rows
    cdef const uint8_t *null = indexes + sink.first_row
    cdef uint8_t *bits = sink.bits.data
    memset(bits + sink.first_row // 8, 0xFF, <size_t>(sink.n_rows // 8 - sink.first_row // 8))
    if sink.n_rows & 7:
        bits[sink.n_rows // 8] = <uint8_t>((1 << (sink.n_rows & 7)) - 1)
    while null != end:
        null = <const uint8_t *>memchr(null, NO_WORD, <size_t>(end - null))
        if null == NULL:
            break
        bits[(null - indexes) >> 3] &= <uint8_t>~(1 << ((null - indexes) & 7))
        null += 1


cdef tuple finish_words(WordSink *sink):
    """(validity, offsets, data) of what was written as text, or None where the column is not wanted."""
    if sink.indexes.data == NULL:
        return None
    (<int32_t *>sink.ends.data)[sink.n_rows] = <int32_t>sink.text.size
    return hand_over(&sink.bits), hand_over(&sink.ends), own_items(&sink.text)


cdef tuple finish_tuple(TupleSink *sink):
    """(validity, offsets, letters, n_cells, cell validity, cell offsets, values), or None where no row was filled."""
    cdef size_t n_cells = sink.letters.size
    if not is_open(&sink.rows):
        return None
    cells = ()
    if sink.wants_values:
        cells = (own_items(&sink.bits), own_ends(&sink.ends), own_items(&sink.values))
    validity = hand_over(&sink.rows.validity)
    offsets = own_offsets(&sink.rows, <int32_t>n_cells)
    return (validity, offsets, own_items(&sink.letters), n_cells, *cells)


cdef FaultCode mark_cells(TupleSink *sink) noexcept nogil:
    """Put the bits of all cells, from their letters."""
    cdef size_t n = sink.letters.size
    if not sink.wants_values or n == 0:
        return OK
    if reserve(&sink.bits, (n + 7) // 8) != OK:
        return FAULT_NO_MEMORY
    put_between(sink.bits.data, 0, sink.letters.data, n, True)
    put_borders(sink.bits.data, 0, sink.letters.data, n, True)
    sink.bits.size = (n + 7) // 8
    return OK


cdef tuple finish_columns(ColumnsSink *sink):
    """(validity, offsets, n, flags, name offsets, names, type_ids, type_modifiers), or None where no row was filled."""
    cdef size_t n = columns_in(sink)
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
    cdef size_t n_before = columns_in(sink)
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
    if not is_open(sink):
        return
    sink.validity.data[row >> 3] &= <uint8_t>~(1 << (row & 7))
    if sink.type == SINK_BOOL:
        sink.values.data[row >> 3] &= <uint8_t>~(1 << (row & 7))
    elif sink.values.data != NULL:
        memset(sink.values.data + <size_t>row * width, 0, width)
    elif sink.next_row == row + 1:
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
    free_bytes(&sink.bits)
    free_bytes(&sink.ends)
    free_bytes(&sink.text)


cdef void free_tuple(TupleSink *sink) noexcept:
    free_sink(&sink.rows)
    free_bytes(&sink.letters)
    free_bytes(&sink.bits)
    free_bytes(&sink.ends)
    free_bytes(&sink.values)


cdef void free_columns(ColumnsSink *sink) noexcept:
    free_sink(&sink.rows)
    free_bytes(&sink.flags)
    free_bytes(&sink.name_ends)
    free_bytes(&sink.names)
    free_bytes(&sink.type_ids)
    free_bytes(&sink.type_modifiers)
