"""Pass 1: payloads to envelope columns, in one call without the GIL. Never looks inside a value."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from pgdecode._batch cimport walk_rows
from pgdecode._envelope cimport Envelope, Rules, Usual, Walk, open_nothing, rules_of
from pgdecode._fault cimport (
    FAULT_LIMIT_BATCH,
    FAULT_NO_MEMORY,
    FAULT_STATE_DESYNC,
    OK,
    STREAM_MET,
    Fault,
    FaultCode,
    Faults,
    error_of,
    keep_fault,
)
from pgdecode._memory cimport hand_over
from pgdecode._plan cimport N_ENVELOPE, N_MESSAGES, PLAN
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
    finish_words,
    free_columns,
    free_sink,
    free_tuple,
    free_words,
    open_words,
    put_text,
    undo_columns,
    undo_row,
    undo_tuple,
)
from pgdecode._source cimport Segment, Source
from pgdecode._streams cimport (
    CARRY_NONE,
    CARRY_PLAIN,
    CARRY_STREAMED,
    Carry,
    Window,
    judge_by_order,
    judge_each,
)
from pgdecode._walk cimport BASIS_ORDER, BASIS_SHIFT, STREAMED

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


cdef class Scan:
    """One pass over one batch: owns the sinks until they are handed to Python."""

    cdef Sink[N_ENVELOPE] sinks
    cdef TupleSink old, new
    cdef ColumnsSink columns
    cdef Envelope out       # the wanted sinks
    cdef Usual[N_MESSAGES + 1] usual
    cdef WordSink kinds
    cdef WordSink bases
    cdef Sink *errors
    cdef Rules rules
    cdef Faults faults
    cdef uint8_t *verdicts
    cdef Walk walk
    cdef Source source
    cdef bint permissive
    cdef bint kind_codes
    cdef Fault fault
    cdef Carry carry

    def __cinit__(
        self,
        Source source,
        object fields,
        object limits,
        bint strict_flags,
        bint permissive,
        bint kind_codes=False,
    ):
        """`kind_codes`: hand the kinds out as a byte a row, the index of the message, NO_WORD where there is none."""
        self.source = source
        self.kind_codes = kind_codes
        self.walk.plan = &PLAN.table
        self.walk.rules = &self.rules
        self.walk.out = &self.out
        self.out.usual = self.usual
        self.walk.fault = &self.fault
        self.permissive = permissive
        self.rules = rules_of(limits, strict_flags)
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
            self.out.kinds = self.kinds.indexes.data
        if "xid_basis" in fields:
            open_words(&self.bases, self.source.n_rows)
            self.out.bases = self.bases.indexes.data
        self.out.old_type = self.out.sinks[NAMES.index("old_type")]
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
        cdef const uint8_t[::1] explicit
        self.carry = CARRY_NONE if carry is None else CARRY_STREAMED if carry else CARRY_PLAIN
        if isinstance(in_stream, bool):
            self.walk.verdict = STREAMED if in_stream else 0
            return None
        if in_stream is None and not in_full and self.carry != CARRY_STREAMED:
            # Most data has no stream in it: no pass over it is spent on finding that out.
            self.walk.hopeful = True
            self.walk.verdict = BASIS_ORDER << BASIS_SHIFT
            return False
        self.verdicts = <uint8_t *>calloc(<size_t>self.source.n_rows + 1, 1)
        if self.verdicts == NULL:
            raise MemoryError()
        self.walk.verdicts = self.verdicts
        if in_stream is None or isinstance(in_stream, str):
            self.judge_rows(in_stream is None)
        else:
            if len(in_stream) != self.source.n_rows:
                raise ValueError(f"in_stream has {len(in_stream)} values for {self.source.n_rows} payloads")
            if not self.source.n_rows:
                return None
            explicit = in_stream
            memcpy(self.verdicts, &explicit[0], <size_t>self.source.n_rows)
        return None if self.carry == CARRY_NONE else self.carry == CARRY_STREAMED

    cdef int judge_rows(self, bint by_order) except -1:
        cdef Envelope nothing
        cdef Walk walk = self.walk
        cdef Window window
        cdef FaultCode code
        open_nothing(&nothing)
        walk.out = &nothing
        window.segments = self.source.segments
        window.n_segments = self.source.n_segments
        window.plan = walk.plan
        window.walk = &walk
        window.verdicts = self.verdicts
        with nogil:
            code = judge_by_order(&window, &self.carry) if by_order else judge_each(&window)
        if code != OK:
            raise MemoryError()
        return 0

    def run(self):
        """Decode all rows; returns {column name: tuple of buffers}, columns that no row fills left out.

        None where the hope that no stream is in the batch was in vain: judge in full, then.
        """
        cdef FaultCode code
        with nogil:
            code = self.scan()
        if self.walk.hopeful and self.is_doubted(code):
            return None
        if code != OK:
            raise error_of(&self.fault, PLAN.labels, True)
        self.write_errors()
        found = {}
        for i, name in enumerate(NAMES):
            parts = finish_sink(&self.sinks[i])
            if parts is not None:
                found[name] = parts
        for name, parts in (("old", finish_tuple(&self.old)), ("new", finish_tuple(&self.new))):
            if parts is not None:
                found[name] = parts
        if self.kind_codes:
            self.kinds.indexes.size = <size_t>self.kinds.n_rows
            found["kind"] = (None, hand_over(&self.kinds.indexes))
        words = (
            ("columns", finish_columns(&self.columns)),
            ("kind", None if self.kind_codes else finish_words(&self.kinds, PLAN.table.kinds, N_MESSAGES)),
            ("xid_basis", finish_words(&self.bases, PLAN.table.bases, 8)),
        )
        found.update((name, parts) for name, parts in words if parts is not None)
        return found

    cdef bint is_doubted(self, FaultCode code) noexcept nogil:
        """Whether rows may be other than plain: no delimiter tells, or a fault may change what the others are."""
        cdef size_t i
        if code != OK:
            return code < FAULT_LIMIT_BATCH or code == STREAM_MET
        if self.carry == CARRY_NONE and not self.walk.has_delimiter:
            return True
        for i in range(self.faults.n):
            if self.faults.items[i].code == FAULT_STATE_DESYNC:
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
        """All rows; stops at a fault that is not to be kept for the `error` column."""
        cdef Py_ssize_t i
        cdef int64_t next
        cdef FaultCode code
        cdef const Segment *segment
        for i in range(self.source.n_segments):
            segment = &self.source.segments[i]
            next = 0
            while next < segment.n_rows:
                code = walk_rows(&self.walk, segment, &next)
                # The last few codes are not about one payload, and end the batch in every mode.
                if code != OK and (code >= FAULT_LIMIT_BATCH or not self.permissive):
                    return code
                if code != OK:
                    self.undo(self.walk.row)
                    if keep_fault(&self.faults, &self.fault) != OK:
                        return FAULT_NO_MEMORY
                    next += 1
            self.walk.first_row += segment.n_rows
        return OK

    cdef void undo(self, int64_t row) noexcept nogil:
        """Make the row null again in every column."""
        cdef int i
        for i in range(N_ENVELOPE):
            undo_row(&self.sinks[i], row, sizeof(int64_t) if self.sinks[i].type == SINK_LIST else 1)
        undo_tuple(&self.old, row)
        undo_tuple(&self.new, row)
        undo_columns(&self.columns, row)
