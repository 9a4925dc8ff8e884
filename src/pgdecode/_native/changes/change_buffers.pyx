"""The changes of a batch as buffers: those to buffer, and those that are delivered."""

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from pgdecode._native.changes.relation_versions cimport BAD_PAYLOAD
from pgdecode._native.fault cimport OK
from pgdecode._native.memory.buffers cimport Bytes, free_bytes, grow, hand_over


cdef tuple buffered_of(const Change *changes, size_t n_changes, list ranges):
    """(rows, relation OIDs, xids, versions, whether it is a Truncate's) of changes to buffer, as buffers."""
    cdef Bytes[5] out
    cdef size_t n = 0
    cdef size_t k = 0
    cdef int64_t start, end, i
    cdef int j
    cdef size_t[5] widths = [8, 8, 8, 4, 1]
    memset(out, 0, sizeof(out))
    for start, end in ranges:
        if start < 0 or end > <int64_t>n_changes:
            raise IndexError("there are no such changes")
        n += <size_t>(end - start)
    try:
        for j in range(5):
            if grow(&out[j], n * widths[j]) != OK:
                raise MemoryError("no memory for the changes of the batch")
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


cdef object commit_rows_of(const Outcome *outcomes, size_t n_outcomes):
    """The row of each outcome's commit, -1 for none, as a buffer."""
    cdef Bytes out
    cdef size_t i
    memset(&out, 0, sizeof(out))
    if grow(&out, 8 * n_outcomes) != OK:
        raise MemoryError("no memory for the commits of the batch")
    out.size = 8 * n_outcomes
    for i in range(n_outcomes):
        (<int64_t *>out.data)[i] = outcomes[i].row
    return hand_over(&out)


cdef tuple delivered_of(
    const Change *changes, const Range *ranges, size_t n_ranges, const Outcome *outcomes, size_t n_outcomes,
    const int64_t *commit_positions, const VersionFilter *filter, int64_t n_versions
):
    """What is delivered, in order, as buffers by name; and of all of it: whether it has a transaction and its commit,
    whether it has a version of its relation, whether a Truncate is in it, whether changes of sub-transactions are, and
    which versions, of so many, all committed changes have.

    Of changes that have a version, only those that pass the filter are delivered.

    rows, relation_ids, xids, subxids, commit_positions, lsns, timestamps, versions, outcomes, streamed and truncates
    have an item a change (xids and subxids 0 for none; commit_positions, lsns and timestamps of its commit, -1 for
    none; streamed and truncates 1 or 0); committed an item an outcome (-1 for none).
    """
    cdef Bytes[12] out
    cdef const Change *change
    cdef const Range *range_
    cdef const Outcome *outcome
    cdef bint is_certain = True, is_known = True, has_truncates = False, has_subxids = False, is_delivered = False
    cdef int64_t i, xid
    cdef size_t r, first, k = 0, n = 0
    cdef int j
    cdef size_t[12] widths = [8, 8, 8, 8, 8, 8, 8, 4, 4, 1, 1, 1]
    cdef int32_t version
    cdef uint8_t *is_used = NULL
    cdef list used = []
    # Pointers of their own, because a store of a byte could change `out` for all the compiler knows.
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
        for j in range(12):
            if grow(&out[j], (n if j < 11 else n_outcomes) * widths[j]) != OK:
                raise MemoryError("no memory for the changes of the batch")
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
                is_delivered = range_.is_bad
                for i in range(range_.start, range_.end):
                    change = &changes[i]
                    if change.version != version:
                        version = change.version
                        if 0 <= version < n_versions and outcome.committed == 1:
                            is_used[version] = 1
                        is_delivered = passes(filter, version) and (version != BAD_PAYLOAD or range_.is_bad)
                        is_known &= version >= 0 or not is_delivered
                    if not is_delivered:
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
                is_certain &= (xid != 0 and outcome.row >= 0) or k == first
            # Not above, because the cache does not keep a line of each of so many columns.
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
        found = {name: hand_over(&out[j]) for j, name in enumerate(names)}
        for i in range(n_versions):
            if is_used[i]:
                used.append(i)
        return found, is_certain, is_known, has_truncates, has_subxids, used
    finally:
        free(is_used)
        for j in range(12):
            free_bytes(&out[j])
