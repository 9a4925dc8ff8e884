"""The changes of a batch as buffers for Arrow arrays: undecided changes, and changes that are output."""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pgdecode._native.changes.relation_versions cimport BAD_PAYLOAD
from pgdecode._native.memory.buffers cimport Bytes, free_bytes, grow, hand_over

cdef enum:
    USUAL_MESSAGES = 4  # of a small transaction, with its Begin and Commit


cdef void open_changes(ChangeBuffers *out, int64_t n_rows) noexcept nogil:
    """Begin without changes, for a batch of so many rows."""
    memset(out, 0, sizeof(ChangeBuffers))
    out.expected_changes = min(<size_t>n_rows, <size_t>MAX_INITIAL)
    out.expected_outcomes = min(<size_t>n_rows // USUAL_MESSAGES, <size_t>MAX_INITIAL)


cdef void free_changes(ChangeBuffers *out) noexcept nogil:
    free(out.changes)
    free(out.ranges)
    free(out.outcomes)


cdef FaultCode put_outcome(
    ChangeBuffers *out, int64_t row, int64_t xid, int64_t lsn, int64_t timestamp, int8_t committed
) noexcept nogil:
    if not ensure_capacity(
        <void **>&out.outcomes, out.n_outcomes, &out.outcome_capacity, sizeof(Outcome), out.expected_outcomes
    ):
        return FAULT_NO_MEMORY
    out.outcomes[out.n_outcomes] = Outcome(row, xid, lsn, timestamp, committed)
    out.n_outcomes += 1
    return OK


cdef FaultCode put_range(ChangeBuffers *out, int64_t start, int64_t end) noexcept nogil:
    """Output changes with the last outcome."""
    if not ensure_capacity(
        <void **>&out.ranges, out.n_ranges, &out.range_capacity, sizeof(Range), out.expected_outcomes
    ):
        return FAULT_NO_MEMORY
    out.ranges[out.n_ranges] = Range(start, end, <int32_t>(out.n_outcomes - 1), False)
    out.n_ranges += 1
    return OK


cdef int check_range(const ChangeBuffers *buffers, int64_t start, int64_t end) except -1:
    if start < 0 or end > <int64_t>buffers.n_changes:
        raise IndexError("there are no such changes")
    return 0


cdef int grow_all(Bytes *out, int n, const size_t *widths, size_t n_items) except -1:
    """Reserve memory for columns of equal length."""
    cdef int i
    for i in range(n):
        if grow(&out[i], n_items * widths[i]) != OK:
            raise MemoryError("no memory for the changes of the batch")
    return 0


cdef tuple undecided_columns(const ChangeBuffers *buffers, list ranges):
    """(rows, relation OIDs, xids, versions, whether it is a Truncate's) of ranges of changes, as buffers."""
    cdef Bytes[5] out
    cdef size_t n = 0
    cdef size_t k = 0
    cdef int64_t start, end, i
    cdef int j
    cdef size_t[5] widths = [8, 8, 8, 4, 1]
    cdef const Change *changes = buffers.changes
    memset(out, 0, sizeof(out))
    for start, end in ranges:
        check_range(buffers, start, end)
        n += <size_t>(end - start)
    try:
        grow_all(out, 5, widths, n)
        for start, end in ranges:
            for i in range(start, end):
                if changes[i].version == BAD_PAYLOAD:
                    continue
                (<int64_t *>out[0].data)[k] = changes[i].row
                (<int64_t *>out[1].data)[k] = changes[i].relation_id
                (<int64_t *>out[2].data)[k] = changes[i].xid
                (<int32_t *>out[3].data)[k] = changes[i].version
                out[4].data[k] = changes[i].is_truncate
                k += 1
        for j in range(5):
            out[j].size = k * widths[j]
        return tuple([hand_over(&out[j]) for j in range(5)])
    finally:
        for j in range(5):
            free_bytes(&out[j])


cdef object commit_rows(const ChangeBuffers *buffers):
    """The row of each outcome's commit, -1 for none, as a buffer."""
    cdef Bytes out
    cdef size_t i
    cdef size_t width = 8
    memset(&out, 0, sizeof(out))
    grow_all(&out, 1, &width, buffers.n_outcomes)
    out.size = 8 * buffers.n_outcomes
    for i in range(buffers.n_outcomes):
        (<int64_t *>out.data)[i] = buffers.outcomes[i].row
    return hand_over(&out)


cdef tuple committed_columns(
    const ChangeBuffers *buffers, const int64_t *commit_positions, const VersionFilter *filter, int64_t n_versions
):
    """The changes that are output, in order.

    A change with a version is output if the version passes the filter.

    Returns
    -------
    columns : dict of buffers
        With an item for each change: rows, relation_ids, xids and subxids (0 for none), commit_positions, lsns and
        timestamps (of the commit; -1 for none), versions, outcomes, streamed and truncates (1 or 0). With an item for
        each outcome: committed (-1 if undecided).
    is_certain : bool
        All changes have a transaction with a commit.
    is_known : bool
        All changes have a version of their relation.
    has_truncates, has_subxids : bool
    used : list of int
        The versions, of `n_versions`, that committed changes have, also those that do not pass the filter.
    """
    cdef const Change *changes = buffers.changes
    cdef const Range *ranges = buffers.ranges
    cdef const Outcome *outcomes = buffers.outcomes
    cdef size_t n_ranges = buffers.n_ranges, n_outcomes = buffers.n_outcomes
    cdef Bytes[12] out
    cdef const Change *change
    cdef const Range *range_
    cdef const Outcome *outcome
    cdef bint is_certain = True, is_known = True, has_truncates = False, has_subxids = False, is_output = False
    cdef int64_t i, xid
    cdef size_t r, first, k = 0, n = 0
    cdef int j
    cdef size_t[12] widths = [8, 8, 8, 8, 8, 8, 8, 4, 4, 1, 1, 1]
    cdef int32_t version
    cdef uint8_t *is_used = NULL
    cdef list used = []
    # Separate pointers: the compiler must assume that a store of a byte changes `out`.
    cdef int64_t *rows
    cdef int64_t *relation_ids
    cdef int64_t *xids
    cdef int64_t *subxids
    cdef int64_t *positions
    cdef int64_t *lsns
    cdef int64_t *timestamps
    cdef int32_t *versions
    cdef int32_t *numbers
    cdef uint8_t *streamed
    cdef uint8_t *truncates
    memset(out, 0, sizeof(out))
    for r in range(n_ranges):
        n += <size_t>(ranges[r].end - ranges[r].start)
    try:
        grow_all(out, 11, widths, n)
        grow_all(&out[11], 1, &widths[11], n_outcomes)
        is_used = <uint8_t *>calloc(<size_t>max(n_versions, 0) + 1, 1)
        if is_used == NULL:
            raise MemoryError("no memory for the changes of the batch")
        rows, relation_ids = <int64_t *>out[0].data, <int64_t *>out[1].data
        xids, subxids = <int64_t *>out[2].data, <int64_t *>out[3].data
        positions, lsns, timestamps = <int64_t *>out[4].data, <int64_t *>out[5].data, <int64_t *>out[6].data
        versions, numbers = <int32_t *>out[7].data, <int32_t *>out[8].data
        streamed, truncates = out[9].data, out[10].data
        with nogil:
            for r in range(n_ranges):
                range_ = &ranges[r]
                outcome = &outcomes[range_.outcome]
                xid = outcome.xid
                first = k
                version = BAD_PAYLOAD
                is_output = range_.is_bad
                for i in range(range_.start, range_.end):
                    change = &changes[i]
                    if change.version != version:
                        version = change.version
                        if 0 <= version < n_versions and outcome.committed == 1:
                            is_used[version] = 1
                        is_output = passes(filter, version) and (version != BAD_PAYLOAD or range_.is_bad)
                        is_known &= version >= 0 or not is_output
                    if not is_output:
                        continue
                    rows[k] = change.row
                    relation_ids[k] = change.relation_id
                    versions[k] = version
                    numbers[k] = range_.outcome
                    streamed[k] = change.xid != 0
                    truncates[k] = change.is_truncate
                    k += 1
                    has_truncates |= change.is_truncate
                    if change.xid != 0 and change.xid != xid:
                        if not has_subxids:
                            memset(subxids, 0, n * sizeof(int64_t))
                            has_subxids = True
                        subxids[k - 1] = change.xid
                is_known &= not range_.is_bad
                is_certain &= outcome.row >= 0 or k == first
            # In a second loop: the cache does not hold a line of each of so many columns.
            for r in range(k):
                outcome = &outcomes[numbers[r]]
                xids[r] = outcome.xid
                positions[r] = commit_positions[numbers[r]]
                lsns[r] = outcome.lsn
                timestamps[r] = outcome.timestamp
            for r in range(n_outcomes):
                (<int8_t *>out[11].data)[r] = outcomes[r].committed
        for j in range(12):
            out[j].size = (k if j < 11 else n_outcomes) * widths[j]
        names = (
            "rows", "relation_ids", "xids", "subxids", "commit_positions", "lsns", "timestamps", "versions",
            "outcomes", "streamed", "truncates", "committed",
        )
        columns = {name: hand_over(&out[j]) for j, name in enumerate(names)}
        for i in range(n_versions):
            if is_used[i]:
                used.append(i)
        return columns, is_certain, is_known, has_truncates, has_subxids, used
    finally:
        free(is_used)
        for j in range(12):
            free_bytes(&out[j])
