"""Pass 2: the inserts, updates and deletes of one relation as typed columns, one column of a block at a time."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int64_t, uint8_t, uint16_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from pgdecode._block cimport put_cells
from pgdecode._codec cimport Cells, Codec
from pgdecode._codecs.registry cimport CodecTree
from pgdecode._column cimport (
    Column,
    end_bytes,
    end_list,
    finish_column,
    free_column,
    mark,
    open_column,
    postpone_nulls,
    put_bytes,
    put_int64,
    put_null,
    settle,
    settle_own,
)
from pgdecode._cursor cimport be32
from pgdecode._fault cimport (
    FAULT_BAD_ARRAY,
    FAULT_LIMIT_BATCH,
    FAULT_NO_MEMORY,
    FAULT_NOT_A_ROW,
    FAULT_OTHER_RELATION,
    FAULT_TOO_HIGH,
    FAULT_UNREPRESENTABLE,
    OK,
    Fault,
    FaultCode,
    Faults,
    error_of,
    keep_fault,
    rarely,
)
from pgdecode._memory cimport reserve
from pgdecode._plan cimport N_MESSAGES, PLAN, TAG_MARKED
from pgdecode._sink cimport WORD_BYTES, Cell, TupleSink, Word
from pgdecode._source cimport ABSENT, CORRUPT, Presence, Segment, Source, Span, payload_at
from pgdecode._streams cimport (
    READING_PLAIN,
    READING_STREAMED,
    Relations,
    Window,
    judge_payload,
    marks,
    may_carry_xid,
)
from pgdecode._walk cimport STREAMED, Envelope, Rules, Walk, judge_fault, rules_of, walk_message

import pyarrow as pa

cdef enum:
    BLOCK = 128  # rows whose cells are noted before their columns are decoded: all of it stays in the first caches

cdef struct Row:
    # What a block keeps of one payload beside its cells.
    const uint8_t *payload   # NULL where the row is null, or not to be decoded
    uint8_t tag
    uint8_t old_type         # K, O or 0
    bint streamed
    int old_at               # which of the block's old tuples it has

UNCHANGED = pa.list_(pa.string())


cdef object bytes_of(object buffer, int width, str name):
    """A buffer of items of that width as bytes; a pyarrow buffer is of bytes already."""
    view = memoryview(buffer)
    if view.itemsize not in (1, width) or view.nbytes % width:
        raise ValueError(f"{name} holds items of {width} bytes, not {view.nbytes} bytes in items of {view.itemsize}")
    return view.cast("B")


cdef class Rows:
    """One pass over the payloads of one relation.

    `selection` holds the numbers of the source's rows to decode, as int64, in the order of the output; without it all
    are decoded. `streamed` holds a byte per row of the output: whether its payload carries an xid prefix; without it
    each payload's own structure tells. Faults name rows of the output.
    """

    cdef Source source
    cdef const uint8_t[::1] selection   # int64 each, unaligned perhaps
    cdef const uint8_t[::1] streamed
    cdef readonly int64_t n_rows        # of the output
    cdef Py_ssize_t segment             # the one that the last row was in
    cdef int64_t segment_start          # its first row in the source
    cdef int n_columns
    cdef list decodings
    cdef list trees          # CodecTree per column; codecs point into them
    cdef const Codec **codecs
    cdef Column *new
    cdef Column *old         # one struct column
    cdef Column *op
    cdef Column *xid
    cdef Column *old_type
    cdef Column *unchanged
    cdef Column *columns     # all of these, in one allocation
    cdef Cell *cells         # BLOCK rows of the cells that fill the table's columns
    cdef Cell *olds          # old tuples of a block, as many as there are
    cdef Cell *spread        # one column of them, in the rows that have them
    cdef Row *rows
    cdef int n_olds
    cdef bint has_streamed   # in the block
    cdef list names
    cdef object old_arrow
    cdef bytes joined        # all names, one after the other
    cdef const char *all_names
    cdef int first_label     # of the table's columns, behind the plan's
    cdef size_t *name_ends
    cdef int64_t relation_id
    cdef Envelope nothing, noting
    cdef TupleSink new_sink, old_sink
    cdef Rules rules
    cdef Walk walk, judging
    cdef Fault fault, judged     # of these walks
    cdef Window window
    cdef Relations known
    cdef Faults faults
    cdef bint permissive
    cdef bint null_unrepresentable

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
        object selection=None,
        object streamed=None,
    ):
        cdef int i
        cdef size_t n = len(names)
        self.source = source
        self.n_rows = source.n_rows
        # Unset, a memoryview is not None to C code.
        self.selection = self.streamed = None
        if selection is not None:
            self.selection = bytes_of(selection, sizeof(int64_t), "selection")
            self.n_rows = self.selection.shape[0] // <Py_ssize_t>sizeof(int64_t)
            self.check_selection()
        if streamed is not None:
            self.streamed = bytes_of(streamed, 1, "streamed")
            if self.streamed.shape[0] != self.n_rows:
                raise ValueError(f"streamed has {len(self.streamed)} rows, expected {self.n_rows}")
        self.relation_id = relation_id
        self.names = names
        self.decodings = decodings
        self.permissive = permissive
        self.null_unrepresentable = null_unrepresentable
        self.n_columns = len(names)
        self.trees = [CodecTree(decoding) for decoding in decodings]
        self.codecs = <const Codec **>calloc(n + 1, sizeof(void *))
        self.name_ends = <size_t *>calloc(n + 1, sizeof(size_t))
        self.columns = <Column *>calloc(n + 5, sizeof(Column))
        self.cells = <Cell *>calloc(BLOCK * (n + 1), sizeof(Cell))
        self.olds = <Cell *>calloc(BLOCK * (n + 1), sizeof(Cell))
        self.spread = <Cell *>calloc(BLOCK, sizeof(Cell))
        self.rows = <Row *>calloc(BLOCK, sizeof(Row))
        if (
            self.codecs == NULL
            or self.name_ends == NULL
            or self.columns == NULL
            or self.cells == NULL
            or self.olds == NULL
            or self.spread == NULL
            or self.rows == NULL
        ):
            raise MemoryError()
        encoded = [name.encode() for name in names]
        self.joined = b"".join(encoded)
        self.all_names = self.joined
        self.first_label = len(PLAN.labels)
        for i in range(self.n_columns):
            self.codecs[i] = &(<CodecTree>self.trees[i]).codec
            self.name_ends[i] = len(encoded[i]) + (self.name_ends[i - 1] if i else 0)
        self.open_columns()
        self.rules = rules_of(limits, strict_flags)
        self.new_sink.n_cells = self.old_sink.n_cells = <uint16_t>n
        self.noting.new = &self.new_sink
        self.noting.old = &self.old_sink
        self.walk.plan = &PLAN.table
        self.walk.rules = &self.rules
        self.judging = self.walk
        self.walk.out = &self.noting
        self.walk.fault = &self.fault
        self.judging.out = &self.nothing
        self.judging.fault = &self.judged
        self.window.segments = source.segments
        self.window.n_segments = source.n_segments
        self.window.plan = &PLAN.table
        self.window.walk = &self.judging

    cdef int check_selection(self) except -1:
        cdef int64_t i
        for i in range(self.n_rows):
            if not 0 <= self.source_row(i) < self.source.n_rows:
                raise IndexError(f"selection has row {self.source_row(i)} of a source of {self.source.n_rows} rows")
        return 0

    cdef int open_columns(self) except -1:
        cdef int i
        self.old_arrow = pa.struct(
            [pa.field(name, decoding.arrow) for name, decoding in zip(self.names, self.decodings)]
        )
        self.new = &self.columns[5]
        self.op = &self.columns[0]
        self.xid = &self.columns[1]
        self.old_type = &self.columns[2]
        self.unchanged = &self.columns[3]
        self.old = &self.columns[4]
        open_column(self.op, pa.string())
        open_column(self.xid, pa.int64())
        open_column(self.old_type, pa.string())
        open_column(self.unchanged, UNCHANGED)
        open_column(self.old, self.old_arrow)
        for i in range(self.n_columns):
            open_column(&self.new[i], self.decodings[i].arrow)
        return 0

    def __dealloc__(self):
        cdef int i
        if self.columns != NULL:
            for i in range(self.n_columns + 5):
                free_column(&self.columns[i])
        free(self.codecs)
        free(self.name_ends)
        free(self.columns)
        free(self.cells)
        free(self.olds)
        free(self.spread)
        free(self.rows)
        free(self.known.ids)
        free(self.faults.items)

    def run(self):
        """Decode everything; returns ([_op, _xid, _old_type, _old, _unchanged], columns, [(row, text of _error)])."""
        cdef FaultCode code
        cdef Fault fault
        cdef int i
        cdef size_t k
        with nogil:
            code = self.decode()
        if code == FAULT_NO_MEMORY or code == FAULT_LIMIT_BATCH or code == FAULT_BAD_ARRAY:
            memset(&fault, 0, sizeof(fault))
            fault.code = code
            fault.label = fault.column = fault.relation = -1
            raise error_of(&fault, (), True)
        labels = PLAN.labels + tuple(f"column {name!r}" for name in self.names)
        if code != OK:
            raise self.named(error_of(&self.faults.items[self.faults.n - 1], labels, True))
        told = {}
        for k in range(self.faults.n):
            # Of several faults in a row the first column's is told.
            if self.faults.items[k].row not in told:
                told[self.faults.items[k].row] = error_of(&self.faults.items[k], labels, False).cell
        meta = [
            finish_column(self.op, pa.string()),
            finish_column(self.xid, pa.int64()),
            finish_column(self.old_type, pa.string()),
            finish_column(self.old, self.old_arrow),
            finish_column(self.unchanged, UNCHANGED),
        ]
        columns = [finish_column(&self.new[i], self.decodings[i].arrow) for i in range(self.n_columns)]
        return meta, columns, told

    def named(self, error):
        """The error with the column's name in place of its number, where it lies in one."""
        if isinstance(getattr(error, "column", None), int) and error.column < self.n_columns:
            error.column = self.names[error.column]
        return error

    cdef FaultCode decode(self) noexcept nogil:
        cdef int64_t start = 0
        cdef FaultCode code = OK
        while start < self.n_rows and code == OK:
            code = self.decode_block(start, <int>min(self.n_rows - start, BLOCK))
            start += BLOCK
        return code

    cdef inline int64_t source_row(self, int64_t row) noexcept nogil:
        """The source's row that a row of the output is made of."""
        cdef int64_t selected = row
        if self.selection is not None:
            memcpy(&selected, &self.selection[row * sizeof(selected)], sizeof(selected))
        return selected

    cdef inline const Segment *segment_with(self, int64_t source_row) noexcept nogil:
        """The segment that a row lies in; rows mostly come in the source's order, so it is this one or the next."""
        while source_row < self.segment_start:
            self.segment -= 1
            self.segment_start -= self.source.segments[self.segment].n_rows
        while source_row - self.segment_start >= self.source.segments[self.segment].n_rows:
            self.segment_start += self.source.segments[self.segment].n_rows
            self.segment += 1
        return &self.source.segments[self.segment]

    cdef FaultCode decode_block(self, int64_t first, int n) noexcept nogil:
        """Note the cells of up to BLOCK rows, then decode them column by column."""
        cdef FaultCode code = OK
        cdef size_t n_before = self.faults.n
        cdef Cells cells
        cdef int i, c
        self.n_olds = 0
        self.has_streamed = False
        for i in range(n):
            code = self.note_row(i, first + i)
            if code != OK:
                return code
        code = self.put_meta(n)
        cells.stride = <size_t>self.n_columns
        cells.n = <size_t>n
        for c in range(self.n_columns):
            cells.first = self.cells + c
            if code == OK:
                code = self.decode_column(&self.new[c], &cells, c, first)
        if code == OK:
            code = self.decode_olds(first, n)
        if code != OK:
            return code
        if self.faults.n == n_before or self.permissive:
            return OK
        return self.first_of(n_before)

    cdef FaultCode decode_olds(self, int64_t first, int n) noexcept nogil:
        """The old tuples of a block, as a struct; of most columns none has a value."""
        cdef FaultCode code
        cdef Cells cells
        cdef int i, c
        if self.n_olds == 0:
            postpone_nulls(self.old, <size_t>n)
            return OK
        code = settle_own(self.old)
        cells.first = self.spread
        cells.stride = 1
        cells.n = <size_t>n
        for c in range(self.n_columns):
            if code == OK:
                self.spread_olds(c, n)
                code = self.decode_column(&self.old.children[c], &cells, c, first)
        for i in range(n):
            if code == OK:
                code = mark(self.old, self.rows[i].old_type != 0)
        return code

    cdef void spread_olds(self, int c, int n) noexcept nogil:
        """Put a column's cells of the old tuples into the rows that have them."""
        cdef int i
        for i in range(n):
            if self.rows[i].old_type:
                self.spread[i] = self.olds[<size_t>self.rows[i].old_at * self.n_columns + c]
            else:
                self.spread[i].value = NULL
                self.spread[i].kind = c"n"

    cdef FaultCode decode_column(self, Column *column, const Cells *cells, int c, int64_t first) noexcept nogil:
        """Append a block's values to a column; where one is at fault, that is kept, and the value is null."""
        cdef size_t at = 0
        cdef FaultCode code
        while at < cells.n and cells.first[at * cells.stride].value == NULL:
            at += 1
        if at == cells.n:
            postpone_nulls(column, at)
            return OK
        at = 0
        code = settle(column)
        while code == OK and at < cells.n:
            code = put_cells(cells, &at, column, self.codecs[c])
            if code != OK:
                code = self.keep_value(code, column, &cells.first[at * cells.stride], c, at, first)
                at += 1
        return code

    cdef FaultCode first_of(self, size_t n_before) noexcept nogil:
        """Put the fault of the earliest row last, where `run` raises it."""
        cdef size_t best = n_before, i
        cdef Fault fault
        for i in range(n_before, self.faults.n):
            if self.faults.items[i].row < self.faults.items[best].row:
                best = i
        fault = self.faults.items[best]
        self.faults.items[best] = self.faults.items[self.faults.n - 1]
        self.faults.items[self.faults.n - 1] = fault
        return fault.code

    cdef FaultCode keep_value(
        self, FaultCode code, Column *column, const Cell *cell, int c, size_t at, int64_t first
    ) noexcept nogil:
        """Keep the fault of a value, which is null then; other faults end the decoding."""
        cdef Fault fault
        if code == FAULT_NO_MEMORY or code == FAULT_LIMIT_BATCH:
            return code
        if put_null(column) != OK:
            return FAULT_NO_MEMORY
        if self.null_unrepresentable and FAULT_UNREPRESENTABLE <= code <= FAULT_TOO_HIGH:
            return OK
        memset(&fault, 0, sizeof(fault))
        fault.code = code
        fault.tag = self.rows[at].tag
        fault.label = <int16_t>(self.first_label + c)
        fault.column = c
        fault.row = first + <int64_t>at
        fault.relation = self.relation_id
        fault.offset = <size_t>(cell.value - self.rows[at].payload)
        fault.expected = -1
        fault.seen = <int64_t>cell.length
        return keep_fault(&self.faults, &fault)

    # -- rows --------------------------------------------------------------------------------------------------------

    cdef FaultCode note_row(self, int i, int64_t row) noexcept nogil:
        """Find the cells of one payload; a fault is kept, and the row is null."""
        cdef Row *kept = &self.rows[i]
        cdef Cell *cells = self.cells + <size_t>i * self.n_columns
        cdef Span payload
        cdef FaultCode code
        cdef int64_t source_row = self.source_row(row)
        cdef const Segment *segment = self.segment_with(source_row)
        cdef Presence presence = payload_at(segment, source_row - self.segment_start, &payload)
        cdef bint streamed = False
        cdef int c
        kept.payload = NULL
        kept.old_type = 0
        code = FAULT_BAD_ARRAY if presence == CORRUPT else OK
        if presence != ABSENT and code == OK:
            self.new_sink.cells = cells
            self.old_sink.cells = self.olds + <size_t>self.n_olds * self.n_columns
            self.new_sink.has_unchanged = False
            code = self.judge(row, &payload, &streamed)
            if code == OK:
                code = self.walk_row(&payload, streamed)
            if code == OK:
                kept.payload = payload.data
                kept.tag = payload.data[0]
                kept.streamed = streamed
                self.has_streamed |= streamed
                if self.walk.old_type:
                    self.note_old(kept, cells)
                return self.note_unchanged(kept, cells) if self.new_sink.has_unchanged else end_list(self.unchanged)
        for c in range(self.n_columns):
            cells[c].value = NULL
            cells[c].kind = c"n"
        if code == OK:
            return put_null(self.unchanged)
        if code == FAULT_BAD_ARRAY or code == FAULT_NO_MEMORY:
            return code
        self.fault.code = code
        self.fault.row = row
        code = put_null(self.unchanged)
        return keep_fault(&self.faults, &self.fault) if code == OK else code

    cdef inline void note_old(self, Row *kept, Cell *cells) noexcept nogil:
        """Count the old tuple that has been noted; a delete's fills the table's columns too."""
        kept.old_type = self.walk.old_type
        kept.old_at = self.n_olds
        if kept.tag == c"D":
            memcpy(cells, self.old_sink.cells, <size_t>self.n_columns * sizeof(Cell))
        self.n_olds += 1

    cdef FaultCode note_unchanged(self, const Row *kept, Cell *cells) noexcept nogil:
        """Cells that are u are filled from the old tuple; where that has no value, the column's name is noted."""
        cdef const uint8_t *names = <const uint8_t *>self.all_names
        cdef size_t start
        cdef FaultCode code
        cdef int c
        for c in range(self.n_columns):
            if cells[c].kind != c"u":
                continue
            if kept.old_type and self.old_sink.cells[c].value != NULL:
                cells[c] = self.old_sink.cells[c]
                continue
            start = self.name_ends[c - 1] if c else 0
            code = put_bytes(&self.unchanged.children[0], names + start, self.name_ends[c] - start)
            if code != OK:
                return code
        return end_list(self.unchanged)

    cdef inline FaultCode judge(self, int64_t row, const Span *payload, bint *streamed) noexcept nogil:
        """Whether a payload carries an xid prefix: as the caller says, else as its structure tells."""
        cdef uint8_t verdict = 0
        cdef FaultCode code = OK
        cdef int readings
        if self.streamed is not None:
            streamed[0] = self.streamed[row] != 0
            return OK
        readings = marks(payload)
        if readings == READING_PLAIN or readings == READING_STREAMED:
            streamed[0] = readings == READING_STREAMED
        elif payload.length and may_carry_xid(&PLAN.table, payload.data[0]):
            code = judge_payload(&self.window, &self.known, payload, &verdict)
            streamed[0] = verdict & STREAMED != 0
        return code

    cdef inline FaultCode walk_row(self, const Span *payload, bint streamed) noexcept nogil:
        """Note the cells of a payload that is there, or leave in `fault` what is wrong with it."""
        cdef FaultCode code
        if rarely(not self.is_of_relation(payload, streamed)):
            code = self.check_kind(payload, streamed, &self.fault)
            if code != OK:
                return code
        code = walk_message(&self.walk, payload.data, payload.length, streamed)
        if rarely(code != OK):
            code = judge_fault(&self.walk, &self.nothing, payload.data, payload.length, streamed, code)
        return code

    cdef inline bint is_of_relation(self, const Span *payload, bint streamed) noexcept nogil:
        """Whether it is an insert, update or delete that names the relation."""
        cdef size_t at = 5 if streamed else 1
        if payload.length < at + 4 or PLAN.table.tag_class[payload.data[0]] != TAG_MARKED:
            return False
        return be32(payload.data + at) == self.relation_id

    cdef FaultCode check_kind(self, const Span *payload, bint streamed, Fault *fault) noexcept nogil:
        """Only inserts, updates and deletes of the relation; what is malformed is left for the walk to say."""
        cdef size_t at = 5 if streamed else 1
        cdef uint8_t tag = payload.data[0] if payload.length else 0
        cdef int index = self.walk.plan.by_tag[tag]
        memset(fault, 0, sizeof(Fault))
        if payload.length == 0 or index == N_MESSAGES:
            return OK
        fault.tag = tag
        fault.relation = -1
        fault.column = -1
        fault.label = self.walk.plan.messages[index].label
        if self.walk.plan.tag_class[tag] != TAG_MARKED:
            return FAULT_NOT_A_ROW
        if payload.length >= at + 4 and be32(payload.data + at) != self.relation_id:
            fault.relation = be32(payload.data + at)
            fault.label = self.walk.plan.messages[index].ops[0].label
            fault.offset = at
            fault.expected = self.relation_id
            fault.seen = fault.relation
            return FAULT_OTHER_RELATION
        return OK

    cdef FaultCode put_meta(self, int n) noexcept nogil:
        """What the rows of a block have beside their values; `note_row` has put what was unchanged."""
        cdef FaultCode code = OK
        cdef const Row *row
        cdef int i
        for i in range(n):
            if code == OK:
                code = self.put_op(&self.rows[i])
        if not self.has_streamed:
            postpone_nulls(self.xid, <size_t>n)
        elif code == OK:
            code = settle(self.xid)
            for i in range(n):
                row = &self.rows[i]
                if code == OK:
                    if row.payload != NULL and row.streamed:
                        code = put_int64(self.xid, be32(row.payload + 1))
                    else:
                        code = put_null(self.xid)
        if self.n_olds == 0:
            postpone_nulls(self.old_type, <size_t>n)
        elif code == OK:
            code = settle(self.old_type)
            for i in range(n):
                row = &self.rows[i]
                if code == OK:
                    code = put_bytes(self.old_type, &row.old_type, 1) if row.old_type else put_null(self.old_type)
        return code

    cdef inline FaultCode put_op(self, const Row *row) noexcept nogil:
        cdef const Word *kind
        if row.payload == NULL:
            return put_null(self.op)
        kind = &self.walk.plan.kinds[self.walk.plan.by_tag[row.tag]]
        # A block of constant size; the slack takes what is too much.
        if rarely(reserve(&self.op.data, kind.length) != OK):
            return FAULT_NO_MEMORY
        memcpy(self.op.data.data + self.op.data.size, kind.text, WORD_BYTES)
        self.op.data.size += kind.length
        return end_bytes(self.op)
