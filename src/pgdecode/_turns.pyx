"""Divides the rows of a batch among threads.

Each thread takes the next rows, as many as its cache holds, decodes them into its part, waits until the rows before
have been joined to the whole, and joins them: what it copies then it has just written. A thread that comes late, or not
at all, leaves more to the others. A fault that is not to be kept ends it for all; a row before may have another.

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

cdef extern from *:
    """
    #ifdef _MSC_VER
    #include <intrin.h>
    #define PGDECODE_PAUSE() _mm_pause()
    #define PGDECODE_LOOK(place) (*(volatile const int64_t *)(place))
    #define PGDECODE_SHOW(place, value) (*(volatile int64_t *)(place) = (value))
    #else
    #if defined(__x86_64__) || defined(__i386__)
    #define PGDECODE_PAUSE() __builtin_ia32_pause()
    #else
    #define PGDECODE_PAUSE() ((void)0)
    #endif
    #define PGDECODE_LOOK(place) __atomic_load_n(place, __ATOMIC_RELAXED)
    #define PGDECODE_SHOW(place, value) __atomic_store_n(place, value, __ATOMIC_RELAXED)
    #endif
    """
    # What is read while others may write it: a hint, which the lock then makes sure of.
    int64_t look "PGDECODE_LOOK"(const int64_t *place) nogil
    void show "PGDECODE_SHOW"(int64_t *place, int64_t value) nogil
    void pause "PGDECODE_PAUSE"() nogil

cdef enum:
    TURN_BYTES = 1 << 18   # payloads; with what is made of them, they fit into a core's own cache
    LEAST_TURNS = 4        # of each thread, so that none waits long for the last one
    ALIGNMENT = 64         # rows
    MOST_LOOKS = 2000      # for its turn, before a thread sleeps: to be woken takes longer than most turns do

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
    Worker *workers
    Py_ssize_t n_workers

cdef struct Worker:
    Part part
    Turns *turns
    int64_t first          # the rows of its turn
    int64_t stop
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
    turns.n_workers = 0
    turns.opening.lock = PyThread_allocate_lock()
    turns.workers = <Worker *>calloc(<size_t>n_threads, sizeof(Worker))
    try:
        if turns.opening.lock == NULL or turns.workers == NULL:
            raise MemoryError()
        for i in range(n_threads):
            worker = &turns.workers[i]
            worker.turns = &turns
            divide(&worker.part, whole, &turns.opening)
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
        for i in range(turns.n_workers):
            free_part(&turns.workers[i].part)
            free_lock(turns.workers[i].gate)
            free_lock(turns.workers[i].exit)
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
    cdef FaultCode code
    while take_turn(worker):
        begin_rows(&worker.part, worker.first, worker.stop)
        code = scan_rows(&worker.part, turns.segments, turns.n_segments, worker.first, worker.stop)
        if code == OK:
            code = finish_rows(&worker.part)
        if code == OK and await_turn(worker):
            code = join_rows(turns.whole, &worker.part)
        end_turn(worker, code)
    PyThread_release_lock(worker.exit)


cdef bint take_turn(Worker *worker) noexcept nogil:
    cdef Turns *turns = worker.turns
    cdef bint taken
    PyThread_acquire_lock(turns.opening.lock, WAIT_LOCK)
    taken = turns.code == OK and turns.n_taken < turns.n_rows
    if taken:
        worker.first = turns.n_taken
        worker.stop = turns.n_taken = min(turns.n_taken + turns.step, turns.n_rows)
    PyThread_release_lock(turns.opening.lock)
    return taken


cdef bint await_turn(Worker *worker) noexcept nogil:
    """Wait until all rows before have been joined; False where that will not be."""
    cdef Turns *turns = worker.turns
    cdef bint is_over
    cdef int _i
    for _i in range(MOST_LOOKS):
        if look(&turns.n_joined) == worker.first:
            break
        pause()
    PyThread_acquire_lock(turns.opening.lock, WAIT_LOCK)
    is_over = turns.code != OK
    worker.sleeps = not is_over and turns.n_joined != worker.first
    if worker.sleeps:
        PyThread_release_lock(turns.opening.lock)
        PyThread_acquire_lock(worker.gate, WAIT_LOCK)
        PyThread_acquire_lock(turns.opening.lock, WAIT_LOCK)
        is_over = turns.code != OK
    PyThread_release_lock(turns.opening.lock)
    return not is_over


cdef void end_turn(Worker *worker, FaultCode code) noexcept nogil:
    """Wake the one whose turn is next, or all where it is over."""
    cdef Turns *turns = worker.turns
    cdef Worker *other
    cdef Py_ssize_t i
    PyThread_acquire_lock(turns.opening.lock, WAIT_LOCK)
    if code != OK and turns.code == OK:
        turns.code = code
        turns.whole.fault = worker.part.fault
    if turns.code == OK:
        show(&turns.n_joined, worker.stop)
    for i in range(turns.n_workers):
        other = &turns.workers[i]
        if other.sleeps and (turns.code != OK or other.first == turns.n_joined):
            other.sleeps = False
            PyThread_release_lock(other.gate)
    PyThread_release_lock(turns.opening.lock)
