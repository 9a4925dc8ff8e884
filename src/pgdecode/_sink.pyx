"""Hands finished sinks to Python as buffers, and takes rows back after a fault."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from pgdecode import errors

# Buffers that Python still holds; tests assert that it returns to where it was.
cdef Py_ssize_t n_live = 0


def live_buffers():
    """Number of native buffers not yet freed."""
    return n_live


cdef class Buffer:
    """Memory of a finished sink, read-only, freed when the last array over it goes."""

    cdef uint8_t *data
    cdef size_t size

    def __cinit__(self):
        global n_live
        n_live += 1

    def __dealloc__(self):
        global n_live
        free(self.data)
        n_live -= 1

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.data, <Py_ssize_t>self.size, 1, flags)

    def __len__(self):
        return <Py_ssize_t>self.size


cdef Buffer own(uint8_t **data, size_t size):
    """A Buffer over malloc'd memory, which is no longer the sink's."""
    cdef Buffer buffer = Buffer()
    buffer.data = data[0]
    buffer.size = size
    data[0] = NULL
    return buffer


cdef Buffer own_bytes(Bytes *bytes):
    """A Buffer over a growable sink's bytes, the spare capacity given back."""
    cdef uint8_t *shrunk
    if bytes.capacity - bytes.size > 4096:
        shrunk = <uint8_t *>realloc(bytes.data, bytes.size + 1)
        if shrunk != NULL:
            bytes.data = shrunk
    return own(&bytes.data, bytes.size)


cdef Buffer own_validity(Sink *sink):
    return own(&sink.validity, <size_t>(sink.n_rows + 7) // 8)


cdef Buffer own_offsets(Sink *sink, int32_t end):
    """Offsets with the rows after the last filled one padded."""
    cdef uint8_t *data
    pad_offsets(sink, sink.n_rows, end)
    data = <uint8_t *>sink.offsets
    sink.offsets = NULL
    return own(&data, (<size_t>sink.n_rows + 1) * sizeof(int32_t))


cdef Buffer own_ends(Bytes *ends):
    """Arrow offsets from the ends of n items: one 0 in front of them was reserved by the first append."""
    cdef int32_t zero = 0
    if ends.size == 0:
        if append_int32(ends, zero) != OK:
            raise MemoryError()
    return own_bytes(ends)


cdef bint is_open(const Sink *sink) noexcept nogil:
    return sink.values != NULL or sink.offsets != NULL


cdef tuple finish_sink(Sink *sink):
    """(validity, values) or (validity, offsets, data), or None where no row was filled."""
    cdef int64_t row
    cdef uint8_t *bits
    if not is_open(sink):
        return None
    if sink.type == SINK_TEXT or sink.type == SINK_LIST:
        end = sink.data.size if sink.type == SINK_TEXT else sink.data.size // sizeof(int64_t)
        return own_validity(sink), own_offsets(sink, <int32_t>end), own_bytes(&sink.data)
    if sink.type == SINK_BOOL:
        bits = <uint8_t *>calloc(<size_t>(sink.n_rows + 7) // 8 + 1, 1)
        if bits == NULL:
            raise MemoryError()
        for row in range(sink.n_rows):
            bits[row >> 3] |= <uint8_t>(sink.values[row] << (row & 7))
        return own_validity(sink), own(&bits, <size_t>(sink.n_rows + 7) // 8)
    return own_validity(sink), own(&sink.values, <size_t>sink.n_rows * width_of(sink))


cdef int open_words(WordSink *sink, int64_t n_rows) except -1:
    sink.n_rows = n_rows
    sink.indexes = <uint8_t *>malloc(<size_t>n_rows + 1)
    if sink.indexes == NULL:
        raise MemoryError()
    memset(sink.indexes, NO_WORD, <size_t>n_rows)
    return 0


cdef tuple finish_words(WordSink *sink, const Word *words):
    """(validity, offsets, data), or None where the column is not wanted."""
    cdef int64_t row, n = sink.n_rows
    cdef int64_t total = 0
    cdef uint8_t *bits
    cdef uint8_t *ends
    cdef uint8_t *data
    if sink.indexes == NULL:
        return None
    with nogil:
        for row in range(n):
            if sink.indexes[row] != NO_WORD:
                total += words[sink.indexes[row]].length
    if total > 0x7FFFFFFF:
        raise errors.BatchTooLarge(errors.BatchTooLarge.wording.format(field="kind"))
    bits = <uint8_t *>calloc(<size_t>(n + 7) // 8 + 1, 1)
    ends = <uint8_t *>malloc((<size_t>n + 1) * sizeof(int32_t))
    data = <uint8_t *>malloc(<size_t>total + WORD_BYTES)
    validity = own(&bits, <size_t>(n + 7) // 8)
    offsets = own(&ends, (<size_t>n + 1) * sizeof(int32_t))
    text = own(&data, <size_t>total)
    write_words(sink, words, validity, offsets, text)
    return validity, offsets, text


cdef int write_words(WordSink *sink, const Word *words, Buffer bits, Buffer ends, Buffer data) except -1:
    cdef int64_t row
    cdef int32_t size = 0
    cdef uint8_t index
    if bits.data == NULL or ends.data == NULL or data.data == NULL:
        raise MemoryError()
    with nogil:
        for row in range(sink.n_rows):
            (<int32_t *>ends.data)[row] = size
            index = sink.indexes[row]
            if index != NO_WORD:
                # The whole padded word: the next one, or the spare bytes at the end, take what is too much.
                memcpy(data.data + size, words[index].text, WORD_BYTES)
                size += words[index].length
                bits.data[row >> 3] |= <uint8_t>(1 << (row & 7))
        (<int32_t *>ends.data)[sink.n_rows] = size
    return 0


cdef tuple finish_tuple(TupleSink *sink):
    """(validity, offsets, letters, n_cells, cell validity, cell offsets, values), or None where no row was filled."""
    cdef size_t n_cells = sink.letters.size
    cdef size_t n_bytes = (n_cells + 7) // 8
    cdef uint8_t *bits
    if not is_open(&sink.rows):
        return None
    cells = ()
    if sink.wants_values:
        bits = <uint8_t *>malloc(n_bytes + 1)
        if bits == NULL:
            raise MemoryError()
        pack_valid_letters(sink.letters.data, n_cells, bits)
        cells = (own(&bits, n_bytes), own_ends(&sink.ends), own_bytes(&sink.values))
    validity = own_validity(&sink.rows)
    offsets = own_offsets(&sink.rows, <int32_t>n_cells)
    return (validity, offsets, own_bytes(&sink.letters), n_cells, *cells)


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
        own_validity(&sink.rows),
        own_offsets(&sink.rows, <int32_t>n),
        n,
        own_bytes(&sink.flags),
        own_ends(&sink.name_ends),
        own_bytes(&sink.names),
        own_bytes(&sink.type_ids),
        own_bytes(&sink.type_modifiers),
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
    if sink.validity == NULL:
        return
    sink.validity[row >> 3] &= <uint8_t>~(1 << (row & 7))
    if sink.values != NULL:
        memset(sink.values + <size_t>row * width, 0, width)
    elif sink.offsets != NULL and sink.next_row == row + 1:
        sink.data.size = <size_t>sink.offsets[row] * item_width
        sink.next_row = row


cdef void undo_tuple(TupleSink *sink, int64_t row) noexcept nogil:
    cdef size_t n_cells
    cdef int32_t end = 0
    if sink.rows.offsets == NULL or sink.rows.next_row != row + 1:
        return
    n_cells = <size_t>sink.rows.offsets[row]
    sink.letters.size = n_cells
    if sink.wants_values and sink.ends.size:
        sink.ends.size = (n_cells + 1) * sizeof(int32_t)
        memcpy(&end, sink.ends.data + n_cells * sizeof(int32_t), sizeof(int32_t))
        sink.values.size = <size_t>end
    undo_row(&sink.rows, row, 1)


cdef void undo_columns(ColumnsSink *sink, int64_t row) noexcept nogil:
    cdef size_t n
    cdef int32_t end = 0
    if sink.rows.offsets == NULL or sink.rows.next_row != row + 1:
        return
    n = <size_t>sink.rows.offsets[row]
    if sink.name_ends.size:
        sink.name_ends.size = (n + 1) * sizeof(int32_t)
        memcpy(&end, sink.name_ends.data + n * sizeof(int32_t), sizeof(int32_t))
    sink.names.size = <size_t>end
    # A fault inside a column leaves some of its parts written: all are cut to the same count.
    sink.flags.size = n * sizeof(int16_t)
    sink.type_ids.size = n * sizeof(int64_t)
    sink.type_modifiers.size = n * sizeof(int32_t)
    undo_row(&sink.rows, row, 1)


cdef void free_sink(Sink *sink) noexcept nogil:
    free(sink.validity)
    free(sink.values)
    free(sink.offsets)
    free(sink.data.data)


cdef void free_words(WordSink *sink) noexcept nogil:
    free(sink.indexes)


cdef void free_tuple(TupleSink *sink) noexcept nogil:
    free_sink(&sink.rows)
    free(sink.letters.data)
    free(sink.ends.data)
    free(sink.values.data)


cdef void free_columns(ColumnsSink *sink) noexcept nogil:
    free_sink(&sink.rows)
    free(sink.flags.data)
    free(sink.name_ends.data)
    free(sink.names.data)
    free(sink.type_ids.data)
    free(sink.type_modifiers.data)
