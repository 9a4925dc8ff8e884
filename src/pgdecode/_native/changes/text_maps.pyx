"""Changes of many relations as maps from column name to PostgreSQL's text form."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from pgdecode._native.arrow.builder cimport Cell, TupleBuilder
from pgdecode._native.arrow.column_builder cimport (
    Column, end_list, finish_column, free_column, mark, open_column, open_ends, put_bytes, put_null, take_back,
)
from pgdecode._native.arrow.payload_array cimport PRESENT, Source, Span
from pgdecode._native.changes.text_layouts cimport Layout, TextLayout
from pgdecode._native.codecs.codec cimport Codec
from pgdecode._native.fault cimport (
    FAULT_BAD_ARRAY,
    FAULT_LIMIT_BATCH,
    FAULT_LIMIT_EXPANSION,
    FAULT_NO_MEMORY,
    OK,
    Fault,
    FaultCode,
    Faults,
    error_of,
    keep_fault,
    unlikely,
)
from pgdecode._native.memory.buffers cimport reserve
from pgdecode._native.memory.utf8 cimport is_plain
from pgdecode._native.wire.envelope_builder cimport Envelope, Rules, Walk, rules_of
from pgdecode._native.wire.walker cimport walk_message
from pgdecode._native.wire.wire_plan cimport PLAN

import pyarrow as pa

from pgdecode.protocol import errors, limits as sizes

cdef enum:
    ENTRY_BYTES = 8  # of a map: where its name and its value end

MAP = pa.map_(pa.string(), pa.string())
NAMES = pa.list_(pa.string())


cdef inline FaultCode put_plain(Column *values, const Cell *cell, const Span *payload) noexcept nogil:
    """Append plain text; there is room for all the payload, and for as many ends as it has columns."""
    cdef uint8_t *to = values.data.data + values.data.size
    cdef int32_t end
    # A block of constant size costs less than a call; no byte behind the payload is read.
    if cell.length <= 16 and <size_t>(payload.data + payload.length - cell.value) >= 16:
        memcpy(to, cell.value, 16)
    else:
        memcpy(to, cell.value, cell.length)
    values.data.size += cell.length
    end = <int32_t>values.data.size
    memcpy(values.ends.data + values.ends.size, &end, sizeof(end))
    values.ends.size += sizeof(end)
    return mark(values, 1)


cdef inline size_t in_map(const Column *column) noexcept nogil:
    cdef const Column *entries = &column.children[0]
    return entries.children[0].data.size + entries.children[1].data.size + ENTRY_BYTES * entries.n


cdef size_t past_free(const Column *names, size_t free_name) noexcept nogil:
    """Bytes of names, without `free_name` of each."""
    cdef size_t free_bytes = names.n * free_name
    return names.data.size - free_bytes if names.data.size > free_bytes else 0


cdef size_t text_of(const Column *column, size_t free_name) noexcept nogil:
    """Bytes of the values in a column of maps, and of their names past `free_name` of each."""
    cdef const Column *entries = &column.children[0]
    return past_free(&entries.children[0], free_name) + entries.children[1].data.size


cdef class Maps:
    """One pass over chosen payloads: what each changes, in the order they were chosen."""

    cdef Source source
    cdef list layouts        # TextLayout by version; None where the batch has no row of it
    cdef const Layout **by_version
    cdef int32_t n_versions
    cdef Py_ssize_t segment  # that the newest row lay in
    cdef Column op, old_type, old, new, unchanged
    cdef Cell *old_cells
    cdef Cell *new_cells
    cdef Envelope noting
    cdef TupleBuilder old_builder, new_builder
    cdef Rules rules
    cdef Walk walk
    cdef Faults faults
    cdef int16_t value_label  # of a tuple's value, behind the plan's own
    cdef bint permissive
    cdef size_t most_text    # bytes that may be made of the payloads
    cdef size_t made         # bytes that the batch has beside these columns
    cdef readonly size_t text_bytes  # of the batch, without FREE_NAME bytes of each column's name
    cdef bint is_alone       # there is but one row: what is too large for the batch is the fault of its value

    def __cinit__(
        self, Source source, list layouts, object limits, bint strict_flags, bint permissive, size_t made=0
    ):
        """`made`: bytes that the batch has beside these columns, which count towards its most."""
        cdef Py_ssize_t i
        cdef size_t widest = 0
        self.source = source
        self.layouts = layouts
        self.n_versions = <int32_t>len(layouts)
        self.permissive = permissive
        self.made = made
        self.value_label = len(PLAN.labels)
        self.by_version = <const Layout **>calloc(<size_t>len(layouts) + 1, sizeof(void *))
        if self.by_version == NULL:
            raise MemoryError()
        for i in range(len(layouts)):
            if layouts[i] is not None:
                self.by_version[i] = &(<TextLayout?>layouts[i]).layout
                widest = max(widest, self.by_version[i].n_columns)
        self.old_cells = <Cell *>calloc(widest + 1, sizeof(Cell))
        self.new_cells = <Cell *>calloc(widest + 1, sizeof(Cell))
        if self.old_cells == NULL or self.new_cells == NULL:
            raise MemoryError()
        open_column(&self.op, pa.string())
        open_column(&self.old_type, pa.string())
        open_column(&self.old, MAP)
        open_column(&self.new, MAP)
        open_column(&self.unchanged, NAMES)
        self.rules = rules_of(limits, strict_flags)
        self.most_text = source.n_bytes() * <size_t>limits.max_expansion + <size_t>sizes.FREE_EXPANSION
        self.old_builder.cells = self.old_cells
        self.new_builder.cells = self.new_cells
        self.noting.old = &self.old_builder
        self.noting.new = &self.new_builder
        self.walk.plan = &PLAN.table
        self.walk.rules = &self.rules
        self.walk.out = &self.noting

    def __dealloc__(self):
        free_column(&self.op)
        free_column(&self.old_type)
        free_column(&self.old)
        free_column(&self.new)
        free_column(&self.unchanged)
        free(self.by_version)
        free(self.old_cells)
        free(self.new_cells)
        free(self.faults.items)

    def run(self, const int64_t[::1] rows, const int32_t[::1] versions, const uint8_t[::1] streamed):
        """Decode the payloads of `rows`; a negative version is a row that stays null, but for its kind if it has one.

        Returns ([op, old_type, old, new, unchanged], {place of a row: text of its error}).
        """
        cdef FaultCode code = OK
        cdef Fault fault
        cdef Py_ssize_t i
        cdef size_t k
        cdef size_t free_name
        if versions.shape[0] != rows.shape[0] or streamed.shape[0] != rows.shape[0]:
            raise ValueError("each chosen row has a version and a stream state")
        for i in range(rows.shape[0]):
            if not 0 <= rows[i] < self.source.n_rows or versions[i] >= self.n_versions:
                raise IndexError("there is no such payload or version")
            if versions[i] >= 0 and self.by_version[versions[i]] == NULL:
                raise IndexError("there is no layout of this version")
        self.is_alone = rows.shape[0] == 1
        if self.made > self.most_text and not self.is_alone:
            code = FAULT_LIMIT_EXPANSION
        with nogil:
            for i in range(rows.shape[0] if code == OK else 0):
                code = self.put_row(rows[i], versions[i], streamed[i], i)
                if code != OK:
                    break
        labels = PLAN.labels + ("value",)
        if FAULT_LIMIT_BATCH <= code <= FAULT_BAD_ARRAY and not (self.is_value_fault(code) and self.faults.n):
            memset(&fault, 0, sizeof(fault))
            fault.code = code
            fault.label = fault.column = fault.relation = -1
            raise error_of(&fault, (), True)
        if code != OK:
            raise self.worded(&self.faults.items[self.faults.n - 1], versions, labels)
        row_errors = {}
        for k in range(self.faults.n):
            # Of several faults in a row the first one is reported.
            if self.faults.items[k].row not in row_errors:
                row_errors[self.faults.items[k].row] = self.worded(&self.faults.items[k], versions, labels).cell
        free_name = sizes.FREE_NAME
        self.text_bytes = self.made + past_free(&self.unchanged.children[0], free_name)
        self.text_bytes += text_of(&self.old, free_name) + text_of(&self.new, free_name)
        columns = [
            finish_column(&self.op, pa.string()),
            finish_column(&self.old_type, pa.string()),
            finish_column(&self.old, MAP),
            finish_column(&self.new, MAP),
            finish_column(&self.unchanged, NAMES),
        ]
        return columns, row_errors

    cdef object worded(self, const Fault *fault, const int32_t[::1] versions, tuple labels):
        """The error of a fault; a value's has the name of its column."""
        names = (<TextLayout>self.layouts[versions[fault.row]]).names
        if not 0 <= fault.column < len(names):
            return error_of(fault, labels, True)
        error = error_of(fault, (*PLAN.labels, f"column {errors.shown(names[fault.column])}"), True)
        error.column = names[fault.column]
        return error

    cdef FaultCode put_row(self, int64_t row, int32_t version, bint streamed, int64_t index) noexcept nogil:
        cdef Span payload
        cdef Fault fault
        cdef FaultCode code
        cdef const Layout *layout
        cdef uint8_t tag
        cdef int kind
        memset(&fault, 0, sizeof(fault))
        if self.source.find(row, &self.segment, &payload) != PRESENT:
            return FAULT_BAD_ARRAY
        tag = payload.data[0] if payload.length else 0
        kind = self.walk.plan.by_tag[tag]
        if version < 0 and tag != c"T":
            return self.put_nothing(tag)
        code = self.put_op(kind)
        if code != OK:
            return code
        self.walk.old_type = 0
        if tag == c"T":
            return self.put_empty(True)
        layout = self.by_version[version]
        self.old_builder.n_cells = self.new_builder.n_cells = layout.n_columns
        self.walk.fault = &fault
        code = walk_message(&self.walk, payload.data, payload.length, streamed)
        if code != OK:
            if code == FAULT_NO_MEMORY:
                return code
            fault.row = index
            code = keep_fault(&self.faults, &fault)
            if code == OK:
                code = self.put_empty(False)
            return code if code != OK or self.permissive else fault.code
        return self.put_tuples(layout, &payload, tag, index)

    cdef FaultCode put_op(self, int kind) noexcept nogil:
        return put_bytes(
            &self.op, <const uint8_t *>self.walk.plan.kinds[kind].text, self.walk.plan.kinds[kind].length
        )

    cdef FaultCode put_nothing(self, uint8_t tag) noexcept nogil:
        """A row of which only the kind can be said, or not even that."""
        cdef FaultCode code
        code = self.put_op(self.walk.plan.by_tag[tag]) if tag in (c"I", c"U", c"D") else put_null(&self.op)
        return code if code != OK else self.put_empty(False)

    cdef FaultCode put_empty(self, bint is_good) noexcept nogil:
        """A row without tuples."""
        cdef FaultCode code = put_null(&self.old_type)
        if code == OK:
            code = put_null(&self.old)
        if code == OK:
            code = put_null(&self.new)
        if code != OK:
            return code
        return end_list(&self.unchanged) if is_good else put_null(&self.unchanged)

    cdef FaultCode put_tuples(
        self, const Layout *layout, const Span *payload, uint8_t tag, int64_t index
    ) noexcept nogil:
        cdef uint8_t old_type = self.walk.old_type
        cdef FaultCode code
        cdef int c
        code = put_bytes(&self.old_type, &old_type, 1) if old_type else put_null(&self.old_type)
        if code != OK:
            return code
        if old_type == 0:
            code = put_null(&self.old)
        else:
            code = self.put_map(&self.old, layout, self.old_cells, old_type == c"K", payload, tag, index)
        if code != OK:
            return code
        if tag == c"D":
            code = put_null(&self.new)
            return code if code != OK else end_list(&self.unchanged)
        for c in range(layout.n_columns):
            if self.new_cells[c].kind == c"u":
                if old_type and self.old_cells[c].value != NULL:
                    self.new_cells[c] = self.old_cells[c]
                else:
                    code = self.put_name(&self.unchanged.children[0], layout, c)
                    if code != OK:
                        return code
        code = self.put_map(&self.new, layout, self.new_cells, False, payload, tag, index)
        return code if code != OK else end_list(&self.unchanged)

    cdef FaultCode put_map(
        self,
        Column *out,
        const Layout *layout,
        const Cell *cells,
        bint is_key,
        const Span *payload,
        uint8_t tag,
        int64_t index,
    ) noexcept nogil:
        """Append a tuple as a map, without the columns that were not sent."""
        cdef Column *entries = &out.children[0]
        cdef Column *values = &entries.children[1]
        cdef FaultCode code
        cdef bint whole = True
        cdef int c
        for c in range(layout.n_columns):
            # u was not sent; nor was n in another column than the key's, where only the key was.
            whole &= cells[c].kind != c"u" and not (is_key and cells[c].kind == c"n" and not layout.is_key[c])
        code = self.ensure_capacity(values, layout, payload)
        if code == OK and whole:
            code = self.put_names(&entries.children[0], layout)
        if code != OK:
            return code
        for c in range(layout.n_columns):
            if not whole:
                if cells[c].kind == c"u" or (is_key and cells[c].kind == c"n" and not layout.is_key[c]):
                    continue
                code = self.put_name(&entries.children[0], layout, c)
                if code != OK:
                    return code
            if cells[c].kind == c"t" and is_plain(cells[c].value, cells[c].length):
                code = put_plain(values, &cells[c], payload)
            else:
                code = self.put_value(values, layout, c, &cells[c], payload, tag, index)
            if code != OK:
                return code
        # Entries are structs that are never null: they are as many as their values.
        entries.n = values.n
        if unlikely(self.text() > self.most_text):
            # Names, or plain text, have done it: no one value is to blame.
            self.is_alone = False
            return FAULT_LIMIT_EXPANSION
        return end_list(out)

    cdef inline FaultCode put_names(self, Column *keys, const Layout *layout) noexcept nogil:
        """Append the names of all columns at once."""
        cdef size_t n = layout.n_columns
        cdef size_t start = keys.data.size
        cdef size_t total = layout.name_ends[n - 1] if n else 0
        cdef int32_t end
        cdef size_t c
        if unlikely(start + total > <size_t>0x7FFFFFFF):
            return FAULT_LIMIT_BATCH
        if reserve(&keys.data, total) != OK or open_ends(keys, n) != OK:
            return FAULT_NO_MEMORY
        memcpy(keys.data.data + start, layout.names, total)
        keys.data.size += total
        for c in range(n):
            end = <int32_t>(start + layout.name_ends[c])
            memcpy(keys.ends.data + keys.ends.size, &end, sizeof(end))
            keys.ends.size += sizeof(end)
        keys.n += n
        return OK

    cdef inline FaultCode put_name(self, Column *column, const Layout *layout, int c) noexcept nogil:
        cdef size_t start = layout.name_ends[c - 1] if c else 0
        return put_bytes(column, layout.names + start, layout.name_ends[c] - start)

    cdef FaultCode put_value(
        self,
        Column *values,
        const Layout *layout,
        int c,
        const Cell *cell,
        const Span *payload,
        uint8_t tag,
        int64_t index,
    ) noexcept nogil:
        """Append a column's text; a bad value is null, and its fault kept."""
        cdef const Codec *codec = layout.codecs[c]
        cdef size_t n = values.n
        cdef Fault fault
        cdef FaultCode code
        if cell.value == NULL:
            code = put_null(values)
        elif cell.kind == c"t":
            code = codec.from_text(cell.value, cell.length, values, codec)
        else:
            code = codec.from_binary(cell.value, cell.length, values, codec)
        if code == OK and unlikely(self.text() > self.most_text):
            code = FAULT_LIMIT_EXPANSION
        if code != OK and (code < FAULT_LIMIT_BATCH or self.is_value_fault(code)):
            take_back(values, n)
            memset(&fault, 0, sizeof(fault))
            fault.code = code
            fault.tag = tag
            fault.label = self.value_label
            fault.column = c
            fault.row = index
            fault.relation = layout.relation_id
            fault.offset = <size_t>(cell.value - payload.data)
            fault.expected = -1
            fault.seen = <int64_t>cell.length
            if put_null(values) != OK or keep_fault(&self.faults, &fault) != OK:
                return FAULT_NO_MEMORY
            if self.permissive:
                code = OK
        # What a codec or a null has written, plain text behind it may need again.
        return code if code != OK else self.ensure_capacity(values, layout, payload)

    cdef inline size_t text(self) noexcept nogil:
        """Bytes that have been made of the payloads: names and values, and where each of them ends."""
        return self.made + in_map(&self.old) + in_map(&self.new) + self.unchanged.children[0].data.size

    cdef bint is_value_fault(self, FaultCode code) noexcept nogil:
        return self.is_alone and (code == FAULT_LIMIT_BATCH or code == FAULT_LIMIT_EXPANSION)

    cdef inline FaultCode ensure_capacity(
        self, Column *values, const Layout *layout, const Span *payload
    ) noexcept nogil:
        """Room for the tuple as plain text: all of it is in the payload, so that it needs no more than that."""
        if unlikely(payload.length > <size_t>0x7FFFFFFF - values.data.size):
            return FAULT_LIMIT_BATCH
        if unlikely(reserve(&values.data, payload.length) != OK or open_ends(values, layout.n_columns) != OK):
            return FAULT_NO_MEMORY
        return OK
