"""Changes of many relations as maps from column name to PostgreSQL's text form."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

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
    put_null,
    take_back,
)
from pgdecode._fault cimport (
    FAULT_BAD_ARRAY,
    FAULT_LIMIT_BATCH,
    FAULT_NO_MEMORY,
    OK,
    Fault,
    FaultCode,
    Faults,
    error_of,
    keep_fault,
)
from pgdecode._plan cimport PLAN
from pgdecode._sink cimport Cell, TupleSink
from pgdecode._source cimport PRESENT, Source, Span, payload_at
from pgdecode._walk cimport Envelope, Rules, Walk, rules_of, walk_message

import pyarrow as pa

MAP = pa.map_(pa.string(), pa.string())
NAMES = pa.list_(pa.string())

cdef struct Layout:
    # A version of a relation, as this room needs it.
    uint16_t n_columns
    int64_t relation_id
    const uint8_t *names     # all of them, one after the other
    const size_t *name_ends
    const uint8_t *is_key    # a byte a column
    const Codec **codecs     # to text


cdef class TextLayout:
    """Names, keys and text codecs of the columns of one relation version."""

    cdef Layout layout
    cdef list trees          # the codecs point into them
    cdef readonly tuple names
    cdef bytes joined
    cdef bytes keys

    def __cinit__(self, int64_t relation_id, names, is_key, decodings):
        cdef size_t n = len(names)
        cdef size_t *ends
        cdef const Codec **codecs
        cdef size_t i, end = 0
        encoded = [name.encode() for name in names]
        self.names = tuple(names)
        self.joined = b"".join(encoded)
        self.keys = bytes(is_key)
        self.trees = [CodecTree(decoding) for decoding in decodings]
        if len(self.keys) != n or len(self.trees) != n or n > 65535:
            raise ValueError("a relation has one name, flag and type for each of its columns")
        self.layout.n_columns = <uint16_t>n
        self.layout.relation_id = relation_id
        self.layout.names = <const uint8_t *><const char *>self.joined
        self.layout.is_key = <const uint8_t *><const char *>self.keys
        ends = <size_t *>calloc(n + 1, sizeof(size_t))
        self.layout.name_ends = ends
        codecs = <const Codec **>calloc(n + 1, sizeof(void *))
        self.layout.codecs = codecs
        if ends == NULL or codecs == NULL:
            raise MemoryError()
        for i in range(n):
            end += len(encoded[i])
            ends[i] = end
            codecs[i] = &(<CodecTree>self.trees[i]).codec

    def __dealloc__(self):
        free(<void *>self.layout.name_ends)
        free(<void *>self.layout.codecs)


cdef class Maps:
    """One pass over chosen payloads: what each changes, in the order they were chosen."""

    cdef Source source
    cdef list layouts        # TextLayout by version; None where the batch has no row of it
    cdef const Layout **by_version
    cdef int32_t n_versions
    cdef int64_t *first_rows  # of each segment of the source
    cdef Py_ssize_t segment  # that the newest row lay in
    cdef Column op, old_type, old, new, unchanged
    cdef Cell *old_cells
    cdef Cell *new_cells
    cdef Envelope noting
    cdef TupleSink old_sink, new_sink
    cdef Rules rules
    cdef Walk walk
    cdef Faults faults
    cdef int16_t value_label  # of a tuple's value, behind the plan's own
    cdef bint permissive

    def __cinit__(self, Source source, list layouts, object limits, bint strict_flags, bint permissive):
        cdef Py_ssize_t i
        cdef int64_t first = 0
        cdef size_t widest = 0
        self.source = source
        self.layouts = layouts
        self.n_versions = <int32_t>len(layouts)
        self.permissive = permissive
        self.value_label = len(PLAN.labels)
        self.by_version = <const Layout **>calloc(<size_t>len(layouts) + 1, sizeof(void *))
        self.first_rows = <int64_t *>calloc(<size_t>source.n_segments + 1, sizeof(int64_t))
        if self.by_version == NULL or self.first_rows == NULL:
            raise MemoryError()
        for i in range(len(layouts)):
            if layouts[i] is not None:
                self.by_version[i] = &(<TextLayout?>layouts[i]).layout
                widest = max(widest, self.by_version[i].n_columns)
        for i in range(source.n_segments):
            self.first_rows[i] = first
            first += source.segments[i].n_rows
        self.first_rows[source.n_segments] = first
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
        self.old_sink.cells = self.old_cells
        self.new_sink.cells = self.new_cells
        self.noting.old = &self.old_sink
        self.noting.new = &self.new_sink
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
        free(self.first_rows)
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
        if versions.shape[0] != rows.shape[0] or streamed.shape[0] != rows.shape[0]:
            raise ValueError("each chosen row has a version and a stream state")
        for i in range(rows.shape[0]):
            if not 0 <= rows[i] < self.source.n_rows or versions[i] >= self.n_versions:
                raise IndexError("there is no such payload or version")
            if versions[i] >= 0 and self.by_version[versions[i]] == NULL:
                raise IndexError("there is no layout of this version")
        with nogil:
            for i in range(rows.shape[0]):
                code = self.put_row(rows[i], versions[i], streamed[i], i)
                if code != OK:
                    break
        labels = PLAN.labels + ("value",)
        if code == FAULT_NO_MEMORY or code == FAULT_LIMIT_BATCH or code == FAULT_BAD_ARRAY:
            memset(&fault, 0, sizeof(fault))
            fault.code = code
            fault.label = fault.column = fault.relation = -1
            raise error_of(&fault, (), True)
        if code != OK:
            raise self.worded(&self.faults.items[self.faults.n - 1], versions, labels)
        told = {}
        for k in range(self.faults.n):
            # Of several faults in a row the first one is told.
            if self.faults.items[k].row not in told:
                told[self.faults.items[k].row] = self.worded(&self.faults.items[k], versions, labels).cell
        columns = [
            finish_column(&self.op, pa.string()),
            finish_column(&self.old_type, pa.string()),
            finish_column(&self.old, MAP),
            finish_column(&self.new, MAP),
            finish_column(&self.unchanged, NAMES),
        ]
        return columns, told

    cdef object worded(self, const Fault *fault, const int32_t[::1] versions, tuple labels):
        """The error of a fault; a value's has the name of its column."""
        names = (<TextLayout>self.layouts[versions[fault.row]]).names
        if not 0 <= fault.column < len(names):
            return error_of(fault, labels, True)
        error = error_of(fault, (*PLAN.labels, f"column {names[fault.column]!r}"), True)
        error.column = names[fault.column]
        return error

    cdef bint locate(self, int64_t row, Span *payload) noexcept nogil:
        """Find a payload; nearly always it is in the segment of the one before."""
        cdef Py_ssize_t low = 0, high, middle
        if not self.first_rows[self.segment] <= row < self.first_rows[self.segment + 1]:
            high = self.source.n_segments - 1
            while low < high:
                middle = (low + high) // 2
                if row < self.first_rows[middle + 1]:
                    high = middle
                else:
                    low = middle + 1
            self.segment = low
        return payload_at(
            &self.source.segments[self.segment], row - self.first_rows[self.segment], payload
        ) == PRESENT

    cdef FaultCode put_row(self, int64_t row, int32_t version, bint streamed, int64_t index) noexcept nogil:
        cdef Span payload
        cdef Fault fault
        cdef FaultCode code
        cdef const Layout *layout
        cdef uint8_t tag
        cdef int kind
        memset(&fault, 0, sizeof(fault))
        if not self.locate(row, &payload):
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
        self.old_sink.n_cells = self.new_sink.n_cells = layout.n_columns
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
        cdef const Cell *cell
        cdef FaultCode code
        cdef int c
        code = put_bytes(&self.old_type, &old_type, 1) if old_type else put_null(&self.old_type)
        if code != OK:
            return code
        if old_type == 0:
            code = put_null(&self.old)
        else:
            for c in range(layout.n_columns):
                cell = &self.old_cells[c]
                # In a key tuple, n in another column means that it was not sent; u, that it cannot be said.
                if cell.kind == c"u" or (old_type == c"K" and cell.kind == c"n" and not layout.is_key[c]):
                    continue
                code = self.put_pair(&self.old, layout, c, cell, payload, tag, index)
                if code != OK:
                    return code
            code = end_list(&self.old)
        if code != OK:
            return code
        if tag == c"D":
            code = put_null(&self.new)
            return code if code != OK else end_list(&self.unchanged)
        for c in range(layout.n_columns):
            cell = &self.new_cells[c]
            if cell.kind == c"u":
                if old_type == 0 or self.old_cells[c].value == NULL:
                    code = self.put_name(&self.unchanged.children[0], layout, c)
                    if code != OK:
                        return code
                    continue
                cell = &self.old_cells[c]
            code = self.put_pair(&self.new, layout, c, cell, payload, tag, index)
            if code != OK:
                return code
        code = end_list(&self.new)
        return code if code != OK else end_list(&self.unchanged)

    cdef inline FaultCode put_name(self, Column *column, const Layout *layout, int c) noexcept nogil:
        cdef size_t start = layout.name_ends[c - 1] if c else 0
        return put_bytes(column, layout.names + start, layout.name_ends[c] - start)

    cdef FaultCode put_pair(
        self,
        Column *map_column,
        const Layout *layout,
        int c,
        const Cell *cell,
        const Span *payload,
        uint8_t tag,
        int64_t index,
    ) noexcept nogil:
        """Append a column's name and text; a bad value is null, and its fault kept."""
        cdef Column *entry = &map_column.children[0]
        cdef Column *values = &entry.children[1]
        cdef const Codec *codec = layout.codecs[c]
        cdef size_t n = values.n
        cdef Fault fault
        cdef FaultCode code = self.put_name(&entry.children[0], layout, c)
        if code != OK:
            return code
        code = mark(entry, 1)
        if code != OK:
            return code
        if cell.value == NULL:
            return put_null(values)
        if cell.kind == c"t":
            code = codec.from_text(cell.value, cell.length, values, codec)
        else:
            code = codec.from_binary(cell.value, cell.length, values, codec)
        if code == OK or code == FAULT_NO_MEMORY or code == FAULT_LIMIT_BATCH:
            return code
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
        return OK if self.permissive else code
