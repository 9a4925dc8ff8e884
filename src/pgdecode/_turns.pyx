"""Divides the rows of a batch among threads.

Each thread takes the next rows, as many as its cache holds. The rows that come next in the whole, one thread at a time
decodes right into it; others decode later ones into parts of their own, which are joined to the whole in the order of
their rows. So that there are rows to be decoded in place, those who go ahead leave a gap of some turns behind them:
whoever has joined all before it fills it, while the others go on; at the end they take of it as well, from behind. A
thread joins its own parts, which its core's cache still has; those of others only where these, or it, have nothing to
do. No thread waits for another as long as it has parts left to decode into: one that the system lets wait leaves more
to the others.

A fault that is not to be kept ends it for all; a row before may have another.

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
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pgdecode._fault cimport FAULT_NO_MEMORY, OK
from pgdecode._memory cimport Arenas, free_arenas, open_arenas

cdef extern from "Python.h":
    unsigned long PyThread_start_new_thread(void (*function)(void *) noexcept nogil, void *argument)
    unsigned long PYTHREAD_INVALID_THREAD_ID

cdef enum:
    PARTS = 8              # of each thread: so far it may go on while another does not
    TURN_BYTES = 1 << 18   # payloads; with what is made of them, they fit into a core's own cache
    LEAST_TURNS = 4        # of each thread, so that none waits long for the last one
    ALIGNMENT = 64         # rows
    GAP = 4                # turns
    ARENA_TIMES = 3        # since what grows is moved, and its former place is not used again
    ARENA_ROW = 16         # bytes, beside what is made of its payload
    MOST_ARENA = 1 << 21   # bytes

cdef enum StretchState:
    FREE
    TAKEN
    DECODED

cdef struct Stretch:
    # Rows of a turn.
    void *part
    Arena *arena
    StretchState state
    int64_t first
    int64_t stop

cdef struct Turns:
    const Work *work
    int64_t step              # rows of a turn
    PyThread_type_lock lock   # of what is below
    int64_t gap               # rows from here up to `gap_stop` are left out, none if they are equal
    int64_t gap_stop
    int64_t n_taken           # rows in front of this one have been taken, or are the gap's
    int64_t n_joined          # rows that the whole has
    bint is_led               # by a thread that decodes or joins the next rows, now
    FaultCode code            # why it has ended early
    const void *failed        # the part in which
    Stretch front
    Worker *workers
    Py_ssize_t n_workers

cdef struct Worker:
    Turns *turns
    void *own
    Stretch[PARTS] stretches
    bint is_away           # for want of rows, or of a part
    bint sleeps
    bint started
    # Both closed at first: who lets a sleeper go on opens its gate, and a thread at its end the exit.
    PyThread_type_lock gate
    PyThread_type_lock exit


cdef FaultCode in_turns(const Work *work) except *:
    """Decode all rows; a fault that ends it may be any that one of them has."""
    cdef Turns turns
    cdef Worker *worker
    cdef Arenas arenas
    cdef Py_ssize_t n_parts = work.n_threads * PARTS
    cdef Py_ssize_t i
    cdef char *parts = <char *>calloc(<size_t>n_parts + 1, work.part_size)
    memset(&arenas, 0, sizeof(arenas))
    turns.work = work
    turns.step = rows_of_turn(work)
    turns.gap = turns.gap_stop = turns.n_taken = turns.n_joined = 0
    turns.is_led = False
    turns.code = OK
    turns.failed = NULL
    memset(&turns.front, 0, sizeof(turns.front))
    turns.n_workers = 0
    turns.lock = PyThread_allocate_lock()
    turns.workers = <Worker *>calloc(<size_t>work.n_threads, sizeof(Worker))
    try:
        if parts == NULL or turns.lock == NULL or turns.workers == NULL:
            raise MemoryError()
        turns.front.part = work.whole if work.whole_is_front else parts + <size_t>n_parts * work.part_size
        open_arenas(&arenas, n_parts, arena_size(work, turns.step))
        for i in range(work.n_threads):
            worker = &turns.workers[i]
            worker.turns = &turns
            worker.own = <char *>work.owns + <size_t>i * work.own_size
            give_parts(worker, parts + <size_t>(i * PARTS) * work.part_size, &arenas.items[i * PARTS])
            turns.n_workers += 1
            worker.gate = closed_lock()
            worker.exit = closed_lock()
        # Where the system allows no more threads, those that there are do the work as well.
        for i in range(1, work.n_threads):
            worker = &turns.workers[i]
            worker.started = PyThread_start_new_thread(run, worker) != PYTHREAD_INVALID_THREAD_ID
        with nogil:
            run(&turns.workers[0])
            for i in range(1, work.n_threads):
                if turns.workers[i].started:
                    PyThread_acquire_lock(turns.workers[i].exit, WAIT_LOCK)
    except MemoryError:
        turns.code = FAULT_NO_MEMORY
    finally:
        for i in range(turns.n_workers):
            free_lock(turns.workers[i].gate)
            free_lock(turns.workers[i].exit)
        free(turns.workers)
        free_lock(turns.lock)
        if parts != NULL:
            for i in range(n_parts + 1):
                end_part(&turns, parts + <size_t>i * work.part_size)
        free(parts)
        free_arenas(&arenas)
    return turns.code


cdef int64_t rows_of_turn(const Work *work) noexcept nogil:
    """How many rows a thread takes at once: a multiple of 64, that none shares a byte of bits."""
    cdef double share = <double>TURN_BYTES / <double>(work.n_bytes + <size_t>work.n_rows + 1)
    cdef int64_t rows = min(work.n_rows // (work.n_threads * LEAST_TURNS), <int64_t>(<double>work.n_rows * share))
    return (rows // ALIGNMENT + 1) * ALIGNMENT


cdef size_t arena_size(const Work *work, int64_t step) noexcept nogil:
    """Bytes that mostly are enough for what is made of the payloads of a turn."""
    cdef double share = <double>step / <double>(work.n_rows + 1)
    return <size_t>min(ARENA_TIMES * <double>work.n_bytes * share + ARENA_ROW * step, <double>MOST_ARENA)


cdef void give_parts(Worker *worker, char *parts, Arena *arenas) noexcept nogil:
    cdef int k
    for k in range(PARTS):
        worker.stretches[k].part = parts + <size_t>k * worker.turns.work.part_size
        worker.stretches[k].arena = &arenas[k]


cdef void end_part(const Turns *turns, void *part) noexcept:
    turns.work.end(turns.work.whole, part, part == turns.failed)


cdef PyThread_type_lock closed_lock() except NULL:
    cdef PyThread_type_lock lock = PyThread_allocate_lock()
    if lock == NULL:
        raise MemoryError()
    PyThread_acquire_lock(lock, NOWAIT_LOCK)
    return lock


cdef void free_lock(PyThread_type_lock lock) noexcept:
    if lock != NULL:
        PyThread_free_lock(lock)


cdef void run(void *argument) noexcept nogil:
    """What a thread does; nothing is there for it any more once it has opened its exit."""
    cdef Worker *worker = <Worker *>argument
    cdef Turns *turns = worker.turns
    cdef Stretch *stretch = take_turn(worker)
    cdef FaultCode code
    while stretch != NULL:
        code = turns.work.decode(worker.own, stretch.part, stretch.arena, stretch.first, stretch.stop)
        end_turn(worker, stretch, code)
        stretch = take_turn(worker)
    PyThread_release_lock(worker.exit)


cdef Stretch *take_turn(Worker *worker) noexcept nogil:
    """The next rows, and a part for them; NULL where there are no more."""
    cdef Turns *turns = worker.turns
    cdef Stretch *stretch = NULL
    PyThread_acquire_lock(turns.lock, WAIT_LOCK)
    while turns.code == OK:
        stretch = take_rows(worker)
        worker.is_away = stretch == NULL
        if stretch != NULL:
            stretch.state = TAKEN
            break
        if join_next(worker, True):
            continue
        if turns.n_taken == turns.work.n_rows and turns.gap == turns.gap_stop:
            break
        worker.sleeps = True
        PyThread_release_lock(turns.lock)
        PyThread_acquire_lock(worker.gate, WAIT_LOCK)
        PyThread_acquire_lock(turns.lock, WAIT_LOCK)
    PyThread_release_lock(turns.lock)
    return stretch


cdef Stretch *take_rows(Worker *worker) noexcept nogil:
    """Of the gap if it is next, else behind all that have been taken, else of the gap's end; NULL without a part."""
    cdef Turns *turns = worker.turns
    cdef Stretch *stretch
    cdef int64_t step = turns.step
    cdef int64_t n_rows = turns.work.n_rows
    if turns.gap == turns.gap_stop:
        turns.gap = turns.n_taken
        turns.gap_stop = turns.n_taken = min(turns.n_taken + GAP * step, n_rows)
    if turns.gap == turns.n_joined and not turns.is_led and turns.gap < turns.gap_stop:
        turns.is_led = True
        stretch = &turns.front
        stretch.first = turns.gap
        stretch.stop = turns.gap = min(turns.gap + step, turns.gap_stop)
        return stretch
    stretch = free_stretch(worker)
    if stretch == NULL:
        return NULL
    if turns.n_taken < n_rows:
        stretch.first = turns.n_taken
        stretch.stop = turns.n_taken = min(turns.n_taken + step, n_rows)
    elif turns.gap < turns.gap_stop:
        stretch.stop = turns.gap_stop
        stretch.first = turns.gap_stop = (turns.gap_stop - 1) // step * step
    else:
        return NULL
    return stretch


cdef Stretch *free_stretch(Worker *worker) noexcept nogil:
    cdef int k
    for k in range(PARTS):
        if worker.stretches[k].state == FREE:
            return &worker.stretches[k]
    return NULL


cdef Stretch *next_stretch(Worker *worker, bint of_any) noexcept nogil:
    """One that is decoded, and whose rows are next: of this thread, or of one that is away, or of any."""
    cdef Turns *turns = worker.turns
    cdef Worker *other
    cdef Py_ssize_t i
    cdef int k
    if turns.front.state == DECODED:
        return &turns.front
    for i in range(turns.n_workers):
        other = &turns.workers[i]
        if of_any or other == worker or other.is_away:
            for k in range(PARTS):
                if other.stretches[k].state == DECODED and other.stretches[k].first == turns.n_joined:
                    return &other.stretches[k]
    return NULL


cdef void end_turn(Worker *worker, Stretch *stretch, FaultCode code) noexcept nogil:
    cdef Turns *turns = worker.turns
    PyThread_acquire_lock(turns.lock, WAIT_LOCK)
    if stretch == &turns.front:
        turns.is_led = False
    stretch.state = DECODED
    end_early(turns, stretch, code)
    join_next(worker, False)
    PyThread_release_lock(turns.lock)


cdef bint join_next(Worker *worker, bint of_any) noexcept nogil:
    """Join what can be joined, if no other thread leads; whether anything was. The lock is held, but while it joins."""
    cdef Turns *turns = worker.turns
    cdef Stretch *stretch = next_stretch(worker, of_any)
    cdef FaultCode code
    if turns.is_led or stretch == NULL:
        return False
    turns.is_led = True
    while stretch != NULL and turns.code == OK:
        PyThread_release_lock(turns.lock)
        code = turns.work.join(turns.work.whole, stretch.part)
        PyThread_acquire_lock(turns.lock, WAIT_LOCK)
        stretch.state = FREE
        turns.n_joined = stretch.stop
        end_early(turns, stretch, code)
        wake(turns)
        stretch = next_stretch(worker, of_any)
    turns.is_led = False
    return True


cdef void end_early(Turns *turns, Stretch *stretch, FaultCode code) noexcept nogil:
    """Where a fault is not to be kept; the lock is held."""
    if code != OK and turns.code == OK:
        turns.code = code
        turns.failed = stretch.part
        wake(turns)


cdef void wake(Turns *turns) noexcept nogil:
    """Let those go on who wait for a part, or for the end; the lock is held."""
    cdef Py_ssize_t i
    for i in range(turns.n_workers):
        if turns.workers[i].sleeps:
            turns.workers[i].sleeps = False
            PyThread_release_lock(turns.workers[i].gate)
