"""Hashes of rows over the buffers of Arrow columns, and their sums in buckets."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from pgdecode._native.changes.column_buffers cimport ColumnBuffers, find_value, is_valid, mixed, view_column
from pgdecode._native.fault cimport OK
from pgdecode._native.memory.buffers cimport Bytes, free_bytes, grow, hand_over

cdef struct Bucket:
    uint64_t rows
    uint64_t first
    uint64_t second


cdef inline void add_number(uint64_t number, uint64_t *hashes) noexcept nogil:
    """Add 8 bytes to the two halves of a hash."""
    hashes[0] = mixed(hashes[0] ^ number)
    hashes[1] = mixed(hashes[1] + number * <uint64_t>0x9E3779B97F4A7C15 + 1)


cdef inline void add_bytes(const uint8_t *data, size_t size, uint64_t *hashes) noexcept nogil:
    cdef uint64_t number = 0
    while size >= 8:
        memcpy(&number, data, 8)
        add_number(number, hashes)
        data += 8
        size -= 8
    if size:
        number = 0
        memcpy(&number, data, size)
        add_number(number, hashes)


cdef bint add_column(const ColumnBuffers *column, int64_t n, uint64_t *first, uint64_t *second) noexcept nogil:
    """Add the values of a column to the hashes of rows. False if its offsets are wrong."""
    cdef uint64_t[2] hashes
    cdef const uint8_t *value = NULL
    cdef uint64_t length = 0
    cdef int64_t row
    for row in range(n):
        hashes[0], hashes[1] = first[row], second[row]
        if not is_valid(column, row):
            # No length of a value.
            add_number(<uint64_t>-1, hashes)
        elif find_value(column, row, &value, &length):
            add_number(length, hashes)
            add_bytes(value, length, hashes)
        else:
            return False
        first[row], second[row] = hashes[0], hashes[1]
    return True


cdef const uint8_t[::1] bytes_of(object buffer, int64_t least):
    """View a buffer, which has at least so many bytes."""
    cdef const uint8_t[::1] view = memoryview(buffer).cast("B")
    if view.shape[0] < least:
        raise ValueError("a buffer of the Arrow array is too short")
    return view


def row_hashes(list columns, Py_ssize_t n, uint64_t seed):
    """Hash rows to 128 bits. Values are equal if their bytes are; null equals null.

    Each column is a tuple as of `view_column`. Returns two buffers of uint64: the two halves of the hash of each row.
    """
    cdef Bytes first, second
    cdef ColumnBuffers column
    cdef list views = []
    cdef int64_t row
    cdef bint is_good
    memset(&first, 0, sizeof(Bytes))
    memset(&second, 0, sizeof(Bytes))
    try:
        if grow(&first, 8 * <size_t>n) != OK or grow(&second, 8 * <size_t>n) != OK:
            raise MemoryError("no memory for the hashes of rows")
        for row in range(n):
            (<uint64_t *>first.data)[row] = seed
            (<uint64_t *>second.data)[row] = ~seed
        for item in columns:
            view_column(&column, item, n, views)
            with nogil:
                is_good = add_column(&column, n, <uint64_t *>first.data, <uint64_t *>second.data)
            if not is_good:
                raise ValueError("the Arrow array's offsets are wrong")
        first.size = second.size = 8 * <size_t>n
        return hand_over(&first), hand_over(&second)
    finally:
        free_bytes(&first)
        free_bytes(&second)


cdef class HashSums:
    """The number of rows, and the sums of their hashes, in buckets by the hash of the key.

    Two sets of rows, with multiplicity, are equal if these are, except with a probability of 2^-128.

    Parameters
    ----------
    n_buckets : int
        A power of two.
    """

    cdef Bucket *buckets
    cdef readonly size_t n_buckets

    def __cinit__(self, size_t n_buckets):
        if n_buckets == 0 or n_buckets & (n_buckets - 1):
            raise ValueError("the number of buckets is not a power of two")
        self.n_buckets = n_buckets
        self.buckets = <Bucket *>calloc(n_buckets, sizeof(Bucket))
        if self.buckets == NULL:
            raise MemoryError("no memory for the hashes of rows")

    def __dealloc__(self):
        free(self.buckets)

    def add(self, object keys, object first, object second):
        """Add rows: buffers of uint64 with a half of the hash of each key, and with the halves of that of each row."""
        cdef Py_ssize_t n = memoryview(keys).nbytes // 8
        cdef const uint8_t[::1] of_keys = bytes_of(keys, 8 * n)
        cdef const uint8_t[::1] of_first = bytes_of(first, 8 * n)
        cdef const uint8_t[::1] of_second = bytes_of(second, 8 * n)
        if n:
            self.sum_up(n, &of_keys[0], &of_first[0], &of_second[0])

    cdef void sum_up(
        self, Py_ssize_t n, const uint8_t *keys, const uint8_t *first, const uint8_t *second
    ) noexcept nogil:
        cdef uint64_t key, one, other
        cdef Bucket *bucket
        cdef Py_ssize_t row
        for row in range(n):
            memcpy(&key, keys + 8 * row, 8)
            memcpy(&one, first + 8 * row, 8)
            memcpy(&other, second + 8 * row, 8)
            bucket = &self.buckets[key & (self.n_buckets - 1)]
            bucket.rows += 1
            bucket.first += one
            bucket.second += other

    def n_rows(self):
        """Return the number of rows."""
        cdef uint64_t found = 0
        cdef size_t i
        for i in range(self.n_buckets):
            found += self.buckets[i].rows
        return found

    def different(self, HashSums other not None):
        """List the buckets that are different, each with the larger number of its rows."""
        cdef list found = []
        cdef Bucket *one
        cdef Bucket *two
        cdef size_t i
        if other.n_buckets != self.n_buckets:
            raise ValueError("the numbers of buckets are different")
        for i in range(self.n_buckets):
            one, two = &self.buckets[i], &other.buckets[i]
            if one.rows != two.rows or one.first != two.first or one.second != two.second:
                found.append((i, max(one.rows, two.rows)))
        return found
