"""Finds the row of a table that each change replaces, and the row with the values that an update left out.

Rows are numbered: first the present rows, then the new rows of the changes.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pgdecode._native.fault cimport OK, unlikely
from pgdecode._native.memory.buffers cimport Bytes, free_bytes, grow, hand_over


def replaced_rows(const int32_t[::1] keys, const int32_t[::1] removed, const uint8_t[::1] is_added, int32_t n_keys):
    """Apply changes to rows, by the numbers of their keys.

    `keys` has the key of each row; `removed` the key of the row that each change removes, or -1; `is_added` whether the
    change adds its new row. Of several rows with one key, the last one is removed.

    Returns (buffer of int64, buffer of uint8): the row that each change removed, or -1; whether each row is left.
    """
    cdef Py_ssize_t n = keys.shape[0]
    cdef Py_ssize_t n_changes = removed.shape[0]
    cdef Py_ssize_t n_present = n - n_changes
    cdef Bytes before, left
    cdef Py_ssize_t i
    cdef int32_t key
    cdef int64_t row
    cdef int64_t *to
    cdef uint8_t *is_left
    cdef bint is_valid = False
    # The number of the last row of each key, plus 1, and of the row before it with the same key; 0 for none.
    cdef int64_t *last = NULL
    cdef int64_t *previous = NULL
    if n_present < 0 or is_added.shape[0] != n_changes:
        raise ValueError("each change has a new row, a key to remove and a flag")
    memset(&before, 0, sizeof(before))
    memset(&left, 0, sizeof(left))
    try:
        last = <int64_t *>calloc(<size_t>max(n_keys, 0) + 1, sizeof(int64_t))
        previous = <int64_t *>calloc(<size_t>n + 1, sizeof(int64_t))
        if (
            last == NULL or previous == NULL
            or grow(&before, 8 * <size_t>n_changes) != OK or grow(&left, <size_t>n) != OK
        ):
            raise MemoryError("no memory for the rows of a table")
        before.size, left.size = 8 * <size_t>n_changes, <size_t>n
        to, is_left = <int64_t *>before.data, left.data
        memset(is_left, 0, left.size)
        with nogil:
            for i in range(n):
                if i >= n_present:
                    key = removed[i - n_present]
                    row = -1
                    if key >= 0:
                        if unlikely(key >= n_keys):
                            break
                        row = last[key] - 1
                        if row >= 0:
                            last[key] = previous[row]
                            is_left[row] = 0
                    to[i - n_present] = row
                    if not is_added[i - n_present]:
                        continue
                key = keys[i]
                if unlikely(not 0 <= key < n_keys):
                    break
                previous[i] = last[key]
                last[key] = i + 1
                is_left[i] = 1
            else:
                is_valid = True
        if not is_valid:
            raise IndexError("there is no such key")
        return hand_over(&before), hand_over(&left)
    finally:
        free(last)
        free(previous)
        free_bytes(&before)
        free_bytes(&left)


def value_rows(
    const int64_t[::1] before, const int64_t[::1] unchanged, const int32_t[::1] groups, const uint8_t[::1] is_unknown
):
    """A buffer of int64: for each row, the row that was sent with its value of one column, or -1 if none was.

    `before` has the row that each change replaced, or -1; `unchanged` the changes that left the value out, ascending.
    `groups` has the group of each row, and `is_unknown` whether the value is unknown in the rows of each group.
    """
    cdef Py_ssize_t n = groups.shape[0]
    cdef Py_ssize_t n_present = n - before.shape[0]
    cdef Py_ssize_t i
    cdef Py_ssize_t at = 0
    cdef int64_t row
    cdef int64_t next_unchanged = unchanged[0] + n_present if unchanged.shape[0] else -1
    cdef Bytes out
    cdef int64_t *to
    cdef bint is_valid = False
    memset(&out, 0, sizeof(out))
    try:
        if grow(&out, 8 * <size_t>n) != OK:
            raise MemoryError("no memory for the rows of a table")
        out.size = 8 * <size_t>n
        to = <int64_t *>out.data
        with nogil:
            for i in range(n):
                row = i
                if i == next_unchanged:
                    row = before[i - n_present]
                    if unlikely(row >= i):
                        break
                    row = to[row] if row >= 0 else -1
                    at += 1
                    next_unchanged = unchanged[at] + n_present if at < unchanged.shape[0] else -1
                elif is_unknown[groups[i]]:
                    row = -1
                to[i] = row
            else:
                is_valid = True
        if not is_valid:
            raise IndexError("a change replaces an earlier row")
        return hand_over(&out)
    finally:
        free_bytes(&out)
