"""Changes of many relations as maps from column name to PostgreSQL's text form."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from pgdecode._native.arrow.builder cimport WORD_BYTES, Cell, TupleBuilder, Word
from pgdecode._native.arrow.column_builder cimport (
    Column, end_bytes, end_list, expect, finish_column, free_column, open_column, open_ends, postpone_nulls, put_bytes,
    put_empty_lists, put_null, settle, take_back, validity_for,
)
from pgdecode._native.arrow.payload_array cimport PRESENT, Presence, Segment, Source, Span, payload_at
from pgdecode._native.changes.map_values cimport (
    BLOCK, Room, Tuple, close_tuple, copy_blocks, copy_plain, has_room, index_cells, open_tuple, put_cells,
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
from pgdecode._native.wire.walker cimport walk_message
from pgdecode._native.wire.wire_plan cimport PLAN

from array import array
from itertools import accumulate

import pyarrow as pa

from pgdecode.protocol import errors, limits as sizes

cdef enum:
    ENTRY_BYTES = 8    # of a map: where its name and its value end
    CELL_HEADER = 5    # bytes: a cell's kind and length
    LETTERS_OF_OP = 8  # bytes: truncate
    SHORTEST = 10      # bytes up to the letter of a tuple, in a stream; shorter rows are left to the walk

MAP = pa.map_(pa.string(), pa.string())
NAMES = pa.list_(pa.string())


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


def repeated(const int32_t[::1] places, list texts):
    """A column of strings: in each row the text at a place, null where that is negative."""
    cdef Column out
    cdef Py_ssize_t i
    cdef Py_ssize_t n_texts = len(texts)
    cdef size_t n = <size_t>places.shape[0]
    cdef size_t at = 0
    cdef uint64_t total = 0
    cdef int32_t place
    cdef bint has_null = False
    cdef int32_t *to
    cdef uint8_t *validity
    encoded = [name.encode() for name in texts]
    padded = b"".join(encoded) + bytes(BLOCK)
    cdef const uint8_t *text = padded
    cdef const uint64_t[::1] ends = array("Q", accumulate(map(len, encoded), initial=0))
    for i in range(places.shape[0]):
        place = places[i]
        if place >= n_texts:
            raise IndexError("there is no such text")
        if place < 0:
            has_null = True
        else:
            total += ends[place + 1] - ends[place]
    if total > <uint64_t>MAX_DATA:
        raise errors.BatchTooLarge(errors.BatchTooLarge.wording.format(field="a name"))
    open_column(&out, pa.string())
    try:
        if reserve(&out.data, <size_t>total) != OK or open_ends(&out, n) != OK:
            raise MemoryError("no memory for names")
        to = <int32_t *>(out.ends.data + out.ends.size)
        for i in range(places.shape[0]):
            place = places[i]
            if place >= 0:
                copy_blocks(out.data.data + at, text + ends[place], <size_t>(ends[place + 1] - ends[place]))
                at += <size_t>(ends[place + 1] - ends[place])
            to[i] = <int32_t>at
        out.data.size = at
        out.ends.size += n * sizeof(int32_t)
        if has_null:
            validity = validity_for(&out, n)
            if validity == NULL:
                raise MemoryError("no memory for names")
            for i in range(places.shape[0]):
                validity[i] = places[i] >= 0
                out.n_null += places[i] < 0
            out.valid.size = n
        out.n = n
        return finish_column(&out, pa.string())
    finally:
        free_column(&out)


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
    cdef size_t most_bytes   # of a payload that no limit can be about, however its bytes are cut
    cdef bint has_room       # in `new` and `op` for all rows, but for the text of values
    cdef bint never_expands  # not even if each value becomes as long as it can
    cdef size_t n_unnamed    # newest rows without names in `unchanged`, whose empty lists are not written yet

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
        self.most_bytes = min(self.rules.max_payload_bytes, self.rules.max_value_bytes)
        if widest > self.rules.max_columns:
            self.most_bytes = 0
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
        cdef size_t n_entries = 0, n_bytes = 0   # of the names of all rows' columns
        cdef const Layout *layout
        if versions.shape[0] != rows.shape[0] or streamed.shape[0] != rows.shape[0]:
            raise ValueError("each chosen row has a version and a stream state")
        for i in range(rows.shape[0]):
            if not 0 <= rows[i] < self.source.n_rows or versions[i] >= self.n_versions:
                raise IndexError("there is no such payload or version")
            if versions[i] < 0:
                continue
            layout = self.by_version[versions[i]]
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
            for i in range(rows.shape[0] if code == OK else 0):
                code = self.put_row(rows[i], versions[i], streamed[i], i)
                if code != OK:
                    break
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

    cdef FaultCode open_columns(self, size_t n_rows, size_t n_entries, size_t n_bytes) noexcept nogil:
        """Reserve what rows probably need, whose columns have so many names, and bytes of names, in all."""
        cdef Column *entries = &self.new.children[0]
        cdef size_t n_source = <size_t>self.source.n_rows
        # Of a payload, kinds and lengths of columns are no text.
        cdef size_t text = self.source.n_bytes() // max(n_source, <size_t>1) * n_rows
        text -= min(text, CELL_HEADER * n_entries)
        cdef size_t made = self.made + 2 * (n_bytes + (ENTRY_BYTES + MOST_WRITTEN) * n_entries + self.source.n_bytes())
        if n_rows == 0 or n_entries >= <size_t>MAX_DATA // sizeof(int32_t) or n_bytes > <size_t>MAX_DATA:
            return OK
        if n_rows > <size_t>MAX_DATA // LETTERS_OF_OP - WORD_BYTES:
            return OK
        expect(&self.op, n_rows)
        expect(&self.old, n_rows)
        expect(&self.new, n_rows)
        expect(&self.unchanged, n_rows)
        expect(&entries.children[1], n_entries)
        if (
            reserve(&self.op.data, LETTERS_OF_OP * n_rows + WORD_BYTES) != OK
            or reserve(&entries.children[0].data, n_bytes) != OK
            or reserve(&entries.children[1].data, min(text, <size_t>MAX_DATA)) != OK
            or open_ends(&self.op, n_rows) != OK
            or open_ends(&self.new, n_rows) != OK
            or open_ends(&entries.children[0], n_entries) != OK
            or open_ends(&entries.children[1], n_entries) != OK
        ):
            return FAULT_NO_MEMORY
        self.has_room = True
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
        if self.put_fast(layout, &payload, kind, streamed):
            return OK
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
        return self.put_tuples(layout, &payload, tag, index, self.new_builder.has_unchanged)

    cdef inline bint put_fast(self, const Layout *layout, const Span *payload, int kind, bint streamed) noexcept nogil:
        """Put an insert or update without old tuple, if all is well with it and there is room; else nothing is done."""
        cdef Column *entries = &self.new.children[0]
        cdef Column *names = &entries.children[0]
        cdef Column *values = &entries.children[1]
        cdef const uint8_t *p = payload.data + 5   # behind the relation's OID
        cdef const Word *word = &self.walk.plan.kinds[kind]
        cdef size_t n = layout.n_columns
        cdef size_t n_bytes
        cdef int32_t start
        cdef int32_t *ends
        cdef Room room
        cdef size_t c
        # Of everything else there is room for all rows.
        if unlikely(
            not self.has_room
            or payload.length > self.most_bytes
            or payload.length < SHORTEST
            or self.new.postponed
            or self.op.valid.size
            or not has_room(values, payload.length + n * MOST_WRITTEN)
        ):
            return False
        if streamed:
            if unlikely(be32(payload.data + 1) < self.walk.plan.messages[kind].prefix.minimum):
                return False
            p += 4
        if p[0] != c"N" or (payload.data[0] != c"I" and payload.data[0] != c"U"):
            return False
        room.base = values.data.data
        room.to = values.data.data + values.data.size
        room.ends = <int32_t *>(values.ends.data + values.ends.size)
        room.n_null = 0
        room.validity = NULL
        if values.valid.size:
            if unlikely(not has_capacity(&values.valid, n)):
                return False
            room.validity = values.valid.data + values.n
            memset(room.validity, 1, n)
        if unlikely(self.new.valid.size and not has_capacity(&self.new.valid, 1)):
            return False
        if unlikely(not put_cells(&room, p + 1, payload.data + payload.length, layout)):
            return False
        n_bytes = <size_t>(room.to - room.base) - values.data.size + layout.names_size + ENTRY_BYTES * n
        if not self.never_expands and self.text() + n_bytes > self.most_text:
            return False
        # All is well.
        values.data.size = <size_t>(room.to - room.base)
        values.ends.size += n * sizeof(int32_t)
        values.n += n
        values.n_null += room.n_null
        if room.validity != NULL:
            values.valid.size = values.n
        start = <int32_t>names.data.size
        copy_blocks(names.data.data + names.data.size, layout.names, layout.names_size)
        ends = <int32_t *>(names.ends.data + names.ends.size)
        for c in range(n):
            ends[c] = start + <int32_t>layout.name_ends[c]
        names.data.size += layout.names_size
        names.ends.size += n * sizeof(int32_t)
        names.n = entries.n = values.n
        (<int32_t *>(self.new.ends.data + self.new.ends.size))[0] = <int32_t>values.n
        self.new.ends.size += sizeof(int32_t)
        if self.new.valid.size:
            self.new.valid.data[self.new.n] = 1
            self.new.valid.size = self.new.n + 1
        self.new.n += 1
        memcpy(self.op.data.data + self.op.data.size, word.text, WORD_BYTES)
        self.op.data.size += word.length
        (<int32_t *>(self.op.ends.data + self.op.ends.size))[0] = <int32_t>self.op.data.size
        self.op.ends.size += sizeof(int32_t)
        self.op.n += 1
        self.old_type.postponed += 1
        self.old.postponed += 1
        self.n_unnamed += 1
        return True

    cdef inline bint index_row(
        self, const Layout *layout, const Span *payload, int kind, bint streamed, bint *has_unchanged
    ) noexcept nogil:
        """Index the cells of an insert, update or delete; False where something is unusual or wrong, for the walk."""
        cdef const uint8_t *p = payload.data + 5   # behind the relation's OID
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
            return index_cells(p + 1, end, layout, self.new_cells, has_unchanged) == end
        if unlikely(tag != c"U" and tag != c"D"):
            return False
        if p[0] == c"K" or p[0] == c"O":
            self.walk.old_type = p[0]
            p = index_cells(p + 1, end, layout, self.old_cells, &has_unsent)
            if p == NULL or tag == c"D" or p == end:
                return p == end and tag == c"D"
        if unlikely(p[0] != c"N" or tag == c"D"):
            return False
        return index_cells(p + 1, end, layout, self.new_cells, has_unchanged) == end

    cdef inline FaultCode put_op(self, int kind) noexcept nogil:
        cdef const Word *word = &self.walk.plan.kinds[kind]
        if unlikely(not has_capacity(&self.op.data, WORD_BYTES)):
            return put_bytes(&self.op, <const uint8_t *>word.text, word.length)
        memcpy(self.op.data.data + self.op.data.size, word.text, WORD_BYTES)
        self.op.data.size += word.length
        return end_bytes(&self.op)

    cdef FaultCode put_nothing(self, uint8_t tag) noexcept nogil:
        """A row of which only the kind can be said, or not even that."""
        cdef FaultCode code
        code = self.put_op(self.walk.plan.by_tag[tag]) if tag in (c"I", c"U", c"D") else put_null(&self.op)
        return code if code != OK else self.put_empty(False)

    cdef FaultCode put_empty(self, bint is_good) noexcept nogil:
        """A row without tuples."""
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
            code = settle(&self.old_type)
            if code == OK:
                code = put_bytes(&self.old_type, &old_type, 1)
            if code == OK:
                code = settle(&self.old)
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
            code = settle(&self.new)
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
        cdef size_t start
        cdef uint8_t *name_to
        cdef uint8_t *written
        cdef int32_t *name_ends
        cdef FaultCode code = self.ensure_capacity(values, layout, payload)
        cdef Tuple at
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
            # u was not sent; nor was n in another column than the key's, where only the key was.
            if cell.kind == c"u" or (is_key and cell.kind == c"n" and not layout.is_key[c]):
                continue
            start = layout.name_ends[c - 1] if c else 0
            copy_blocks(name_to, layout.names + start, layout.name_ends[c] - start)
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
        # Entries are structs that are never null: they are as many as their values.
        entries.n = values.n
        if unlikely(self.text() > self.most_text):
            # Names, or plain text, have done it: no one value is to blame.
            self.is_alone = False
            return FAULT_LIMIT_EXPANSION
        return end_list(out)

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
        """Room for the tuple as plain text, all of which is in the payload, and if possible for what writers write."""
        cdef size_t more = payload.length + layout.n_columns * <size_t>MOST_WRITTEN
        if unlikely(more > <size_t>MAX_DATA - values.data.size):
            more = payload.length
            if more > <size_t>MAX_DATA - values.data.size:
                return FAULT_LIMIT_BATCH
        if unlikely(reserve(&values.data, more) != OK or open_ends(values, layout.n_columns) != OK):
            return FAULT_NO_MEMORY
        return OK
