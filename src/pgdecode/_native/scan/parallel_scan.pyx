"""Resolves the streams of a batch and decodes its rows by several threads: in chunks, into parts of one whole."""

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
from pgdecode._native.threads.parallel_loop cimport Work, run_in_chunks
from pgdecode._native.wire.envelope_builder cimport Envelope, Walk, open_check
from pgdecode._native.wire.stream_state cimport Delimiters, Order, find_delimiters, flag_last_rows, flag_rows

# -- decoding --------------------------------------------------------------------------------------------------------

cdef struct ScanContext:
    # What all threads share.
    OpenLock open_lock
    Part *whole
    const Segment *segments
    Py_ssize_t n_segments


cdef FaultCode scan_divided(Part *whole, Source source, Py_ssize_t n_threads) except *:
    """Decode all rows; where a fault ends it, the whole has it."""
    cdef ScanContext context
    cdef Work work
    context.whole = whole
    context.segments = source.segments
    context.n_segments = source.n_segments
    context.open_lock.n_placed = 0
    context.open_lock.lock = PyThread_allocate_lock()
    work.decode = decode
    work.fits = fits
    work.place = place
    work.write = write
    work.end = end
    work.source = <void *>source
    work.n_threads = n_threads
    work.contexts = &context
    work.context_size = 0
    work.whole = whole
    work.part_size = sizeof(Part)
    work.appends = True
    if context.open_lock.lock == NULL:
        raise MemoryError()
    try:
        return run_in_chunks(&work)
    finally:
        PyThread_free_lock(context.open_lock.lock)


cdef FaultCode decode(void *context, void *part, Arena *arena, int64_t first, int64_t stop) noexcept nogil:
    cdef ScanContext *shared = <ScanContext *>context
    cdef Part *taken = <Part *>part
    cdef FaultCode code
    if taken.walk.plan == NULL:
        divide(taken, shared.whole, &shared.open_lock, arena)
    begin_rows(taken, first, stop)
    code = scan_rows(taken, shared.segments, shared.n_segments, first, stop)
    return code if code != OK else finish_rows(taken)


cdef bint fits(const void *whole, const void *part) noexcept nogil:
    return fits_rows(<const Part *>whole, <const Part *>part)


cdef FaultCode place(void *whole, void *part) noexcept nogil:
    return place_rows(<Part *>whole, <Part *>part)


cdef void write(void *whole, void *part) noexcept nogil:
    write_rows(<const Part *>whole, <Part *>part)


cdef void end(void *whole, void *part, bint failed) noexcept:
    if failed:
        (<Part *>whole).fault = (<Part *>part).fault
    free_part(<Part *>part)


# -- streams ---------------------------------------------------------------------------------------------------------

cdef struct StreamResolution:
    # What all threads share.
    Window *window       # of the thread that sets the flags, one at a time
    Order order

cdef struct DelimiterPart:
    # The delimiters that a thread has found among some rows.
    Window window
    Walk walk
    Envelope nothing
    Fault fault
    Delimiters delimiters


cdef FaultCode resolve_divided(Window *window, Carry *carry, Source source, Py_ssize_t n_threads) except *:
    """Stream flags for payloads in slot order, as of `resolve_by_order`."""
    cdef StreamResolution resolution
    cdef Work work
    cdef FaultCode code
    memset(&resolution, 0, sizeof(resolution))
    memset(&work, 0, sizeof(work))
    resolution.window = window
    resolution.order.carry = carry[0]
    work.decode = find_in_part
    work.fits = always_fits
    work.place = flag_part
    work.write = write_nothing
    work.end = free_delimiters
    work.source = <void *>source
    work.n_threads = n_threads
    work.contexts = work.whole = &resolution
    work.part_size = sizeof(DelimiterPart)
    code = run_in_chunks(&work)
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
        # Not a copy of the other's walk, which is being used meanwhile.
        open_check(&found.walk, resolution.window.plan, resolution.window.walk.rules, &found.nothing, &found.fault)
    return find_delimiters(&found.window, first, stop, &found.delimiters)


cdef bint always_fits(const void *whole, const void *part) noexcept nogil:
    return True


cdef FaultCode flag_part(void *whole, void *part) noexcept nogil:
    cdef StreamResolution *resolution = <StreamResolution *>whole
    return flag_rows(resolution.window, &resolution.order, &(<const DelimiterPart *>part).delimiters)


cdef void write_nothing(void *whole, void *part) noexcept nogil:
    pass


cdef void free_delimiters(void *whole, void *part, bint failed) noexcept:
    free((<DelimiterPart *>part).delimiters.items)
