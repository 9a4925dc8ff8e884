"""Columns of integers: those that are counted up, and what there is in others."""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pgdecode._fault cimport OK
from pgdecode._memory cimport Bytes, free_bytes, grow, hand_over

from bisect import bisect_right
from itertools import accumulate


def counted(int64_t first, int64_t n):
    """A buffer of n int64 that count up from `first`."""
    cdef Bytes out
    cdef int64_t i
    memset(&out, 0, sizeof(out))
    if grow(&out, 8 * <size_t>n) != OK:
        raise MemoryError("no memory for positions")
    out.size = 8 * <size_t>n
    for i in range(n):
        (<int64_t *>out.data)[i] = first + i
    return hand_over(&out)


def descent(const int64_t[::1] values):
    """Place of the first value that is not greater than the one before it, -1 where all are."""
    cdef Py_ssize_t i
    for i in range(1, values.shape[0]):
        if values[i] <= values[i - 1]:
            return i
    return -1


def taken(list columns, const int64_t[::1] rows):
    """A buffer of what rows have in columns of int64, each of which goes on after the last row of the one before.

    Of a negative row it is -1. Arrow's own `take` makes one column of them first, however few the rows are.

    Parameters
    ----------
    columns : list of pa.Array of int64, without nulls
    """
    cdef Bytes out
    cdef const int64_t[::1] values
    cdef int64_t row, first = 0, end = 0
    cdef Py_ssize_t i, n = rows.shape[0]
    ends = list(accumulate(map(len, columns)))
    memset(&out, 0, sizeof(out))
    if grow(&out, 8 * <size_t>n) != OK:
        raise MemoryError("no memory for positions")
    out.size = 8 * <size_t>n
    try:
        for i in range(n):
            row = rows[i]
            if row < 0:
                (<int64_t *>out.data)[i] = -1
                continue
            if not first <= row < end:
                place = bisect_right(ends, row)
                if place == len(columns):
                    raise IndexError("there is no such row")
                column = columns[place]
                end = ends[place]
                first = end - len(column)
                values = memoryview(column.buffers()[1]).cast("B").cast("q")[column.offset:column.offset + len(column)]
            (<int64_t *>out.data)[i] = values[row - first]
        return hand_over(&out)
    finally:
        free_bytes(&out)


def grouped(const int32_t[::1] indexes, int32_t n):
    """Places of a column's indexes below n, those of one index side by side; others are passed over.

    Returns ([(index, start, end)], buffer of int64): the indexes in the order in which they come first, and where in
    the buffer each has its places, ascending. Arrow's `unique` crashes where there is no memory for its table.
    """
    cdef Bytes places
    cdef Py_ssize_t i
    cdef int64_t start = 0
    cdef int32_t index
    cdef list found = []
    # How many places an index has, then where its next one goes.
    cdef int64_t *at = <int64_t *>calloc(<size_t>max(n, 0) + 1, sizeof(int64_t))
    memset(&places, 0, sizeof(places))
    if at == NULL:
        raise MemoryError("no memory for the indexes of a column")
    try:
        for i in range(indexes.shape[0]):
            index = indexes[i]
            if 0 <= index < n:
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
            index = indexes[i]
            if 0 <= index < n:
                (<int64_t *>places.data)[at[index]] = i
                at[index] += 1
        return found, hand_over(&places)
    finally:
        free(at)
        free_bytes(&places)
