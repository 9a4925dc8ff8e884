"""Rows of a batch that one thread decodes: the sinks they fill, and the walk that fills them.

One thread decodes a whole, from its first row to its last. Several have a part each, which takes some rows, is joined
to the whole when those before are, and takes others. What a row's number gives a place the parts write into the
whole's memory: so their rows start at multiples of 64, and no two write to the same byte of a bitmap. To the part in
front, whose rows are next, the whole lends the rest of its memory too, so that nothing of it is to be moved.
"""

from cpython.pythread cimport WAIT_LOCK, PyThread_acquire_lock, PyThread_release_lock
from libc.stddef cimport size_t
from libc.stdlib cimport free
from libc.string cimport memset

from pgdecode._batch cimport walk_rows
from pgdecode._envelope cimport keep_zeroed
from pgdecode._fault cimport FAULT_LIMIT_BATCH, FAULT_NO_MEMORY, OK, keep_fault
from pgdecode._join cimport close_offsets, join_columns, join_sink, join_tuple, join_words
from pgdecode._memory cimport exchange
from pgdecode._plan cimport PLAN
from pgdecode._sink cimport (
    NO_WORD,
    SINK_LIST,
    columns_in,
    free_columns,
    free_sink,
    free_tuple,
    free_words,
    is_open,
    items_in,
    mark_cells,
    share,
    undo_columns,
    undo_row,
    undo_tuple,
    write_words,
)


cdef void divide(Part *part, const Part *whole, Opening *opening, Arena *arena) noexcept nogil:
    """Make a part of a whole, which collects the same columns; `part` is all zero."""
    cdef int i
    part.is_front = arena == NULL
    part.permissive = whole.permissive
    part.kind_codes = whole.kind_codes
    # Not all of the whole's walk: what it has met is written meanwhile, where another part is joined.
    part.walk.plan = whole.walk.plan
    part.walk.rules = whole.walk.rules
    part.walk.verdicts = whole.walk.verdicts
    part.walk.verdict = whole.walk.verdict
    part.walk.hopeful = whole.walk.hopeful
    part.walk.out = &part.out
    part.walk.fault = &part.fault
    part.out.usual = part.usual
    for i in range(N_ENVELOPE):
        divide_sink(&part.sinks[i], &whole.sinks[i], opening)
        if whole.out.sinks[i] != NULL:
            part.out.sinks[i] = &part.sinks[i]
        if whole.out.old_type == &whole.sinks[i]:
            part.out.old_type = &part.sinks[i]
    divide_sink(&part.old.rows, &whole.old.rows, opening)
    divide_sink(&part.new.rows, &whole.new.rows, opening)
    divide_sink(&part.columns.rows, &whole.columns.rows, opening)
    part.old.wants_values = whole.old.wants_values
    part.new.wants_values = whole.new.wants_values
    part.out.old = &part.old if whole.out.old != NULL else NULL
    part.out.new = &part.new if whole.out.new != NULL else NULL
    part.out.columns = &part.columns if whole.out.columns != NULL else NULL
    divide_words(&part.kinds, &whole.kinds)
    divide_words(&part.bases, &whole.bases)
    own_memory(part, arena)
    part.out.kinds = part.kinds.indexes.data
    part.out.bases = part.bases.indexes.data
    part.out.relations = whole.out.relations


cdef void divide_sink(Sink *part, const Sink *whole, Opening *opening) noexcept nogil:
    part.type = whole.type
    part.whole = <Sink *>whole
    part.opening = opening


cdef void divide_words(WordSink *part, const WordSink *whole) noexcept nogil:
    part.whole = <WordSink *>whole
    part.indexes.data = whole.indexes.data
    part.bits.data = whole.bits.data
    part.ends.data = whole.ends.data


cdef void own_memory(Part *part, Arena *arena) noexcept nogil:
    """What a part appends is copied to the whole, and never handed over."""
    cdef int i
    for i in range(N_ENVELOPE):
        part.sinks[i].data.arena = arena
    part.old.letters.arena = part.old.ends.arena = part.old.values.arena = arena
    part.new.letters.arena = part.new.ends.arena = part.new.values.arena = arena
    part.columns.flags.arena = part.columns.name_ends.arena = part.columns.names.arena = arena
    part.columns.type_ids.arena = part.columns.type_modifiers.arena = arena
    part.kinds.text.arena = part.bases.text.arena = arena


cdef void lend(Part *whole, Part *front) noexcept nogil:
    """Let what the part in front appends be the whole's; or, once it is there, take that back."""
    cdef int i
    for i in range(N_ENVELOPE):
        exchange(&whole.sinks[i].data, &front.sinks[i].data)
    lend_tuple(&whole.old, &front.old)
    lend_tuple(&whole.new, &front.new)
    exchange(&whole.columns.flags, &front.columns.flags)
    exchange(&whole.columns.name_ends, &front.columns.name_ends)
    exchange(&whole.columns.names, &front.columns.names)
    exchange(&whole.columns.type_ids, &front.columns.type_ids)
    exchange(&whole.columns.type_modifiers, &front.columns.type_modifiers)
    exchange(&whole.kinds.text, &front.kinds.text)
    exchange(&whole.bases.text, &front.bases.text)


cdef void lend_tuple(TupleSink *whole, TupleSink *front) noexcept nogil:
    exchange(&whole.letters, &front.letters)
    exchange(&whole.ends, &front.ends)
    exchange(&whole.values, &front.values)


# -- rows ------------------------------------------------------------------------------------------------------------

cdef void begin_rows(Part *part, int64_t first, int64_t stop) noexcept nogil:
    """Let the part's sinks be empty, for rows from `first` up to `stop`."""
    cdef int i
    if first < part.walk.first_row:
        part.walk.first_row = part.segment = 0
    for i in range(N_ENVELOPE):
        begin_sink(&part.sinks[i], first, stop)
    begin_tuple(&part.old, first, stop)
    begin_tuple(&part.new, first, stop)
    begin_sink(&part.columns.rows, first, stop)
    part.columns.flags.size = part.columns.name_ends.size = part.columns.names.size = 0
    part.columns.type_ids.size = part.columns.type_modifiers.size = 0
    begin_words(&part.kinds, first, stop)
    begin_words(&part.bases, first, stop)
    part.out.n_zeroed = first


cdef void begin_sink(Sink *sink, int64_t first, int64_t stop) noexcept nogil:
    sink.first_row = sink.next_row = first
    sink.n_rows = stop
    sink.data.size = 0


cdef void begin_tuple(TupleSink *sink, int64_t first, int64_t stop) noexcept nogil:
    begin_sink(&sink.rows, first, stop)
    sink.letters.size = sink.ends.size = sink.values.size = sink.n_marked = 0


cdef void begin_words(WordSink *sink, int64_t first, int64_t stop) noexcept nogil:
    sink.first_row = first
    sink.n_rows = stop
    sink.text.size = 0
    if sink.indexes.data != NULL:
        memset(sink.indexes.data + first, NO_WORD, <size_t>(stop - first))


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
        undo_row(&part.sinks[i], row, sizeof(int64_t) if part.sinks[i].type == SINK_LIST else 1)
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
    # Those of a part are marked where they are joined.
    if part.new.rows.whole == NULL and code == OK:
        code = mark_tuples(part)
    return code


cdef FaultCode mark_tuples(Part *part) noexcept nogil:
    cdef FaultCode code = mark_cells(&part.old)
    return code if code != OK else mark_cells(&part.new)


# -- joining ---------------------------------------------------------------------------------------------------------

cdef FaultCode join_rows(Part *whole, Part *part) noexcept nogil:
    """Add a part's rows to the whole, to which all rows before them have been added."""
    cdef FaultCode code
    cdef size_t k
    share_all(part)
    code = close_front(whole, part) if part.is_front else append_all(whole, part)
    if code == OK:
        code = mark_tuples(whole)
    for k in range(part.faults.n):
        if code == OK:
            code = keep_fault(&whole.faults, &part.faults.items[k])
    part.faults.n = 0
    whole.walk.has_delimiter |= part.walk.has_delimiter
    return code


cdef FaultCode append_all(Part *whole, Part *part) noexcept nogil:
    """Move what a part has appended behind what the whole has."""
    cdef FaultCode code = OK
    cdef int i
    for i in range(N_ENVELOPE):
        if code == OK:
            code = join_sink(&part.sinks[i])
    if code == OK:
        code = join_tuple(&whole.old, &part.old)
    if code == OK:
        code = join_tuple(&whole.new, &part.new)
    if code == OK:
        code = join_columns(&whole.columns, &part.columns)
    if code == OK:
        code = join_words(&part.kinds)
    if code == OK:
        code = join_words(&part.bases)
    return code


cdef FaultCode close_front(Part *whole, Part *front) noexcept nogil:
    """Take back what was lent; the offsets of the last rows are to be written yet."""
    cdef int i
    lend(whole, front)
    for i in range(N_ENVELOPE):
        close_offsets(&front.sinks[i], items_in(&whole.sinks[i]))
    close_offsets(&front.old.rows, whole.old.letters.size)
    close_offsets(&front.new.rows, whole.new.letters.size)
    close_offsets(&front.columns.rows, columns_in(&whole.columns))
    return OK


cdef void share_all(Part *part) noexcept nogil:
    """Fill the columns that other parts have opened with nulls, where this one has not; whoever opens another from now
    on does that for these rows too."""
    cdef Opening *opening = part.new.rows.opening
    cdef int i
    PyThread_acquire_lock(opening.lock, WAIT_LOCK)
    opening.n_joined = part.new.rows.n_rows
    for i in range(N_ENVELOPE):
        if part.out.sinks[i] != NULL and not is_open(&part.sinks[i]) and is_open(part.sinks[i].whole):
            share(&part.sinks[i])
            if part.sinks[i].values.data != NULL:
                keep_zeroed(&part.out, &part.sinks[i])
    share_rows(&part.old.rows)
    share_rows(&part.new.rows)
    share_rows(&part.columns.rows)
    PyThread_release_lock(opening.lock)


cdef void share_rows(Sink *rows) noexcept nogil:
    if not is_open(rows) and is_open(rows.whole):
        share(rows)


cdef void free_part(Part *part) noexcept:
    cdef int i
    for i in range(N_ENVELOPE):
        free_sink(&part.sinks[i])
    free_tuple(&part.old)
    free_tuple(&part.new)
    free_columns(&part.columns)
    free_words(&part.kinds)
    free_words(&part.bases)
    free(part.faults.items)
