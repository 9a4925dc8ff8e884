"""Pass 1: payloads to envelope columns, in one call without the GIL. It never looks inside a value."""

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
    finish_keywords,
    open_keywords,
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

# Arrow type of an envelope column -> how it is collected. Lists of values and columns have their own builders.
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
# How each column is collected, -1 without own builder. Computed once, because small batches are frequent.
COLLECTED = tuple((column.name, BUILDER_TYPES.get(column.type, -1)) for column in messages.ENVELOPE)


cdef class Scan:
    """One pass over one batch. It owns the builders until they are handed to Python."""

    cdef Part output
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

        `kind_codes`: return the kinds as one byte for each row, the index of the message, or NO_KEYWORD without one.
        `empty_is_null`: an empty payload is a null row, counted by `n_empty`. Otherwise it is a fault.
        """
        self.source = source
        self.output.kind_codes = kind_codes
        self.output.permissive = permissive
        self.output.walk.empty_is_null = empty_is_null
        self.output.walk.plan = &PLAN.table
        self.output.walk.rules = &self.rules
        self.output.walk.out = &self.output.out
        self.output.walk.fault = &self.output.fault
        self.output.out.fast = self.output.fast
        self.rules = rules_of(limits, strict_flags)
        self.open_builders(frozenset(fields))

    def __dealloc__(self):
        free_part(&self.output)
        free_bytes(&self.relations)
        free(self.stream_flags)

    cdef int open_builders(self, frozenset fields) except -1:
        cdef Part *output = &self.output
        cdef int64_t n_rows = self.source.n_rows
        cdef int i, collected
        for i, (name, collected) in enumerate(COLLECTED):
            output.builders[i].n_rows = n_rows
            if collected >= 0:
                output.builders[i].type = <BuilderType>collected
                if name in fields:
                    output.out.builders[i] = &output.builders[i]
        for i, tuple_name in enumerate(("old", "new")):
            builder = &output.old if i == 0 else &output.new
            builder.rows.type = BUILDER_LIST
            builder.rows.n_rows = n_rows
            builder.wants_values = tuple_name in fields
            # The tuple's builder collects the formats, beside the values.
            output.out.builders[NAMES.index(tuple_name + "_formats")] = NULL
            if builder.wants_values or tuple_name + "_formats" in fields:
                if i == 0:
                    output.out.old = builder
                else:
                    output.out.new = builder
        output.columns.rows.type = BUILDER_LIST
        output.columns.rows.n_rows = n_rows
        if "columns" in fields:
            output.out.columns = &output.columns
        # These three are filled here, not by the walk.
        if "kind" in fields:
            open_keywords(&output.kinds, n_rows, not output.kind_codes)
            output.out.kinds = output.kinds.indexes.data
        if output.kind_codes:
            if open_zeroed(&self.relations, sizeof(uint32_t) * <size_t>n_rows) != OK:
                raise MemoryError()
            output.out.relations = <uint32_t *>self.relations.data
        if "xid_basis" in fields:
            open_keywords(&output.bases, n_rows, True)
            output.out.bases = output.bases.indexes.data
        output.out.old_type = output.out.builders[NAMES.index("old_type")]
        self.errors = output.out.builders[NAMES.index("error")]
        return 0

    def resolve_streams(
        self, object in_stream, object carry, bint check_contradictions, Py_ssize_t n_threads=1, bint lookahead=True
    ):
        """Decide which payloads have an xid prefix. Returns the stream state after the last row.

        Parameters
        ----------
        in_stream : None, "auto", "by_part", bool or bytes-like of n_rows zeros and ones
            "by_part": as "auto", for each part of the source separately.
        carry : None or bool
            With in_stream None: the state before the first row, if known.
        check_contradictions : bool
            With in_stream None: also look for contradictions, which is necessary when a payload is malformed.
        n_threads : int
            With in_stream None: the number of threads.
        lookahead : bool
            With in_stream None and a known state: a row that is well-formed in both readings is a fault if another row
            of the run, or the next delimiter, contradicts the state. Without it, the flag of a row depends only on its
            bytes and on the state before it, and therefore not on the division into batches. Only the row that
            contradicts is then a fault. While the state is unknown, later rows of the batch decide.
        """
        cdef const uint8_t[::1] explicit
        self.carry = CARRY_NONE if carry is None else CARRY_STREAMED if carry else CARRY_PLAIN
        if isinstance(in_stream, bool):
            self.output.walk.stream_flag = STREAMED if in_stream else 0
            return None
        if in_stream is None and not check_contradictions and self.carry != CARRY_STREAMED:
            # Most data has no stream. No separate pass is spent on finding that out.
            self.output.walk.assume_unstreamed = True
            self.output.walk.stream_flag = BASIS_ORDER << BASIS_SHIFT
            return self.stream_state
        self.stream_flags = <uint8_t *>calloc(<size_t>self.source.n_rows + 1, 1)
        if self.stream_flags == NULL:
            raise MemoryError()
        self.output.walk.stream_flags = self.stream_flags
        if in_stream is None or isinstance(in_stream, str):
            self.resolve_batch(in_stream is None, in_stream == "by_part", n_threads, lookahead)
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
        """The state after the last row, the `carry` of the next batch; None if unknown.

        Call it after `run` has returned columns. It is None if the caller gave the flag of each payload.
        """
        if self.output.walk.assume_unstreamed:
            return False
        return None if self.carry == CARRY_NONE else self.carry == CARRY_STREAMED

    @property
    def n_empty(self):
        """Number of empty payloads that `run` has made null rows."""
        return self.output.walk.n_empty

    cdef int resolve_batch(self, bint by_order, bint by_part, Py_ssize_t n_threads, bint lookahead) except -1:
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
                elif by_part:
                    code = resolve_segments(&window)
                else:
                    code = resolve_each(&window)
        if code != OK:
            raise MemoryError()
        return 0

    @property
    def stream_flags(self):
        """The flags of `resolve_streams`, one byte for each row, to be passed as `in_stream`; None if it made none."""
        if self.stream_flags == NULL:
            return None
        return PyBytes_FromStringAndSize(<const char *>self.stream_flags, self.source.n_rows)

    def run(self, Py_ssize_t n_threads=1):
        """Decode all rows. Returns {column name: tuple of buffers}, without the columns that no row fills.

        Returns None if no stream was assumed and there may be one. The caller then resolves the streams completely.
        With several threads, the fault that is raised need not be that of the first bad row.
        """
        cdef Part *output = &self.output
        cdef FaultCode code
        if n_threads > 1:
            code = scan_divided(output, self.source, n_threads)
        else:
            with nogil:
                code = self.scan()
        if output.walk.assume_unstreamed and self.is_doubted(code):
            return None
        if code == OK and n_threads == 1:
            with nogil:
                code = finish_rows(output)
            if code == FAULT_LIMIT_BATCH:
                raise errors.BatchTooLarge(errors.BatchTooLarge.wording.format(field="kind"))
        if code != OK:
            # Without memory to keep the fault of a row, `fault` still has it.
            output.fault.code = code
            raise error_of(&output.fault, PLAN.labels, True)
        self.write_errors()
        found = {}
        for i, name in enumerate(NAMES):
            parts = finish_builder(&output.builders[i])
            if parts is not None:
                found[name] = parts
        add_tuple(found, "old", &output.old)
        add_tuple(found, "new", &output.new)
        more = (
            ("columns", finish_columns(&output.columns)),
            ("kind", (None, hand_over(&output.kinds.indexes)) if output.kind_codes else finish_keywords(&output.kinds)),
            ("xid_basis", finish_keywords(&output.bases)),
        )
        found.update((name, parts) for name, parts in more if parts is not None)
        if output.kind_codes:
            found["relations"] = (None, hand_over(&self.relations))
        return found

    cdef FaultCode scan(self) noexcept nogil:
        begin_rows(&self.output, 0, self.source.n_rows)
        return scan_rows(&self.output, self.source.segments, self.source.n_segments, 0, self.source.n_rows)

    cdef bint is_doubted(self, FaultCode code) noexcept nogil:
        """Whether rows may not be plain: there is no delimiter, or a fault may change the flags of other rows."""
        cdef size_t i
        if code != OK:
            return code < FAULT_LIMIT_BATCH or code == STREAM_SEEN
        if self.carry == CARRY_NONE and not self.output.walk.has_delimiter:
            return True
        for i in range(self.output.faults.n):
            if self.output.faults.items[i].code == FAULT_STATE_DESYNC:
                return True
        return False

    cdef int write_errors(self) except -1:
        cdef size_t i
        cdef const uint8_t[::1] text
        cdef Part *output = &self.output
        if self.errors == NULL:
            return 0
        for i in range(output.faults.n):
            text = error_of(&output.faults.items[i], PLAN.labels, False).cell.encode()
            if put_text(self.errors, output.faults.items[i].row, &text[0], <size_t>text.shape[0]) != OK:
                raise MemoryError()
        return 0


cdef int add_tuple(dict found, str name, TupleBuilder *builder) except -1:
    """Add the columns of a tuple's formats and, if requested, of its values; none if no row was filled."""
    parts = finish_tuple(builder)
    if parts is None:
        return 0
    validity, offsets, letters, n_cells, *cells = parts
    if builder.wants_values:
        found[name] = (validity, offsets, n_cells, cells)
    found[name + "_formats"] = (validity, offsets, letters)
    return 0
