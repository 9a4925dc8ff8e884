"""Pass 1: payloads to envelope columns, in one call without the GIL. Never looks inside a value."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

from pgdecode._fault cimport (
    FAULT_BAD_ARRAY,
    FAULT_EMPTY,
    FAULT_LIMIT_BATCH,
    FAULT_NO_MEMORY,
    FAULT_STATE_DESYNC,
    OK,
    Fault,
    FaultCode,
    error_of,
)
from pgdecode._plan cimport N_ENVELOPE, PLAN, TAG_DELIMITER, PlanTable
from pgdecode._sink cimport (
    SINK_BOOL,
    SINK_INT16,
    SINK_INT64,
    SINK_LIST,
    SINK_TEXT,
    ColumnsSink,
    Sink,
    SinkType,
    TupleSink,
    WordSink,
    finish_columns,
    finish_sink,
    finish_tuple,
    free_columns,
    free_sink,
    free_tuple,
    free_words,
    finish_words,
    open_words,
    put_text,
    undo_columns,
    undo_row,
    undo_tuple,
)
from pgdecode._source cimport ABSENT, CORRUPT, Presence, Segment, Source, Span, payload_at
from pgdecode._streams cimport (
    BASIS_SHIFT,
    CARRY_NONE,
    CARRY_PLAIN,
    CARRY_STREAMED,
    DOUBTFUL,
    STREAMED,
    Carry,
    Window,
    judge_by_order,
    judge_each,
    judge_plain,
)
from pgdecode._walk cimport Envelope, Rules, judge_fault, rules_of, walk_message

from pgdecode import messages

# Arrow type of an envelope column -> how it is collected; lists of values and columns have sinks of their own.
SINK_TYPES = {
    "bool": SINK_BOOL,
    "int16": SINK_INT16,
    "int64": SINK_INT64,
    "timestamp[us, UTC]": SINK_INT64,
    "string": SINK_TEXT,
    "binary": SINK_TEXT,
    "list<int64>": SINK_LIST,
}
NAMES = tuple(column.name for column in messages.ENVELOPE)

cdef struct Faults:
    Fault *items
    size_t n
    size_t capacity


cdef FaultCode keep_fault(Faults *faults, const Fault *fault) noexcept nogil:
    cdef Fault *items
    if faults.n == faults.capacity:
        faults.capacity = 64 if faults.capacity == 0 else 2 * faults.capacity
        items = <Fault *>realloc(faults.items, faults.capacity * sizeof(Fault))
        if items == NULL:
            return FAULT_NO_MEMORY
        faults.items = items
    faults.items[faults.n] = fault[0]
    faults.n += 1
    return OK


cdef class Scan:
    """One pass over one batch: owns the sinks until they are handed to Python."""

    cdef Sink[N_ENVELOPE] sinks
    cdef TupleSink old, new
    cdef ColumnsSink columns
    cdef Envelope out       # the wanted sinks
    cdef Envelope nothing   # no sink at all
    cdef WordSink kinds
    cdef WordSink bases
    cdef Sink *errors
    cdef Rules rules
    cdef Faults faults
    cdef uint8_t *verdicts
    cdef const PlanTable *plan
    cdef Source source
    cdef bint permissive
    cdef bint judged_by_tags
    cdef Fault stopped
    cdef Carry carry

    def __cinit__(self, Source source, object fields, object limits, bint strict_flags, bint permissive):
        self.source = source
        self.plan = &PLAN.table
        self.permissive = permissive
        self.rules = rules_of(limits, strict_flags)
        self.verdicts = <uint8_t *>calloc(<size_t>source.n_rows + 1, 1)
        if self.verdicts == NULL:
            raise MemoryError()
        self.open_sinks(frozenset(fields))

    def __dealloc__(self):
        cdef int i
        for i in range(N_ENVELOPE):
            free_sink(&self.sinks[i])
        free_tuple(&self.old)
        free_tuple(&self.new)
        free_columns(&self.columns)
        free_words(&self.kinds)
        free_words(&self.bases)
        free(self.faults.items)
        free(self.verdicts)

    cdef int open_sinks(self, frozenset fields) except -1:
        cdef int i
        for i, column in enumerate(messages.ENVELOPE):
            self.sinks[i].n_rows = self.source.n_rows
            if column.type in SINK_TYPES:
                self.sinks[i].type = <SinkType><int>SINK_TYPES[column.type]
                if column.name in fields:
                    self.out.sinks[i] = &self.sinks[i]
        for i, tuple_name in enumerate(("old", "new")):
            sink = &self.old if i == 0 else &self.new
            sink.rows.type = SINK_LIST
            sink.rows.n_rows = self.source.n_rows
            sink.wants_values = tuple_name in fields
            # The formats are collected by the tuple's sink, beside the values.
            self.out.sinks[NAMES.index(tuple_name + "_formats")] = NULL
            if sink.wants_values or tuple_name + "_formats" in fields:
                if i == 0:
                    self.out.old = sink
                else:
                    self.out.new = sink
        self.columns.rows.type = SINK_LIST
        self.columns.rows.n_rows = self.source.n_rows
        if "columns" in fields:
            self.out.columns = &self.columns
        # These three are filled here and not by the walk.
        if "kind" in fields:
            open_words(&self.kinds, self.source.n_rows)
        if "xid_basis" in fields:
            open_words(&self.bases, self.source.n_rows)
        self.errors = self.out.sinks[NAMES.index("error")]
        return 0

    def judge(self, object in_stream, object carry, bint in_full):
        """Decide which payloads carry an xid prefix; returns the stream state after the last row.

        Parameters
        ----------
        in_stream : None, "auto", bool or bytes-like of n_rows zeros and ones
        carry : None or bool
            With in_stream None: the state before the first row, where it is known.
        in_full : bool
            With in_stream None: look for contradictions too, as is needed when a payload is malformed.
        """
        cdef Window window
        cdef FaultCode code = OK
        cdef const uint8_t[::1] explicit
        cdef bint by_order = in_stream is None
        self.carry = CARRY_NONE if carry is None else CARRY_STREAMED if carry else CARRY_PLAIN
        if isinstance(in_stream, bool):
            memset(self.verdicts, STREAMED if in_stream else 0, <size_t>self.source.n_rows)
        elif by_order or isinstance(in_stream, str):
            window.segments = self.source.segments
            window.n_segments = self.source.n_segments
            window.plan = self.plan
            window.rules = &self.rules
            window.nothing = &self.nothing
            window.verdicts = self.verdicts
            with nogil:
                if by_order and not in_full:
                    self.judged_by_tags = judge_plain(&window, &self.carry)
                if not by_order:
                    code = judge_each(&window)
                elif not self.judged_by_tags:
                    code = judge_by_order(&window, &self.carry)
            if code != OK:
                raise MemoryError()
        elif self.source.n_rows:
            explicit = in_stream
            if explicit.shape[0] != self.source.n_rows:
                raise ValueError(f"in_stream has {explicit.shape[0]} values for {self.source.n_rows} payloads")
            memcpy(self.verdicts, &explicit[0], <size_t>self.source.n_rows)
        return None if self.carry == CARRY_NONE else self.carry == CARRY_STREAMED

    def run(self):
        """Decode all rows; returns {column name: tuple of buffers}, columns that no row fills left out.

        None where a malformed payload calls for another scan, judged in full.
        """
        cdef FaultCode code
        with nogil:
            code = self.scan()
        if self.judged_by_tags and self.is_doubted(code):
            return None
        if code != OK:
            raise error_of(&self.stopped, PLAN.labels, True)
        self.write_errors()
        found = {}
        for i, name in enumerate(NAMES):
            parts = finish_sink(&self.sinks[i])
            if parts is not None:
                found[name] = parts
        for name, parts in (("old", finish_tuple(&self.old)), ("new", finish_tuple(&self.new))):
            if parts is not None:
                found[name] = parts
        words = (
            ("columns", finish_columns(&self.columns)),
            ("kind", finish_words(&self.kinds, self.plan.kinds)),
            ("xid_basis", finish_words(&self.bases, self.plan.bases)),
        )
        found.update((name, parts) for name, parts in words if parts is not None)
        return found

    cdef bint is_doubted(self, FaultCode code) noexcept nogil:
        """Whether a fault met may change what the other rows are: a delimiter that is none, or a contradiction."""
        cdef size_t i
        if code != OK:
            return code < FAULT_LIMIT_BATCH
        for i in range(self.faults.n):
            if self.faults.items[i].code == FAULT_STATE_DESYNC:
                return True
            if self.faults.items[i].code != FAULT_EMPTY:
                if self.plan.tag_class[self.faults.items[i].tag] == TAG_DELIMITER:
                    return True
        return False

    cdef int write_errors(self) except -1:
        cdef size_t i
        cdef const uint8_t[::1] text
        if self.errors == NULL:
            return 0
        for i in range(self.faults.n):
            text = error_of(&self.faults.items[i], PLAN.labels, False).cell.encode()
            if put_text(self.errors, self.faults.items[i].row, &text[0], <size_t>text.shape[0]) != OK:
                raise MemoryError()
        return 0

    cdef FaultCode scan(self) noexcept nogil:
        cdef Py_ssize_t i
        cdef int64_t row, first = 0
        cdef FaultCode code
        cdef const Segment *segment
        for i in range(self.source.n_segments):
            segment = &self.source.segments[i]
            for row in range(segment.n_rows):
                code = self.scan_row(segment, row, first + row)
                if code != OK:
                    return code
            first += segment.n_rows
        return OK

    cdef inline FaultCode scan_row(self, const Segment *segment, int64_t index, int64_t row) noexcept nogil:
        """Decode one row; OK also where its fault was kept for the `error` column."""
        cdef Span payload
        cdef FaultCode code
        cdef Presence presence = payload_at(segment, index, &payload)
        cdef uint8_t verdict = self.verdicts[row]
        cdef uint8_t kind
        if presence == ABSENT:
            return OK
        if presence == CORRUPT:
            self.stopped.row = row
            self.stopped.code = FAULT_BAD_ARRAY
            return FAULT_BAD_ARRAY
        code = walk_message(
            self.plan, payload.data, payload.length, verdict & STREAMED, &self.rules, &self.out, row, &self.stopped
        )
        if (code != OK or verdict & DOUBTFUL) and code < FAULT_LIMIT_BATCH:
            code = judge_fault(
                self.plan, payload.data, payload.length, verdict & STREAMED, &self.rules, &self.nothing, code,
                &self.stopped,
            )
        if code == OK:
            # The columns that no field of a message fills: its kind, and how its xid prefix was decided.
            kind = self.plan.by_tag[payload.data[0]]
            if self.kinds.indexes != NULL:
                self.kinds.indexes[row] = kind
            if self.bases.indexes != NULL and self.plan.messages[kind].streamed:
                self.bases.indexes[row] = verdict >> BASIS_SHIFT
            return OK
        if code >= FAULT_LIMIT_BATCH or not self.permissive:
            # The last three are not about this payload, and end the batch in every mode.
            self.stopped.code = code
            return code
        self.undo(row)
        code = keep_fault(&self.faults, &self.stopped)
        if code != OK:
            self.stopped.code = code
        return code

    cdef void undo(self, int64_t row) noexcept nogil:
        """Make the row null again in every column."""
        cdef int i
        for i in range(N_ENVELOPE):
            undo_row(&self.sinks[i], row, sizeof(int64_t) if self.sinks[i].type == SINK_LIST else 1)
        undo_tuple(&self.old, row)
        undo_tuple(&self.new, row)
        undo_columns(&self.columns, row)
