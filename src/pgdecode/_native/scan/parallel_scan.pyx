"""Resolves the streams of a batch and decodes its rows in several threads: in chunks, as parts of one output."""

from cpython.pythread cimport PyThread_allocate_lock, PyThread_free_lock
from libc.stdint cimport int64_t
from libc.stdlib cimport free
from libc.string cimport memset

from pgdecode._native.arrow.builder cimport OpenLock
from pgdecode._native.arrow.payload_array cimport Segment
from pgdecode._native.fault cimport OK, Fault
from pgdecode._native.memory.buffers cimport Arena
from pgdecode._native.scan.partial_batch cimport (
    begin_rows, divide, finish_rows, fits_rows, free_part, place_rows, scan_rows, write_rows,
)
from pgdecode._native.threads.parallel_loop cimport Task, run_in_chunks
from pgdecode._native.wire.envelope_builder cimport Envelope, Walk, open_check
from pgdecode._native.wire.stream_state cimport Delimiters, Order, find_delimiters, flag_last_rows, flag_rows

# -- decoding --------------------------------------------------------------------------------------------------------

cdef struct ScanContext:
    # Shared by all threads.
    OpenLock open_lock
    Part *output
    const Segment *segments
    Py_ssize_t n_segments


cdef FaultCode scan_divided(Part *output, Source source, Py_ssize_t n_threads) except *:
    """Decode all rows. After a fault that ends decoding, the output has it."""
    cdef ScanContext context
    cdef Task task
    context.output = output
    context.segments = source.segments
    context.n_segments = source.n_segments
    context.open_lock.n_placed = 0
    context.open_lock.lock = PyThread_allocate_lock()
    task.decode = decode
    task.fits = fits
    task.place = place
    task.write = write
    task.end = end
    task.source = <void *>source
    task.n_threads = n_threads
    task.contexts = &context
    task.context_size = 0
    task.output = output
    task.part_size = sizeof(Part)
    task.appends = True
    if context.open_lock.lock == NULL:
        raise MemoryError()
    try:
        return run_in_chunks(&task)
    finally:
        PyThread_free_lock(context.open_lock.lock)


cdef FaultCode decode(void *context, void *part, Arena *arena, int64_t first, int64_t stop) noexcept nogil:
    cdef ScanContext *shared = <ScanContext *>context
    cdef Part *taken = <Part *>part
    cdef FaultCode code
    if taken.walk.plan == NULL:
        divide(taken, shared.output, &shared.open_lock, arena)
    begin_rows(taken, first, stop)
    code = scan_rows(taken, shared.segments, shared.n_segments, first, stop)
    return code if code != OK else finish_rows(taken)


cdef bint fits(const void *output, const void *part) noexcept nogil:
    return fits_rows(<const Part *>output, <const Part *>part)


cdef FaultCode place(void *output, void *part) noexcept nogil:
    return place_rows(<Part *>output, <Part *>part)


cdef void write(void *output, void *part) noexcept nogil:
    write_rows(<const Part *>output, <Part *>part)


cdef void end(void *output, void *part, bint failed) noexcept:
    if failed:
        (<Part *>output).fault = (<Part *>part).fault
    free_part(<Part *>part)


# -- streams ---------------------------------------------------------------------------------------------------------

cdef struct StreamResolution:
    # Shared by all threads.
    Window *window       # of the thread that sets the flags; one thread at a time
    Order order

cdef struct DelimiterPart:
    # The delimiters that a thread has found among some rows.
    Window window
    Walk walk
    Envelope nothing
    Fault fault
    Delimiters delimiters


cdef FaultCode resolve_divided(Window *window, Carry *carry, Source source, Py_ssize_t n_threads) except *:
    """Set stream flags for payloads in slot order, as `resolve_by_order` does."""
    cdef StreamResolution resolution
    cdef Task task
    cdef FaultCode code
    memset(&resolution, 0, sizeof(resolution))
    memset(&task, 0, sizeof(task))
    resolution.window = window
    resolution.order.carry = carry[0]
    task.decode = find_in_part
    task.fits = always_fits
    task.place = flag_part
    task.write = write_nothing
    task.end = free_delimiters
    task.source = <void *>source
    task.n_threads = n_threads
    task.contexts = task.output = &resolution
    task.part_size = sizeof(DelimiterPart)
    code = run_in_chunks(&task)
    if code == OK:
        with nogil:
            code = flag_last_rows(window, &resolution.order)
    carry[0] = resolution.order.carry
    return code


cdef FaultCode find_in_part(void *context, void *part, Arena *arena, int64_t first, int64_t stop) noexcept nogil:
    cdef const StreamResolution *resolution = <const StreamResolution *>context
    cdef DelimiterPart *found = <DelimiterPart *>part
    if found.window.walk == NULL:
        found.window = resolution.window[0]
        found.window.walk = &found.walk
        # Not a copy of the other walk, which is in use.
        open_check(&found.walk, resolution.window.plan, resolution.window.walk.rules, &found.nothing, &found.fault)
    return find_delimiters(&found.window, first, stop, &found.delimiters)


cdef bint always_fits(const void *output, const void *part) noexcept nogil:
    return True


cdef FaultCode flag_part(void *output, void *part) noexcept nogil:
    cdef StreamResolution *resolution = <StreamResolution *>output
    return flag_rows(resolution.window, &resolution.order, &(<const DelimiterPart *>part).delimiters)


cdef void write_nothing(void *output, void *part) noexcept nogil:
    pass


cdef void free_delimiters(void *output, void *part, bint failed) noexcept:
    free((<DelimiterPart *>part).delimiters.items)
