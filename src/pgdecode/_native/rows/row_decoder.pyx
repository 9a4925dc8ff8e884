"""Pass 2: the inserts, updates and deletes of one relation as typed columns, in one or several threads."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pgdecode._native.arrow.column_builder cimport Column, finish_column
from pgdecode._native.arrow.payload_array cimport Source
from pgdecode._native.fault cimport FAULT_BAD_ARRAY, FAULT_LIMIT_BATCH, FAULT_NO_MEMORY, OK, Fault, FaultCode, error_of
from pgdecode._native.memory.buffers cimport Arena
from pgdecode._native.rows.block_row_decoder cimport RowDecoder
from pgdecode._native.rows.row_columns cimport (
    N_META,
    OLD,
    OLD_TYPE,
    OP,
    UNCHANGED,
    XID,
    RowSet,
    empty_rowset,
    fits_rowset,
    free_rowset,
    open_part,
    open_rowset,
    place_rowset,
    write_rowset,
)
from pgdecode._native.threads.parallel_loop cimport Task, run_in_chunks
from pgdecode._native.wire.wire_plan cimport PLAN

import pyarrow as pa

from pgdecode.protocol import errors, limits as sizes

UNCHANGED_TYPE = pa.list_(pa.string())

cdef struct Thread:
    # The decoder of a thread, and the output.
    void *decoder
    RowSet *output


cdef class Rows:
    """One pass over the payloads of one relation. `selection` and `streamed` are those of `CellIndex`."""

    cdef Source source
    cdef list decoders       # one RowDecoder for each thread
    cdef readonly int64_t n_rows
    cdef list names
    cdef list types
    cdef object old_type
    cdef RowSet rows
    cdef readonly dict row_errors   # by row, the text of _error

    def __cinit__(
        self,
        Source source,
        int64_t relation_id,
        list names,
        list decodings,
        object limits,
        bint strict_flags,
        bint permissive,
        bint null_unrepresentable,
        object selection=None,
        object streamed=None,
        Py_ssize_t n_threads=1,
        bint empty_is_null=True,
    ):
        self.source = source
        about = (source, relation_id, names, decodings, limits, strict_flags, permissive, null_unrepresentable)
        # Threads take rows of the source, one chunk after the other.
        n_threads = n_threads if selection is None else 1
        self.decoders = [RowDecoder(*about, selection, streamed, empty_is_null) for _ in range(n_threads)]
        self.n_rows = (<RowDecoder>self.decoders[0]).n_rows
        self.rows.n_bytes = source.n_bytes()
        self.rows.most_text = self.rows.n_bytes * <size_t>limits.max_expansion + <size_t>sizes.FREE_EXPANSION
        self.names = names
        self.types = [decoding.arrow for decoding in decodings]
        self.old_type = pa.struct([pa.field(name, type) for name, type in zip(names, self.types)])
        self.row_errors = {}

    def __dealloc__(self):
        free_rowset(&self.rows)

    def run(self):
        """Decode everything. `results` returns it."""
        cdef FaultCode code
        self.open_rows()
        if len(self.decoders) == 1:
            code = self.decode()
        else:
            code = self.decode_in_chunks()
            if code != OK:
                # Only a single thread finds the first of all faults.
                empty_rowset(&self.rows)
                code = self.decode()
        if code != OK:
            raise self.error(code)
        self.report_errors()

    @property
    def text_bytes(self):
        """Bytes of text that count towards the limit of a batch."""
        return self.rows.text

    def results(self):
        """[_op, _xid, _old_type, _old, _unchanged] and the columns. They can be taken once."""
        cdef Column *columns = self.rows.columns
        meta = [
            finish_column(&columns[OP], pa.string()),
            finish_column(&columns[XID], pa.int64()),
            finish_column(&columns[OLD_TYPE], pa.string()),
            finish_column(&columns[OLD], self.old_type),
            finish_column(&columns[UNCHANGED], UNCHANGED_TYPE),
        ]
        return meta, [finish_column(&columns[N_META + i], type) for i, type in enumerate(self.types)]

    cdef int open_rows(self) except -1:
        meta = [pa.string()] * N_META
        meta[XID] = pa.int64()
        meta[UNCHANGED] = UNCHANGED_TYPE
        meta[OLD] = self.old_type
        return open_rowset(&self.rows, meta + self.types, self.n_rows, len(self.decoders) > 1)

    cdef FaultCode decode(self) except *:
        cdef RowDecoder decoder = self.decoders[0]
        cdef FaultCode code
        with nogil:
            code = decoder.decode(&self.rows, 0, self.n_rows)
        return code

    cdef FaultCode decode_in_chunks(self) except *:
        """Decode in several threads. The fault may be of any row."""
        cdef Task task
        cdef Py_ssize_t n_threads = len(self.decoders)
        cdef Thread *threads = <Thread *>calloc(<size_t>n_threads, sizeof(Thread))
        cdef Py_ssize_t i
        task.decode = decode_part
        task.fits = fits_part
        task.place = place_part
        task.write = write_part
        task.end = end_part
        task.source = <void *>self.source
        task.n_threads = n_threads
        task.contexts = threads
        task.context_size = sizeof(Thread)
        task.output = &self.rows
        task.part_size = sizeof(RowSet)
        task.appends = True
        if threads == NULL:
            raise MemoryError()
        try:
            for i in range(n_threads):
                threads[i].decoder = <void *>self.decoders[i]
                threads[i].output = &self.rows
            return run_in_chunks(&task)
        finally:
            free(threads)

    cdef object error(self, FaultCode code):
        """Make the error of the fault that ended decoding."""
        cdef Fault fault
        cdef RowDecoder decoder = self.decoders[0]
        if FAULT_LIMIT_BATCH <= code <= FAULT_BAD_ARRAY and not (decoder.is_alone(code) and self.rows.faults.n):
            memset(&fault, 0, sizeof(fault))
            fault.code = code
            fault.label = fault.column = fault.relation = -1
            return error_of(&fault, (), True)
        error = error_of(&self.rows.faults.items[self.rows.faults.n - 1], self.labels(), True)
        if isinstance(getattr(error, "column", None), int) and error.column < len(self.names):
            # Its name, instead of its number.
            error.column = self.names[error.column]
        return error

    cdef tuple labels(self):
        return PLAN.labels + tuple([f"column {errors.shown(name)}" for name in self.names])

    cdef int report_errors(self) except -1:
        """Make the errors of the kept faults."""
        cdef const Fault *fault
        cdef size_t k
        labels = self.labels() if self.rows.faults.n else ()
        for k in range(self.rows.faults.n):
            fault = &self.rows.faults.items[k]
            # Of several faults in a row, that of the first column is reported.
            if fault.row not in self.row_errors:
                self.row_errors[fault.row] = error_of(fault, labels, False).cell
        return 0


cdef FaultCode decode_part(void *context, void *part, Arena *arena, int64_t first, int64_t stop) noexcept nogil:
    """Decode into a part, which is made and emptied before."""
    cdef Thread *thread = <Thread *>context
    cdef RowSet *rows = <RowSet *>part
    if rows.columns == NULL and open_part(rows, thread.output, stop - first, arena) != OK:
        return FAULT_NO_MEMORY
    empty_rowset(rows)
    return (<RowDecoder>thread.decoder).decode(rows, first, stop)


cdef bint fits_part(const void *output, const void *part) noexcept nogil:
    return fits_rowset(<const RowSet *>output, <const RowSet *>part)


cdef FaultCode place_part(void *output, void *part) noexcept nogil:
    return place_rowset(<RowSet *>output, <RowSet *>part)


cdef void write_part(void *output, void *part) noexcept nogil:
    write_rowset(<const RowSet *>output, <const RowSet *>part)


cdef void end_part(void *output, void *part, bint failed) noexcept:
    # The faults of parts are dropped: a single thread then finds the first one.
    free_rowset(<RowSet *>part)
