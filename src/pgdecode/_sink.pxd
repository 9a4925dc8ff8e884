"""Growable Arrow buffers: what a column is written into, row by row, before pyarrow takes the memory over.

A sink that no row fills allocates nothing. Rows are filled in ascending order, at most once each;
`undo_row` takes the newest row back.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, malloc, realloc
from libc.string cimport memcpy

from pgdecode._fault cimport FAULT_LIMIT_BATCH, FAULT_NO_MEMORY, OK, FaultCode

cdef enum:
    SLACK = 32  # bytes past the end that a block copy may scribble on; never exported

cdef struct Bytes:
    uint8_t *data
    size_t size
    size_t capacity

cdef enum SinkType:
    SINK_BOOL
    SINK_INT16
    SINK_INT64
    SINK_TEXT   # utf8 or binary: offsets and bytes
    SINK_LIST   # offsets only: the items are in sinks of their own

cdef struct Sink:
    SinkType type
    int64_t n_rows
    int64_t next_row     # TEXT, LIST: offsets are written for all rows before this one
    uint8_t *validity    # one bit a row, all 0 at first
    uint8_t *values      # BOOL, INT16, INT64: all 0 at first, so null slots hold no old memory
    int32_t *offsets     # TEXT, LIST: n_rows + 1
    Bytes data           # TEXT: the bytes; LIST of int64: the items

cdef struct TupleSink:
    # TupleData: the list of values and the string of their formats share offsets and validity.
    Sink rows
    bint wants_values
    Bytes letters        # one format a cell
    Bytes ends           # int32 a cell: where its value ends
    Bytes values

cdef struct ColumnsSink:
    # Columns of Relation messages, a list of structs.
    Sink rows
    Bytes flags          # int16 each
    Bytes name_ends      # int32 each
    Bytes names
    Bytes type_ids       # int64 each
    Bytes type_modifiers # int32 each


cdef inline FaultCode reserve(Bytes *bytes, size_t extra) noexcept nogil:
    """Make room for `extra` more bytes and the slack."""
    cdef size_t needed, capacity
    cdef void *data
    if extra <= bytes.capacity - bytes.size and bytes.data != NULL:
        return OK
    # Payloads are limited to 1 GiB and sinks to 2 GiB, so none of these sums can wrap.
    needed = bytes.size + extra
    capacity = bytes.capacity + (bytes.capacity >> 1)
    if capacity < needed:
        capacity = needed
    data = realloc(bytes.data, capacity + SLACK)
    if data == NULL:
        return FAULT_NO_MEMORY
    bytes.data = <uint8_t *>data
    bytes.capacity = capacity
    return OK


cdef inline FaultCode open_fixed(Sink *sink, size_t width) noexcept nogil:
    """First fill of a fixed-width column."""
    if sink.validity == NULL:
        sink.validity = <uint8_t *>calloc(<size_t>(sink.n_rows + 7) // 8, 1)
        if sink.validity == NULL:
            return FAULT_NO_MEMORY
    sink.values = <uint8_t *>calloc(<size_t>sink.n_rows, width)
    return FAULT_NO_MEMORY if sink.values == NULL else OK


cdef inline FaultCode open_offsets(Sink *sink) noexcept nogil:
    """First fill of a column with offsets."""
    if sink.validity == NULL:
        sink.validity = <uint8_t *>calloc(<size_t>(sink.n_rows + 7) // 8, 1)
        if sink.validity == NULL:
            return FAULT_NO_MEMORY
    sink.offsets = <int32_t *>malloc((<size_t>sink.n_rows + 1) * sizeof(int32_t))
    return FAULT_NO_MEMORY if sink.offsets == NULL else OK


cdef inline void set_valid(Sink *sink, int64_t row) noexcept nogil:
    sink.validity[row >> 3] |= <uint8_t>(1 << (row & 7))


cdef inline FaultCode put_int64(Sink *sink, int64_t row, int64_t value) noexcept nogil:
    if sink.values == NULL and open_fixed(sink, sizeof(int64_t)) != OK:
        return FAULT_NO_MEMORY
    (<int64_t *>sink.values)[row] = value
    set_valid(sink, row)
    return OK


cdef inline FaultCode put_int16(Sink *sink, int64_t row, int16_t value) noexcept nogil:
    if sink.values == NULL and open_fixed(sink, sizeof(int16_t)) != OK:
        return FAULT_NO_MEMORY
    (<int16_t *>sink.values)[row] = value
    set_valid(sink, row)
    return OK


cdef inline FaultCode put_bool(Sink *sink, int64_t row, bint value) noexcept nogil:
    # A byte a row while scanning; `finish` packs them into bits.
    if sink.values == NULL and open_fixed(sink, 1) != OK:
        return FAULT_NO_MEMORY
    sink.values[row] = value
    set_valid(sink, row)
    return OK


cdef inline void pad_offsets(Sink *sink, int64_t row, int32_t end) noexcept nogil:
    """Write the starts of all rows up to and including `row`."""
    cdef int64_t i
    for i in range(sink.next_row, row + 1):
        sink.offsets[i] = end
    sink.next_row = row + 1


cdef inline FaultCode put_text(Sink *sink, int64_t row, const uint8_t *text, size_t length) noexcept nogil:
    if sink.offsets == NULL and open_offsets(sink) != OK:
        return FAULT_NO_MEMORY
    if sink.data.size + length > <size_t>0x7FFFFFFF:
        return FAULT_LIMIT_BATCH
    if reserve(&sink.data, length) != OK:
        return FAULT_NO_MEMORY
    pad_offsets(sink, row, <int32_t>sink.data.size)
    if length:
        memcpy(sink.data.data + sink.data.size, text, length)
    sink.data.size += length
    set_valid(sink, row)
    return OK


cdef inline FaultCode put_list(Sink *sink, int64_t row, size_t items_before) noexcept nogil:
    """Start the list of this row; the caller then appends its items."""
    if sink.offsets == NULL and open_offsets(sink) != OK:
        return FAULT_NO_MEMORY
    pad_offsets(sink, row, <int32_t>items_before)
    set_valid(sink, row)
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


cdef void undo_row(Sink *sink, int64_t row, size_t item_width) noexcept nogil
cdef void undo_tuple(TupleSink *sink, int64_t row) noexcept nogil
cdef void undo_columns(ColumnsSink *sink, int64_t row) noexcept nogil

cdef tuple finish_sink(Sink *sink)
cdef tuple finish_tuple(TupleSink *sink)
cdef tuple finish_columns(ColumnsSink *sink)

cdef void free_sink(Sink *sink) noexcept nogil
cdef void free_tuple(TupleSink *sink) noexcept nogil
cdef void free_columns(ColumnsSink *sink) noexcept nogil
