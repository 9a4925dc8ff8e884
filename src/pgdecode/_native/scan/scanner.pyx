"""Pass 1: payloads to envelope columns, in one call without the GIL. Never looks inside a value."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from pgdecode._native.arrow.builder cimport (
    BUILDER_BOOL,
    BUILDER_INT16,
    BUILDER_INT64,
    BUILDER_LIST,
    BUILDER_TEXT,
    Builder,
    BuilderType,
    TupleBuilder,
    finish_columns,
    finish_builder,
    finish_tuple,
    finish_words,
    open_words,
    put_text,
)
from pgdecode._native.arrow.payload_array cimport Source
from pgdecode._native.fault cimport FAULT_LIMIT_BATCH, FAULT_STATE_DESYNC, OK, STREAM_SEEN, Fault, FaultCode, error_of
from pgdecode._native.memory.buffers cimport Bytes, free_bytes, hand_over, open_zeroed
from pgdecode._native.scan.parallel_scan cimport resolve_divided, scan_divided
from pgdecode._native.scan.partial_batch cimport Part, begin_rows, finish_rows, free_part, scan_rows
from pgdecode._native.wire.envelope_builder cimport Envelope, Rules, Walk, open_check, rules_of
from pgdecode._native.wire.stream_state cimport (
    CARRY_NONE, CARRY_PLAIN, CARRY_STREAMED, Carry, Window, resolve_by_order, resolve_each, resolve_segments,
)
from pgdecode._native.wire.walker cimport BASIS_ORDER, BASIS_SHIFT, STREAMED
from pgdecode._native.wire.wire_plan cimport PLAN

from pgdecode.protocol import errors, messages

# Arrow type of an envelope column -> how it is collected; lists of values and columns have builders of their own.
BUILDER_TYPES = {
    "bool": BUILDER_BOOL,
    "int16": BUILDER_INT16,
    "int64": BUILDER_INT64,
    "timestamp[us, UTC]": BUILDER_INT64,
    "string": BUILDER_TEXT,
    "binary": BUILDER_TEXT,
    "list<int64>": BUILDER_LIST,
}
NAMES = tuple(column.name for column in messages.ENVELOPE)
# How each is collected, -1 for what has no builder of its own: looked up once, since small batches are many.
COLLECTED = tuple((column.name, BUILDER_TYPES.get(column.type, -1)) for column in messages.ENVELOPE)


cdef class Scan:
    """One pass over one batch: owns the builders until they are handed to Python."""

    cdef Part whole
    cdef Builder *errors
    cdef Rules rules
    cdef uint8_t *stream_flags
    cdef Bytes relations
    cdef Source source
    cdef Carry carry

    def __cinit__(
        self,
        Source source,
        object fields,
        object limits,
        bint strict_flags,
        bint permissive,
        bint kind_codes=False,
        bint empty_is_null=True,
    ):
        """Begin a pass.

        `kind_codes`: hand the kinds out as a byte a row, the index of the message, NO_WORD where there is none.
        `empty_is_null`: a payload of no bytes is a null row, counted by `n_empty`; else it is a fault.
        """
        self.source = source
        self.whole.kind_codes = kind_codes
        self.whole.permissive = permissive
        self.whole.walk.empty_is_null = empty_is_null
        self.whole.walk.plan = &PLAN.table
        self.whole.walk.rules = &self.rules
        self.whole.walk.out = &self.whole.out
        self.whole.walk.fault = &self.whole.fault
        self.whole.out.fast = self.whole.fast
        self.rules = rules_of(limits, strict_flags)
        self.open_builders(frozenset(fields))

    def __dealloc__(self):
        free_part(&self.whole)
        free_bytes(&self.relations)
        free(self.stream_flags)

    cdef int open_builders(self, frozenset fields) except -1:
        cdef Part *whole = &self.whole
        cdef int64_t n_rows = self.source.n_rows
        cdef int i, collected
        for i, (name, collected) in enumerate(COLLECTED):
            whole.builders[i].n_rows = n_rows
            if collected >= 0:
                whole.builders[i].type = <BuilderType>collected
                if name in fields:
                    whole.out.builders[i] = &whole.builders[i]
        for i, tuple_name in enumerate(("old", "new")):
            builder = &whole.old if i == 0 else &whole.new
            builder.rows.type = BUILDER_LIST
            builder.rows.n_rows = n_rows
            builder.wants_values = tuple_name in fields
            # The formats are collected by the tuple's builder, beside the values.
            whole.out.builders[NAMES.index(tuple_name + "_formats")] = NULL
            if builder.wants_values or tuple_name + "_formats" in fields:
                if i == 0:
                    whole.out.old = builder
                else:
                    whole.out.new = builder
        whole.columns.rows.type = BUILDER_LIST
        whole.columns.rows.n_rows = n_rows
        if "columns" in fields:
            whole.out.columns = &whole.columns
        # These three are filled here and not by the walk.
        if "kind" in fields:
            open_words(&whole.kinds, n_rows, not whole.kind_codes)
            whole.out.kinds = whole.kinds.indexes.data
        if whole.kind_codes:
            if open_zeroed(&self.relations, sizeof(uint32_t) * <size_t>n_rows) != OK:
                raise MemoryError()
            whole.out.relations = <uint32_t *>self.relations.data
        if "xid_basis" in fields:
            open_words(&whole.bases, n_rows, True)
            whole.out.bases = whole.bases.indexes.data
        whole.out.old_type = whole.out.builders[NAMES.index("old_type")]
        self.errors = whole.out.builders[NAMES.index("error")]
        return 0

    def resolve_streams(
        self, object in_stream, object carry, bint in_full, Py_ssize_t n_threads=1, bint lookahead=True
    ):
        """Decide which payloads carry an xid prefix; returns the stream state after the last row.

        Parameters
        ----------
        in_stream : None, "auto", "apart", bool or bytes-like of n_rows zeros and ones
            "apart": as "auto" for each part of the source alone.
        carry : None or bool
            With in_stream None: the state before the first row, where it is known.
        in_full : bool
            With in_stream None: look for contradictions too, as is needed when a payload is malformed.
        n_threads : int
            With in_stream None: that work on it.
        lookahead : bool
            With in_stream None and a known state: whether rows that read well both ways are faults, too, where another
            row of the run, or the delimiter behind it, contradicts the state. Without it the flag of a row depends
            on its bytes and on the state before it, and so not on where the sequence is cut into batches: only the row
            that contradicts is a fault. As long as the state is not known, what comes later in the batch decides.
        """
        cdef const uint8_t[::1] explicit
        self.carry = CARRY_NONE if carry is None else CARRY_STREAMED if carry else CARRY_PLAIN
        if isinstance(in_stream, bool):
            self.whole.walk.stream_flag = STREAMED if in_stream else 0
            return None
        if in_stream is None and not in_full and self.carry != CARRY_STREAMED:
            # Most data has no stream in it: no pass over it is spent on finding that out.
            self.whole.walk.assume_unstreamed = True
            self.whole.walk.stream_flag = BASIS_ORDER << BASIS_SHIFT
            return self.stream_state
        self.stream_flags = <uint8_t *>calloc(<size_t>self.source.n_rows + 1, 1)
        if self.stream_flags == NULL:
            raise MemoryError()
        self.whole.walk.stream_flags = self.stream_flags
        if in_stream is None or isinstance(in_stream, str):
            self.resolve_rows(in_stream is None, in_stream == "apart", n_threads, lookahead)
        else:
            if len(in_stream) != self.source.n_rows:
                raise ValueError(f"in_stream has {len(in_stream)} values for {self.source.n_rows} payloads")
            if not self.source.n_rows:
                return None
            explicit = in_stream
            memcpy(self.stream_flags, &explicit[0], <size_t>self.source.n_rows)
        return self.stream_state

    @property
    def stream_state(self):
        """The state after the last row, which `resolve_streams` of the next batch takes as `carry`; None where it is
        not known.

        Of use when `run` has returned columns. It is None if the caller gave the flag of each payload.
        """
        if self.whole.walk.assume_unstreamed:
            return False
        return None if self.carry == CARRY_NONE else self.carry == CARRY_STREAMED

    @property
    def n_empty(self):
        """How many payloads of no bytes `run` has made null rows of."""
        return self.whole.walk.n_empty

    cdef int resolve_rows(self, bint by_order, bint apart, Py_ssize_t n_threads, bint lookahead) except -1:
        cdef Envelope nothing
        cdef Walk walk
        cdef Fault fault
        cdef Window window
        cdef FaultCode code
        open_check(&walk, &PLAN.table, &self.rules, &nothing, &fault)
        window.segments = self.source.segments
        window.n_segments = self.source.n_segments
        window.n_rows = self.source.n_rows
        window.plan = walk.plan
        window.walk = &walk
        window.stream_flags = self.stream_flags
        window.lookahead = lookahead
        if by_order and n_threads > 1:
            code = resolve_divided(&window, &self.carry, self.source, n_threads)
        else:
            with nogil:
                if by_order:
                    code = resolve_by_order(&window, &self.carry)
                elif apart:
                    code = resolve_segments(&window)
                else:
                    code = resolve_each(&window)
        if code != OK:
            raise MemoryError()
        return 0

    @property
    def stream_flags(self):
        """The flags of `resolve_streams`, a byte a row, which it takes as `in_stream`; None where it has made none."""
        if self.stream_flags == NULL:
            return None
        return PyBytes_FromStringAndSize(<const char *>self.stream_flags, self.source.n_rows)

    def run(self, Py_ssize_t n_threads=1):
        """Decode all rows; returns {column name: tuple of buffers}, columns that no row fills left out.

        None where no stream was assumed and there may be one: the caller then resolves the streams in full. With
        several threads, the fault that is raised need not be that of the first bad row.
        """
        cdef Part *whole = &self.whole
        cdef FaultCode code
        if n_threads > 1:
            code = scan_divided(whole, self.source, n_threads)
        else:
            with nogil:
                code = self.scan()
        if whole.walk.assume_unstreamed and self.is_doubted(code):
            return None
        if code == OK and n_threads == 1:
            with nogil:
                code = finish_rows(whole)
            if code == FAULT_LIMIT_BATCH:
                raise errors.BatchTooLarge(errors.BatchTooLarge.wording.format(field="kind"))
        if code != OK:
            # If there was no memory to keep a row's fault, `fault` still has it.
            whole.fault.code = code
            raise error_of(&whole.fault, PLAN.labels, True)
        self.write_errors()
        found = {}
        for i, name in enumerate(NAMES):
            parts = finish_builder(&whole.builders[i])
            if parts is not None:
                found[name] = parts
        add_tuple(found, "old", &whole.old)
        add_tuple(found, "new", &whole.new)
        more = (
            ("columns", finish_columns(&whole.columns)),
            ("kind", (None, hand_over(&whole.kinds.indexes)) if whole.kind_codes else finish_words(&whole.kinds)),
            ("xid_basis", finish_words(&whole.bases)),
        )
        found.update((name, parts) for name, parts in more if parts is not None)
        if whole.kind_codes:
            found["relations"] = (None, hand_over(&self.relations))
        return found

    cdef FaultCode scan(self) noexcept nogil:
        begin_rows(&self.whole, 0, self.source.n_rows)
        return scan_rows(&self.whole, self.source.segments, self.source.n_segments, 0, self.source.n_rows)

    cdef bint is_doubted(self, FaultCode code) noexcept nogil:
        """Whether rows may be other than plain: there is no delimiter, or a fault may change the flags of others."""
        cdef size_t i
        if code != OK:
            return code < FAULT_LIMIT_BATCH or code == STREAM_SEEN
        if self.carry == CARRY_NONE and not self.whole.walk.has_delimiter:
            return True
        for i in range(self.whole.faults.n):
            if self.whole.faults.items[i].code == FAULT_STATE_DESYNC:
                return True
        return False

    cdef int write_errors(self) except -1:
        cdef size_t i
        cdef const uint8_t[::1] text
        cdef Part *whole = &self.whole
        if self.errors == NULL:
            return 0
        for i in range(whole.faults.n):
            text = error_of(&whole.faults.items[i], PLAN.labels, False).cell.encode()
            if put_text(self.errors, whole.faults.items[i].row, &text[0], <size_t>text.shape[0]) != OK:
                raise MemoryError()
        return 0


cdef int add_tuple(dict found, str name, TupleBuilder *builder) except -1:
    """Add the columns of a tuple's formats and, if they are wanted, of its values; none where no row was filled."""
    parts = finish_tuple(builder)
    if parts is None:
        return 0
    validity, offsets, letters, n_cells, *cells = parts
    if builder.wants_values:
        found[name] = (validity, offsets, n_cells, cells)
    found[name + "_formats"] = (validity, offsets, letters)
    return 0
