"""Changes of many relations as maps from column name to PostgreSQL's text form."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from pgdecode._native.arrow.builder cimport KEYWORD_BYTES, Cell, TupleBuilder, Keyword
from pgdecode._native.arrow.column_builder cimport (
    Column, end_bytes, end_list, expect, finish_column, free_column, open_column, open_ends, postpone_nulls, put_bytes,
    put_empty_lists, put_null, take_back, validity_for, write_postponed_nulls,
)
from pgdecode._native.arrow.payload_array cimport PRESENT, Presence, Segment, Source, Span, payload_at
from pgdecode._native.changes.map_values cimport (
    BLOCK, BLOCK_LIMIT, FastTuple, TupleWriter, close_tuple, copy_blocks, copy_plain, end_of_blocks, index_tuple,
    open_tuple, put_fast_tuple, put_ones,
)
from pgdecode._native.changes.text_layouts cimport IN_BINARY, Layout, TextLayout
from pgdecode._native.codecs.block_decoder cimport MAX_DATA
from pgdecode._native.codecs.codec cimport MOST_WRITTEN, Codec
from pgdecode._native.cursor cimport be32
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
from pgdecode._native.memory.buffers cimport has_capacity, reserve
from pgdecode._native.wire.envelope_builder cimport Envelope, Rules, Walk, rules_of
from pgdecode._native.wire.tuples cimport remove_long_values
from pgdecode._native.wire.walker cimport walk_message
from pgdecode._native.wire.wire_plan cimport PLAN

import pyarrow as pa

from pgdecode.protocol import errors, limits as sizes

cdef enum:
    ENTRY_BYTES = 8    # of a map: the ends of its name and its value
    CELL_HEADER = 5    # bytes: a cell's kind and length
    LETTERS_OF_OP = 8  # bytes: truncate
    FAST_ROWS = 64     # number of rows whose values are written before their names
    SHORTEST = 10      # bytes up to the letter of a tuple, in a stream; the walk handles shorter rows

cdef struct FastRow:
    const Layout *layout
    const Keyword *keyword   # of its kind

MAP = pa.map_(pa.string(), pa.string())
NAMES = pa.list_(pa.string())


cdef inline size_t in_map(const Column *column) noexcept nogil:
    cdef const Column *entries = &column.children[0]
    return entries.children[0].data.size + entries.children[1].data.size + ENTRY_BYTES * entries.n


cdef size_t past_free(const Column *names, size_t free_name) noexcept nogil:
    """Bytes of names, without `free_name` bytes of each."""
    cdef size_t free_bytes = names.n * free_name
    return names.data.size - free_bytes if names.data.size > free_bytes else 0


cdef size_t text_of(const Column *column, size_t free_name) noexcept nogil:
    """Bytes of the values in a column of maps, and of their names without `free_name` bytes of each."""
    cdef const Column *entries = &column.children[0]
    return past_free(&entries.children[0], free_name) + entries.children[1].data.size


cdef struct Name:
    const uint8_t *text   # BLOCK more bytes may be read after it
    size_t length


cdef void put_same(uint8_t *to, int32_t *ends, const Name *name, size_t n) noexcept nogil:
    """Write one text n times, and its ends."""
    cdef size_t total = n * name.length
    cdef size_t done = min(total, name.length)
    cdef size_t i, more
    memcpy(to, name.text, done)
    while done < total:
        more = min(done, total - done)
        memcpy(to + done, to, more)
        done += more
    for i in range(n):
        ends[i] = <int32_t>((i + 1) * name.length)


def repeated(const int32_t[::1] places, list counts, list texts):
    """Make a column of strings: in each row, the text with the number in `places`; null if that is negative.

    `counts` has the number of rows of each text.
    """
    cdef Column out
    cdef size_t i, n = <size_t>places.shape[0]
    cdef size_t n_texts = <size_t>len(texts)
    cdef size_t at = 0, total = 0, n_named = 0
    cdef const int32_t *place = &places[0] if n else NULL
    cdef uint8_t *data
    cdef int32_t *to
    cdef uint8_t *validity
    cdef const Name *name
    cdef Name *names = <Name *>calloc(n_texts + 1, sizeof(Name))
    padded = [text.encode() + bytes(BLOCK) for text in texts]
    cdef bytes nothing = bytes(BLOCK)
    open_column(&out, pa.string())
    try:
        if names == NULL:
            raise MemoryError("no memory for names")
        # The first name is that of a null, without text.
        names[0].text = nothing
        for i in range(n_texts):
            names[i + 1].text = padded[i]
            names[i + 1].length = <size_t>(len(padded[i]) - BLOCK)
            n_named += counts[i]
            total += <size_t>counts[i] * names[i + 1].length
            if total > <size_t>MAX_DATA:
                raise errors.BatchTooLarge(errors.BatchTooLarge.wording.format(field="a name"))
        if reserve(&out.data, total) != OK or open_ends(&out, n) != OK:
            raise MemoryError("no memory for names")
        to = <int32_t *>(out.ends.data + out.ends.size)
        data = out.data.data
        if n and n_named == n and len(set(texts)) == 1:
            put_same(data, to, &names[1], n)
            at = total
        else:
            for i in range(n):
                if unlikely(place[i] >= <int64_t>n_texts):
                    raise IndexError("there is no such text")
                name = &names[max(place[i], -1) + 1]
                if unlikely(name.length > total - at):
                    raise IndexError("there is no such text")
                copy_blocks(data + at, name.text, name.length)
                at += name.length
                to[i] = <int32_t>at
        out.data.size = at
        out.ends.size += n * sizeof(int32_t)
        if n_named != n:
            validity = validity_for(&out, n)
            if validity == NULL:
                raise MemoryError("no memory for names")
            for i in range(n):
                validity[i] = place[i] >= 0
                out.n_null += place[i] < 0
            out.valid.size = n
        out.n = n
        return finish_column(&out, pa.string())
    finally:
        free(names)
        free_column(&out)


cdef class TextMapBuilder:
    """One pass over chosen payloads: the changes of each, in the order of choice."""

    cdef Source source
    cdef list layouts        # TextLayout by version; None if the batch has no row of it
    cdef const Layout **by_version
    cdef int32_t n_versions
    cdef Py_ssize_t segment  # with the last row
    cdef Column op, old_type, old, new, unchanged
    cdef Cell *old_cells
    cdef Cell *new_cells
    cdef Envelope index_only
    cdef TupleBuilder old_builder, new_builder
    cdef Rules rules
    cdef Walk walk
    cdef Faults faults
    cdef int16_t value_label  # of a tuple's value, after the labels of the plan
    cdef bint permissive
    cdef size_t most_text    # limit of the bytes that are made of the payloads
    cdef size_t made         # bytes that the batch has besides these columns
    cdef readonly size_t text_bytes  # bytes of the batch, without FREE_NAME bytes of each column's name
    cdef bint is_alone       # there is only one row, so that a batch that is too large is the fault of a value
    cdef size_t most_bytes   # of a payload to which no limit applies, however its bytes are divided
    cdef size_t max_value_bytes   # limit of a decoded value
    cdef bint is_reserved     # memory of `new` and `op` for all rows, except for the text of values
    cdef bint never_expands  # not even if each value gets its maximum length
    cdef size_t n_unnamed    # last rows without names in `unchanged`, whose empty lists are not written yet

    def __cinit__(
        self, Source source, list layouts, object limits, bint strict_flags, bint permissive, size_t made=0
    ):
        """`made`: bytes that the batch has besides these columns. They count towards the limit."""
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
        self.most_bytes = min(self.rules.max_payload_bytes, self.rules.max_value_bytes)
        # Values above the limit become null, and the rest of their row is decoded. So the walk does not have the limit.
        self.max_value_bytes = self.rules.max_value_bytes
        self.rules.max_value_bytes = sizes.MAX_PAYLOAD
        if widest > self.rules.max_columns:
            self.most_bytes = 0
        self.most_text = source.n_bytes() * <size_t>limits.max_expansion + <size_t>sizes.FREE_EXPANSION
        self.old_builder.cells = self.old_cells
        self.new_builder.cells = self.new_cells
        self.index_only.old = &self.old_builder
        self.index_only.new = &self.new_builder
        self.walk.plan = &PLAN.table
        self.walk.rules = &self.rules
        self.walk.out = &self.index_only

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
        """Decode the payloads of `rows`. A row with a negative version stays null, except for its kind.

        Returns ([op, old_type, old, new, unchanged], {index of a row: text of its error}).
        """
        cdef FaultCode code = OK
        cdef Fault fault
        cdef Py_ssize_t i
        cdef size_t k
        cdef int64_t row
        cdef int32_t version
        cdef size_t free_name
        cdef size_t n_entries = 0, n_bytes = 0   # of the column names of all rows
        cdef const Layout *layout
        if versions.shape[0] != rows.shape[0] or streamed.shape[0] != rows.shape[0]:
            raise ValueError("each chosen row has a version and a stream state")
        for i in range(rows.shape[0]):
            row = (&rows[0])[i]
            version = (&versions[0])[i]
            if not 0 <= row < self.source.n_rows or version >= self.n_versions:
                raise IndexError("there is no such payload or version")
            if version < 0:
                continue
            layout = self.by_version[version]
            if layout == NULL:
                raise IndexError("there is no layout of this version")
            n_entries += layout.n_columns
            n_bytes += layout.names_size
        self.is_alone = rows.shape[0] == 1
        if self.made > self.most_text and not self.is_alone:
            code = FAULT_LIMIT_EXPANSION
        with nogil:
            if code == OK:
                code = self.open_columns(<size_t>rows.shape[0], n_entries, n_bytes)
            i = 0
            while code == OK and i < rows.shape[0]:
                k = self.put_fast(&rows[i], &versions[i], &streamed[i], <size_t>(rows.shape[0] - i))
                i += <Py_ssize_t>k
                if k < <size_t>FAST_ROWS and i < rows.shape[0]:
                    code = self.put_row(rows[i], versions[i], streamed[i], i)
                    i += 1
            if code == OK:
                code = self.put_unnamed()
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
            # Of several faults in a row, the first one is reported.
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
        """Make the error of a fault. The error of a value has the name of its column."""
        names = (<TextLayout>self.layouts[versions[fault.row]]).names
        if not 0 <= fault.column < len(names):
            return error_of(fault, labels, True)
        error = error_of(fault, (*PLAN.labels, f"column {errors.shown(names[fault.column])}"), True)
        error.column = names[fault.column]
        return error

    cdef FaultCode open_columns(self, size_t n_rows, size_t n_entries, size_t n_bytes) noexcept nogil:
        """Reserve memory for rows whose columns have `n_entries` names with `n_bytes` bytes in all."""
        cdef Column *entries = &self.new.children[0]
        cdef size_t n_source = <size_t>self.source.n_rows
        # The kinds and lengths of columns in a payload are not text.
        cdef size_t text = self.source.n_bytes() // max(n_source, <size_t>1) * n_rows
        text -= min(text, CELL_HEADER * n_entries)
        cdef size_t made = self.made + 2 * (n_bytes + (ENTRY_BYTES + MOST_WRITTEN) * n_entries + self.source.n_bytes())
        if n_rows == 0 or n_entries >= <size_t>MAX_DATA // sizeof(int32_t) or n_bytes > <size_t>MAX_DATA:
            return OK
        if n_rows > <size_t>MAX_DATA // LETTERS_OF_OP - KEYWORD_BYTES:
            return OK
        expect(&self.op, n_rows)
        expect(&self.old, n_rows)
        expect(&self.new, n_rows)
        expect(&self.unchanged, n_rows)
        expect(&entries.children[1], n_entries)
        if (
            reserve(&self.op.data, LETTERS_OF_OP * n_rows + KEYWORD_BYTES) != OK
            or reserve(&entries.children[0].data, n_bytes) != OK
            or reserve(&entries.children[1].data, min(text, <size_t>MAX_DATA)) != OK
            or open_ends(&self.op, n_rows) != OK
            or open_ends(&self.new, n_rows) != OK
            or open_ends(&entries.children[0], n_entries) != OK
            or open_ends(&entries.children[1], n_entries) != OK
        ):
            return FAULT_NO_MEMORY
        self.is_reserved = True
        self.never_expands = made <= self.most_text
        return OK

    cdef FaultCode put_row(self, int64_t row, int32_t version, bint streamed, int64_t index) noexcept nogil:
        cdef const Segment *near = &self.source.segments[self.segment]
        cdef Span payload
        cdef Fault fault
        cdef FaultCode code
        cdef Presence presence
        cdef const Layout *layout
        cdef uint8_t tag
        cdef int kind
        cdef bint has_unchanged = False
        if self.segment < self.source.n_segments and <uint64_t>(row - near.n_before) < <uint64_t>near.n_rows:
            presence = payload_at(near, row - near.n_before, &payload)
        else:
            presence = self.source.find(row, &self.segment, &payload)
        if presence != PRESENT:
            return FAULT_BAD_ARRAY
        tag = payload.data[0] if payload.length else 0
        kind = self.walk.plan.by_tag[tag]
        if version < 0 and tag != c"T":
            return self.put_nothing(tag)
        self.walk.old_type = 0
        if tag == c"T":
            code = self.put_op(kind)
            return code if code != OK else self.put_empty(True)
        layout = self.by_version[version]
        code = self.put_op(kind)
        if code != OK:
            return code
        if self.index_row(layout, &payload, kind, streamed, &has_unchanged):
            return self.put_tuples(layout, &payload, tag, index, has_unchanged)
        memset(&fault, 0, sizeof(fault))
        self.walk.old_type = 0
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
        if unlikely(payload.length > self.max_value_bytes):
            code = self.check_long_values(layout, &payload, tag, index)
            if code != OK:
                return code
        return self.put_tuples(layout, &payload, tag, index, self.new_builder.has_unchanged)

    cdef FaultCode check_long_values(
        self, const Layout *layout, const Span *payload, uint8_t tag, int64_t index
    ) noexcept nogil:
        """Make values above the limit null, and keep their faults. In FAILFAST mode, return the first one."""
        cdef Fault fault = self.fault_of(layout, tag, index)
        cdef size_t n = layout.n_columns
        cdef FaultCode code = OK
        fault.expected = <int64_t>self.max_value_bytes
        if self.walk.old_type:
            code = remove_long_values(
                self.old_cells, n, payload.data, fault, False, not self.permissive, &self.faults
            )
        if code != OK or tag == c"D":
            return code
        return remove_long_values(self.new_cells, n, payload.data, fault, False, not self.permissive, &self.faults)

    cdef Fault fault_of(self, const Layout *layout, uint8_t tag, int64_t index) noexcept nogil:
        """A fault of a value in a row."""
        cdef Fault fault
        memset(&fault, 0, sizeof(fault))
        fault.tag = tag
        fault.label = self.value_label
        fault.row = index
        fault.relation = layout.relation_id
        return fault

    cdef size_t put_fast(
        self, const int64_t *rows, const int32_t *versions, const uint8_t *streamed, size_t n_rows
    ) noexcept nogil:
        """Write inserts and updates without old tuple, up to FAST_ROWS, until one is unusual. Returns their number."""
        cdef const Segment *near = &self.source.segments[self.segment]
        cdef Column *values = &self.new.children[0].children[1]
        cdef FastRow[FAST_ROWS] fast
        cdef const Layout *layout
        cdef const uint8_t *p
        cdef const uint8_t *most_to   # the limit of the end of text
        cdef const uint8_t *blocks_end = end_of_blocks(near)
        cdef const uint8_t *end
        cdef FastTuple fast_tuple
        cdef Span payload
        cdef uint8_t *text
        cdef size_t n, n_valid = 0, made = 0, k = 0, n_values = 0
        cdef uint64_t row
        cdef int kind
        # All other data has memory for all rows.
        if not self.is_reserved or self.new.postponed or self.op.valid.size or self.segment >= self.source.n_segments:
            return 0
        if self.new.valid.size:
            n_rows = min(n_rows, self.new.valid.capacity - self.new.valid.size)
        fast_tuple.base = values.data.data
        fast_tuple.to = values.data.data + values.data.size
        fast_tuple.ends = <int32_t *>(values.ends.data + values.ends.size)
        fast_tuple.n_null = 0
        fast_tuple.validity = NULL
        if values.valid.size:
            fast_tuple.validity = values.valid.data + values.n
            n_valid = values.valid.capacity - values.valid.size
        most_to = fast_tuple.base + min(values.data.capacity, <size_t>MAX_DATA)
        if not self.never_expands:
            made = self.text()
        while k < min(n_rows, <size_t>FAST_ROWS) and versions[k] >= 0:
            row = <uint64_t>(rows[k] - near.n_before)
            if row >= <uint64_t>near.n_rows or payload_at(near, <int64_t>row, &payload) != PRESENT:
                break
            if unlikely(payload.length > self.most_bytes or payload.length < SHORTEST):
                break
            layout = self.by_version[versions[k]]
            n = layout.n_columns
            kind = self.walk.plan.by_tag[payload.data[0]]
            p = payload.data + 5   # after the relation's OID
            if streamed[k]:
                if unlikely(be32(payload.data + 1) < self.walk.plan.messages[kind].prefix.minimum):
                    break
                p += 4
            if p[0] != c"N" or (payload.data[0] != c"I" and payload.data[0] != c"U"):
                break
            if unlikely(payload.length + n * MOST_WRITTEN > <size_t>(most_to - fast_tuple.to)):
                break
            if fast_tuple.validity != NULL:
                if unlikely(n > n_valid - n_values):
                    break
                put_ones(fast_tuple.validity, n)
            text = fast_tuple.to
            end = payload.data + payload.length
            if unlikely(
                not put_fast_tuple(&fast_tuple, p + 1, end, layout, BLOCK_LIMIT if end <= blocks_end else 0)
            ):
                break
            if not self.never_expands:
                made += <size_t>(fast_tuple.to - text) + layout.names_size + ENTRY_BYTES * n
                if made > self.most_text:
                    fast_tuple.to = text
                    break
            fast_tuple.ends += n
            if fast_tuple.validity != NULL:
                fast_tuple.validity += n
            n_values += n
            fast[k].layout = layout
            fast[k].keyword = &self.walk.plan.kinds[kind]
            k += 1
        if k:
            values.data.size = <size_t>(fast_tuple.to - fast_tuple.base)
            values.ends.size += n_values * sizeof(int32_t)
            values.n += n_values
            values.n_null += fast_tuple.n_null
            if fast_tuple.validity != NULL:
                values.valid.size = values.n
            self.put_names(fast, k)
        return k

    cdef void put_names(self, const FastRow *fast, size_t n_rows) noexcept nogil:
        """Write everything except the values of rows. The memory is reserved."""
        cdef Column *entries = &self.new.children[0]
        cdef Column *names = &entries.children[0]
        cdef uint8_t *texts = names.data.data
        cdef uint8_t *ops = self.op.data.data
        cdef int32_t *name_ends = <int32_t *>(names.ends.data + names.ends.size)
        cdef int32_t *row_ends = <int32_t *>(self.new.ends.data + self.new.ends.size)
        cdef int32_t *op_ends = <int32_t *>(self.op.ends.data + self.op.ends.size)
        cdef size_t n_bytes = names.data.size
        cdef size_t n_names = names.n
        cdef size_t op_bytes = self.op.data.size
        cdef const Layout *layout
        cdef int32_t[4] four
        cdef size_t k, c, i
        for k in range(n_rows):
            layout = fast[k].layout
            copy_blocks(texts + n_bytes, layout.names, layout.names_size)
            # Four at a time, which may write SLACK bytes too many.
            for c in range(0, layout.n_columns, 4):
                for i in range(4):
                    four[i] = <int32_t>n_bytes + layout.name_ends[c + i]
                memcpy(name_ends + c, four, sizeof(four))
            name_ends += layout.n_columns
            n_bytes += layout.names_size
            n_names += layout.n_columns
            row_ends[k] = <int32_t>n_names
            memcpy(ops + op_bytes, fast[k].keyword.text, KEYWORD_BYTES)
            op_bytes += fast[k].keyword.length
            op_ends[k] = <int32_t>op_bytes
        names.data.size = n_bytes
        names.ends.size += (n_names - names.n) * sizeof(int32_t)
        names.n = entries.n = n_names
        self.new.ends.size += n_rows * sizeof(int32_t)
        if self.new.valid.size:
            memset(self.new.valid.data + self.new.n, 1, n_rows)
            self.new.valid.size = self.new.n + n_rows
        self.new.n += n_rows
        self.op.data.size = op_bytes
        self.op.ends.size += n_rows * sizeof(int32_t)
        self.op.n += n_rows
        self.old_type.postponed += n_rows
        self.old.postponed += n_rows
        self.n_unnamed += n_rows

    cdef inline bint index_row(
        self, const Layout *layout, const Span *payload, int kind, bint streamed, bint *has_unchanged
    ) noexcept nogil:
        """Index the cells of an insert, update or delete.

        False if anything is unusual or wrong: the walk then handles it.
        """
        cdef const uint8_t *p = payload.data + 5   # after the relation's OID
        cdef const uint8_t *end = payload.data + payload.length
        cdef uint8_t tag
        cdef bint has_unsent = False
        has_unchanged[0] = False
        if unlikely(payload.length > self.most_bytes or payload.length < SHORTEST):
            return False
        tag = payload.data[0]
        if streamed:
            if unlikely(be32(payload.data + 1) < self.walk.plan.messages[kind].prefix.minimum):
                return False
            p += 4
        if tag == c"I":
            if unlikely(p[0] != c"N"):
                return False
            return index_tuple(p + 1, end, layout, self.new_cells, has_unchanged) == end
        if unlikely(tag != c"U" and tag != c"D"):
            return False
        if p[0] == c"K" or p[0] == c"O":
            self.walk.old_type = p[0]
            p = index_tuple(p + 1, end, layout, self.old_cells, &has_unsent)
            if p == NULL or tag == c"D" or p == end:
                return p == end and tag == c"D"
        if unlikely(p[0] != c"N" or tag == c"D"):
            return False
        return index_tuple(p + 1, end, layout, self.new_cells, has_unchanged) == end

    cdef inline FaultCode put_op(self, int kind) noexcept nogil:
        cdef const Keyword *keyword = &self.walk.plan.kinds[kind]
        if unlikely(not has_capacity(&self.op.data, KEYWORD_BYTES)):
            return put_bytes(&self.op, <const uint8_t *>keyword.text, keyword.length)
        memcpy(self.op.data.data + self.op.data.size, keyword.text, KEYWORD_BYTES)
        self.op.data.size += keyword.length
        return end_bytes(&self.op)

    cdef FaultCode put_nothing(self, uint8_t tag) noexcept nogil:
        """Append a row of which only the kind may be known."""
        cdef FaultCode code
        code = self.put_op(self.walk.plan.by_tag[tag]) if tag in (c"I", c"U", c"D") else put_null(&self.op)
        return code if code != OK else self.put_empty(False)

    cdef FaultCode put_empty(self, bint is_good) noexcept nogil:
        """Append a row without tuples."""
        cdef FaultCode code
        postpone_nulls(&self.old_type, 1)
        postpone_nulls(&self.old, 1)
        postpone_nulls(&self.new, 1)
        if is_good:
            self.n_unnamed += 1
            return OK
        code = self.put_unnamed()
        return code if code != OK else put_null(&self.unchanged)

    cdef FaultCode put_unnamed(self) noexcept nogil:
        """Append the lists of rows without unchanged columns."""
        cdef size_t n = self.n_unnamed
        self.n_unnamed = 0
        return put_empty_lists(&self.unchanged, n) if n else OK

    cdef inline FaultCode put_tuples(
        self, const Layout *layout, const Span *payload, uint8_t tag, int64_t index, bint has_unchanged
    ) noexcept nogil:
        cdef uint8_t old_type = self.walk.old_type
        cdef FaultCode code
        if old_type == 0:
            postpone_nulls(&self.old_type, 1)
            postpone_nulls(&self.old, 1)
        else:
            code = write_postponed_nulls(&self.old_type)
            if code == OK:
                code = put_bytes(&self.old_type, &old_type, 1)
            if code == OK:
                code = write_postponed_nulls(&self.old)
            if code == OK:
                code = self.put_map(&self.old, layout, self.old_cells, old_type == c"K", payload, tag, index)
            if code != OK:
                return code
        if tag == c"D":
            postpone_nulls(&self.new, 1)
            self.n_unnamed += 1
            return OK
        if has_unchanged:
            code = self.put_unchanged(layout, old_type != 0)
            if code != OK:
                return code
        else:
            self.n_unnamed += 1
        if unlikely(self.new.postponed):
            code = write_postponed_nulls(&self.new)
            if code != OK:
                return code
        return self.put_map(&self.new, layout, self.new_cells, False, payload, tag, index)

    cdef FaultCode put_unchanged(self, const Layout *layout, bint has_old) noexcept nogil:
        """Fill new cells that were not sent from the old tuple, and append the names of the others."""
        cdef FaultCode code = self.put_unnamed()
        cdef int c
        for c in range(layout.n_columns):
            if self.new_cells[c].kind != c"u":
                continue
            if has_old and self.old_cells[c].value != NULL:
                self.new_cells[c] = self.old_cells[c]
            elif code == OK:
                code = self.put_name(&self.unchanged.children[0], layout, c)
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
        cdef Column *names = &entries.children[0]
        cdef Column *values = &entries.children[1]
        cdef const uint8_t *end = payload.data + payload.length
        cdef const Cell *cell
        cdef size_t n = layout.n_columns
        cdef int32_t start
        cdef uint8_t *name_to
        cdef uint8_t *written
        cdef int32_t *name_ends
        cdef FaultCode code = self.reserve_tuple(values, layout, payload)
        cdef TupleWriter at
        cdef size_t c
        if code != OK:
            return code
        if unlikely(layout.names_size > <size_t>MAX_DATA - names.data.size):
            return FAULT_LIMIT_BATCH
        if unlikely(reserve(&names.data, layout.names_size) != OK or open_ends(names, n) != OK):
            return FAULT_NO_MEMORY
        name_to = names.data.data + names.data.size
        name_ends = <int32_t *>(names.ends.data + names.ends.size)
        code = open_tuple(&at, values, n, payload.length)
        for c in range(n):
            cell = &cells[c]
            # u was not sent. n was not sent either if only the key was sent and the column is not in it.
            if cell.kind == c"u" or (is_key and cell.kind == c"n" and not layout.is_key[c]):
                continue
            start = layout.name_ends[c - 1] if c else 0
            copy_blocks(name_to, layout.names + start, <size_t>(layout.name_ends[c] - start))
            name_to += layout.name_ends[c] - start
            name_ends[0] = <int32_t>(name_to - names.data.data)
            name_ends += 1
            if cell.kind == c"t" or (cell.kind == c"b" and layout.is_text[c] & IN_BINARY):
                written = copy_plain(at.to, cell.value, cell.length, end)
            elif cell.kind == c"b" and at.may_write and layout.codecs[c].write_binary != NULL:
                written = layout.codecs[c].write_binary(cell.value, cell.length, at.to)
            elif cell.value == NULL and at.validity != NULL:
                written = at.to
                at.validity[at.n] = 0
                at.n_null += 1
            else:
                written = NULL
            if written != NULL:
                at.to = written
                at.ends[at.n] = <int32_t>(at.to - values.data.data)
                at.n += 1
            else:
                close_tuple(&at, values)
                code = self.put_value(values, layout, <int>c, cell, payload, tag, index)
                if code == OK:
                    code = open_tuple(&at, values, n - c, payload.length)
            if unlikely(code != OK):
                return code
        close_tuple(&at, values)
        names.n = values.n
        names.data.size = <size_t>(name_to - names.data.data)
        names.ends.size = (names.n + 1) * sizeof(int32_t)
        # Entries are structs that are never null: there is one for each value.
        entries.n = values.n
        if unlikely(self.text() > self.most_text):
            # Names or plain text exceed the limit, so that it is not the fault of one value.
            self.is_alone = False
            return FAULT_LIMIT_EXPANSION
        return end_list(out)

    cdef inline FaultCode put_name(self, Column *column, const Layout *layout, int c) noexcept nogil:
        cdef int32_t start = layout.name_ends[c - 1] if c else 0
        return put_bytes(column, layout.names + start, <size_t>(layout.name_ends[c] - start))

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
        """Append the text of a column. A bad value becomes null, and its fault is kept."""
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
            fault = self.fault_of(layout, tag, index)
            fault.code = code
            fault.column = c
            fault.offset = <size_t>(cell.value - payload.data)
            fault.expected = -1
            fault.seen = <int64_t>cell.length
            if put_null(values) != OK or keep_fault(&self.faults, &fault) != OK:
                return FAULT_NO_MEMORY
            if self.permissive:
                code = OK
        # A codec or a null may have used memory that is reserved for the rest of the tuple.
        return code if code != OK else self.reserve_tuple(values, layout, payload)

    cdef inline size_t text(self) noexcept nogil:
        """Bytes that have been made of the payloads: names and values, and their ends."""
        return self.made + in_map(&self.old) + in_map(&self.new) + self.unchanged.children[0].data.size

    cdef bint is_value_fault(self, FaultCode code) noexcept nogil:
        return self.is_alone and (code == FAULT_LIMIT_BATCH or code == FAULT_LIMIT_EXPANSION)

    cdef inline FaultCode reserve_tuple(
        self, Column *values, const Layout *layout, const Span *payload
    ) noexcept nogil:
        """Reserve memory for the tuple as plain text of the payload's length, and if possible for writers."""
        cdef size_t more = payload.length + layout.n_columns * <size_t>MOST_WRITTEN
        if unlikely(more > <size_t>MAX_DATA - values.data.size):
            more = payload.length
            if more > <size_t>MAX_DATA - values.data.size:
                return FAULT_LIMIT_BATCH
        if unlikely(reserve(&values.data, more) != OK or open_ends(values, layout.n_columns) != OK):
            return FAULT_NO_MEMORY
        return OK
