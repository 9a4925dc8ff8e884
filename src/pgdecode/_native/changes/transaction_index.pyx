"""Lists the changes of a scanned batch, and finds the transaction of each.

The loop handles the most frequent messages: Begin, rows and Commit, and consecutive blocks of open streams. It stops at
every other message, which the caller handles: `pgdecode.changes.transaction_assembler` has the rules of streams and of
two-phase commit.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from pgdecode._native.arrow.payload_array cimport (
    LAYOUT_OFFSETS32, LAYOUT_OFFSETS64, PRESENT, Segment, Source, Span, payload_at,
)
from pgdecode._native.capacity cimport ensure_capacity
from pgdecode._native.changes.change_buffers cimport (
    Change, ChangeBuffers, VersionFilter, check_range, commit_rows, committed_columns, free_changes, open_changes,
    passes, put_change, put_outcome, put_range, undecided_columns,
)
from pgdecode._native.changes.relation_versions cimport (
    ASK_CALLER, BAD_PAYLOAD, INVALID_RELATION, NO_STREAM, UNKNOWN_RELATION, VersionTable, Versions, version_of,
)
from pgdecode._native.cursor cimport be32, be64, prefetch
from pgdecode._native.fault cimport OK, FaultCode, unlikely
from pgdecode._native.wire.envelope_builder cimport EPOCH_SHIFT_US
from pgdecode._native.wire.walker cimport STREAMED
from pgdecode._native.wire.wire_plan cimport PLAN, PlanTable, offset_of

cdef enum State:
    OUTSIDE   # no transaction is open: the caller handles rows
    PLAIN     # in a transaction that Begin opened in this batch: its Commit is handled here
    LISTED    # in another transaction: rows are listed, and the caller handles its end
    SKIPPED   # in a transaction whose beginning is missing: rows are skipped


cdef enum Role:
    # What the loop does with a message.
    FOR_CALLER = 0
    IGNORED
    LOGICAL_MESSAGE
    ROW
    RELATION
    STREAM_START
    STREAM_STOP
    BEGIN   # from here on, the payload is read
    COMMIT


cdef enum:
    AHEAD = 32    # rows: how far ahead payloads are prefetched
    COPY_XID = 0  # of a copy of a table, as `pgdecode.protocol.messages.COPY_XID`


cdef struct Block:
    # A block of a stream, directly before a block of another stream.
    int64_t stream
    int64_t end          # number of its last change, plus 1
    int64_t row          # of its Stream Start, -1 if the caller has handled that


cdef struct Offsets:
    # Of fields of Begin, Commit and Stream Start, in bytes from the tag.
    int begin_xid
    int begin_lsn
    int commit_lsn
    int commit_timestamp
    int stream_xid
    int first_segment


cdef Offsets offsets_of(const PlanTable *plan) except *:
    cdef Offsets offsets
    offsets.begin_xid = offset_of(&plan.messages[plan.by_tag[c"B"]], "xid")
    offsets.begin_lsn = offset_of(&plan.messages[plan.by_tag[c"B"]], "lsn")
    offsets.commit_lsn = offset_of(&plan.messages[plan.by_tag[c"C"]], "lsn")
    offsets.commit_timestamp = offset_of(&plan.messages[plan.by_tag[c"C"]], "timestamp")
    offsets.stream_xid = offset_of(&plan.messages[plan.by_tag[c"S"]], "xid")
    offsets.first_segment = offset_of(&plan.messages[plan.by_tag[c"S"]], "first_segment")
    return offsets


cdef Offsets OFFSETS = offsets_of(&PLAN.table)


cdef struct Roles:
    uint8_t[256] of_kind  # for any byte, because a payload may have no kind


cdef Roles roles_of(const PlanTable *plan) noexcept:
    cdef Roles roles
    cdef int i
    cdef uint8_t tag
    for i in range(256):
        roles.of_kind[i] = FOR_CALLER
    for tag in b"IUD":
        roles.of_kind[plan.by_tag[tag]] = ROW
    roles.of_kind[plan.by_tag[c"O"]] = IGNORED
    roles.of_kind[plan.by_tag[c"M"]] = LOGICAL_MESSAGE
    roles.of_kind[plan.by_tag[c"R"]] = RELATION
    roles.of_kind[plan.by_tag[c"S"]] = STREAM_START
    roles.of_kind[plan.by_tag[c"E"]] = STREAM_STOP
    roles.of_kind[plan.by_tag[c"B"]] = BEGIN
    roles.of_kind[plan.by_tag[c"C"]] = COMMIT
    return roles


cdef Roles ROLES = roles_of(&PLAN.table)


cdef inline const uint8_t *field_at(const Segment *payloads, int64_t row, size_t at, size_t width) noexcept nogil:
    """A field of a payload; NULL if the payload is too short, which the scan has ruled out for good payloads."""
    cdef Span payload
    if payload_at(payloads, row, &payload) != PRESENT or payload.length < at + width:
        return NULL
    return payload.data + at


cdef inline void prefetch_payload(const Segment *payloads, int64_t row) noexcept nogil:
    """Prefetch a payload, if the array has offsets."""
    if payloads.layout == LAYOUT_OFFSETS32:
        prefetch(payloads.data + (<const int32_t *>payloads.index)[payloads.first + row])
    elif payloads.layout == LAYOUT_OFFSETS64:
        prefetch(payloads.data + (<const int64_t *>payloads.index)[payloads.first + row])


cdef inline int64_t uint32_at(const Segment *payloads, int64_t row, size_t at) noexcept nogil:
    cdef const uint8_t *p = field_at(payloads, row, at, 4)
    return 0 if p == NULL else <int64_t>be32(p)


cdef inline int64_t int64_at(const Segment *payloads, int64_t row, size_t at) noexcept nogil:
    cdef const uint8_t *p = field_at(payloads, row, at, 8)
    return 0 if p == NULL else <int64_t>be64(p)


cdef inline VersionFilter version_filter(bytes flags) noexcept:
    """Make a filter of one flag for each version. The caller keeps the flags alive."""
    cdef VersionFilter filter
    filter.is_chosen = True
    filter.items = flags
    filter.n = len(flags)
    return filter


cdef class TransactionIndex:
    """The changes of one batch in the order of their payloads, and the ranges of them to output, in order."""

    cdef Source source
    cdef const Segment *payloads
    cdef const uint8_t[::1] kinds
    cdef const uint32_t[::1] relations
    cdef const uint8_t[::1] stream_flags  # of the scan
    cdef bint has_stream_flags   # otherwise no payload has an xid
    cdef int64_t n_rows
    cdef object is_repeated          # (payload, row): whether a Relation message repeats the current version
    cdef ChangeBuffers listed
    cdef Block *blocks
    cdef size_t n_blocks, block_capacity
    cdef dict streamed       # open streamed transactions of the caller by top-level xid; None: the caller ends blocks
    cdef VersionTable table
    cdef Versions *versions  # of the table
    cdef readonly int64_t stream     # top-level xid of the open stream block
    cdef readonly int64_t block_row  # of the Stream Start of that block, if it was handled here; otherwise -1
    cdef State state
    cdef bytes wanted        # one byte for each version: whether its changes are listed; None if all are
    cdef VersionFilter filter
    cdef bint drop_duplicates
    cdef bint drop_undecided
    cdef readonly int64_t xid        # of the plain transaction, while the state is PLAIN
    cdef readonly int64_t lsn        # its final LSN
    cdef readonly int64_t start      # its first change
    cdef readonly int64_t begin_row  # of its Begin
    cdef public int64_t last_lsn     # the greatest LSN of all commits
    cdef public int64_t session_lsn  # the greatest LSN of the commits of this session
    cdef readonly int64_t n_repeated  # commits in this batch with an LSN that is not greater than all before
    cdef readonly int64_t last_lsn_row  # of the message with `last_lsn`, if it is in this batch; otherwise -1
    cdef public bint has_streamed    # streamed transactions are open; a Begin that is sent again may end them
    cdef public bint has_relations   # the plain transaction has a Relation message: the caller handles its end
    cdef readonly bint has_boundary  # there is a Begin or Commit
    cdef readonly bint has_rows      # there is an Insert, Update or Delete
    cdef readonly bint has_skipped   # a row was skipped
    cdef readonly int64_t first_end  # row of the first Begin or Commit, -1 if there is none yet
    cdef readonly int64_t last_end   # row of the last one

    def __cinit__(
        self,
        Source source,
        kinds,
        relations,
        stream_flags,
        int64_t last_lsn,
        int64_t session_lsn,
        bint drop_duplicates,
        bint drop_undecided,
        object is_repeated,
        VersionTable table,
        bytes wanted=None,
        dict streamed=None,
    ):
        """Begin before the first row.

        Parameters
        ----------
        source : Source
            One array of scanned payloads.
        kinds : bytes-like
            One byte for each row, the index of its message.
        relations : uint32 of a row each
            The relation's OID of each insert, update and delete.
        stream_flags : bytes-like or None
            Stream flags of the scan, one byte for each row; None if no row is in a stream.
        drop_undecided : bool
            Drop a plain transaction that is sent again before its Commit.
        is_repeated : callable of bytes and int
            Whether the payload in a row, a Relation message outside streams, repeats the current version. It is then
            ignored.
        table : VersionTable
            The current versions. The caller updates them when a message changes them.
        wanted : bytes, optional
            For each version, whether its changes are listed and output. Changes without a version always are.
        streamed : dict, optional
            The caller's streamed transactions by xid. If a block of one of them directly follows another block, it is
            opened here, and `taken_blocks` returns the block before it.
        """
        if source.n_segments != 1 or len(kinds) < source.n_rows:
            raise ValueError("kinds are not those of one array of payloads")
        self.source = source
        self.payloads = &source.segments[0]
        self.n_rows = source.n_rows
        self.kinds = kinds
        self.relations = memoryview(relations).cast("B").cast("I")
        if self.relations.shape[0] < source.n_rows:
            raise ValueError("relations are fewer than payloads")
        if stream_flags is not None:
            if len(stream_flags) < source.n_rows:
                raise ValueError("stream flags are fewer than payloads")
            self.stream_flags = stream_flags
            self.has_stream_flags = self.n_rows > 0
        self.wanted = wanted
        if wanted is not None:
            self.filter = version_filter(wanted)
        self.first_end = self.last_end = self.last_lsn_row = self.block_row = -1
        self.last_lsn = last_lsn
        self.session_lsn = session_lsn
        self.table = table
        self.versions = &table.versions
        self.stream = NO_STREAM
        self.drop_duplicates = drop_duplicates
        self.drop_undecided = drop_undecided
        self.is_repeated = is_repeated
        self.streamed = streamed
        open_changes(&self.listed, self.n_rows)

    def __dealloc__(self):
        free(self.blocks)
        free_changes(&self.listed)

    def begin(self, int64_t stream=NO_STREAM):
        """Open a transaction that the caller ends, perhaps in a block of its stream."""
        self.state = LISTED
        self.stream = stream
        self.block_row = -1
        self.has_relations = False

    def skip(self):
        """Skip rows until another transaction begins."""
        self.state = SKIPPED
        self.stream = NO_STREAM

    def end(self):
        """End the open transaction."""
        self.state = OUTSIDE
        self.stream = NO_STREAM
        self.has_relations = False

    @property
    def is_plain(self):
        return self.state == PLAIN

    @property
    def n(self):
        """Number of changes so far."""
        return self.listed.n_changes

    def list_changes(self, int64_t row):
        """List changes from a row on. Returns the first row that the caller must handle, or the number of rows."""
        cdef FaultCode code
        while True:
            with nogil:
                code = self.list_plain_changes(&row)
            if code != OK:
                raise MemoryError("no memory for the changes of the batch")
            if row == self.n_rows:
                return row
            if self.begins_other_block(row + 1):
                self.begin_block(row + 1)
                row += 2
            elif self.is_repeated_relation(row):
                row += 1
            else:
                return row

    cdef bint begins_other_block(self, int64_t row) except -1:
        """Whether a block ends before a row, and a block of another open transaction begins in it."""
        cdef const uint8_t *first_segment
        if self.streamed is None or self.state != LISTED or self.stream == NO_STREAM or row >= self.n_rows:
            return False
        if ROLES.of_kind[self.kinds[row - 1]] != STREAM_STOP or ROLES.of_kind[self.kinds[row]] != STREAM_START:
            return False
        first_segment = field_at(self.payloads, row, OFFSETS.first_segment, 1)
        if first_segment == NULL or first_segment[0] != 0:
            return False
        return uint32_at(self.payloads, row, OFFSETS.stream_xid) in self.streamed

    cdef int begin_block(self, int64_t row) except -1:
        """List the block that ends, and open the block whose Stream Start is in a row."""
        cdef Block *block
        if not ensure_capacity(<void **>&self.blocks, self.n_blocks, &self.block_capacity, sizeof(Block), 0):
            raise MemoryError("no memory for the blocks of streams")
        block = &self.blocks[self.n_blocks]
        block.stream = self.stream
        block.end = <int64_t>self.listed.n_changes
        block.row = self.block_row
        self.n_blocks += 1
        self.stream = uint32_at(self.payloads, row, OFFSETS.stream_xid)
        self.block_row = row
        return 0

    def taken_blocks(self):
        """Return [(xid, end, row of its Stream Start or -1)] of the blocks that have ended since the last call."""
        cdef size_t i
        blocks = [(self.blocks[i].stream, self.blocks[i].end, self.blocks[i].row) for i in range(self.n_blocks)]
        self.n_blocks = 0
        return blocks

    cdef bint is_repeated_relation(self, int64_t row) except -1:
        """Whether a row is a Relation message outside streams that can be ignored."""
        cdef Span payload
        if ROLES.of_kind[self.kinds[row]] != RELATION or self.is_streamed(row):
            return False
        if payload_at(self.payloads, row, &payload) != PRESENT:
            return False
        return self.is_repeated(
            PyBytes_FromStringAndSize(<const char *>payload.data, <Py_ssize_t>payload.length), row
        )

    cdef inline bint is_streamed(self, int64_t row) noexcept nogil:
        return self.has_stream_flags and self.stream_flags[row] & STREAMED != 0

    cdef FaultCode list_plain_changes(self, int64_t *at) noexcept nogil:
        # Local copies stay in registers, because no store in the loop can change them.
        cdef Segment payloads = self.payloads[0]
        cdef const uint8_t *kinds = &self.kinds[0] if self.n_rows else NULL
        cdef const uint32_t *relations = &self.relations[0] if self.n_rows else NULL
        cdef State state = self.state
        cdef int64_t row
        cdef uint8_t role
        cdef uint8_t first_read = ROW if self.has_stream_flags else BEGIN  # role from which on payloads are read
        # Of the row before. Only the caller changes the current version of a relation.
        cdef int32_t version = ASK_CALLER
        cdef uint32_t relation_id = 0
        cdef FaultCode code = OK
        for row in range(at[0], self.n_rows):
            role = ROLES.of_kind[kinds[row]]
            if row + AHEAD < self.n_rows and ROLES.of_kind[kinds[row + AHEAD]] >= first_read:
                prefetch_payload(&payloads, row + AHEAD)
            if role == ROW:
                self.has_rows = True
                if unlikely(state == OUTSIDE):
                    break
                if unlikely(state == SKIPPED):
                    self.has_skipped = True
                    continue
                if relations[row] != relation_id or version == ASK_CALLER:
                    relation_id = relations[row]
                    version = version_of(self.versions, self.stream, relation_id)
                if unlikely(version == ASK_CALLER):
                    break
                code = self.list_change(&payloads, row, relation_id, version)
            elif role == BEGIN and (state == OUTSIDE or state == PLAIN) and self.may_begin(&payloads, row, state):
                self.begin_at(&payloads, row)
                state = PLAIN
            elif role == COMMIT and state == PLAIN and not self.has_relations and self.may_commit(&payloads, row):
                code = self.put_commit(&payloads, row)
                state = OUTSIDE
            elif role == LOGICAL_MESSAGE and (state != OUTSIDE or not self.is_transactional(&payloads, row)):
                if unlikely(state == SKIPPED) and self.is_transactional(&payloads, row):
                    self.has_skipped = True
                continue
            elif role == STREAM_STOP and state == LISTED and self.stream_continues(&payloads, row + 1):
                self.block_row = row + 1
            elif role != IGNORED and not (role == STREAM_START and row == self.block_row):
                break
            if unlikely(code != OK):
                break
        else:
            row = self.n_rows
        self.state = state
        at[0] = row
        return code

    cdef inline bint is_transactional(self, const Segment *payloads, int64_t row) noexcept nogil:
        """Whether a logical message is part of a transaction, by the lowest of its flags."""
        cdef const uint8_t *flags = field_at(payloads, row, 5 if self.is_streamed(row) else 1, 1)
        return flags != NULL and flags[0] & 1 != 0

    cdef inline bint stream_continues(self, const Segment *payloads, int64_t row) noexcept nogil:
        """Whether the next block of the open stream begins in this row."""
        cdef const uint8_t *first_segment
        if self.stream == NO_STREAM or row == self.n_rows or ROLES.of_kind[self.kinds[row]] != STREAM_START:
            return False
        first_segment = field_at(payloads, row, OFFSETS.first_segment, 1)
        return (
            first_segment != NULL
            and first_segment[0] == 0
            and uint32_at(payloads, row, OFFSETS.stream_xid) == self.stream
        )

    cdef inline bint may_begin(self, const Segment *payloads, int64_t row, State state) noexcept nogil:
        """Whether a Begin is handled here."""
        if state == PLAIN:
            return not self.has_streamed and not self.has_relations and self.is_sent_again(payloads, row)
        return not self.has_streamed or int64_at(payloads, row, OFFSETS.begin_lsn) > self.last_lsn

    cdef inline bint may_commit(self, const Segment *payloads, int64_t row) noexcept nogil:
        """Whether a Commit is later than those of its session, as servers send them, or would be dropped."""
        return self.drop_duplicates or int64_at(payloads, row, OFFSETS.commit_lsn) > self.session_lsn

    cdef inline void begin_at(self, const Segment *payloads, int64_t row) noexcept nogil:
        self.has_boundary = True
        self.end_at(row)
        self.xid = uint32_at(payloads, row, OFFSETS.begin_xid)
        self.lsn = int64_at(payloads, row, OFFSETS.begin_lsn)
        self.start = <int64_t>self.listed.n_changes
        self.begin_row = row

    cdef inline bint is_sent_again(self, const Segment *payloads, int64_t row) noexcept nogil:
        """Whether a Begin in a plain transaction sends that again, so that its changes so far are dropped."""
        # At the LSN of a copy, other copies and a commit may follow.
        return self.drop_undecided and int64_at(payloads, row, OFFSETS.begin_lsn) <= self.lsn - (self.xid == COPY_XID)

    cdef inline FaultCode list_change(
        self, const Segment *payloads, int64_t row, uint32_t relation_id, int32_t version
    ) noexcept nogil:
        cdef int64_t xid = 0
        if not passes(&self.filter, version):
            return OK
        if self.is_streamed(row):
            xid = uint32_at(payloads, row, 1)
        return put_change(&self.listed, row, relation_id, xid, version, False)

    cdef inline void end_at(self, int64_t row) noexcept nogil:
        if self.first_end < 0:
            self.first_end = row
        self.last_end = row

    cdef FaultCode put_commit(self, const Segment *payloads, int64_t row) noexcept nogil:
        cdef int64_t lsn = int64_at(payloads, row, OFFSETS.commit_lsn)
        cdef int64_t since_2000 = int64_at(payloads, row, OFFSETS.commit_timestamp)
        cdef FaultCode code
        self.end_at(row)
        if self.repeats(row, lsn, self.xid) and self.drop_duplicates:
            return OK
        if self.start == <int64_t>self.listed.n_changes:
            return OK
        # Unsigned, because the sum may overflow.
        code = put_outcome(
            &self.listed, row, self.xid, lsn, <int64_t>(<uint64_t>since_2000 + <uint64_t>EPOCH_SHIFT_US), 1
        )
        return code if code != OK else put_range(&self.listed, self.start, <int64_t>self.listed.n_changes)

    cdef inline bint repeats(self, int64_t row, int64_t lsn, int64_t xid) noexcept nogil:
        """Record the LSN of a commit, but not that of a copy. Returns whether it is not greater than all before."""
        if lsn <= self.last_lsn:
            self.n_repeated += 1
        if xid != COPY_XID and lsn > self.session_lsn:
            self.session_lsn = lsn
        if lsn <= self.last_lsn or xid == COPY_XID:
            return lsn <= self.last_lsn
        self.last_lsn = lsn
        self.last_lsn_row = row
        return False

    cdef int add_change(
        self, int64_t row, int64_t relation_id, int64_t xid, int32_t version, bint is_truncate
    ) except -1:
        if put_change(&self.listed, row, relation_id, xid, version, is_truncate) != OK:
            raise MemoryError("no memory for the changes of the batch")
        return 0

    def list_row(self, int64_t row, int64_t relation_id, int64_t xid, int32_t version, bint is_truncate=False):
        """List a change that the caller has found, for example a table of a Truncate."""
        if passes(&self.filter, version):
            self.add_change(row, relation_id, xid, version, is_truncate)

    def list_bad(self, int64_t row):
        """List and output a bad payload, which belongs to no transaction."""
        cdef ChangeBuffers *listed = &self.listed
        self.add_change(row, -1, 0, BAD_PAYLOAD, False)
        self.add_outcome(-1, -1, -1, -1, -1)
        self.commit_changes(<int64_t>listed.n_changes - 1, <int64_t>listed.n_changes)
        listed.ranges[listed.n_ranges - 1].is_bad = True

    def list_buffered(
        self,
        int64_t first_row,
        Source payloads,
        const int64_t[::1] relation_ids,
        const int64_t[::1] xids,
        const int32_t[::1] versions,
    ):
        """List changes of earlier batches. Their payloads are one array; its first row has the number `first_row`."""
        cdef Py_ssize_t i, n = relation_ids.shape[0]
        cdef Span payload
        cdef bint is_truncate
        if payloads.n_segments != 1 or not payloads.n_rows == n == xids.shape[0] == versions.shape[0]:
            raise ValueError("buffered changes are incomplete")
        for i in range(n):
            is_truncate = (
                payload_at(&payloads.segments[0], i, &payload) == PRESENT
                and payload.length > 0
                and payload.data[0] == c"T"
            )
            self.add_change(first_row + i, relation_ids[i], xids[i], versions[i], is_truncate)

    def add_outcome(self, int64_t row, int64_t xid, int64_t lsn, int64_t timestamp, int8_t committed):
        """Add an outcome, which the next changes that are output have. Returns its number."""
        if put_outcome(&self.listed, row, xid, lsn, timestamp, committed) != OK:
            raise MemoryError("no memory for the changes of the batch")
        return self.listed.n_outcomes - 1

    cdef int commit_changes(self, int64_t start, int64_t end) except -1:
        """Output changes start to end with the last outcome."""
        check_range(&self.listed, start, end)
        if start < end and put_range(&self.listed, start, end) != OK:
            raise MemoryError("no memory for the changes of the batch")
        return 0

    def commit_unaborted(self, int64_t start, int64_t end, const int64_t[::1] positions, dict aborted, bint unaborted):
        """Output those of changes start to end that no abort of their sub-transaction undoes, or the others.

        Parameters
        ----------
        positions : memoryview of int64
            The position of each change; only that of the first one if there is no abort between them.
        aborted : dict
            xid of each aborted sub-transaction -> position of its Stream Abort.
        unaborted : bool
            False for the changes that an abort undoes.
        """
        cdef int64_t i
        cdef int64_t begin = start
        cdef int64_t abort = 0, xid = -1
        cdef int64_t step = 0 if positions.shape[0] == 1 else 1
        cdef bint is_output
        check_range(&self.listed, start, end)
        if step and positions.shape[0] != end - start:
            raise ValueError("positions and changes differ in number")
        if unaborted and not aborted:
            self.commit_changes(start, end)
            return
        for i in range(start, end):
            if self.listed.changes[i].xid != xid:
                xid = self.listed.changes[i].xid
                abort = aborted.get(xid, -1)
            is_output = (positions[step * (i - start)] >= abort) == unaborted
            if not is_output:
                self.commit_changes(begin, i)
                begin = i + 1
        self.commit_changes(begin, end)

    def undecided_columns(self, list ranges):
        """Return rows, relation OIDs, xids, versions, and whether it is a Truncate's, of ranges of changes."""
        return undecided_columns(&self.listed, ranges)

    def row_of(self, int64_t change):
        """Return the row of a change's payload."""
        check_range(&self.listed, change, change + 1)
        return self.listed.changes[change].row

    def first_unknown(self):
        """(row, relation OID, version) of the first row whose relation is unknown or invalid, or None."""
        cdef size_t i
        cdef int32_t version
        cdef const Change *change
        if not self.listed.has_unknown:
            return None
        for i in range(self.listed.n_changes):
            change = &self.listed.changes[i]
            version = change.version
            if version != UNKNOWN_RELATION and version != INVALID_RELATION or change.row >= self.n_rows:
                continue
            # A Truncate needs no columns. It is good even if its table is unknown.
            if version == INVALID_RELATION or ROLES.of_kind[self.kinds[change.row]] == ROW:
                return change.row, change.relation_id, version
        return None

    def record_end(self, int64_t row):
        """Record a Begin or Commit that the caller has handled."""
        self.end_at(row)

    def record_lsn(self, int64_t row, int64_t lsn, int64_t xid):
        """Record the LSN of a commit that the caller handles. Returns whether it is not greater than all before."""
        return self.repeats(row, lsn, xid)

    def committed_columns(self, positions, int64_t n_versions, bytes wanted=None):
        """Return the changes that are output, in order, as `change_buffers.committed_columns` does.

        `positions`: `ChunkedInt64` positions of all payloads. `wanted`: as in the constructor, for this call.
        """
        cdef VersionFilter filter = self.filter if wanted is None else version_filter(wanted)
        rows = commit_rows(&self.listed)
        taken = positions.taken(memoryview(rows).cast("B").cast("q"))
        cdef const int64_t[::1] commit_positions = memoryview(taken).cast("B").cast("q")
        if <size_t>commit_positions.shape[0] != self.listed.n_outcomes:
            raise ValueError("each commit has a position")
        return committed_columns(
            &self.listed, &commit_positions[0] if self.listed.n_outcomes else NULL, &filter, n_versions
        )
