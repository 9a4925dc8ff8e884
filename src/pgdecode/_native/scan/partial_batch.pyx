"""Rows of a batch that one thread decodes: the builders they fill, and the walk that fills them.

One thread decodes a whole, from its first row to its last. Several have parts, each of which takes some rows, is put
behind what the whole has of those before, and takes others. What a row's number gives a place the parts write into the
whole's memory: so their rows start at multiples of 64, and no two write to the same byte of a bitmap.
"""

from cpython.pythread cimport WAIT_LOCK, PyThread_acquire_lock, PyThread_release_lock
from libc.stddef cimport size_t
from libc.stdint cimport int16_t, int32_t
from libc.stdlib cimport free
from libc.string cimport memset

from pgdecode._native.arrow.builder cimport (
    NO_WORD,
    BUILDER_LIST,
    BUILDER_TEXT,
    free_columns,
    free_builder,
    free_tuple,
    free_words,
    is_open,
    mark_cells,
    share,
    undo_columns,
    undo_row,
    undo_tuple,
    write_words,
)
from pgdecode._native.fault cimport FAULT_LIMIT_BATCH, FAULT_NO_MEMORY, OK, keep_fault
from pgdecode._native.memory.buffers cimport Bytes
from pgdecode._native.scan.fast_path cimport walk_rows
from pgdecode._native.threads.merge cimport (
    fits, fits_bits, move_of, move_starts, place, place_bits, place_starts, write, write_bits, write_starts,
)
from pgdecode._native.wire.envelope_builder cimport keep_zeroed
from pgdecode._native.wire.wire_plan cimport N_MESSAGES, PLAN


cdef void divide(Part *part, Part *whole, OpenLock *open_lock, Arena *arena) noexcept nogil:
    """Make a part of a whole, which collects the same columns; `part` is all zero."""
    cdef int i
    part.permissive = whole.permissive
    part.kind_codes = whole.kind_codes
    # Not all of the whole's walk: its counters change meanwhile, when another part is placed.
    part.walk.plan = whole.walk.plan
    part.walk.rules = whole.walk.rules
    part.walk.stream_flags = whole.walk.stream_flags
    part.walk.stream_flag = whole.walk.stream_flag
    part.walk.assume_unstreamed = whole.walk.assume_unstreamed
    part.walk.empty_is_null = whole.walk.empty_is_null
    part.walk.out = &part.out
    part.walk.fault = &part.fault
    part.out.fast = part.fast
    for i in range(N_ENVELOPE):
        divide_builder(&part.builders[i], &whole.builders[i], open_lock)
        if whole.out.builders[i] != NULL:
            part.out.builders[i] = &part.builders[i]
        if whole.out.old_type == &whole.builders[i]:
            part.out.old_type = &part.builders[i]
    divide_builder(&part.old.rows, &whole.old.rows, open_lock)
    divide_builder(&part.new.rows, &whole.new.rows, open_lock)
    divide_builder(&part.columns.rows, &whole.columns.rows, open_lock)
    part.old.wants_values = whole.old.wants_values
    part.new.wants_values = whole.new.wants_values
    part.out.old = &part.old if whole.out.old != NULL else NULL
    part.out.new = &part.new if whole.out.new != NULL else NULL
    part.out.columns = &part.columns if whole.out.columns != NULL else NULL
    divide_words(&part.kinds, &whole.kinds)
    divide_words(&part.bases, &whole.bases)
    own_memory(part, arena)
    list_moves(part, whole)
    part.out.kinds = part.kinds.indexes.data
    part.out.bases = part.bases.indexes.data
    part.out.relations = whole.out.relations


cdef void divide_builder(Builder *part, const Builder *whole, OpenLock *open_lock) noexcept nogil:
    part.type = whole.type
    part.whole = <Builder *>whole
    part.open_lock = open_lock


cdef void divide_words(WordBuilder *part, const WordBuilder *whole) noexcept nogil:
    part.whole = <WordBuilder *>whole
    part.indexes.data = whole.indexes.data
    part.bits.data = whole.bits.data
    part.ends.data = whole.ends.data


cdef void own_memory(Part *part, Arena *arena) noexcept nogil:
    """What a part appends is copied to the whole, and never handed over."""
    cdef int i
    for i in range(N_ENVELOPE):
        part.builders[i].data.arena = arena
    part.old.letters.arena = part.old.ends.arena = part.old.values.arena = arena
    part.new.letters.arena = part.new.ends.arena = part.new.values.arena = arena
    part.columns.flags.arena = part.columns.name_ends.arena = part.columns.names.arena = arena
    part.columns.type_ids.arena = part.columns.type_modifiers.arena = arena
    part.kinds.text.arena = part.bases.text.arena = arena


cdef Move *add_move(Part *part, const Bytes *bytes, Bytes *whole, size_t width, const Move *ended=NULL) noexcept nogil:
    cdef Move *move = &part.moves[part.n_moves]
    move[0] = move_of(bytes, whole, width, ended)
    part.n_moves += 1
    return move


cdef void list_moves(Part *part, Part *whole) noexcept nogil:
    """List all that a part may append."""
    cdef Builder *builder
    cdef size_t width
    cdef int i
    for i in range(N_ENVELOPE):
        builder = &part.builders[i]
        if part.out.builders[i] != NULL and (builder.type == BUILDER_TEXT or builder.type == BUILDER_LIST):
            width = sizeof(int64_t) if builder.type == BUILDER_LIST else 1
            part.items[i] = add_move(part, &builder.data, &builder.whole.data, width)
    part.items_of_old = list_tuple(part, &part.old, &whole.old)
    part.items_of_new = list_tuple(part, &part.new, &whole.new)
    part.items_of_columns = list_columns(part, &part.columns, &whole.columns)
    part.kind_letters = add_move(part, &part.kinds.text, &whole.kinds.text, 1)
    part.basis_letters = add_move(part, &part.bases.text, &whole.bases.text, 1)


cdef Move *list_tuple(Part *part, TupleBuilder *builder, TupleBuilder *whole) noexcept nogil:
    """What a tuple's columns append; the first are the items that rows have."""
    cdef Move *letters = add_move(part, &builder.letters, &whole.letters, 1)
    cdef Move *values = add_move(part, &builder.values, &whole.values, 1)
    add_move(part, &builder.ends, &whole.ends, sizeof(int32_t), values)
    return letters


cdef Move *list_columns(Part *part, ColumnsBuilder *builder, ColumnsBuilder *whole) noexcept nogil:
    cdef Move *flags = add_move(part, &builder.flags, &whole.flags, sizeof(int16_t))
    cdef Move *names = add_move(part, &builder.names, &whole.names, 1)
    add_move(part, &builder.name_ends, &whole.name_ends, sizeof(int32_t), names)
    add_move(part, &builder.type_ids, &whole.type_ids, sizeof(int64_t))
    add_move(part, &builder.type_modifiers, &whole.type_modifiers, sizeof(int32_t))
    return flags


# -- rows ------------------------------------------------------------------------------------------------------------

cdef void begin_rows(Part *part, int64_t first, int64_t stop) noexcept nogil:
    """Let the part's builders be empty, for rows from `first` up to `stop`."""
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
    begin_words(&part.kinds, first, stop)
    begin_words(&part.bases, first, stop)
    part.out.n_zeroed = first


cdef void begin_builder(Builder *builder, int64_t first, int64_t stop) noexcept nogil:
    builder.first_row = builder.next_row = first
    builder.n_rows = stop
    builder.data.size = 0


cdef void begin_tuple(TupleBuilder *builder, int64_t first, int64_t stop) noexcept nogil:
    begin_builder(&builder.rows, first, stop)
    builder.letters.size = builder.ends.size = builder.values.size = 0


cdef void begin_words(WordBuilder *builder, int64_t first, int64_t stop) noexcept nogil:
    builder.first_row = first
    builder.n_rows = stop
    builder.text.size = 0
    if builder.indexes.data != NULL:
        memset(builder.indexes.data + first, NO_WORD, <size_t>(stop - first))


cdef FaultCode scan_rows(
    Part *part, const Segment *segments, Py_ssize_t n_segments, int64_t first, int64_t stop
) noexcept nogil:
    """Decode rows; stops at a fault that is not to be kept for the `error` column."""
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
    """Make the row null again in every column."""
    cdef int i
    for i in range(N_ENVELOPE):
        undo_row(&part.builders[i], row, sizeof(int64_t) if part.builders[i].type == BUILDER_LIST else 1)
    undo_tuple(&part.old, row)
    undo_tuple(&part.new, row)
    undo_columns(&part.columns, row)


cdef FaultCode finish_rows(Part *part) noexcept nogil:
    """Write what is known only when all rows have been walked."""
    cdef FaultCode code = OK
    if part.kinds.indexes.data != NULL and not part.kind_codes:
        code = write_words(&part.kinds, PLAN.table.kinds, N_MESSAGES)
    if part.bases.indexes.data != NULL and code == OK:
        code = write_words(&part.bases, PLAN.table.bases, 8)
    # Those of a part are marked where they are put behind others.
    if part.new.rows.whole == NULL:
        if code == OK:
            code = mark_cells(&part.old)
        if code == OK:
            code = mark_cells(&part.new)
    return code


# -- joining ---------------------------------------------------------------------------------------------------------

cdef bint fits_rows(const Part *whole, const Part *part) noexcept nogil:
    """Whether the whole has room for a part's rows."""
    cdef int i
    for i in range(part.n_moves):
        if not fits(&part.moves[i]):
            return False
    return fits_bits(&part.old, &whole.old) and fits_bits(&part.new, &whole.new)


cdef FaultCode place_rows(Part *whole, Part *part) noexcept nogil:
    """Give a part's rows their place in the whole, where all rows before have theirs."""
    cdef int64_t n_done = part.new.rows.n_rows
    cdef int64_t n_rows = whole.new.rows.n_rows
    cdef FaultCode code = OK
    cdef size_t k
    cdef int i
    share_all(part)
    for i in range(part.n_moves):
        if code == OK:
            code = place(&part.moves[i], n_done, n_rows)
    if code == OK:
        code = place_bits(&part.old, &whole.old, part.items_of_old, n_done, n_rows)
    if code == OK:
        code = place_bits(&part.new, &whole.new, part.items_of_new, n_done, n_rows)
    for i in range(N_ENVELOPE):
        place_starts(&part.builders[i])
    place_starts(&part.old.rows)
    place_starts(&part.new.rows)
    place_starts(&part.columns.rows)
    for k in range(part.faults.n):
        if code == OK:
            code = keep_fault(&whole.faults, &part.faults.items[k])
    part.faults.n = 0
    whole.walk.has_delimiter |= part.walk.has_delimiter
    whole.walk.n_empty += part.walk.n_empty
    part.walk.n_empty = 0
    return code


cdef void write_rows(const Part *whole, Part *part) noexcept nogil:
    """Write a part's rows to their place."""
    cdef int i
    for i in range(part.n_moves):
        write(&part.moves[i])
    write_bits(&part.old, &whole.old, part.items_of_old)
    write_bits(&part.new, &whole.new, part.items_of_new)
    for i in range(N_ENVELOPE):
        if part.items[i] != NULL:
            write_starts(&part.builders[i], part.items[i])
    write_starts(&part.old.rows, part.items_of_old)
    write_starts(&part.new.rows, part.items_of_new)
    write_starts(&part.columns.rows, part.items_of_columns)
    write_word_starts(&part.kinds, part.kind_letters)
    write_word_starts(&part.bases, part.basis_letters)


cdef void write_word_starts(const WordBuilder *part, const Move *letters) noexcept nogil:
    if part.ends.data != NULL:
        move_starts(<int32_t *>part.ends.data, part.first_row, part.n_rows, letters)


cdef void share_all(Part *part) noexcept nogil:
    """Fill the columns that other parts have opened with nulls, where this one has not; a part that opens another from
    now on does that for these rows too."""
    cdef OpenLock *open_lock = part.new.rows.open_lock
    cdef int i
    PyThread_acquire_lock(open_lock.lock, WAIT_LOCK)
    open_lock.n_placed = part.new.rows.n_rows
    for i in range(N_ENVELOPE):
        if part.out.builders[i] != NULL and not is_open(&part.builders[i]) and is_open(part.builders[i].whole):
            share(&part.builders[i])
            if part.builders[i].values.data != NULL:
                keep_zeroed(&part.out, &part.builders[i])
    share_rows(&part.old.rows)
    share_rows(&part.new.rows)
    share_rows(&part.columns.rows)
    PyThread_release_lock(open_lock.lock)


cdef void share_rows(Builder *rows) noexcept nogil:
    if not is_open(rows) and is_open(rows.whole):
        share(rows)


cdef void free_part(Part *part) noexcept:
    cdef int i
    for i in range(N_ENVELOPE):
        free_builder(&part.builders[i])
    free_tuple(&part.old)
    free_tuple(&part.new)
    free_columns(&part.columns)
    free_words(&part.kinds)
    free_words(&part.bases)
    free(part.faults.items)
