"""Divides the rows of a batch among threads.

Each thread takes the next rows, as many as its core's cache holds together with their output, and decodes them into a
part of its own. It then assigns positions to all decoded parts whose rows come next, and copies its own parts there,
past the caches, because the output is not read again soon. A thread that is ahead of the others continues with another
part. No thread waits for another one while it has free parts. So if the system suspends a thread, the others do more.

A fault that is not kept ends decoding in all threads. An earlier row may have another fault.

The threads are C threads: they need the interpreter only to allocate memory, and end before the call returns.
"""

from cpython.pythread cimport (
    NOWAIT_LOCK,
    WAIT_LOCK,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pgdecode._native.fault cimport FAULT_NO_MEMORY, OK
from pgdecode._native.memory.buffers cimport Arenas, free_arenas, open_arenas

cdef extern from "Python.h":
    unsigned long PyThread_start_new_thread(void (*function)(void *) noexcept nogil, void *argument)
    unsigned long PYTHREAD_INVALID_THREAD_ID

cdef enum:
    PARTS = 4              # for each thread: how far it may be ahead of the others
    CHUNK_BYTES = 5 << 17   # payloads; with their output, they fit into a core's own cache
    MOST_TIMES = 4         # limit of the rows of a chunk, in chunks of average payloads, because rows have a cost, too
    LEAST_CHUNKS = 4        # for each thread, so that no thread waits long for the last one
    ALIGNMENT = 64         # rows: chunks do not share a byte of bits
    ARENA_TIMES = 6        # growing data mostly moves, and its former memory is not used again
    MOST_ARENA = 1 << 22   # bytes

cdef enum ChunkState:
    FREE
    TAKEN
    DECODED
    PLACED

cdef struct Chunk:
    # Consecutive rows that one thread decodes at once.
    void *part
    Arena *arena
    ChunkState state
    int64_t first
    int64_t stop

cdef struct Loop:
    const Task *task
    int64_t step              # rows of a chunk with payloads of average length
    size_t most_bytes         # of a chunk, if it has more than the fewest rows
    bint measures             # whether chunks have similar numbers of bytes, instead of rows
    PyThread_type_lock lock   # protects the fields below
    int64_t n_taken           # rows
    Py_ssize_t near           # the segment of the source where they end
    int64_t n_placed          # rows with a position in the output
    Py_ssize_t n_writing      # threads that write to the output
    FaultCode code            # the fault that ended decoding early
    const void *failed        # the part with that fault
    Worker *workers
    Py_ssize_t n_workers

cdef struct Worker:
    Loop *loop
    void *context
    Chunk[PARTS] chunks
    bint waits
    bint started
    # Both are locked at first. `wake` releases the first one, and the thread releases the second one at its end.
    PyThread_type_lock wait_lock
    PyThread_type_lock done_lock


cdef FaultCode run_in_chunks(const Task *task) except *:
    """Do the task for all rows. After a fault that ends it, the fault may be that of any thread."""
    cdef Loop loop
    cdef Worker *worker
    cdef Arenas arenas
    cdef size_t size
    cdef Py_ssize_t n_parts = task.n_threads * PARTS
    cdef Py_ssize_t i
    cdef char *parts = <char *>calloc(<size_t>n_parts, task.part_size)
    memset(&arenas, 0, sizeof(arenas))
    loop.task = task
    measure_chunks(&loop, <Source>task.source, task.n_threads)
    loop.n_taken = loop.n_placed = loop.near = 0
    loop.n_writing = loop.n_workers = 0
    loop.code = OK
    loop.failed = NULL
    loop.lock = PyThread_allocate_lock()
    loop.workers = <Worker *>calloc(<size_t>task.n_threads, sizeof(Worker))
    try:
        if parts == NULL or loop.lock == NULL or loop.workers == NULL:
            raise MemoryError()
        size = min(<size_t>ARENA_TIMES * loop.most_bytes, <size_t>MOST_ARENA) if task.appends else 0
        open_arenas(&arenas, n_parts, size)
        for i in range(task.n_threads):
            worker = &loop.workers[i]
            worker.loop = &loop
            worker.context = <char *>task.contexts + <size_t>i * task.context_size
            assign_parts(worker, parts + <size_t>(i * PARTS) * task.part_size, &arenas.items[i * PARTS])
            loop.n_workers += 1
            worker.wait_lock = acquired_lock()
            worker.done_lock = acquired_lock()
        # If the system starts no more threads, those that there are do all of the task.
        for i in range(1, task.n_threads):
            worker = &loop.workers[i]
            worker.started = PyThread_start_new_thread(run, worker) != PYTHREAD_INVALID_THREAD_ID
        with nogil:
            run(&loop.workers[0])
            for i in range(1, task.n_threads):
                if loop.workers[i].started:
                    PyThread_acquire_lock(loop.workers[i].done_lock, WAIT_LOCK)
    except MemoryError:
        loop.code = FAULT_NO_MEMORY
    finally:
        for i in range(loop.n_workers):
            free_lock(loop.workers[i].wait_lock)
            free_lock(loop.workers[i].done_lock)
        free(loop.workers)
        free_lock(loop.lock)
        if parts != NULL:
            for i in range(n_parts):
                end_part(&loop, parts + <size_t>i * task.part_size)
        free(parts)
        free_arenas(&arenas)
    return loop.code


cdef void measure_chunks(Loop *loop, Source source, Py_ssize_t n_threads) noexcept nogil:
    """Choose the size of chunks. Average payloads fill a chunk by four fifths, because payloads differ."""
    cdef size_t n_bytes = source.n_bytes() + <size_t>source.n_rows
    cdef double a_row = <double>(n_bytes + 1) / <double>(source.n_rows + 1)
    cdef size_t most = min(n_bytes // <size_t>(n_threads * LEAST_CHUNKS), <size_t>CHUNK_BYTES)
    loop.step = (<int64_t>(0.8 * <double>most / a_row) // ALIGNMENT + 1) * ALIGNMENT
    loop.most_bytes = max(most, <size_t>(ALIGNMENT * a_row))
    # Without offsets, the total length of payloads is known only after reading each.
    loop.measures = source.has_offsets()


cdef void assign_parts(Worker *worker, char *parts, Arena *arenas) noexcept nogil:
    cdef int k
    for k in range(PARTS):
        worker.chunks[k].part = parts + <size_t>k * worker.loop.task.part_size
        worker.chunks[k].arena = &arenas[k]


cdef void end_part(const Loop *loop, void *part) noexcept:
    loop.task.end(loop.task.output, part, part == loop.failed)


cdef PyThread_type_lock acquired_lock() except NULL:
    cdef PyThread_type_lock lock = PyThread_allocate_lock()
    if lock == NULL:
        raise MemoryError()
    PyThread_acquire_lock(lock, NOWAIT_LOCK)
    return lock


cdef void free_lock(PyThread_type_lock lock) noexcept:
    if lock != NULL:
        PyThread_free_lock(lock)


cdef void run(void *argument) noexcept nogil:
    """The main function of a thread. The worker is freed after `done_lock` is released."""
    cdef Worker *worker = <Worker *>argument
    cdef Loop *loop = worker.loop
    cdef Chunk *chunk = take_chunk(worker)
    cdef FaultCode code
    while chunk != NULL:
        code = loop.task.decode(worker.context, chunk.part, chunk.arena, chunk.first, chunk.stop)
        end_chunk(loop, chunk, code)
        chunk = take_chunk(worker)
    PyThread_release_lock(worker.done_lock)


cdef Chunk *take_chunk(Worker *worker) noexcept nogil:
    """The next rows, and a part for them; NULL if there are no more and this thread has written all of its own."""
    cdef Loop *loop = worker.loop
    cdef Chunk *chunk = NULL
    PyThread_acquire_lock(loop.lock, WAIT_LOCK)
    write_placed(worker)
    while loop.code == OK:
        chunk = take_rows(worker)
        if chunk != NULL or not has_parts(worker):
            break
        worker.waits = True
        PyThread_release_lock(loop.lock)
        PyThread_acquire_lock(worker.wait_lock, WAIT_LOCK)
        PyThread_acquire_lock(loop.lock, WAIT_LOCK)
        write_placed(worker)
    PyThread_release_lock(loop.lock)
    return chunk


cdef Chunk *take_rows(Worker *worker) noexcept nogil:
    """The next rows for a free part, if there are both. The caller holds the lock, as for all functions below."""
    cdef Loop *loop = worker.loop
    cdef Chunk *chunk = first_in(worker, FREE)
    if chunk == NULL or loop.n_taken == (<Source>loop.task.source).n_rows:
        return NULL
    chunk.state = TAKEN
    chunk.first = loop.n_taken
    chunk.stop = loop.n_taken = end_of_chunk(loop, <Source>loop.task.source)
    return chunk


cdef int64_t end_of_chunk(Loop *loop, Source source) noexcept nogil:
    """The end of the next chunk. It has more or fewer rows if payloads are shorter or longer than others."""
    cdef int64_t first = loop.n_taken
    cdef int64_t n = loop.step
    cdef size_t n_bytes
    if not loop.measures:
        return min(first + n, source.n_rows)
    n_bytes = bytes_from(loop, source, first, n)
    while n < MOST_TIMES * loop.step and n_bytes <= loop.most_bytes // 2:
        n *= 2
        n_bytes = bytes_from(loop, source, first, n)
    while n > ALIGNMENT and n_bytes > loop.most_bytes:
        n = n // (2 * ALIGNMENT) * ALIGNMENT
        n_bytes = bytes_from(loop, source, first, n)
    return min(first + n, source.n_rows)


cdef size_t bytes_from(Loop *loop, Source source, int64_t first, int64_t n) noexcept nogil:
    return source.bytes_between(first, min(first + n, source.n_rows), &loop.near)


cdef Chunk *first_in(Worker *worker, ChunkState state) noexcept nogil:
    cdef int k
    for k in range(PARTS):
        if worker.chunks[k].state == state:
            return &worker.chunks[k]
    return NULL


cdef bint has_parts(const Worker *worker) noexcept nogil:
    """Whether a thread that is not decoding has decoded rows that are not written yet."""
    cdef int k
    for k in range(PARTS):
        if worker.chunks[k].state != FREE:
            return True
    return False


cdef void end_chunk(Loop *loop, Chunk *chunk, FaultCode code) noexcept nogil:
    PyThread_acquire_lock(loop.lock, WAIT_LOCK)
    chunk.state = DECODED
    end_early(loop, chunk, code)
    place_next(loop)
    PyThread_release_lock(loop.lock)


cdef void place_next(Loop *loop) noexcept nogil:
    """Assign positions to all parts that can have one now."""
    cdef const Task *task = loop.task
    cdef Py_ssize_t i = 0
    cdef Worker *worker
    cdef Chunk *chunk
    while loop.code == OK and i < loop.n_workers:
        worker = &loop.workers[i]
        chunk = next_chunk(worker)
        i += 1
        if chunk == NULL:
            continue
        if loop.n_writing and not task.fits(task.output, chunk.part):
            # Each writing thread calls this again when it is done.
            break
        end_early(loop, chunk, task.place(task.output, chunk.part))
        chunk.state = PLACED
        loop.n_placed = chunk.stop
        wake(worker)
        i = 0


cdef Chunk *next_chunk(Worker *worker) noexcept nogil:
    """A thread's decoded part whose rows come next in the output."""
    cdef int k
    for k in range(PARTS):
        if worker.chunks[k].state == DECODED and worker.chunks[k].first == worker.loop.n_placed:
            return &worker.chunks[k]
    return NULL


cdef void write_placed(Worker *worker) noexcept nogil:
    """Write a thread's parts that have positions, and those that get one meanwhile: no thread wakes it for these.

    The caller holds the lock; it is released while writing.
    """
    cdef Loop *loop = worker.loop
    cdef Chunk *chunk = first_in(worker, PLACED)
    while chunk != NULL and loop.code == OK:
        loop.n_writing += 1
        PyThread_release_lock(loop.lock)
        loop.task.write(loop.task.output, chunk.part)
        PyThread_acquire_lock(loop.lock, WAIT_LOCK)
        loop.n_writing -= 1
        chunk.state = FREE
        place_next(loop)
        chunk = first_in(worker, PLACED)


cdef void end_early(Loop *loop, const Chunk *chunk, FaultCode code) noexcept nogil:
    """End decoding early, after a fault that is not kept."""
    cdef Py_ssize_t i
    if code != OK and loop.code == OK:
        loop.code = code
        loop.failed = chunk.part
        for i in range(loop.n_workers):
            wake(&loop.workers[i])


cdef void wake(Worker *worker) noexcept nogil:
    """Wake a thread that waits for a position of its part, or for the end."""
    if worker.waits:
        worker.waits = False
        PyThread_release_lock(worker.wait_lock)
