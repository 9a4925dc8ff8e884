"""Decodes the inserts, updates and deletes of one relation into typed columns, in one thread.

The cells of a block of rows are indexed, and then decoded one column after the other.
"""

from libc.stdint cimport int16_t, int32_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from pgdecode._native.arrow.builder cimport KEYWORD_BYTES, Keyword
from pgdecode._native.arrow.column_builder cimport (
    end_list,
    limit_text,
    mark,
    mark_many,
    open_ends,
    postpone_nulls,
    put_bytes,
    put_empty_lists,
    put_int64,
    put_null,
    take_back,
    text_in,
    write_postponed_nulls,
    write_struct_nulls,
)
from pgdecode._native.arrow.payload_array cimport Source
from pgdecode._native.codecs.block_decoder cimport MAX_DATA, decode_cells
from pgdecode._native.codecs.registry cimport CodecTree
from pgdecode._native.cursor cimport be32
from pgdecode._native.fault cimport (
    FAULT_LIMIT_BATCH,
    FAULT_LIMIT_EXPANSION,
    FAULT_NO_MEMORY,
    FAULT_TOO_HIGH,
    FAULT_UNREPRESENTABLE,
    OK,
    Fault,
    keep_fault,
    unlikely,
)
from pgdecode._native.memory.buffers cimport reserve
from pgdecode._native.rows.cell_index cimport Row
from pgdecode._native.rows.row_columns cimport N_META, OLD, OLD_TYPE, OP, UNCHANGED, XID
from pgdecode._native.wire.wire_plan cimport PLAN

from pgdecode.protocol import limits as sizes

cdef enum:
    LETTERS_OF_OP = 6  # bytes: insert, update, delete


cdef class RowDecoder:
    def __cinit__(
        self,
        Source source,
        int64_t relation_id,
        list names,
        list decodings,
        object limits,
        bint strict_flags,
        bint permissive,
        bint null_unrepresentable,
        object selection,
        object streamed,
        bint empty_is_null,
    ):
        cdef int i
        cdef size_t n = len(names)
        self.cell_index = CellIndex(
            source, relation_id, <int>n, limits, strict_flags, selection, streamed, empty_is_null
        )
        self.n_rows = self.cell_index.n_rows
        self.n_columns = <int>n
        self.relation_id = relation_id
        self.permissive = permissive
        self.null_unrepresentable = null_unrepresentable
        self.trees = [CodecTree(decoding) for decoding in decodings]
        self.codecs = <const Codec **>calloc(n + 1, sizeof(void *))
        self.name_ends = <size_t *>calloc(n + 1, sizeof(size_t))
        self.spread = <Cell *>calloc(<size_t>self.cell_index.most_rows, sizeof(Cell))
        if self.codecs == NULL or self.name_ends == NULL or self.spread == NULL:
            raise MemoryError()
        encoded = [name.encode() for name in names]
        self.joined = b"".join(encoded)
        self.all_names = self.joined
        self.first_label = len(PLAN.labels)
        self.free_name = sizes.FREE_NAME
        for i in range(self.n_columns):
            self.codecs[i] = &(<CodecTree>self.trees[i]).codec
            self.name_ends[i] = len(encoded[i]) + (self.name_ends[i - 1] if i else 0)

    def __dealloc__(self):
        free(self.codecs)
        free(self.name_ends)
        free(self.spread)

    cdef FaultCode decode(self, RowSet *out, int64_t first, int64_t stop) noexcept nogil:
        cdef FaultCode code = OK
        self.out = out
        self.cell_index.faults = &out.faults
        self.op = &out.columns[OP]
        self.xid = &out.columns[XID]
        self.old_type = &out.columns[OLD_TYPE]
        self.unchanged = &out.columns[UNCHANGED]
        self.old = &out.columns[OLD]
        self.new = &out.columns[N_META]
        while first < stop and code == OK:
            code = self.decode_block(first, stop)
            first += self.cell_index.n
        return code

    cdef FaultCode decode_block(self, int64_t first, int64_t stop) noexcept nogil:
        """Index the cells of some rows, then decode them column by column."""
        cdef size_t n_before = self.out.faults.n
        cdef FaultCode code = self.cell_index.index_block(first, stop)
        cdef Cells cells
        cdef int c
        if code == OK:
            code = self.put_meta()
        cells.stride = <size_t>self.n_columns
        cells.n = <size_t>self.cell_index.n
        for c in range(self.n_columns):
            cells.first = self.cell_index.cells + c
            if code == OK:
                code = self.decode_column(&self.new[c], &cells, c, first)
        if code == OK:
            code = self.decode_olds(first)
        if code != OK or self.out.faults.n == n_before or self.permissive:
            return code
        return self.first_of(n_before)

    cdef FaultCode first_of(self, size_t n_before) noexcept nogil:
        """Put the fault of the earliest row last; `run` raises that one."""
        cdef size_t best = n_before, i
        cdef Fault fault
        for i in range(n_before, self.out.faults.n):
            if self.out.faults.items[i].row < self.out.faults.items[best].row:
                best = i
        fault = self.out.faults.items[best]
        self.out.faults.items[best] = self.out.faults.items[self.out.faults.n - 1]
        self.out.faults.items[self.out.faults.n - 1] = fault
        return fault.code

    cdef bint is_alone(self, FaultCode code) noexcept nogil:
        """Whether a batch that is too large is the fault of a value, because it has only one row."""
        return self.n_rows == 1 and (code == FAULT_LIMIT_BATCH or code == FAULT_LIMIT_EXPANSION)

    # -- values ------------------------------------------------------------------------------------------------------

    cdef FaultCode decode_column(self, Column *column, const Cells *cells, int c, int64_t first) noexcept nogil:
        """Append a block's values to a column. A bad value is null, and its fault is kept."""
        cdef size_t at = 0
        cdef size_t before, more = 0
        cdef FaultCode code
        while at < cells.n and cells.first[at * cells.stride].value == NULL:
            at += 1
        if at == cells.n:
            postpone_nulls(column, at)
            return OK
        at = 0
        code = write_postponed_nulls(column)
        before = text_in(column)
        limit_text(column, self.out.most_text - self.out.text)
        while code == OK and at < cells.n:
            code = decode_cells(cells, &at, column, self.codecs[c])
            more = text_in(column) - before
            if unlikely(more > self.out.most_text - self.out.text):
                # Several children were each within the limit, or a single value was too long.
                code = FAULT_LIMIT_EXPANSION
                at = cells.n - 1
                take_back(column, column.n - 1)
                more = 0
            elif code == FAULT_LIMIT_BATCH and self.out.most_text - self.out.text < <size_t>MAX_DATA - before:
                code = FAULT_LIMIT_EXPANSION
            if code != OK:
                code = self.keep_value(code, column, &cells.first[at * cells.stride], c, at, first)
                at += 1
        self.out.text += more
        return code

    cdef FaultCode keep_value(
        self, FaultCode code, Column *column, const Cell *cell, int c, size_t at, int64_t first
    ) noexcept nogil:
        """Keep the fault of a value, which becomes null. Other faults end decoding."""
        cdef Fault fault
        if FAULT_LIMIT_BATCH <= code <= FAULT_NO_MEMORY and not self.is_alone(code):
            return code
        if put_null(column) != OK:
            return FAULT_NO_MEMORY
        if self.null_unrepresentable and FAULT_UNREPRESENTABLE <= code <= FAULT_TOO_HIGH:
            return OK
        memset(&fault, 0, sizeof(fault))
        fault.code = code
        fault.tag = self.cell_index.rows[at].tag
        fault.label = <int16_t>(self.first_label + c)
        fault.column = c
        fault.row = first + <int64_t>at
        fault.relation = self.relation_id
        fault.offset = <size_t>(cell.value - self.cell_index.rows[at].payload)
        fault.expected = -1
        fault.seen = <int64_t>cell.length
        return keep_fault(&self.out.faults, &fault)

    cdef FaultCode decode_olds(self, int64_t first) noexcept nogil:
        """Decode the old tuples of a block into a struct. Most of its columns have no value."""
        cdef FaultCode code
        cdef Cells cells
        cdef int i, c
        if self.cell_index.n_olds == 0:
            postpone_nulls(self.old, <size_t>self.cell_index.n)
            return OK
        code = write_struct_nulls(self.old)
        cells.first = self.spread
        cells.stride = 1
        cells.n = <size_t>self.cell_index.n
        for c in range(self.n_columns):
            if not self.has_old(c):
                postpone_nulls(&self.old.children[c], cells.n)
            elif code == OK:
                self.spread_olds(c)
                code = self.decode_column(&self.old.children[c], &cells, c, first)
        for i in range(self.cell_index.n):
            if code == OK:
                code = mark(self.old, self.cell_index.rows[i].old_type != 0)
        return code

    cdef bint has_old(self, int c) noexcept nogil:
        """Whether a column has a value in any old tuple of the block. If only keys are sent, few columns do."""
        cdef const Cell *cell = self.cell_index.olds + c
        cdef int _i
        for _i in range(self.cell_index.n_olds):
            if cell.value != NULL:
                return True
            cell += self.n_columns
        return False

    cdef void spread_olds(self, int c) noexcept nogil:
        """Spread the cells of a column of the old tuples to the rows that have one."""
        cdef int i
        for i in range(self.cell_index.n):
            if self.cell_index.rows[i].old_type:
                self.spread[i] = self.cell_index.olds[<size_t>self.cell_index.rows[i].old_at * self.n_columns + c]
            else:
                self.spread[i].value = NULL
                self.spread[i].kind = c"n"

    # -- what a row has beside its values ----------------------------------------------------------------------------

    cdef FaultCode put_meta(self) noexcept nogil:
        cdef const Row *row
        cdef FaultCode code = self.put_ops()
        cdef int i
        if not self.cell_index.has_streamed:
            postpone_nulls(self.xid, <size_t>self.cell_index.n)
        elif code == OK:
            code = write_postponed_nulls(self.xid)
            for i in range(self.cell_index.n):
                row = &self.cell_index.rows[i]
                if code == OK:
                    code = put_int64(self.xid, be32(row.payload + 1)) if row.streamed else put_null(self.xid)
        if self.cell_index.n_olds == 0:
            postpone_nulls(self.old_type, <size_t>self.cell_index.n)
        elif code == OK:
            code = write_postponed_nulls(self.old_type)
            for i in range(self.cell_index.n):
                row = &self.cell_index.rows[i]
                if code == OK:
                    code = put_bytes(self.old_type, &row.old_type, 1) if row.old_type else put_null(self.old_type)
        if code == OK and not self.cell_index.has_null and not self.cell_index.has_unchanged:
            return put_empty_lists(self.unchanged, <size_t>self.cell_index.n)
        for i in range(self.cell_index.n):
            if code == OK:
                code = self.put_unchanged(i)
        return code

    cdef FaultCode put_ops(self) noexcept nogil:
        """Write the keywords of the rows' tags in blocks of constant size. The next one overwrites the excess."""
        cdef Column *op = self.op
        cdef FaultCode code = OK
        cdef const Keyword *keyword
        cdef const Row *row = self.cell_index.rows
        cdef size_t n = <size_t>self.cell_index.n
        cdef size_t i
        cdef uint8_t *to
        cdef int32_t *ends
        cdef size_t needed = n * KEYWORD_BYTES
        if op.data.size + needed > <size_t>MAX_DATA:
            return FAULT_LIMIT_BATCH
        if op.data.data == NULL and op.expected < <size_t>MAX_DATA // LETTERS_OF_OP:
            needed += op.expected * LETTERS_OF_OP
        if reserve(&op.data, needed) != OK or open_ends(op, n) != OK:
            return FAULT_NO_MEMORY
        to = op.data.data + op.data.size
        ends = <int32_t *>(op.ends.data + op.ends.size)
        for i in range(n):
            if row[i].payload != NULL:
                keyword = &PLAN.table.kinds[PLAN.table.by_tag[row[i].tag]]
                memcpy(to, keyword.text, KEYWORD_BYTES)
                to += keyword.length
            ends[i] = <int32_t>(to - op.data.data)
        op.data.size = <size_t>(to - op.data.data)
        op.ends.size += n * sizeof(int32_t)
        if not self.cell_index.has_null:
            return mark_many(op, n)
        for i in range(n):
            if code == OK:
                code = mark(op, row[i].payload != NULL)
        return code

    cdef FaultCode put_unchanged(self, int i) noexcept nogil:
        """Names of the columns whose value was not sent: u in the new tuple, and without a value in the old one."""
        cdef const Cell *cells = self.cell_index.cells + <size_t>i * self.n_columns
        cdef const uint8_t *names = <const uint8_t *>self.all_names
        cdef size_t start, length
        cdef FaultCode code
        cdef int c
        if self.cell_index.rows[i].payload == NULL:
            return put_null(self.unchanged)
        if self.cell_index.rows[i].has_unchanged:
            for c in range(self.n_columns):
                if cells[c].kind == c"u":
                    start = self.name_ends[c - 1] if c else 0
                    length = self.name_ends[c] - start
                    code = put_bytes(&self.unchanged.children[0], names + start, length)
                    if code != OK:
                        return code
                    if unlikely(length > self.free_name):
                        # Each such column has a byte in the payload.
                        self.out.text += length - self.free_name
            if unlikely(self.out.text > self.out.most_text):
                return FAULT_LIMIT_EXPANSION
        return end_list(self.unchanged)
