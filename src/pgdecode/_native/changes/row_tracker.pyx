"""Follows rows from change to change, by the numbers of their keys."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from pgdecode._native.cursor cimport prefetch
from pgdecode._native.fault cimport OK, FaultCode, unlikely
from pgdecode._native.memory.buffers cimport Bytes, free_bytes, grow, hand_over

cpdef enum:
    # What a change does.
    INSERT = 0
    UPDATE = 1
    DELETE = 2
    TRUNCATE = 3
    NO_CHANGE = 255

cpdef enum:
    # What became of a row. One that was inserted and deleted is gone.
    GONE = 0
    LIVE = 1
    DELETED = 2

cdef enum:
    AHEAD = 16  # changes: how far ahead rows are prefetched

cdef struct Row:
    int64_t change    # the last change of the row
    int32_t own       # the number of its key
    int32_t before    # the number of the key that it had before all changes, -1 if it was inserted
    int32_t previous  # the row before it with the same key, -1 if there is none
    uint8_t state


cdef extern from *:
    int popcount "__builtin_popcountll"(unsigned long long word) noexcept nogil


cdef FaultCode room(Bytes *bytes, size_t size) noexcept nogil:
    """Make room for so many bytes, half as many again if there is none."""
    if size <= bytes.capacity and bytes.data != NULL:
        return OK
    return grow(bytes, size + (size >> 1) + 64)


def op_codes(Py_ssize_t n, offsets, values, Py_ssize_t first):
    """A buffer of uint8: what each change does, from the strings of `_op`; `NO_CHANGE` for other strings."""
    cdef const int32_t[::1] ends = memoryview(offsets).cast("B").cast("i") if n else None
    cdef const uint8_t[::1] text = memoryview(values or b"").cast("B")
    cdef Bytes out
    cdef Py_ssize_t i
    cdef int32_t at
    cdef uint8_t letter
    memset(&out, 0, sizeof(out))
    if n and ends.shape[0] < first + n + 1:
        raise ValueError("the Arrow array's offsets are too short")
    if grow(&out, <size_t>n) != OK:
        raise MemoryError("no memory for changes")
    out.size = <size_t>n
    with nogil:
        for i in range(n):
            at = ends[first + i]
            letter = text[at] if 0 <= at < text.shape[0] and ends[first + i + 1] > at else 0
            if letter == c"u":
                out.data[i] = UPDATE
            elif letter == c"i":
                out.data[i] = INSERT
            elif letter == c"d":
                out.data[i] = DELETE
            else:
                out.data[i] = TRUNCATE if letter == c"t" else NO_CHANGE
    return hand_over(&out)


cdef class NeededChanges:
    """Which changes rows still need: a bitmap, and how many of its bits are set before each word."""

    cdef Bytes words    # uint64
    cdef Bytes before   # int32
    cdef Py_ssize_t n

    def __cinit__(self, Py_ssize_t n):
        cdef size_t n_words = <size_t>n // 64 + 1
        memset(&self.words, 0, sizeof(Bytes))
        memset(&self.before, 0, sizeof(Bytes))
        self.n = n
        if grow(&self.words, 8 * n_words) != OK or grow(&self.before, 4 * n_words) != OK:
            raise MemoryError("no memory for changes")
        memset(self.words.data, 0, 8 * n_words)
        self.words.size = 8 * n_words

    def __dealloc__(self):
        free_bytes(&self.words)
        free_bytes(&self.before)

    cdef inline void add(self, int64_t change) noexcept nogil:
        if 0 <= change < self.n:
            (<uint64_t *>self.words.data)[change >> 6] |= <uint64_t>1 << (change & 63)

    def count(self):
        """Number the marked changes. Nothing is marked afterwards."""
        cdef size_t i
        cdef int32_t n = 0
        for i in range(self.words.size // 8):
            (<int32_t *>self.before.data)[i] = n
            n += popcount((<uint64_t *>self.words.data)[i])

    cdef inline int64_t number(self, int64_t change) noexcept nogil:
        """The number of a change among those that are marked; -1 if it is not."""
        cdef uint64_t word, bit
        if not 0 <= change < self.n:
            return change
        word = (<uint64_t *>self.words.data)[change >> 6]
        bit = <uint64_t>1 << (change & 63)
        return (<int32_t *>self.before.data)[change >> 6] + popcount(word & (bit - 1)) if word & bit else -1

    cdef int64_t n_below(self, int64_t change) noexcept nogil:
        """How many changes before one are marked."""
        cdef uint64_t word
        if not 0 <= change <= self.n:
            return 0
        word = (<uint64_t *>self.words.data)[change >> 6]
        return (<int32_t *>self.before.data)[change >> 6] + popcount(word & ((<uint64_t>1 << (change & 63)) - 1))

    def bitmap(self):
        """A buffer with the bits."""
        cdef Bytes out
        memset(&out, 0, sizeof(out))
        if grow(&out, self.words.size) != OK:
            raise MemoryError("no memory for changes")
        memcpy(out.data, self.words.data, self.words.size)
        out.size = self.words.size
        return hand_over(&out)


cdef class RowTracker:
    """The rows that changes have touched, each with a number.

    With `is_unique`, two rows never have the same key at the same time: another one that has it is removed, because
    changes were delivered again. Otherwise rows may be equal, and a change refers to the last one with its key. With
    `has_before`, a row that a change does not find was there before all changes. Otherwise there was none, and the row
    counts as inserted.
    """

    cdef readonly bint is_unique
    cdef readonly bint has_before
    cdef readonly int32_t n
    cdef readonly int32_t n_gone  # rows that were inserted and deleted
    cdef readonly int64_t n_loaded  # the changes below this are those of `load`
    cdef Bytes rows
    cdef Bytes last    # int32: by the number of a key, the last live row with it, -1 for none
    cdef Bytes origin  # int32: by the number of a key, the row that had it before all changes
    cdef int32_t n_keys

    def __cinit__(self, bint is_unique, bint has_before=True):
        memset(&self.rows, 0, sizeof(Bytes))
        memset(&self.last, 0, sizeof(Bytes))
        memset(&self.origin, 0, sizeof(Bytes))
        self.is_unique = is_unique
        self.has_before = has_before
        self.n = self.n_keys = self.n_gone = 0
        self.n_loaded = 0

    def __dealloc__(self):
        free_bytes(&self.rows)
        free_bytes(&self.last)
        free_bytes(&self.origin)

    def __len__(self):
        return self.n

    cdef int reserve(self, int64_t n_more, int32_t n_keys) except -1:
        """Make room for rows and keys."""
        if self.n + n_more > 0x7FFFFFFE:
            raise OverflowError("more than 2147483646 rows were touched")
        if (
            room(&self.rows, <size_t>(self.n + n_more) * sizeof(Row)) != OK
            or room(&self.last, 4 * <size_t>n_keys) != OK
            or room(&self.origin, 4 * <size_t>n_keys) != OK
        ):
            raise MemoryError("no memory for the rows of a table")
        self.rows.size = <size_t>self.n * sizeof(Row)
        if n_keys > self.n_keys:
            memset(self.last.data + 4 * self.n_keys, 0xFF, 4 * <size_t>(n_keys - self.n_keys))
            memset(self.origin.data + 4 * self.n_keys, 0xFF, 4 * <size_t>(n_keys - self.n_keys))
            self.n_keys = n_keys
            self.last.size = self.origin.size = 4 * <size_t>n_keys
        return 0

    cdef inline int32_t pop(self, int32_t key) noexcept nogil:
        """Remove and return the last live row with a key; -1 if there is none."""
        cdef int32_t *last = <int32_t *>self.last.data
        cdef int32_t row = last[key]
        if row >= 0:
            last[key] = (<Row *>self.rows.data)[row].previous
        return row

    cdef inline void remove(self, Row *row) noexcept nogil:
        row.state = GONE if row.before < 0 else DELETED
        self.n_gone += row.before < 0

    cdef inline void push(self, int32_t number, int32_t key) noexcept nogil:
        """Let a live row have a key."""
        cdef int32_t *last = <int32_t *>self.last.data
        cdef Row *rows = <Row *>self.rows.data
        cdef int32_t other = last[key]
        if self.is_unique and other >= 0:
            self.remove(&rows[other])
            other = rows[other].previous
        rows[number].own = key
        rows[number].previous = other
        rows[number].state = LIVE
        last[key] = number

    cdef inline int32_t add(self, int32_t own, int32_t before, int64_t change) noexcept nogil:
        cdef Row *row = &(<Row *>self.rows.data)[self.n]
        row.own = own
        row.before = before
        row.previous = -1
        row.change = change
        row.state = DELETED
        if before >= 0:
            (<int32_t *>self.origin.data)[before] = self.n
        self.n += 1
        return self.n - 1

    cdef inline int32_t returned(self, int32_t key) noexcept nogil:
        """The row that had a key before all changes, of which a change was delivered again; -1 if there is none."""
        cdef int32_t number
        cdef Row *row
        if not self.is_unique:
            return -1
        number = (<int32_t *>self.origin.data)[key]
        if number < 0:
            return -1
        row = &(<Row *>self.rows.data)[number]
        if row.state == LIVE:
            self.pop(row.own)
        return number if row.state != GONE else -1

    def apply(
        self,
        const uint8_t[::1] ops,
        const int32_t[::1] own,
        const int32_t[::1] removed,
        int64_t first,
        int32_t n_keys,
        find=None,
        bint with_previous=False,
    ):
        """Apply changes, the first of which has the number `first`.

        `own` is the key after each change, `removed` the key of the row that it changes or deletes; both are below
        `n_keys`. If no row has the key, `find` is called with the number of the change among these; it returns a row
        that was loaded without a key, or -1.

        Returns a buffer of int32: the row that each change touched; and `with_previous`, one of int64: the change
        before it of the same row, -1 for none; -2 - c if another row has the key, whose last change is c.
        """
        cdef Py_ssize_t n = ops.shape[0]
        cdef Py_ssize_t i
        cdef int32_t number
        cdef uint8_t op
        cdef Bytes out, previous
        cdef int64_t change
        cdef int32_t *last
        cdef Row *rows
        cdef bint is_good = True
        cdef bint has_others = find is not None
        memset(&out, 0, sizeof(out))
        memset(&previous, 0, sizeof(previous))
        if own.shape[0] != n or removed.shape[0] != n:
            raise ValueError("each change has two keys")
        self.reserve(n, n_keys)
        try:
            if grow(&out, 4 * <size_t>n) != OK or (with_previous and grow(&previous, 8 * <size_t>n) != OK):
                raise MemoryError("no memory for the rows of a table")
            out.size = 4 * <size_t>n
            previous.size = 8 * <size_t>n if with_previous else 0
            with nogil:
                last = <int32_t *>self.last.data
                rows = <Row *>self.rows.data
                for i in range(n):
                    if unlikely(not (0 <= own[i] < n_keys and 0 <= removed[i] < n_keys and ops[i] <= DELETE)):
                        is_good = False
                        break
                for i in range(n if is_good else 0):
                    if i + AHEAD < n:
                        prefetch(&last[removed[i + AHEAD]])
                    if i + AHEAD // 2 < n:
                        number = last[removed[i + AHEAD // 2]]
                        if number >= 0:
                            prefetch(&rows[number])
                    op = ops[i]
                    change = -1
                    if op == INSERT:
                        number = last[own[i]] if self.is_unique else -1
                        if number >= 0:
                            # An earlier copy of the row, which was delivered again.
                            change = -2 - rows[number].change
                            rows[number].change = first + i
                        else:
                            number = self.add(own[i], -1, first + i)
                            self.push(number, own[i])
                    else:
                        number = last[removed[i]]
                        if number >= 0 and op == UPDATE and own[i] == removed[i]:
                            change = rows[number].change
                            rows[number].change = first + i
                        else:
                            number = self.pop(removed[i])
                            if number < 0:
                                number = self.returned(removed[i])
                            if unlikely(number < 0 and has_others):
                                with gil:
                                    number = find(i)
                                    if not -1 <= number < self.n:
                                        raise IndexError("there is no such row")
                            if number >= 0:
                                change = rows[number].change
                            else:
                                number = self.add(removed[i], removed[i] if self.has_before else -1, first + i)
                            rows[number].change = first + i
                            if op == DELETE:
                                self.remove(&rows[number])
                            else:
                                if self.is_unique and last[own[i]] >= 0:
                                    change = -2 - rows[last[own[i]]].change
                                self.push(number, own[i])
                    (<int32_t *>out.data)[i] = number
                    if with_previous:
                        (<int64_t *>previous.data)[i] = change
            if not is_good:
                raise IndexError("there is no such key")
            rows_of = hand_over(&out)
            return rows_of, hand_over(&previous) if with_previous else None
        finally:
            free_bytes(&out)
            free_bytes(&previous)

    def load(
        self,
        const int32_t[::1] own,
        const int32_t[::1] before,
        const uint8_t[::1] states,
        const uint8_t[::1] is_keyed,
        int32_t n_keys,
    ):
        """Add rows. The last change of each has the row's number. Changes find those that are keyed."""
        cdef Py_ssize_t i
        cdef int32_t number
        cdef Py_ssize_t n = own.shape[0]
        if before.shape[0] != n or states.shape[0] != n or is_keyed.shape[0] != n:
            raise ValueError("each row has two keys and a state")
        self.reserve(own.shape[0], n_keys)
        for i in range(own.shape[0]):
            if not (0 <= own[i] < n_keys and -1 <= before[i] < n_keys):
                raise IndexError("there is no such key")
            number = self.add(own[i], before[i], self.n)
            if states[i] == LIVE and is_keyed[i]:
                self.push(number, own[i])
            else:
                (<Row *>self.rows.data)[number].state = states[i]
                self.n_gone += states[i] == GONE
        self.n_loaded = self.n

    def is_as_loaded(self, int32_t row):
        """Whether no change has touched a row since `load`."""
        if not 0 <= row < self.n:
            raise IndexError("there is no such row")
        return (<Row *>self.rows.data)[row].state == LIVE and (<Row *>self.rows.data)[row].change < self.n_loaded

    def mark(self, NeededChanges needed not None):
        """Mark the last change of each row that is not gone."""
        cdef const Row *rows = <const Row *>self.rows.data
        cdef int32_t i
        for i in range(self.n):
            if rows[i].state != GONE:
                needed.add(rows[i].change)

    def move(self, NeededChanges needed not None):
        """Give the marked changes their numbers among these."""
        cdef Row *rows = <Row *>self.rows.data
        cdef int32_t i
        for i in range(self.n):
            rows[i].change = needed.number(rows[i].change)
        self.n_loaded = needed.n_below(self.n_loaded)

    def in_order(self, Py_ssize_t n_changes):
        """A buffer of int32: the rows that are not gone, in the order of their last changes."""
        cdef const Row *rows = <const Row *>self.rows.data
        cdef Bytes by_change, out
        cdef Py_ssize_t i
        cdef int32_t row
        memset(&by_change, 0, sizeof(Bytes))
        memset(&out, 0, sizeof(Bytes))
        try:
            if grow(&by_change, 4 * <size_t>n_changes) != OK or grow(&out, 4 * <size_t>self.n) != OK:
                raise MemoryError("no memory for the rows of a table")
            memset(by_change.data, 0xFF, 4 * <size_t>n_changes)
            for i in range(self.n):
                if rows[i].state != GONE:
                    if not 0 <= rows[i].change < n_changes:
                        raise IndexError("there is no such change")
                    (<int32_t *>by_change.data)[rows[i].change] = <int32_t>i
            for i in range(n_changes):
                row = (<int32_t *>by_change.data)[i]
                if row >= 0:
                    (<int32_t *>(out.data + out.size))[0] = row
                    out.size += 4
            return hand_over(&out)
        finally:
            free_bytes(&by_change)
            free_bytes(&out)

    def columns(self):
        """Buffers of all rows: own and before (int32), change (int64) and state (uint8)."""
        cdef Bytes own, before, change, state
        cdef Row *rows = <Row *>self.rows.data
        cdef Py_ssize_t i
        cdef size_t n = <size_t>self.n
        memset(&own, 0, sizeof(Bytes))
        memset(&before, 0, sizeof(Bytes))
        memset(&change, 0, sizeof(Bytes))
        memset(&state, 0, sizeof(Bytes))
        try:
            if (
                grow(&own, 4 * n) != OK or grow(&before, 4 * n) != OK or grow(&change, 8 * n) != OK
                or grow(&state, n) != OK
            ):
                raise MemoryError("no memory for the rows of a table")
            own.size = before.size = 4 * n
            change.size = 8 * n
            state.size = n
            with nogil:
                for i in range(self.n):
                    (<int32_t *>own.data)[i] = rows[i].own
                    (<int32_t *>before.data)[i] = rows[i].before
                    (<int64_t *>change.data)[i] = rows[i].change
                    state.data[i] = rows[i].state
            return hand_over(&own), hand_over(&before), hand_over(&change), hand_over(&state)
        finally:
            free_bytes(&own)
            free_bytes(&before)
            free_bytes(&change)
            free_bytes(&state)


cdef class ValuePlaces:
    """For each row, the change that has its value of one column, or a negative code."""

    cdef Bytes places
    cdef Py_ssize_t n

    def __cinit__(self, const int64_t[::1] places):
        """`places` are those of the rows so far."""
        cdef Py_ssize_t i
        memset(&self.places, 0, sizeof(Bytes))
        self.extend(places.shape[0], -1)
        for i in range(places.shape[0]):
            (<int64_t *>self.places.data)[i] = places[i]

    def __dealloc__(self):
        free_bytes(&self.places)

    cdef int extend(self, Py_ssize_t n, int64_t code) except -1:
        cdef Py_ssize_t i
        if n > self.n:
            if room(&self.places, 8 * <size_t>n) != OK:
                raise MemoryError("no memory for the rows of a table")
            for i in range(self.n, n):
                (<int64_t *>self.places.data)[i] = code
            self.n = n
            self.places.size = 8 * <size_t>n
        return 0

    def apply(
        self, const uint8_t[::1] ops, const int32_t[::1] rows, const int64_t[::1] untold, int64_t first, Py_ssize_t n
    ):
        """Follow changes. `rows` has the row that each touched, `untold` the changes without a value, ascending.

        There are `n` rows then. Those that are new have no value before the changes.
        """
        cdef Py_ssize_t i
        cdef Py_ssize_t at = 0
        self.extend(n, -1)
        for i in range(rows.shape[0]):
            if not 0 <= rows[i] < n:
                raise IndexError("there is no such row")
            if at < untold.shape[0] and untold[at] == i:
                at += 1
                if ops[i] == INSERT:
                    (<int64_t *>self.places.data)[rows[i]] = -1
            elif ops[i] != DELETE:
                (<int64_t *>self.places.data)[rows[i]] = first + i

    def mark(self, const uint8_t[::1] states, NeededChanges needed not None):
        """Mark the changes with values of rows that are live."""
        cdef const int64_t *places = <const int64_t *>self.places.data
        cdef Py_ssize_t i
        if states.shape[0] < self.n:
            raise IndexError("each row has a state")
        for i in range(self.n):
            if states[i] == LIVE:
                needed.add(places[i])

    def move(self, NeededChanges needed not None):
        """Give the marked changes their numbers among these. Rows that are not live have no values."""
        cdef int64_t *places = <int64_t *>self.places.data
        cdef Py_ssize_t i
        for i in range(self.n):
            places[i] = needed.number(places[i])

    def column(self):
        """A buffer of int64: the places of all rows."""
        cdef Bytes out
        cdef Py_ssize_t i
        memset(&out, 0, sizeof(out))
        if grow(&out, 8 * <size_t>self.n) != OK:
            raise MemoryError("no memory for the rows of a table")
        out.size = 8 * <size_t>self.n
        for i in range(self.n):
            (<int64_t *>out.data)[i] = (<int64_t *>self.places.data)[i]
        return hand_over(&out)
