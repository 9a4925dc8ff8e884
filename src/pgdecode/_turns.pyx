"""Divides the rows of a batch among threads.

Each thread takes the next rows, as many as its cache holds, and decodes them into a part. Parts are joined to the whole
in the order of their rows, by the thread that has just ended the first one that is not: what it copies then has just
been written. No thread waits for another, however late that comes, as long as there are parts left to decode into; so
one that the system lets wait leaves more to the others. A fault that is not to be kept ends it for all; a row before
may have another.

The threads are C's: they need the interpreter only where memory is to be had, and are over when the call is.
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
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free

from pgdecode._fault cimport OK
from pgdecode._part cimport begin_rows, divide, finish_rows, free_part, join_rows, scan_rows
from pgdecode._sink cimport Opening
from pgdecode._source cimport Segment

cdef extern from "Python.h":
    unsigned long PyThread_start_new_thread(void (*function)(void *) noexcept nogil, void *argument)
    unsigned long PYTHREAD_INVALID_THREAD_ID

cdef enum:
    TURN_BYTES = 1 << 19   # payloads; with what is made of them, they fit into a core's own cache
    LEAST_TURNS = 4        # of each thread, so that none waits long for the last one
    ALIGNMENT = 64         # rows
    PARTS = 8              # for each thread: how far the others may go on while one does not

cdef enum PartState:
    FREE
    TAKEN
    DECODED

cdef struct Stretch:
    # Rows of a turn.
    Part part
    PartState state
    int64_t first
    int64_t stop

cdef struct Turns:
    Opening opening        # its lock is also that of what is below
    Part *whole
    const Segment *segments
    Py_ssize_t n_segments
    int64_t n_rows
    int64_t step           # rows of a turn
    int64_t n_taken
    int64_t n_joined
    FaultCode code         # why it has ended early
    bint is_joined         # by a thread, now
    Stretch *stretches
    Py_ssize_t n_stretches
    Worker *workers
    Py_ssize_t n_workers

cdef struct Worker:
    Turns *turns
    bint sleeps
    bint started
    # Both closed at first: who lets a sleeper go on opens its gate, and a thread at its end the exit.
    PyThread_type_lock gate
    PyThread_type_lock exit


cdef FaultCode scan_in_turns(Part *whole, Source source, Py_ssize_t n_threads) except *:
    """Decode all rows."""
    cdef Turns turns
    cdef Worker *worker
    cdef Py_ssize_t i
    turns.opening.n_joined = turns.n_taken = turns.n_joined = 0
    turns.whole = whole
    turns.segments = source.segments
    turns.n_segments = source.n_segments
    turns.n_rows = source.n_rows
    turns.step = rows_of_turn(source, n_threads)
    turns.code = OK
    turns.is_joined = False
    turns.n_workers = turns.n_stretches = 0
    turns.opening.lock = PyThread_allocate_lock()
    turns.workers = <Worker *>calloc(<size_t>n_threads, sizeof(Worker))
    turns.stretches = <Stretch *>calloc(<size_t>n_threads * PARTS, sizeof(Stretch))
    try:
        if turns.opening.lock == NULL or turns.workers == NULL or turns.stretches == NULL:
            raise MemoryError()
        for i in range(n_threads * PARTS):
            divide(&turns.stretches[i].part, whole, &turns.opening)
            turns.n_stretches += 1
        for i in range(n_threads):
            worker = &turns.workers[i]
            worker.turns = &turns
            turns.n_workers += 1
            worker.gate = closed_lock()
            worker.exit = closed_lock()
        # Where the system allows no more threads, those that there are do the work as well.
        for i in range(1, n_threads):
            worker = &turns.workers[i]
            worker.started = PyThread_start_new_thread(run, worker) != PYTHREAD_INVALID_THREAD_ID
        with nogil:
            run(&turns.workers[0])
            for i in range(1, n_threads):
                if turns.workers[i].started:
                    PyThread_acquire_lock(turns.workers[i].exit, WAIT_LOCK)
    finally:
        for i in range(turns.n_stretches):
            free_part(&turns.stretches[i].part)
        for i in range(turns.n_workers):
            free_lock(turns.workers[i].gate)
            free_lock(turns.workers[i].exit)
        free(turns.stretches)
        free(turns.workers)
        free_lock(turns.opening.lock)
    return turns.code


cdef PyThread_type_lock closed_lock() except NULL:
    cdef PyThread_type_lock lock = PyThread_allocate_lock()
    if lock == NULL:
        raise MemoryError()
    PyThread_acquire_lock(lock, NOWAIT_LOCK)
    return lock


cdef void free_lock(PyThread_type_lock lock) noexcept:
    if lock != NULL:
        PyThread_free_lock(lock)


cdef int64_t rows_of_turn(Source source, Py_ssize_t n_threads) noexcept nogil:
    cdef int64_t n_bytes = <int64_t>source.n_bytes() + source.n_rows
    cdef int64_t rows = min(source.n_rows // (n_threads * LEAST_TURNS), source.n_rows * TURN_BYTES // n_bytes)
    return (rows // ALIGNMENT + 1) * ALIGNMENT


cdef void run(void *argument) noexcept nogil:
    """What a thread does; nothing is there for it any more once it has opened its exit."""
    cdef Worker *worker = <Worker *>argument
    cdef Turns *turns = worker.turns
    cdef Stretch *stretch = take_turn(worker)
    cdef FaultCode code
    while stretch != NULL:
        begin_rows(&stretch.part, stretch.first, stretch.stop)
        code = scan_rows(&stretch.part, turns.segments, turns.n_segments, stretch.first, stretch.stop)
        if code == OK:
            code = finish_rows(&stretch.part)
        end_turn(turns, stretch, code)
        stretch = take_turn(worker)
    PyThread_release_lock(worker.exit)


cdef Stretch *take_turn(Worker *worker) noexcept nogil:
    """The next rows, and a part for them; NULL where there are no more."""
    cdef Turns *turns = worker.turns
    cdef Stretch *stretch = NULL
    PyThread_acquire_lock(turns.opening.lock, WAIT_LOCK)
    while turns.code == OK and turns.n_taken < turns.n_rows:
        stretch = stretch_that_is(turns, FREE)
        if stretch != NULL:
            stretch.state = TAKEN
            stretch.first = turns.n_taken
            stretch.stop = turns.n_taken = min(turns.n_taken + turns.step, turns.n_rows)
            break
        worker.sleeps = True
        PyThread_release_lock(turns.opening.lock)
        PyThread_acquire_lock(worker.gate, WAIT_LOCK)
        PyThread_acquire_lock(turns.opening.lock, WAIT_LOCK)
    PyThread_release_lock(turns.opening.lock)
    return stretch


cdef Stretch *stretch_that_is(Turns *turns, PartState state) noexcept nogil:
    """One that is free; or one that is decoded, and the next to be joined."""
    cdef Py_ssize_t i
    for i in range(turns.n_stretches):
        if turns.stretches[i].state == state and (state == FREE or turns.stretches[i].first == turns.n_joined):
            return &turns.stretches[i]
    return NULL


cdef void end_turn(Turns *turns, Stretch *stretch, FaultCode code) noexcept nogil:
    """Join what can be joined, if no other thread is about it: that one does it as well."""
    PyThread_acquire_lock(turns.opening.lock, WAIT_LOCK)
    stretch.state = DECODED
    end_early(turns, stretch, code)
    if not turns.is_joined:
        turns.is_joined = True
        stretch = stretch_that_is(turns, DECODED)
        while stretch != NULL and turns.code == OK:
            PyThread_release_lock(turns.opening.lock)
            code = join_rows(turns.whole, &stretch.part)
            PyThread_acquire_lock(turns.opening.lock, WAIT_LOCK)
            stretch.state = FREE
            turns.n_joined = stretch.stop
            end_early(turns, stretch, code)
            wake(turns)
            stretch = stretch_that_is(turns, DECODED)
        turns.is_joined = False
    PyThread_release_lock(turns.opening.lock)


cdef void end_early(Turns *turns, Stretch *stretch, FaultCode code) noexcept nogil:
    """Where a fault is not to be kept; the lock is held."""
    if code != OK and turns.code == OK:
        turns.code = code
        turns.whole.fault = stretch.part.fault
        wake(turns)


cdef void wake(Turns *turns) noexcept nogil:
    """Let those go on who wait for a part, or for the end; the lock is held."""
    cdef Py_ssize_t i
    for i in range(turns.n_workers):
        if turns.workers[i].sleeps:
            turns.workers[i].sleeps = False
            PyThread_release_lock(turns.workers[i].gate)
