"""Divides the rows of a batch among threads.

Each thread takes the next rows, as many as its core's cache holds with what is made of them, and decodes them into a
part of its own. A thread that has decoded gives all parts their places that can have one, those whose rows come next,
and then writes its own to theirs, past the caches: nothing of the whole is read again soon. A thread that is ahead of
the others continues in another part. No thread waits for another as long as it has free parts, so if the system
suspends a thread, the others do more.

A fault that is not to be kept ends it for all; a row before may have another.

They are C threads: they need the interpreter only to allocate memory, and end before the call returns.
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
    PARTS = 4              # of each thread: so far it may be ahead of the others
    CHUNK_BYTES = 5 << 17   # payloads; with what is made of them, they fit into a core's own cache
    MOST_TIMES = 4         # the rows of a chunk of average payloads, where they are shorter: rows have their cost too
    LEAST_CHUNKS = 4        # of each thread, so that none waits long for the last one
    ALIGNMENT = 64         # rows: none shares a byte of bits with those of other chunks
    ARENA_TIMES = 6        # what grows is mostly moved, and its former place is not used again
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
    const Work *work
    int64_t step              # rows of a chunk, if payloads are as long as on average
    size_t most_bytes         # of a chunk, if it has more than the fewest rows
    bint measures             # whether chunks are to have about as many bytes, and not as many rows
    PyThread_type_lock lock   # of what is below
    int64_t n_taken           # rows
    Py_ssize_t near           # where in the source they end
    int64_t n_placed          # rows that have their place in the whole
    Py_ssize_t n_writing      # threads that write to it
    FaultCode code            # why it has ended early
    const void *failed        # the part in which
    Worker *workers
    Py_ssize_t n_workers

cdef struct Worker:
    Loop *loop
    void *context
    Chunk[PARTS] chunks
    bint waits
    bint started
    # Both are locked at first. `wake` releases the first one, and the thread at its end the second one.
    PyThread_type_lock wait_lock
    PyThread_type_lock done_lock


cdef FaultCode run_in_chunks(const Work *work) except *:
    """Do the work on all rows; a fault that ends it may be any that one of them has."""
    cdef Loop loop
    cdef Worker *worker
    cdef Arenas arenas
    cdef size_t size
    cdef Py_ssize_t n_parts = work.n_threads * PARTS
    cdef Py_ssize_t i
    cdef char *parts = <char *>calloc(<size_t>n_parts, work.part_size)
    memset(&arenas, 0, sizeof(arenas))
    loop.work = work
    measure_chunks(&loop, <Source>work.source, work.n_threads)
    loop.n_taken = loop.n_placed = loop.near = 0
    loop.n_writing = loop.n_workers = 0
    loop.code = OK
    loop.failed = NULL
    loop.lock = PyThread_allocate_lock()
    loop.workers = <Worker *>calloc(<size_t>work.n_threads, sizeof(Worker))
    try:
        if parts == NULL or loop.lock == NULL or loop.workers == NULL:
            raise MemoryError()
        size = min(<size_t>ARENA_TIMES * loop.most_bytes, <size_t>MOST_ARENA) if work.appends else 0
        open_arenas(&arenas, n_parts, size)
        for i in range(work.n_threads):
            worker = &loop.workers[i]
            worker.loop = &loop
            worker.context = <char *>work.contexts + <size_t>i * work.context_size
            assign_parts(worker, parts + <size_t>(i * PARTS) * work.part_size, &arenas.items[i * PARTS])
            loop.n_workers += 1
            worker.wait_lock = acquired_lock()
            worker.done_lock = acquired_lock()
        # Where the system allows no more threads, those that there are do the work as well.
        for i in range(1, work.n_threads):
            worker = &loop.workers[i]
            worker.started = PyThread_start_new_thread(run, worker) != PYTHREAD_INVALID_THREAD_ID
        with nogil:
            run(&loop.workers[0])
            for i in range(1, work.n_threads):
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
                end_part(&loop, parts + <size_t>i * work.part_size)
        free(parts)
        free_arenas(&arenas)
    return loop.code


cdef void measure_chunks(Loop *loop, Source source, Py_ssize_t n_threads) noexcept nogil:
    """Choose the size of chunks: one of average payloads is four fifths full, since payloads differ."""
    cdef size_t n_bytes = source.n_bytes() + <size_t>source.n_rows
    cdef double a_row = <double>(n_bytes + 1) / <double>(source.n_rows + 1)
    cdef size_t most = min(n_bytes // <size_t>(n_threads * LEAST_CHUNKS), <size_t>CHUNK_BYTES)
    loop.step = (<int64_t>(0.8 * <double>most / a_row) // ALIGNMENT + 1) * ALIGNMENT
    loop.most_bytes = max(most, <size_t>(ALIGNMENT * a_row))
    # Without offsets, the length of many payloads is known only by reading each.
    loop.measures = source.has_offsets()


cdef void assign_parts(Worker *worker, char *parts, Arena *arenas) noexcept nogil:
    cdef int k
    for k in range(PARTS):
        worker.chunks[k].part = parts + <size_t>k * worker.loop.work.part_size
        worker.chunks[k].arena = &arenas[k]


cdef void end_part(const Loop *loop, void *part) noexcept:
    loop.work.end(loop.work.whole, part, part == loop.failed)


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
    """The main function of a thread. The worker is freed once `done_lock` is released."""
    cdef Worker *worker = <Worker *>argument
    cdef Loop *loop = worker.loop
    cdef Chunk *chunk = take_chunk(worker)
    cdef FaultCode code
    while chunk != NULL:
        code = loop.work.decode(worker.context, chunk.part, chunk.arena, chunk.first, chunk.stop)
        end_chunk(loop, chunk, code)
        chunk = take_chunk(worker)
    PyThread_release_lock(worker.done_lock)


cdef Chunk *take_chunk(Worker *worker) noexcept nogil:
    """The next rows, and a part for them; NULL where there are no more, and this thread has written all of its own."""
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
    """The next rows for a part that is free, if there are both; the lock is held, as it is in all below."""
    cdef Loop *loop = worker.loop
    cdef Chunk *chunk = first_in(worker, FREE)
    if chunk == NULL or loop.n_taken == (<Source>loop.work.source).n_rows:
        return NULL
    chunk.state = TAKEN
    chunk.first = loop.n_taken
    chunk.stop = loop.n_taken = end_of_chunk(loop, <Source>loop.work.source)
    return chunk


cdef int64_t end_of_chunk(Loop *loop, Source source) noexcept nogil:
    """Up to which row the next chunk goes: where payloads are shorter or longer than others, for more or fewer rows."""
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
    """Whether a thread, which is decoding none, has decoded rows that are not written yet."""
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
    """Give their places to all parts that can have one now."""
    cdef const Work *work = loop.work
    cdef Py_ssize_t i = 0
    cdef Worker *worker
    cdef Chunk *chunk
    while loop.code == OK and i < loop.n_workers:
        worker = &loop.workers[i]
        chunk = next_chunk(worker)
        i += 1
        if chunk == NULL:
            continue
        if loop.n_writing and not work.fits(work.whole, chunk.part):
            # Each writing thread calls this again when it is done.
            break
        end_early(loop, chunk, work.place(work.whole, chunk.part))
        chunk.state = PLACED
        loop.n_placed = chunk.stop
        wake(worker)
        i = 0


cdef Chunk *next_chunk(Worker *worker) noexcept nogil:
    """A thread's decoded part whose rows come next in the whole."""
    cdef int k
    for k in range(PARTS):
        if worker.chunks[k].state == DECODED and worker.chunks[k].first == worker.loop.n_placed:
            return &worker.chunks[k]
    return NULL


cdef void write_placed(Worker *worker) noexcept nogil:
    """Write a thread's parts that have their places, also those that get them meanwhile: nobody wakes it for these.

    The lock is held, but while it writes.
    """
    cdef Loop *loop = worker.loop
    cdef Chunk *chunk = first_in(worker, PLACED)
    while chunk != NULL and loop.code == OK:
        loop.n_writing += 1
        PyThread_release_lock(loop.lock)
        loop.work.write(loop.work.whole, chunk.part)
        PyThread_acquire_lock(loop.lock, WAIT_LOCK)
        loop.n_writing -= 1
        chunk.state = FREE
        place_next(loop)
        chunk = first_in(worker, PLACED)


cdef void end_early(Loop *loop, const Chunk *chunk, FaultCode code) noexcept nogil:
    """Where a fault is not to be kept."""
    cdef Py_ssize_t i
    if code != OK and loop.code == OK:
        loop.code = code
        loop.failed = chunk.part
        for i in range(loop.n_workers):
            wake(&loop.workers[i])


cdef void wake(Worker *worker) noexcept nogil:
    """Wake a thread that waits for the place of its part, or for the end."""
    if worker.waits:
        worker.waits = False
        PyThread_release_lock(worker.wait_lock)
