"""Pass 2: the inserts, updates and deletes of one relation as typed columns, by one thread or by several."""

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
from pgdecode._native.threads.parallel_loop cimport Work, run_in_chunks
from pgdecode._native.wire.wire_plan cimport PLAN

import pyarrow as pa

from pgdecode.protocol import errors, limits as sizes

UNCHANGED_TYPE = pa.list_(pa.string())

cdef struct Thread:
    # What decodes rows, and what they are put behind.
    void *decoder
    RowSet *whole


cdef class Rows:
    """One pass over the payloads of one relation; `selection` and `streamed` are those of `CellIndex`."""

    cdef Source source
    cdef list decoders       # RowDecoder, one for each thread
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
        # Threads take rows of the source, one after the other.
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
        """Decode everything; `results` gives it."""
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
        """Bytes of text that the limit of a batch counts."""
        return self.rows.text

    def results(self):
        """[_op, _xid, _old_type, _old, _unchanged] and the columns; they can be taken once."""
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
        """As `decode`, but a fault may be of any row."""
        cdef Work work
        cdef Py_ssize_t n_threads = len(self.decoders)
        cdef Thread *threads = <Thread *>calloc(<size_t>n_threads, sizeof(Thread))
        cdef Py_ssize_t i
        work.decode = decode_part
        work.fits = fits_part
        work.place = place_part
        work.write = write_part
        work.end = end_part
        work.source = <void *>self.source
        work.n_threads = n_threads
        work.contexts = threads
        work.context_size = sizeof(Thread)
        work.whole = &self.rows
        work.part_size = sizeof(RowSet)
        work.appends = True
        if threads == NULL:
            raise MemoryError()
        try:
            for i in range(n_threads):
                threads[i].decoder = <void *>self.decoders[i]
                threads[i].whole = &self.rows
            return run_in_chunks(&work)
        finally:
            free(threads)

    cdef object error(self, FaultCode code):
        """Word the fault that decoding has ended with."""
        cdef Fault fault
        cdef RowDecoder decoder = self.decoders[0]
        if FAULT_LIMIT_BATCH <= code <= FAULT_BAD_ARRAY and not (decoder.is_alone(code) and self.rows.faults.n):
            memset(&fault, 0, sizeof(fault))
            fault.code = code
            fault.label = fault.column = fault.relation = -1
            return error_of(&fault, (), True)
        error = error_of(&self.rows.faults.items[self.rows.faults.n - 1], self.labels(), True)
        if isinstance(getattr(error, "column", None), int) and error.column < len(self.names):
            # Its name, in place of its number.
            error.column = self.names[error.column]
        return error

    cdef tuple labels(self):
        return PLAN.labels + tuple([f"column {errors.shown(name)}" for name in self.names])

    cdef int report_errors(self) except -1:
        """Word the faults that have been kept."""
        cdef const Fault *fault
        cdef size_t k
        labels = self.labels() if self.rows.faults.n else ()
        for k in range(self.rows.faults.n):
            fault = &self.rows.faults.items[k]
            # Of several faults in a row the first column's is reported.
            if fault.row not in self.row_errors:
                self.row_errors[fault.row] = error_of(fault, labels, False).cell
        return 0


cdef FaultCode decode_part(void *context, void *part, Arena *arena, int64_t first, int64_t stop) noexcept nogil:
    """Decode into a part that is made, and emptied, for that."""
    cdef Thread *thread = <Thread *>context
    cdef RowSet *rows = <RowSet *>part
    if rows.columns == NULL and open_part(rows, thread.whole, stop - first, arena) != OK:
        return FAULT_NO_MEMORY
    empty_rowset(rows)
    return (<RowDecoder>thread.decoder).decode(rows, first, stop)


cdef bint fits_part(const void *whole, const void *part) noexcept nogil:
    return fits_rowset(<const RowSet *>whole, <const RowSet *>part)


cdef FaultCode place_part(void *whole, void *part) noexcept nogil:
    return place_rowset(<RowSet *>whole, <RowSet *>part)


cdef void write_part(void *whole, void *part) noexcept nogil:
    write_rowset(<const RowSet *>whole, <const RowSet *>part)


cdef void end_part(void *whole, void *part, bint failed) noexcept:
    # The faults of parts are dropped: a single thread then finds the first one.
    free_rowset(<RowSet *>part)
