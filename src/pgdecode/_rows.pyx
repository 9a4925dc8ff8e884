"""Pass 2: the inserts, updates and deletes of one relation as typed columns, one column of a block at a time."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int64_t, uint8_t, uint16_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from pgdecode._codec cimport Codec
from pgdecode._codecs.registry cimport CodecTree
from pgdecode._column cimport (
    Column,
    end_list,
    finish_column,
    free_column,
    mark,
    open_column,
    put_bytes,
    put_int64,
    put_null,
    take_back,
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
)
from pgdecode._plan cimport N_MESSAGES, PLAN, TAG_MARKED
from pgdecode._sink cimport Cell, TupleSink
from pgdecode._source cimport ABSENT, CORRUPT, Presence, Segment, Source, Span, payload_at
from pgdecode._streams cimport Window, judge_each
from pgdecode._walk cimport STREAMED, Envelope, Rules, Walk, judge_fault, rules_of, walk_message

import pyarrow as pa

cdef enum:
    BLOCK = 256  # rows whose cells are noted before their columns are decoded: all of it stays in the second cache

cdef struct Row:
    # What a block keeps of one payload beside its cells.
    const uint8_t *payload   # NULL where the row is null, or not to be decoded
    uint8_t tag
    uint8_t old_type         # K, O or 0
    bint streamed

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
    cdef Cell *cells         # BLOCK rows of new cells, then BLOCK rows of old ones
    cdef Row *rows
    cdef list names
    cdef object old_arrow
    cdef bytes joined        # all names, one after the other
    cdef const char *all_names
    cdef int first_label     # of the table's columns, behind the plan's
    cdef size_t *name_ends
    cdef int64_t relation_id
    cdef uint8_t *verdicts
    cdef Envelope nothing, noting
    cdef TupleSink new_sink, old_sink
    cdef Rules rules
    cdef Walk walk
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
        self.cells = <Cell *>calloc(2 * BLOCK * (n + 1), sizeof(Cell))
        self.rows = <Row *>calloc(BLOCK, sizeof(Row))
        self.verdicts = <uint8_t *>calloc(<size_t>source.n_rows + 1, 1)
        if (
            self.codecs == NULL
            or self.name_ends == NULL
            or self.columns == NULL
            or self.cells == NULL
            or self.rows == NULL
            or self.verdicts == NULL
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
        free(self.rows)
        free(self.verdicts)
        free(self.faults.items)

    def run(self):
        """Decode everything; returns ([_op, _xid, _old_type, _old, _unchanged], columns, [(row, text of _error)])."""
        cdef FaultCode code
        cdef Fault fault
        cdef int i
        cdef size_t k
        with nogil:
            code = self.judge() if self.streamed is None else OK
            if code == OK:
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

    cdef FaultCode judge(self) noexcept nogil:
        cdef Walk walk = self.walk
        cdef Fault fault
        cdef Window window
        walk.out = &self.nothing
        walk.fault = &fault
        window.segments = self.source.segments
        window.n_segments = self.source.n_segments
        window.plan = self.walk.plan
        window.walk = &walk
        window.verdicts = self.verdicts
        return judge_each(&window)

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
        cdef int i, c
        for i in range(n):
            code = self.note_row(i, first + i)
            if code == OK:
                code = self.put_meta(i, first + i)
            if code != OK:
                return code
        for c in range(self.n_columns):
            for i in range(n):
                code = self.put_value(&self.new[c], self.cell_of(i, c), c, &self.rows[i], first + i)
                if code != OK:
                    return code
        for c in range(self.n_columns):
            for i in range(n):
                code = self.put_value(&self.old.children[c], self.old_cell_of(i, c), c, &self.rows[i], first + i)
                if code != OK:
                    return code
        for i in range(n):
            code = mark(self.old, self.rows[i].old_type != 0)
            if code != OK:
                return code
        if self.faults.n == n_before or self.permissive:
            return OK
        return self.first_of(n_before)

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

    cdef inline Cell *new_cells(self, int i) noexcept nogil:
        return self.cells + <size_t>i * self.n_columns

    cdef inline Cell *old_cells(self, int i) noexcept nogil:
        return self.cells + (<size_t>BLOCK + i) * self.n_columns

    cdef const Cell *cell_of(self, int i, int c) noexcept nogil:
        """The cell that fills the table column: the new one, the old one of a delete or of an unchanged TOAST value."""
        cdef const Row *row = &self.rows[i]
        cdef const Cell *cell = &self.new_cells(i)[c]
        if row.payload == NULL:
            return NULL
        if row.tag == c"D":
            return &self.old_cells(i)[c]
        if cell.kind == c"u" and row.old_type:
            return &self.old_cells(i)[c]
        return cell

    cdef const Cell *old_cell_of(self, int i, int c) noexcept nogil:
        return NULL if self.rows[i].old_type == 0 else &self.old_cells(i)[c]

    cdef FaultCode put_value(
        self, Column *column, const Cell *cell, int c, const Row *row, int64_t index
    ) noexcept nogil:
        """Append one cell's value; a fault is kept, and the value is null."""
        cdef size_t n = column.n
        cdef const Codec *codec = self.codecs[c]
        cdef Fault fault
        cdef FaultCode code
        if cell == NULL or cell.value == NULL:
            return put_null(column)
        if cell.kind == c"t":
            code = codec.from_text(cell.value, cell.length, column, codec)
        else:
            code = codec.from_binary(cell.value, cell.length, column, codec)
        if code == OK:
            return OK
        if code == FAULT_NO_MEMORY or code == FAULT_LIMIT_BATCH:
            return code
        take_back(column, n)
        if put_null(column) != OK:
            return FAULT_NO_MEMORY
        if self.null_unrepresentable and FAULT_UNREPRESENTABLE <= code <= FAULT_TOO_HIGH:
            return OK
        memset(&fault, 0, sizeof(fault))
        fault.code = code
        fault.tag = row.tag
        fault.label = <int16_t>(self.first_label + c)
        fault.column = c
        fault.row = index
        fault.relation = self.relation_id
        fault.offset = <size_t>(cell.value - row.payload)
        fault.expected = -1
        fault.seen = <int64_t>cell.length
        return keep_fault(&self.faults, &fault)

    cdef FaultCode note_row(self, int i, int64_t row) noexcept nogil:
        """Find the cells of one payload; a fault is kept, and the row is null."""
        cdef Row *kept = &self.rows[i]
        cdef Span payload
        cdef Fault fault
        cdef FaultCode code
        cdef int64_t source_row = self.source_row(row)
        cdef const Segment *segment = self.segment_with(source_row)
        cdef Presence presence = payload_at(segment, source_row - self.segment_start, &payload)
        cdef bint streamed
        if self.streamed is None:
            streamed = self.verdicts[source_row] & STREAMED != 0
        else:
            streamed = self.streamed[row] != 0
        kept.payload = NULL
        kept.old_type = 0
        if presence == ABSENT:
            return OK
        memset(&fault, 0, sizeof(fault))
        self.walk.fault = &fault
        self.walk.out = &self.noting
        self.new_sink.cells = self.new_cells(i)
        self.old_sink.cells = self.old_cells(i)
        code = FAULT_BAD_ARRAY
        if presence != CORRUPT:
            code = self.check_kind(&payload, streamed, &fault)
        if code == OK:
            code = walk_message(&self.walk, payload.data, payload.length, streamed)
            if code != OK:
                code = judge_fault(&self.walk, &self.nothing, payload.data, payload.length, streamed, code)
        if code != OK:
            fault.code = code
            fault.row = row
            return keep_fault(&self.faults, &fault) if code != FAULT_BAD_ARRAY else code
        kept.payload = payload.data
        kept.tag = payload.data[0]
        kept.streamed = streamed
        kept.old_type = self.walk.old_type
        return OK

    cdef FaultCode check_kind(self, const Span *payload, bint streamed, Fault *fault) noexcept nogil:
        """Only inserts, updates and deletes of the relation; what is malformed is left for the walk to say."""
        cdef size_t at = 5 if streamed else 1
        cdef uint8_t tag = payload.data[0] if payload.length else 0
        cdef int index = self.walk.plan.by_tag[tag]
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

    cdef FaultCode put_meta(self, int i, int64_t row) noexcept nogil:
        """What a row has beside its values."""
        cdef const Row *kept = &self.rows[i]
        cdef int index
        cdef FaultCode code
        if kept.payload == NULL:
            code = put_null(self.op)
            if code == OK:
                code = put_null(self.xid)
            if code == OK:
                code = put_null(self.old_type)
            return code if code != OK else put_null(self.unchanged)
        index = self.walk.plan.by_tag[kept.tag]
        code = put_bytes(
            self.op, <const uint8_t *>self.walk.plan.kinds[index].text, self.walk.plan.kinds[index].length
        )
        if code == OK:
            code = put_int64(self.xid, be32(kept.payload + 1)) if kept.streamed else put_null(self.xid)
        if code == OK:
            code = put_bytes(self.old_type, &kept.old_type, 1) if kept.old_type else put_null(self.old_type)
        return code if code != OK else self.put_unchanged(i)

    cdef FaultCode put_unchanged(self, int i) noexcept nogil:
        """Names of the columns whose value was not sent: u in the new tuple, and not in the old one either."""
        cdef const Row *kept = &self.rows[i]
        cdef const uint8_t *names = <const uint8_t *>self.all_names
        cdef size_t start
        cdef FaultCode code
        cdef int c
        if kept.tag != c"D":
            for c in range(self.n_columns):
                if self.new_cells(i)[c].kind != c"u":
                    continue
                if kept.old_type and self.old_cells(i)[c].value != NULL:
                    continue
                start = self.name_ends[c - 1] if c else 0
                code = put_bytes(&self.unchanged.children[0], names + start, self.name_ends[c] - start)
                if code != OK:
                    return code
        return end_list(self.unchanged)
