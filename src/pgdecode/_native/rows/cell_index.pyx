"""Finds the cells of a block of inserts, updates and deletes, which stay in their payloads."""

from libc.stdint cimport int16_t, int32_t, uint16_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from pgdecode._native.arrow.payload_array cimport CORRUPT, LAYOUT_OFFSETS32, PRESENT, Presence, payload_at
from pgdecode._native.cursor cimport be32, be64, prefetch
from pgdecode._native.fault cimport (
    FAULT_BAD_ARRAY, FAULT_NOT_A_ROW, FAULT_NO_MEMORY, FAULT_OTHER_RELATION, OK, keep_fault,
    unlikely,
)
from pgdecode._native.wire.envelope_builder cimport open_check, rules_of
from pgdecode._native.wire.stream_state cimport READING_PLAIN, READING_STREAMED, resolve_payload, marks, may_carry_xid
from pgdecode._native.wire.tuples cimport remove_long_values
from pgdecode._native.wire.walker cimport STREAMED, walk_message
from pgdecode._native.wire.wire_plan cimport N_MESSAGES, PLAN, TAG_MARKED

from pgdecode.protocol import limits as sizes

cdef enum:
    # A block's cells, of 16 bytes each, stay in the first cache.
    BLOCK_CELLS = 1536
    LEAST_ROWS = 32
    MOST_ROWS = 512
    AHEAD = 4096      # bytes: payloads are prefetched this far ahead
    LINE = 64         # bytes: a line of the cache
    CELL_HEADER = 5   # bytes: a cell's kind and length


cdef inline const uint8_t *index_cells(const uint8_t *p, const uint8_t *end, Cell *cell, int n) noexcept nogil:
    """Index `n` cells, and return their end. Returns NULL, or another address than `end`, if the walk must decide.

    That is the case if a cell is u or malformed. The cells are valid only if `end` is returned. This loop does not use
    `take_cell`, which makes typed rows up to 11 % slower (wide rows in binary).
    """
    cdef const Cell *last = cell + n
    # 64-bit numbers do not overflow for any length, so that one comparison before each cell is enough.
    cdef uint64_t at = <size_t>p
    cdef uint64_t stop = <size_t>end
    cdef uint64_t last_value = stop - CELL_HEADER   # the last position where a value can begin
    cdef uint32_t length
    cdef uint8_t kind
    while cell != last:
        if unlikely(at > last_value and (at >= stop or (<const uint8_t *><size_t>at)[0] != c"n")):
            return NULL
        kind = (<const uint8_t *><size_t>at)[0]
        cell.kind = kind
        if unlikely(kind != c"b" and kind != c"t"):
            if unlikely(kind != c"n"):
                return NULL
            cell.value = NULL
            at += 1
        else:
            length = be32(<const uint8_t *><size_t>(at + 1))
            at += CELL_HEADER
            cell.value = <const uint8_t *><size_t>at
            cell.length = length
            at += length
        cell += 1
    return <const uint8_t *><size_t>at


cdef object bytes_of(object buffer, int width, str name):
    """A buffer of items of `width` bytes as bytes. A pyarrow buffer has bytes already."""
    view = memoryview(buffer)
    if view.itemsize not in (1, width) or view.nbytes % width:
        raise ValueError(f"{name} holds items of {width} bytes, not {view.nbytes} bytes in items of {view.itemsize}")
    return view.cast("B")


cdef class CellIndex:
    def __cinit__(
        self,
        Source source,
        int64_t relation_id,
        int n_columns,
        object limits,
        bint strict_flags,
        object selection,
        object streamed,
        bint empty_is_null,
    ):
        self.source = source
        self.n_rows = source.n_rows
        self.relation_id = relation_id
        self.n_columns = n_columns
        self.empty_is_null = empty_is_null
        # An unset memoryview is not None for C code.
        self.selection = self.streamed = None
        if selection is not None:
            self.selection = bytes_of(selection, sizeof(int64_t), "selection")
            self.n_rows = self.selection.shape[0] // <Py_ssize_t>sizeof(int64_t)
            self.check_selection()
        if streamed is not None:
            self.streamed = bytes_of(streamed, 1, "streamed")
            if self.streamed.shape[0] != self.n_rows:
                raise ValueError(f"streamed has {len(self.streamed)} rows, expected {self.n_rows}")
        self.most_rows = max(LEAST_ROWS, min(MOST_ROWS, BLOCK_CELLS // (n_columns + 1)))
        self.rows = <Row *>calloc(<size_t>self.most_rows, sizeof(Row))
        self.cells = <Cell *>calloc(<size_t>self.most_rows * (n_columns + 1), sizeof(Cell))
        self.olds = <Cell *>calloc(<size_t>self.most_rows * (n_columns + 1), sizeof(Cell))
        self.spans = <Span *>calloc(<size_t>self.most_rows, sizeof(Span))
        # Of two readings, the one with this relation is right.
        self.known.ids = <uint32_t *>calloc(1, sizeof(uint32_t))
        if (
            self.known.ids == NULL
            or self.rows == NULL
            or self.cells == NULL
            or self.olds == NULL
            or self.spans == NULL
        ):
            raise MemoryError()
        self.known.ids[0] = <uint32_t>relation_id
        self.known.n = 1
        self.known.collected = True
        self.rules = rules_of(limits, strict_flags)
        self.most_bytes = min(self.rules.max_payload_bytes, self.rules.max_value_bytes)
        # Values above the limit become null, and the rest of their row is decoded. So the walk does not have the limit.
        self.max_value_bytes = self.rules.max_value_bytes
        self.rules.max_value_bytes = sizes.MAX_PAYLOAD
        self.first_label = len(PLAN.labels)
        if <uint32_t>n_columns > self.rules.max_columns or n_columns > 0xFFFF or not 0 <= relation_id <= 0xFFFFFFFF:
            self.most_bytes = 0
        self.row_header = <uint64_t>relation_id << 24 | <uint64_t>c"N" << 16 | <uint64_t>n_columns
        self.new_builder.n_cells = self.old_builder.n_cells = <uint16_t>n_columns
        self.index_only.new = &self.new_builder
        self.index_only.old = &self.old_builder
        self.walk.plan = &PLAN.table
        self.walk.rules = &self.rules
        self.walk.out = &self.index_only
        self.walk.fault = &self.fault
        open_check(&self.stream_walk, &PLAN.table, &self.rules, &self.nothing, &self.stream_flags)
        self.window.plan = &PLAN.table
        self.window.walk = &self.stream_walk

    def __dealloc__(self):
        free(self.rows)
        free(self.cells)
        free(self.olds)
        free(self.spans)
        free(self.known.ids)

    cdef int check_selection(self) except -1:
        cdef int64_t i
        for i in range(self.n_rows):
            if not 0 <= self.source_row(i) < self.source.n_rows:
                raise IndexError(f"selection has row {self.source_row(i)} of a source of {self.source.n_rows} rows")
        return 0

    cdef inline int64_t source_row(self, int64_t row) noexcept nogil:
        """The row of the source for a row of the output."""
        cdef int64_t selected = row
        if self.selection is not None:
            memcpy(&selected, &self.selection[row * sizeof(selected)], sizeof(selected))
        return selected

    cdef inline const Segment *segment_with(self, int64_t source_row) noexcept nogil:
        """The segment of a row. Rows mostly come in the source's order, so it is this one or the next."""
        while source_row < self.segment_start:
            self.segment -= 1
            self.segment_start -= self.source.segments[self.segment].n_rows
        while source_row - self.segment_start >= self.source.segments[self.segment].n_rows:
            self.segment_start += self.source.segments[self.segment].n_rows
            self.segment += 1
        return &self.source.segments[self.segment]

    cdef FaultCode index_block(self, int64_t first, int64_t stop) noexcept nogil:
        """Index rows of the output from `first` on, up to `stop` or `most_rows` rows.

        Faults of rows are kept. Other faults end the block.
        """
        cdef FaultCode code
        cdef Row *row
        cdef int c
        cdef int i = 0
        self.n = <int>min(stop - first, <int64_t>self.most_rows)
        self.n_olds = 0
        self.has_streamed = self.has_unchanged = self.has_null = False
        if not self.locate(first):
            return FAULT_BAD_ARRAY
        while True:
            i = self.index_fast_rows(first, i)
            if i == self.n:
                return OK
            row = &self.rows[i]
            memset(row, 0, sizeof(Row))
            code = OK
            if self.spans[i].length == 0 and self.empty_is_null:
                self.spans[i].data = NULL
            if self.spans[i].data != NULL:
                code = self.index_row(i, first + i, &self.spans[i])
            if code == FAULT_BAD_ARRAY or code == FAULT_NO_MEMORY:
                return code
            if code != OK or self.spans[i].data == NULL:
                row.payload = NULL
                row.old_type = 0
                self.has_null = True
                for c in range(self.n_columns):
                    self.cells[<size_t>i * self.n_columns + c].value = NULL
                    self.cells[<size_t>i * self.n_columns + c].kind = c"n"
            if code != OK:
                self.fault.code = code
                self.fault.row = first + i
                code = keep_fault(self.faults, &self.fault)
                if code != OK:
                    return code
            i += 1

    cdef bint locate(self, int64_t first) noexcept nogil:
        """Locate the block's payloads. False if the array is corrupt."""
        cdef const Segment *segment
        cdef const int32_t *offsets
        cdef int64_t source_row = self.source_row(first)
        cdef Presence presence
        cdef bint wrong = False
        cdef int i
        segment = self.segment_with(source_row)
        source_row -= self.segment_start
        if (
            self.selection is None
            and segment.layout == LAYOUT_OFFSETS32
            and segment.validity == NULL
            and segment.n_rows - source_row >= self.n
        ):
            # As `payload_at`, for all rows at once.
            offsets = <const int32_t *>segment.index + segment.first + source_row
            for i in range(self.n):
                wrong |= (offsets[i] < 0) | (offsets[i + 1] < offsets[i])
                self.spans[i].data = segment.data + offsets[i]
                self.spans[i].length = <size_t>offsets[i + 1] - <size_t>offsets[i]
            return not wrong and <size_t>offsets[self.n] <= segment.data_size
        for i in range(self.n):
            source_row = self.source_row(first + i)
            if self.segment_with(source_row) != segment:
                segment = self.segment_with(source_row)
            presence = payload_at(segment, source_row - self.segment_start, &self.spans[i])
            if presence == CORRUPT:
                return False
            if presence != PRESENT:
                self.spans[i].data = NULL
        return True

    cdef int index_fast_rows(self, int64_t first, int i) noexcept nogil:
        """Index well-formed inserts, updates without old tuple, and deletes, from row i on. Most rows are these.

        Returns the first other row, which `index_row` handles, or the number of rows.
        """
        cdef int n = self.n
        cdef int n_columns = self.n_columns
        cdef bint has_flags = self.streamed is not None
        cdef uint64_t row_header = self.row_header
        cdef size_t most_bytes = self.most_bytes
        cdef const Span *payload = self.spans + i
        cdef Cell *cells = self.cells + <size_t>i * n_columns
        cdef Row *indexed = self.rows + i
        cdef const uint8_t *p
        cdef const uint8_t *end
        cdef size_t prefix = 0
        cdef size_t ahead = 0
        cdef uint64_t differs
        cdef bint deleted
        while i < n:
            p = payload.data
            end = p + payload.length
            if ahead < <size_t>end or ahead > <size_t>end + AHEAD:
                # The first row, or one in another place, or a long one.
                ahead = <size_t>end
            if has_flags:
                prefix = 4 if self.streamed[first + i] else 0
            # No value is longer than its payload.
            if unlikely(p == NULL or payload.length < prefix + 8 or payload.length > most_bytes):
                break
            # The high byte of a length, usually 0, is at the position of the other reading's mark.
            if not has_flags and (payload.length <= 9 or p[9]) and marks(payload) != READING_PLAIN:
                break
            differs = (be64(p + prefix) ^ row_header) << 8
            deleted = p[0] == c"D"
            if unlikely(deleted):
                if differs != <uint64_t>(c"N" ^ c"K") << 24 and differs != <uint64_t>(c"N" ^ c"O") << 24:
                    break
            elif unlikely(differs != 0 or p[0] != c"I" and p[0] != c"U"):
                break
            while ahead < <size_t>end + AHEAD:
                prefetch(<const void *>ahead)
                ahead += LINE
            if unlikely(index_cells(p + prefix + 8, end, cells, n_columns) != end):
                break
            indexed.payload = p
            indexed.tag = p[0]
            indexed.old_type = 0
            indexed.streamed = prefix != 0
            indexed.has_unchanged = False
            self.has_streamed |= prefix != 0
            if deleted:
                indexed.old_type = p[prefix + 5]
                indexed.old_at = self.n_olds
                memcpy(self.olds + <size_t>self.n_olds * n_columns, cells, <size_t>n_columns * sizeof(Cell))
                self.n_olds += 1
            i += 1
            payload += 1
            indexed += 1
            cells += n_columns
        return i

    cdef FaultCode index_row(self, int i, int64_t row, const Span *payload) noexcept nogil:
        """Index a payload, or set `fault`."""
        cdef Row *indexed = &self.rows[i]
        cdef Cell *cells = self.cells + <size_t>i * self.n_columns
        cdef bint streamed = False
        cdef Fault fault
        cdef FaultCode code
        self.new_builder.cells = cells
        self.old_builder.cells = self.olds + <size_t>self.n_olds * self.n_columns
        self.new_builder.has_unchanged = False
        code = self.resolve_streams(row, payload, &streamed)
        if code == OK:
            code = self.walk_row(payload, streamed)
        if code != OK:
            return code
        indexed.payload = payload.data
        indexed.tag = payload.data[0]
        indexed.streamed = streamed
        indexed.old_type = self.walk.old_type
        self.has_streamed |= streamed
        if unlikely(payload.length > self.max_value_bytes):
            memset(&fault, 0, sizeof(fault))
            fault.tag = indexed.tag
            fault.label = <int16_t>self.first_label
            fault.row = row
            fault.relation = self.relation_id
            fault.expected = <int64_t>self.max_value_bytes
            if indexed.old_type:
                code = remove_long_values(
                    self.old_builder.cells, <size_t>self.n_columns, payload.data, fault, True, False, self.faults
                )
            if code == OK and indexed.tag != c"D":
                code = remove_long_values(
                    cells, <size_t>self.n_columns, payload.data, fault, True, False, self.faults
                )
            if code != OK:
                return code
        if indexed.old_type:
            indexed.old_at = self.n_olds
            self.n_olds += 1
            if indexed.tag == c"D":
                memcpy(cells, self.old_builder.cells, <size_t>self.n_columns * sizeof(Cell))
        if self.new_builder.has_unchanged:
            self.fill_from_old(indexed, cells)
        return OK

    cdef void fill_from_old(self, Row *row, Cell *cells) noexcept nogil:
        """Replace new cells that are u by the old tuple's cell, if that has a value."""
        cdef int c
        for c in range(self.n_columns):
            if cells[c].kind != c"u":
                continue
            if row.old_type and self.old_builder.cells[c].value != NULL:
                cells[c] = self.old_builder.cells[c]
            else:
                row.has_unchanged = self.has_unchanged = True

    cdef FaultCode resolve_streams(self, int64_t row, const Span *payload, bint *streamed) noexcept nogil:
        """Whether a payload has an xid prefix: the caller's flag, or else its structure, decides."""
        cdef uint8_t stream_flag = 0
        cdef FaultCode code = OK
        cdef int readings
        if self.streamed is not None:
            streamed[0] = self.streamed[row] != 0
            return OK
        readings = marks(payload)
        if readings == READING_PLAIN or readings == READING_STREAMED:
            streamed[0] = readings == READING_STREAMED
        elif payload.length and may_carry_xid(&PLAN.table, payload.data[0]):
            code = resolve_payload(&self.window, &self.known, payload, &stream_flag)
            streamed[0] = stream_flag & STREAMED != 0
        return code

    cdef FaultCode walk_row(self, const Span *payload, bint streamed) noexcept nogil:
        """Walk a payload of any kind."""
        cdef FaultCode code = self.check_kind(payload, streamed)
        return code if code != OK else walk_message(&self.walk, payload.data, payload.length, streamed)

    cdef FaultCode check_kind(self, const Span *payload, bint streamed) noexcept nogil:
        """Accept only inserts, updates and deletes of the relation. The walk reports malformed payloads."""
        cdef size_t at = 5 if streamed else 1
        cdef uint8_t tag = payload.data[0] if payload.length else 0
        cdef int index = PLAN.table.by_tag[tag]
        if payload.length == 0 or index == N_MESSAGES:
            return OK
        memset(&self.fault, 0, sizeof(Fault))
        self.fault.tag = tag
        self.fault.relation = -1
        self.fault.column = -1
        self.fault.label = PLAN.table.messages[index].label
        if PLAN.table.tag_class[tag] != TAG_MARKED:
            return FAULT_NOT_A_ROW
        if payload.length >= at + 4 and be32(payload.data + at) != self.relation_id:
            self.fault.relation = be32(payload.data + at)
            self.fault.label = PLAN.table.messages[index].ops[0].label
            self.fault.offset = at
            self.fault.expected = self.relation_id
            self.fault.seen = self.fault.relation
            return FAULT_OTHER_RELATION
        return OK
