"""Functions of integer columns: counting, order, gathering and grouping."""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from pgdecode._native.fault cimport OK, unlikely
from pgdecode._native.memory.buffers cimport Bytes, free_bytes, grow, hand_over


def counted(int64_t first, int64_t n):
    """A buffer of n int64 that count up from `first`."""
    cdef Bytes out
    cdef int64_t *to
    cdef int64_t i
    memset(&out, 0, sizeof(out))
    if grow(&out, 8 * <size_t>n) != OK:
        raise MemoryError("no memory for positions")
    out.size = 8 * <size_t>n
    to = <int64_t *>out.data
    for i in range(n):
        to[i] = first + i
    return hand_over(&out)


def descent(const int64_t[::1] values):
    """Row of the first value that is not greater than the one before it; -1 if all are."""
    cdef Py_ssize_t i
    for i in range(1, values.shape[0]):
        if values[i] <= values[i - 1]:
            return i
    return -1


cdef class ChunkedInt64:
    """Columns of int64 without nulls, read in place as one column."""

    cdef list columns
    cdef const uint8_t **values
    cdef int64_t *ends      # number of rows up to the end of each
    cdef Py_ssize_t n

    def __cinit__(self, list columns):
        """`columns`: pa.Array each."""
        cdef const int8_t[::1] bytes_of  # Arrow's buffers have signed bytes
        cdef int64_t end = 0
        cdef Py_ssize_t i
        self.columns = list(columns)
        self.n = len(self.columns)
        self.values = <const uint8_t **>calloc(<size_t>self.n + 1, sizeof(uint8_t *))
        self.ends = <int64_t *>calloc(<size_t>self.n + 1, sizeof(int64_t))
        if self.values == NULL or self.ends == NULL:
            raise MemoryError("no memory for positions")
        for i in range(self.n):
            column = self.columns[i]
            if len(column):
                bytes_of = column.buffers()[1]
                if bytes_of.shape[0] < 8 * (column.offset + len(column)):
                    raise ValueError("the Arrow array's values are too short")
                self.values[i] = <const uint8_t *>&bytes_of[0] + 8 * <size_t>column.offset
            end += len(column)
            self.ends[i] = end

    def __dealloc__(self):
        free(self.values)
        free(self.ends)

    def taken(self, const int64_t[::1] rows):
        """A buffer with the values of rows; -1 for a negative row.

        Arrow's own `take` first joins the columns, even for few rows.
        """
        cdef Bytes out
        cdef int64_t *to
        cdef int64_t row, first = 0, n_there = 0
        cdef Py_ssize_t i, low, high, middle, n = rows.shape[0]
        cdef const uint8_t *values = NULL
        memset(&out, 0, sizeof(out))
        if grow(&out, 8 * <size_t>n) != OK:
            raise MemoryError("no memory for positions")
        out.size = 8 * <size_t>n
        to = <int64_t *>out.data
        try:
            for i in range(n):
                row = rows[i]
                if unlikely(<uint64_t>(row - first) >= <uint64_t>n_there):
                    if row < 0:
                        to[i] = -1
                        continue
                    low = 0
                    high = self.n
                    while low < high:
                        middle = (low + high) // 2
                        if row < self.ends[middle]:
                            high = middle
                        else:
                            low = middle + 1
                    if low == self.n:
                        raise IndexError("there is no such row")
                    first = self.ends[low - 1] if low else 0
                    n_there = self.ends[low] - first
                    values = self.values[low]
                # Read as bytes, because they may be unaligned.
                memcpy(to + i, values + 8 * (row - first), 8)
            return hand_over(&out)
        finally:
            free_bytes(&out)


cdef inline int32_t group_of(const int32_t[::1] groups, int32_t index) noexcept:
    return groups[index] if 0 <= index < groups.shape[0] else -1


def grouped(const int32_t[::1] indexes, const int32_t[::1] groups):
    """Positions in a column of indexes, grouped. Indexes without a group are left out.

    `groups` has the group of each index: the index itself, a smaller one, or -1 for none.

    Returns ([(group, start, end)], buffer of int64): the groups in order of their first occurrence, and the range of
    the buffer that has their positions in ascending order. Arrow's `unique` crashes without memory for its table.
    """
    cdef Py_ssize_t n = groups.shape[0]
    cdef Bytes places
    cdef Py_ssize_t i
    cdef int64_t start = 0
    cdef int32_t index
    cdef list found = []
    # The number of positions of a group, then the slot of its next position.
    cdef int64_t *at = <int64_t *>calloc(<size_t>n + 1, sizeof(int64_t))
    memset(&places, 0, sizeof(places))
    if at == NULL:
        raise MemoryError("no memory for the indexes of a column")
    try:
        for i in range(indexes.shape[0]):
            index = group_of(groups, indexes[i])
            if index >= 0:
                if index >= n:
                    raise IndexError("there is no such group")
                if at[index] == 0:
                    found.append(index)
                at[index] += 1
        for i in range(len(found)):
            index = found[i]
            found[i] = index, start, start + at[index]
            start += at[index]
            at[index] = start - at[index]
        if grow(&places, 8 * <size_t>start) != OK:
            raise MemoryError("no memory for the indexes of a column")
        places.size = 8 * <size_t>start
        for i in range(indexes.shape[0]):
            index = group_of(groups, indexes[i])
            if index >= 0:
                (<int64_t *>places.data)[at[index]] = i
                at[index] += 1
        return found, hand_over(&places)
    finally:
        free(at)
        free_bytes(&places)


def dense(const int32_t[::1] indexes, int32_t n):
    """The distinct indexes below n of a column in order of their first occurrence, and the number of each row's index.

    Returns (list of int, list of the number of occurrences, buffer of int32). The buffer has -1 for indexes that are
    negative or not below n.
    """
    cdef Bytes out
    cdef int32_t *to
    cdef Py_ssize_t i
    cdef int32_t index
    cdef int32_t n_found = 0
    cdef list found = []
    cdef list counts = []
    cdef int64_t *n_rows = <int64_t *>calloc(<size_t>max(n, 0) + 1, sizeof(int64_t))
    # One more than the number of each index, 0 before its first occurrence.
    cdef int32_t *place = <int32_t *>calloc(<size_t>max(n, 0) + 1, sizeof(int32_t))
    memset(&out, 0, sizeof(out))
    try:
        if place == NULL or n_rows == NULL:
            raise MemoryError("no memory for the indexes of a column")
        if grow(&out, 4 * <size_t>indexes.shape[0]) != OK:
            raise MemoryError("no memory for the indexes of a column")
        out.size = 4 * <size_t>indexes.shape[0]
        to = <int32_t *>out.data
        for i in range(indexes.shape[0]):
            index = indexes[i]
            if 0 <= index < n:
                if place[index] == 0:
                    n_found += 1
                    place[index] = n_found
                    found.append(index)
                n_rows[index] += 1
                to[i] = place[index] - 1
            else:
                to[i] = -1
        for i in range(n_found):
            counts.append(n_rows[<int32_t>found[i]])
        return found, counts, hand_over(&out)
    finally:
        free(n_rows)
        free(place)
        free_bytes(&out)
