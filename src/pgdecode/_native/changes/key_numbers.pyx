"""Gives each different key of rows a number, over the buffers of Arrow columns."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from pgdecode._native.changes.column_buffers cimport ColumnBuffers, find_value, is_valid, mixed, view_column
from pgdecode._native.cursor cimport prefetch
from pgdecode._native.fault cimport OK, unlikely
from pgdecode._native.memory.buffers cimport Bytes, free_bytes, grow, hand_over, reserve

import os

cdef enum:
    BLOCK = 32          # rows: so many slots of the table are fetched from memory at the same time
    MOST_COLUMNS = 1600  # PostgreSQL's MaxTupleAttributeNumber
    FIRST_SLOTS = 1 << 10

cdef struct Slot:
    uint64_t hash    # the value itself, if keys are numbers
    int32_t number   # plus 1; 0 for a free slot


cdef uint64_t hash_of(const uint8_t *data, size_t size, uint64_t seed) noexcept nogil:
    cdef uint64_t found = seed ^ <uint64_t>size
    cdef uint64_t word = 0
    while size >= 8:
        memcpy(&word, data, 8)
        found = mixed(found ^ word)
        data += 8
        size -= 8
    word = 0
    if size:  # the key of a table without columns has no bytes, and no pointer to them
        memcpy(&word, data, size)
    return mixed(found ^ word)


cdef class KeyTable:
    """Numbers of keys, in the order in which they are first seen.

    Keys are equal if the bytes of their columns are: NaN equals NaN, 0.0 is not -0.0, null equals null. The hash
    depends on a secret, so that no rows can make the table slow.
    """

    cdef Slot *slots
    cdef size_t mask
    cdef int32_t n
    cdef int32_t null_number  # plus 1
    cdef uint64_t seed
    cdef bint is_number       # keys are numbers of up to 8 bytes
    cdef Bytes encoded        # the bytes of all keys, one after the other
    cdef Bytes ends           # int64: where each ends

    def __cinit__(self, bint is_number):
        memset(&self.encoded, 0, sizeof(Bytes))
        memset(&self.ends, 0, sizeof(Bytes))
        self.is_number = is_number
        self.seed = int.from_bytes(os.urandom(8), "little")
        self.n = self.null_number = 0
        self.mask = FIRST_SLOTS - 1
        self.slots = <Slot *>calloc(FIRST_SLOTS, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError("no memory for the keys of rows")

    def __dealloc__(self):
        free(self.slots)
        free_bytes(&self.encoded)
        free_bytes(&self.ends)

    def __len__(self):
        return self.n

    cdef bint widen(self) noexcept nogil:
        """Double the slots. False without memory."""
        cdef size_t n = 2 * (self.mask + 1)
        cdef size_t i, at
        cdef Slot *wider = <Slot *>calloc(n, sizeof(Slot))
        if wider == NULL:
            return False
        for i in range(self.mask + 1):
            if self.slots[i].number:
                at = self.place(self.slots[i].hash) & (n - 1)
                while wider[at].number:
                    at = (at + 1) & (n - 1)
                wider[at] = self.slots[i]
        free(self.slots)
        self.slots = wider
        self.mask = n - 1
        return True

    cdef inline size_t place(self, uint64_t hash) noexcept nogil:
        return <size_t>(mixed(hash ^ self.seed) if self.is_number else hash)

    cdef inline const uint8_t *encoded_key(self, int32_t number, size_t *size) noexcept nogil:
        cdef const int64_t *ends = <const int64_t *>self.ends.data
        cdef int64_t start = ends[number - 1] if number else 0
        size[0] = <size_t>(ends[number] - start)
        return self.encoded.data + start

    cdef int32_t number_of(self, uint64_t hash, const uint8_t *key, size_t size, bint is_added) noexcept nogil:
        """The number of a key; -1 if there is none, or without memory if it is added."""
        cdef size_t at = self.place(hash) & self.mask
        cdef size_t other_size
        cdef int64_t end
        cdef const uint8_t *other
        cdef Slot *slot
        while True:
            slot = &self.slots[at]
            if slot.number == 0:
                break
            if slot.hash == hash:
                if self.is_number:
                    return slot.number - 1
                other = self.encoded_key(slot.number - 1, &other_size)
                if other_size == size and (size == 0 or memcmp(other, key, size) == 0):
                    return slot.number - 1
            at = (at + 1) & self.mask
        if not is_added or self.n == 0x7FFFFFFE:
            return -1
        if not self.is_number:
            if reserve(&self.encoded, size) != OK or reserve(&self.ends, 8) != OK:
                return -1
            if size:
                memcpy(self.encoded.data + self.encoded.size, key, size)
            self.encoded.size += size
            end = <int64_t>self.encoded.size
            memcpy(self.ends.data + self.ends.size, &end, 8)
            self.ends.size += 8
        self.n += 1
        slot.hash = hash
        slot.number = self.n
        if 2 * <size_t>self.n > self.mask and not self.widen():
            return -1
        return self.n - 1

    cdef int add_numbers(self, const ColumnBuffers *column, int64_t n, int32_t *to, bint is_added) noexcept nogil:
        """Number the keys of a column of numbers. Negative without memory."""
        cdef uint64_t[BLOCK] keys
        cdef int64_t row, in_block
        cdef int64_t start = 0
        cdef uint32_t half
        cdef const uint8_t *values
        while start < n:
            in_block = min(<int64_t>BLOCK, n - start)
            values = column.values + (column.first + start) * column.width
            for row in range(in_block):
                # The compiler knows the usual widths.
                if column.width == 4:
                    memcpy(&half, values + 4 * row, 4)
                    keys[row] = half
                elif column.width == 8:
                    memcpy(&keys[row], values + 8 * row, 8)
                else:
                    keys[row] = 0
                    memcpy(&keys[row], values + column.width * row, column.width)
                prefetch(&self.slots[self.place(keys[row]) & self.mask])
            for row in range(in_block):
                if unlikely(not is_valid(column, start + row)):
                    if self.null_number == 0 and is_added:
                        self.n += 1
                        self.null_number = self.n
                    to[start + row] = self.null_number - 1
                else:
                    to[start + row] = self.number_of(keys[row], NULL, 0, is_added)
                    if unlikely(to[start + row] < 0 and is_added):
                        return -1
            start += in_block
        return 0

    cdef int add_rows(
        self,
        const ColumnBuffers *columns,
        Py_ssize_t n_columns,
        Bytes *rows,
        int64_t n,
        int32_t *to,
        bint is_added,
    ) noexcept nogil:
        """Number the keys of several columns. -1 without memory, -2 if a column's offsets are wrong.

        `rows` has the bytes of a block's keys. It is the caller's, because several threads may look up keys.
        """
        cdef uint64_t[BLOCK] hashes
        cdef size_t[BLOCK + 1] starts
        cdef int64_t row, in_block
        cdef int64_t start = 0
        cdef Py_ssize_t i
        while start < n:
            in_block = min(<int64_t>BLOCK, n - start)
            rows.size = 0
            for row in range(in_block):
                starts[row] = rows.size
                for i in range(n_columns):
                    if unlikely(not self.append(rows, &columns[i], start + row)):
                        return -1 if reserve(rows, 64) != OK else -2
                hashes[row] = hash_of(rows.data + starts[row], rows.size - starts[row], self.seed)
                prefetch(&self.slots[hashes[row] & self.mask])
            starts[in_block] = rows.size
            for row in range(in_block):
                to[start + row] = self.number_of(
                    hashes[row], rows.data + starts[row], starts[row + 1] - starts[row], is_added
                )
                if unlikely(to[start + row] < 0 and is_added):
                    return -1
            start += in_block
        return 0

    cdef inline bint append(self, Bytes *rows, const ColumnBuffers *column, int64_t row) noexcept nogil:
        """Append a value to the bytes of a key, so that no two different keys have the same bytes."""
        cdef uint64_t length = 0
        cdef const uint8_t *value = NULL
        cdef bint is_null
        if not find_value(column, row, &value, &length):
            return False
        is_null = not is_valid(column, row)
        if is_null:
            length = 0
        if reserve(rows, length + 9) != OK:
            return False
        rows.data[rows.size] = is_null
        rows.size += 1
        if not column.width:
            memcpy(rows.data + rows.size, &length, 8)
            rows.size += 8
        if length:
            memcpy(rows.data + rows.size, value, length)
        rows.size += length
        return True

    def numbered(self, list columns, Py_ssize_t n, bint is_added=True):
        """Number the keys of rows.

        Each column is a tuple as of `view_column`.

        Returns (buffer of int32, buffer of int64): the number of each row's key, -1 if it is not known and not added;
        the rows whose keys are new.
        """
        cdef Py_ssize_t n_columns = len(columns)
        cdef ColumnBuffers *found = NULL
        cdef Bytes numbers, new, rows
        cdef int64_t row, n_new = 0
        cdef int32_t n_before = self.n
        cdef int code = 0
        cdef Py_ssize_t i
        cdef list views = []
        memset(&numbers, 0, sizeof(Bytes))
        memset(&new, 0, sizeof(Bytes))
        memset(&rows, 0, sizeof(Bytes))
        if n_columns > MOST_COLUMNS or (self.is_number and n_columns != 1):
            raise ValueError("too many columns for a key")
        try:
            found = <ColumnBuffers *>calloc(<size_t>n_columns + 1, sizeof(ColumnBuffers))
            if (
                found == NULL
                or grow(&numbers, 4 * <size_t>n) != OK
                or grow(&new, 8 * <size_t>(n if is_added else 0)) != OK
            ):
                raise MemoryError("no memory for the keys of rows")
            for i in range(n_columns):
                view_column(&found[i], columns[i], n, views)
                if self.is_number and not 0 < found[i].width <= 8:
                    raise ValueError("values of such a width are no key")
            with nogil:
                if self.is_number:
                    code = self.add_numbers(found, n, <int32_t *>numbers.data, is_added)
                else:
                    code = self.add_rows(found, n_columns, &rows, n, <int32_t *>numbers.data, is_added)
                for row in range(n if is_added and code == 0 else 0):
                    # New keys have ascending numbers.
                    if (<int32_t *>numbers.data)[row] == n_before:
                        (<int64_t *>new.data)[n_new] = row
                        n_new += 1
                        n_before += 1
            if code == -2:
                raise ValueError("the Arrow array's offsets are wrong")
            if code < 0:
                raise MemoryError("no memory for the keys of rows")
            numbers.size = 4 * <size_t>n
            new.size = 8 * <size_t>n_new
            return hand_over(&numbers), hand_over(&new)
        finally:
            free(found)
            free_bytes(&numbers)
            free_bytes(&new)
            free_bytes(&rows)

    def find(self, list columns, Py_ssize_t n):
        """Find the rows whose keys are known. Several threads may call it, while none adds keys.

        The columns are those of `numbered`. Returns (buffer of int32, buffer of int32): the rows, and the numbers of
        their keys.
        """
        cdef const int32_t[::1] numbers = memoryview(self.numbered(columns, n, False)[0]).cast("i")
        cdef Bytes rows, known
        cdef size_t n_known = 0
        cdef int32_t *row_of
        cdef int32_t *number_of
        cdef Py_ssize_t i
        memset(&rows, 0, sizeof(Bytes))
        memset(&known, 0, sizeof(Bytes))
        if n > 0x7FFFFFFF:
            raise ValueError("too many rows to look up at once")
        try:
            with nogil:
                for i in range(n):
                    n_known += numbers[i] >= 0
            if grow(&rows, 4 * n_known) != OK or grow(&known, 4 * n_known) != OK:
                raise MemoryError("no memory for the keys of rows")
            row_of, number_of = <int32_t *>rows.data, <int32_t *>known.data
            rows.size = known.size = 4 * n_known
            with nogil:
                for i in range(n):
                    if numbers[i] >= 0:
                        row_of[0] = <int32_t>i
                        number_of[0] = numbers[i]
                        row_of += 1
                        number_of += 1
            return hand_over(&rows), hand_over(&known)
        finally:
            free_bytes(&rows)
            free_bytes(&known)


cdef class KeyClaims:
    """Which rows of net changes claim the rows with their keys: the first row with a key that of the first of them.

    Parameters
    ----------
    numbers : memoryview of int32
        The number of the key of each row; -1 for a row that claims none.
    is_late : memoryview of uint8
        Whether a row claims only what the others leave.
    n_keys : int
    """

    cdef int32_t *first  # by key: the next row that claims one
    cdef int32_t *following  # by row: the one after it with the same key
    cdef Py_ssize_t n_keys
    cdef Py_ssize_t n_rows

    def __cinit__(self, const int32_t[::1] numbers not None, const uint8_t[::1] is_late not None, Py_ssize_t n_keys):
        cdef Py_ssize_t row
        cdef int late
        self.n_keys, self.n_rows = n_keys, numbers.shape[0]
        if is_late.shape[0] != self.n_rows:
            raise ValueError("each row of net changes needs a number and a flag")
        self.first = <int32_t *>malloc(4 * <size_t>n_keys + 4)
        self.following = <int32_t *>malloc(4 * <size_t>self.n_rows + 4)
        if self.first == NULL or self.following == NULL:
            raise MemoryError("no memory for the keys of rows")
        memset(self.first, 0xFF, 4 * <size_t>n_keys)
        for row in range(self.n_rows):
            if numbers[row] < -1 or numbers[row] >= n_keys:
                raise ValueError("a number of a key is wrong")
        with nogil:
            for late in range(1, -1, -1):
                for row in range(self.n_rows - 1, -1, -1):
                    if numbers[row] >= 0 and (is_late[row] != 0) == late:
                        self.following[row] = self.first[numbers[row]]
                        self.first[numbers[row]] = <int32_t>row

    def __dealloc__(self):
        free(self.first)
        free(self.following)

    def claim(self, const int32_t[::1] rows not None, const int32_t[::1] numbers not None, bint is_unique):
        """Let rows of net changes claim rows of a table.

        Returns (buffer of int32, buffer of int32): the rows that are claimed, and the rows of net changes; -1 for a row
        that nothing claims, but whose key is unique, so that it has to go.
        """
        cdef Bytes claimed, by
        cdef int32_t *row_of
        cdef int32_t *by_of
        cdef int32_t claimant
        cdef Py_ssize_t i
        cdef Py_ssize_t n = rows.shape[0]
        cdef size_t n_claimed = 0
        memset(&claimed, 0, sizeof(Bytes))
        memset(&by, 0, sizeof(Bytes))
        if numbers.shape[0] != n:
            raise ValueError("each row needs a number")
        for i in range(n):
            if numbers[i] < 0 or numbers[i] >= self.n_keys:
                raise ValueError("a number of a key is wrong")
        try:
            if grow(&claimed, 4 * <size_t>n) != OK or grow(&by, 4 * <size_t>n) != OK:
                raise MemoryError("no memory for the keys of rows")
            row_of, by_of = <int32_t *>claimed.data, <int32_t *>by.data
            with nogil:
                for i in range(n):
                    claimant = self.first[numbers[i]]
                    if claimant >= 0:
                        self.first[numbers[i]] = self.following[claimant]
                    elif not is_unique:
                        continue
                    row_of[n_claimed] = rows[i]
                    by_of[n_claimed] = claimant
                    n_claimed += 1
            claimed.size = by.size = 4 * n_claimed
            return hand_over(&claimed), hand_over(&by)
        finally:
            free_bytes(&claimed)
            free_bytes(&by)

    def left(self):
        """Return a buffer of uint8: for each row of net changes, 1 if it has claimed no row though it has a key."""
        cdef Bytes flags
        cdef Py_ssize_t key
        cdef int32_t row
        memset(&flags, 0, sizeof(Bytes))
        try:
            if grow(&flags, <size_t>self.n_rows) != OK:
                raise MemoryError("no memory for the keys of rows")
            memset(flags.data, 0, <size_t>self.n_rows)
            flags.size = <size_t>self.n_rows
            with nogil:
                for key in range(self.n_keys):
                    row = self.first[key]
                    while row >= 0:
                        flags.data[row] = 1
                        row = self.following[row]
            return hand_over(&flags)
        finally:
            free_bytes(&flags)


def other_rows(Py_ssize_t n, const int32_t[::1] rows not None):
    """Return a bitmap of n rows, with 0 for the given ones."""
    cdef Bytes bits
    cdef Py_ssize_t i
    memset(&bits, 0, sizeof(Bytes))
    try:
        if grow(&bits, <size_t>(n + 7) // 8) != OK:
            raise MemoryError("no memory for the rows of a table")
        bits.size = <size_t>(n + 7) // 8
        memset(bits.data, 0xFF, bits.size)
        for i in range(rows.shape[0]):
            if not 0 <= rows[i] < n:
                raise ValueError("a row is not in the table")
            bits.data[rows[i] >> 3] &= ~(1 << (rows[i] & 7))
        return hand_over(&bits)
    finally:
        free_bytes(&bits)
