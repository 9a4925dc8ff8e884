"""Rows of a batch that one thread decodes: the builders that they fill, and the walk that fills these.

A single thread decodes the output itself, from its first row to its last. Several threads decode parts: each part takes
some rows, is appended to the output after the rows before, and then takes other rows. Columns with one value per row
are written straight into the output. So the rows of a part start at a multiple of 64, and no two parts write to the
same byte of a bitmap.
"""

from cpython.pythread cimport WAIT_LOCK, PyThread_acquire_lock, PyThread_release_lock
from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t
from libc.stdlib cimport free
from libc.string cimport memset

from pgdecode._native.arrow.builder cimport (
    NO_KEYWORD,
    BUILDER_LIST,
    BUILDER_TEXT,
    free_columns,
    free_builder,
    free_tuple,
    free_keywords,
    is_open,
    mark_cells,
    share,
    undo_columns,
    undo_row,
    undo_tuple,
    write_keywords,
)
from pgdecode._native.fault cimport FAULT_LIMIT_BATCH, FAULT_NO_MEMORY, OK, keep_fault
from pgdecode._native.memory.buffers cimport Bytes
from pgdecode._native.scan.fast_path cimport walk_rows
from pgdecode._native.threads.merge cimport (
    fits, fits_bits, copy_of, move_starts, place, place_bits, place_starts, write, write_bits, write_starts,
)
from pgdecode._native.wire.envelope_builder cimport keep_zeroed
from pgdecode._native.wire.wire_plan cimport N_MESSAGES, PLAN


cdef void divide(Part *part, Part *output, OpenLock *open_lock, Arena *arena) noexcept nogil:
    """Prepare a part of an output, with the same columns. `part` is zero at first."""
    cdef int i
    part.permissive = output.permissive
    part.kind_codes = output.kind_codes
    # Not a copy of the output's walk: its counters change when another part is placed.
    part.walk.plan = output.walk.plan
    part.walk.rules = output.walk.rules
    part.walk.stream_flags = output.walk.stream_flags
    part.walk.stream_flag = output.walk.stream_flag
    part.walk.assume_unstreamed = output.walk.assume_unstreamed
    part.walk.empty_is_null = output.walk.empty_is_null
    part.walk.out = &part.out
    part.walk.fault = &part.fault
    part.out.fast = part.fast
    for i in range(N_ENVELOPE):
        divide_builder(&part.builders[i], &output.builders[i], open_lock)
        if output.out.builders[i] != NULL:
            part.out.builders[i] = &part.builders[i]
        if output.out.old_type == &output.builders[i]:
            part.out.old_type = &part.builders[i]
    divide_builder(&part.old.rows, &output.old.rows, open_lock)
    divide_builder(&part.new.rows, &output.new.rows, open_lock)
    divide_builder(&part.columns.rows, &output.columns.rows, open_lock)
    part.old.wants_values = output.old.wants_values
    part.new.wants_values = output.new.wants_values
    part.out.old = &part.old if output.out.old != NULL else NULL
    part.out.new = &part.new if output.out.new != NULL else NULL
    part.out.columns = &part.columns if output.out.columns != NULL else NULL
    divide_keywords(&part.kinds, &output.kinds)
    divide_keywords(&part.bases, &output.bases)
    own_memory(part, arena)
    list_copies(part, output)
    part.out.kinds = part.kinds.indexes.data
    part.out.bases = part.bases.indexes.data
    part.out.relations = output.out.relations


cdef void divide_builder(Builder *part, const Builder *output, OpenLock *open_lock) noexcept nogil:
    part.type = output.type
    part.output = <Builder *>output
    part.open_lock = open_lock


cdef void divide_keywords(KeywordBuilder *part, const KeywordBuilder *output) noexcept nogil:
    part.output = <KeywordBuilder *>output
    part.indexes.data = output.indexes.data
    part.bits.data = output.bits.data
    part.ends.data = output.ends.data


cdef void own_memory(Part *part, Arena *arena) noexcept nogil:
    """The appended data of a part is copied to the output, and never handed over."""
    cdef int i
    for i in range(N_ENVELOPE):
        part.builders[i].data.arena = arena
    part.old.letters.arena = part.old.ends.arena = part.old.values.arena = arena
    part.new.letters.arena = part.new.ends.arena = part.new.values.arena = arena
    part.columns.flags.arena = part.columns.name_ends.arena = part.columns.names.arena = arena
    part.columns.type_ids.arena = part.columns.type_modifiers.arena = arena
    part.kinds.text.arena = part.bases.text.arena = arena


cdef Copy *add_copy(Part *part, const Bytes *bytes, Bytes *output, size_t width, const Copy *ended=NULL) noexcept nogil:
    cdef Copy *copy = &part.copies[part.n_copies]
    copy[0] = copy_of(bytes, output, width, ended)
    part.n_copies += 1
    return copy


cdef void list_copies(Part *part, Part *output) noexcept nogil:
    """List all data that a part may append."""
    cdef Builder *builder
    cdef size_t width
    cdef int i
    for i in range(N_ENVELOPE):
        builder = &part.builders[i]
        if part.out.builders[i] != NULL and (builder.type == BUILDER_TEXT or builder.type == BUILDER_LIST):
            width = sizeof(int64_t) if builder.type == BUILDER_LIST else 1
            part.items[i] = add_copy(part, &builder.data, &builder.output.data, width)
    part.items_of_old = list_tuple(part, &part.old, &output.old)
    part.items_of_new = list_tuple(part, &part.new, &output.new)
    part.items_of_columns = list_columns(part, &part.columns, &output.columns)
    part.kind_letters = add_copy(part, &part.kinds.text, &output.kinds.text, 1)
    part.basis_letters = add_copy(part, &part.bases.text, &output.bases.text, 1)


cdef Copy *list_tuple(Part *part, TupleBuilder *builder, TupleBuilder *output) noexcept nogil:
    """The data that the columns of a tuple append. The first are the items of the rows."""
    cdef Copy *letters = add_copy(part, &builder.letters, &output.letters, 1)
    cdef Copy *values = add_copy(part, &builder.values, &output.values, 1)
    add_copy(part, &builder.ends, &output.ends, sizeof(int32_t), values)
    return letters


cdef Copy *list_columns(Part *part, ColumnsBuilder *builder, ColumnsBuilder *output) noexcept nogil:
    cdef Copy *flags = add_copy(part, &builder.flags, &output.flags, sizeof(int16_t))
    cdef Copy *names = add_copy(part, &builder.names, &output.names, 1)
    add_copy(part, &builder.name_ends, &output.name_ends, sizeof(int32_t), names)
    add_copy(part, &builder.type_ids, &output.type_ids, sizeof(int64_t))
    add_copy(part, &builder.type_modifiers, &output.type_modifiers, sizeof(int32_t))
    return flags


# -- rows ------------------------------------------------------------------------------------------------------------

cdef void begin_rows(Part *part, int64_t first, int64_t stop) noexcept nogil:
    """Empty the part's builders, for rows from `first` up to `stop`."""
    cdef int i
    if first < part.walk.first_row:
        part.walk.first_row = part.segment = 0
    for i in range(N_ENVELOPE):
        begin_builder(&part.builders[i], first, stop)
    begin_tuple(&part.old, first, stop)
    begin_tuple(&part.new, first, stop)
    begin_builder(&part.columns.rows, first, stop)
    part.columns.flags.size = part.columns.name_ends.size = part.columns.names.size = 0
    part.columns.type_ids.size = part.columns.type_modifiers.size = 0
    begin_keywords(&part.kinds, first, stop)
    begin_keywords(&part.bases, first, stop)
    part.out.n_zeroed = first


cdef void begin_builder(Builder *builder, int64_t first, int64_t stop) noexcept nogil:
    builder.first_row = builder.next_row = first
    builder.n_rows = stop
    builder.data.size = 0


cdef void begin_tuple(TupleBuilder *builder, int64_t first, int64_t stop) noexcept nogil:
    begin_builder(&builder.rows, first, stop)
    builder.letters.size = builder.ends.size = builder.values.size = 0


cdef void begin_keywords(KeywordBuilder *builder, int64_t first, int64_t stop) noexcept nogil:
    builder.first_row = first
    builder.n_rows = stop
    builder.text.size = 0
    if builder.indexes.data != NULL:
        memset(builder.indexes.data + first, NO_KEYWORD, <size_t>(stop - first))


cdef FaultCode scan_rows(
    Part *part, const Segment *segments, Py_ssize_t n_segments, int64_t first, int64_t stop
) noexcept nogil:
    """Decode rows. Stops at a fault that is not kept for the `error` column."""
    cdef Walk *walk = &part.walk
    cdef const Segment *segment
    cdef FaultCode code
    cdef int64_t next, end
    while part.segment < n_segments:
        segment = &segments[part.segment]
        next = max(first - walk.first_row, 0)
        end = min(stop - walk.first_row, segment.n_rows)
        while next < end:
            code = walk_rows(walk, segment, &next, end)
            # The last few codes are not about one payload, and end the batch in every mode.
            if code != OK and (code >= FAULT_LIMIT_BATCH or not part.permissive):
                return code
            if code != OK:
                undo(part, walk.row)
                if keep_fault(&part.faults, &part.fault) != OK:
                    return FAULT_NO_MEMORY
                next += 1
        if walk.first_row + segment.n_rows > stop:
            break
        walk.first_row += segment.n_rows
        part.segment += 1
    return OK


cdef void undo(Part *part, int64_t row) noexcept nogil:
    """Make a row null again in all columns."""
    cdef int i
    for i in range(N_ENVELOPE):
        undo_row(&part.builders[i], row, sizeof(int64_t) if part.builders[i].type == BUILDER_LIST else 1)
    undo_tuple(&part.old, row)
    undo_tuple(&part.new, row)
    undo_columns(&part.columns, row)


cdef FaultCode finish_rows(Part *part) noexcept nogil:
    """Write the data that is complete only after all rows."""
    cdef FaultCode code = OK
    if part.kinds.indexes.data != NULL and not part.kind_codes:
        code = write_keywords(&part.kinds, PLAN.table.kinds, N_MESSAGES)
    if part.bases.indexes.data != NULL and code == OK:
        code = write_keywords(&part.bases, PLAN.table.bases, 8)
    # The bits of a part are written when it is placed.
    if part.new.rows.output == NULL:
        if code == OK:
            code = mark_cells(&part.old)
        if code == OK:
            code = mark_cells(&part.new)
    return code


# -- joining ---------------------------------------------------------------------------------------------------------

cdef bint fits_rows(const Part *output, const Part *part) noexcept nogil:
    """Whether the output has memory for the rows of a part."""
    cdef int i
    for i in range(part.n_copies):
        if not fits(&part.copies[i]):
            return False
    return fits_bits(&part.old, &output.old) and fits_bits(&part.new, &output.new)


cdef FaultCode place_rows(Part *output, Part *part) noexcept nogil:
    """Assign the rows of a part their position in the output, directly after the rows before."""
    cdef int64_t n_done = part.new.rows.n_rows
    cdef int64_t n_rows = output.new.rows.n_rows
    cdef FaultCode code = OK
    cdef size_t k
    cdef int i
    share_all(part)
    for i in range(part.n_copies):
        if code == OK:
            code = place(&part.copies[i], n_done, n_rows)
    if code == OK:
        code = place_bits(&part.old, &output.old, part.items_of_old, n_done, n_rows)
    if code == OK:
        code = place_bits(&part.new, &output.new, part.items_of_new, n_done, n_rows)
    for i in range(N_ENVELOPE):
        place_starts(&part.builders[i])
    place_starts(&part.old.rows)
    place_starts(&part.new.rows)
    place_starts(&part.columns.rows)
    for k in range(part.faults.n):
        if code == OK:
            code = keep_fault(&output.faults, &part.faults.items[k])
    part.faults.n = 0
    output.walk.has_delimiter |= part.walk.has_delimiter
    output.walk.n_empty += part.walk.n_empty
    part.walk.n_empty = 0
    return code


cdef void write_rows(const Part *output, Part *part) noexcept nogil:
    """Copy the rows of a part to their position."""
    cdef int i
    for i in range(part.n_copies):
        write(&part.copies[i])
    write_bits(&part.old, &output.old, part.items_of_old)
    write_bits(&part.new, &output.new, part.items_of_new)
    for i in range(N_ENVELOPE):
        if part.items[i] != NULL:
            write_starts(&part.builders[i], part.items[i])
    write_starts(&part.old.rows, part.items_of_old)
    write_starts(&part.new.rows, part.items_of_new)
    write_starts(&part.columns.rows, part.items_of_columns)
    write_word_starts(&part.kinds, part.kind_letters)
    write_word_starts(&part.bases, part.basis_letters)


cdef void write_word_starts(const KeywordBuilder *part, const Copy *letters) noexcept nogil:
    if part.ends.data != NULL:
        move_starts(<int32_t *>part.ends.data, part.first_row, part.n_rows, letters)


cdef void share_all(Part *part) noexcept nogil:
    """Fill columns that other parts have opened, but this part has not, with nulls.

    A part that opens a column later also fills these rows.
    """
    cdef OpenLock *open_lock = part.new.rows.open_lock
    cdef int i
    PyThread_acquire_lock(open_lock.lock, WAIT_LOCK)
    open_lock.n_placed = part.new.rows.n_rows
    for i in range(N_ENVELOPE):
        if part.out.builders[i] != NULL and not is_open(&part.builders[i]) and is_open(part.builders[i].output):
            share(&part.builders[i])
            if part.builders[i].values.data != NULL:
                keep_zeroed(&part.out, &part.builders[i])
    share_rows(&part.old.rows)
    share_rows(&part.new.rows)
    share_rows(&part.columns.rows)
    PyThread_release_lock(open_lock.lock)


cdef void share_rows(Builder *rows) noexcept nogil:
    if not is_open(rows) and is_open(rows.output):
        share(rows)


cdef void free_part(Part *part) noexcept:
    cdef int i
    for i in range(N_ENVELOPE):
        free_builder(&part.builders[i])
    free_tuple(&part.old)
    free_tuple(&part.new)
    free_columns(&part.columns)
    free_keywords(&part.kinds)
    free_keywords(&part.bases)
    free(part.faults.items)
