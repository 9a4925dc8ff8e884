"""Lists the changes in a scanned batch and finds the transaction of each.

It follows what nearly all data is made of, Begin, rows and Commit, and blocks of open streams that follow each other,
and stops at everything else for its caller: the rules of streams and of two-phase commit are in
`pgdecode.changes.transaction_assembler`.
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
    Change, Outcome, Range, VersionFilter, buffered_of, commit_rows_of, delivered_of, passes,
)
from pgdecode._native.changes.relation_versions cimport (
    ASK_CALLER, BAD_PAYLOAD, INVALID_RELATION, NO_STREAM, UNKNOWN_RELATION, VersionTable, Versions, version_of,
)
from pgdecode._native.cursor cimport be32, be64, prefetch
from pgdecode._native.fault cimport FAULT_NO_MEMORY, OK, FaultCode, unlikely
from pgdecode._native.wire.envelope_builder cimport EPOCH_SHIFT_US
from pgdecode._native.wire.walker cimport STREAMED
from pgdecode._native.wire.wire_plan cimport PLAN, PlanTable, offset_of

cdef enum State:
    OUTSIDE   # of any transaction: the caller decides about a row
    PLAIN     # in a transaction that Begin opened in this batch; its Commit is followed here
    LISTED    # in another one: rows are listed, and what ends it is for the caller
    SKIPPED   # in one whose beginning is missing: rows are passed over


cdef enum Role:
    OF_CALLER = 0  # what a message is to the loop here
    PASSED_OVER
    LOGICAL_MESSAGE
    ROW
    RELATION
    STREAM_START
    STREAM_STOP
    BEGIN   # from here on the payload is read
    COMMIT


cdef enum:
    MOST_AT_FIRST = 1 << 17  # items
    AHEAD = 32  # rows: how far ahead payloads that are read are prefetched
    FEW = 4  # messages of a transaction, with its Begin and Commit


cdef struct Block:
    # A block of a stream that another stream's block follows at once.
    int64_t stream
    int64_t end          # number of the change behind its last one
    int64_t row          # of its Stream Start, -1 where the caller knows


cdef struct Ends:
    # Where the fields of Begin, Commit and Stream Start stand, in bytes from the tag on.
    int begin_xid
    int begin_lsn
    int commit_lsn
    int commit_timestamp
    int stream_xid
    int first_segment


cdef Ends ends_of(const PlanTable *plan) except *:
    cdef Ends ends
    ends.begin_xid = offset_of(&plan.messages[plan.by_tag[c"B"]], "xid")
    ends.begin_lsn = offset_of(&plan.messages[plan.by_tag[c"B"]], "lsn")
    ends.commit_lsn = offset_of(&plan.messages[plan.by_tag[c"C"]], "lsn")
    ends.commit_timestamp = offset_of(&plan.messages[plan.by_tag[c"C"]], "timestamp")
    ends.stream_xid = offset_of(&plan.messages[plan.by_tag[c"S"]], "xid")
    ends.first_segment = offset_of(&plan.messages[plan.by_tag[c"S"]], "first_segment")
    return ends


cdef Ends ENDS = ends_of(&PLAN.table)


cdef struct Roles:
    uint8_t[256] of_kind  # of any byte, for a payload may have no kind


cdef Roles roles_of(const PlanTable *plan) noexcept:
    cdef Roles roles
    cdef int i
    cdef uint8_t tag
    for i in range(256):
        roles.of_kind[i] = OF_CALLER
    for tag in b"IUD":
        roles.of_kind[plan.by_tag[tag]] = ROW
    roles.of_kind[plan.by_tag[c"O"]] = PASSED_OVER
    roles.of_kind[plan.by_tag[c"M"]] = LOGICAL_MESSAGE
    roles.of_kind[plan.by_tag[c"R"]] = RELATION
    roles.of_kind[plan.by_tag[c"S"]] = STREAM_START
    roles.of_kind[plan.by_tag[c"E"]] = STREAM_STOP
    roles.of_kind[plan.by_tag[c"B"]] = BEGIN
    roles.of_kind[plan.by_tag[c"C"]] = COMMIT
    return roles


cdef Roles ROLES = roles_of(&PLAN.table)


cdef inline const uint8_t *field_at(const Segment *payloads, int64_t row, size_t at, size_t width) noexcept nogil:
    """A field of a payload, NULL where that ends before: never of one that the scan has found good."""
    cdef Span payload
    if payload_at(payloads, row, &payload) != PRESENT or payload.length < at + width:
        return NULL
    return payload.data + at


cdef inline void prefetch_payload(const Segment *payloads, int64_t row) noexcept nogil:
    """Have a payload brought near, where it lies among others."""
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
    """Those with a flag; it is for the caller to keep the flags."""
    cdef VersionFilter filter
    filter.is_chosen = True
    filter.items = flags
    filter.n = len(flags)
    return filter


cdef class TransactionIndex:
    """The changes of one batch, in the order of their payloads, and the ranges of them to deliver, in order."""

    cdef Source source
    cdef const Segment *payloads
    cdef const uint8_t[::1] kinds
    cdef const uint32_t[::1] relations
    cdef const uint8_t[::1] stream_flags  # of the scan
    cdef bint has_stream_flags   # else no payload carries an xid
    cdef int64_t n_rows
    cdef object is_repeated          # of a Relation message's payload and row: whether all that it says counts already
    cdef Change *changes
    cdef Range *ranges
    cdef Outcome *outcomes
    cdef Block *blocks
    cdef size_t n_changes, n_ranges, n_outcomes, n_blocks
    cdef size_t change_capacity, range_capacity, outcome_capacity, block_capacity
    cdef dict streamed       # by top-level xid, what the caller has open; None where each block is the caller's to end
    cdef VersionTable table
    cdef Versions *versions  # those of the table
    cdef readonly int64_t stream     # top-level xid of the stream block that is open
    cdef readonly int64_t block_row  # of the Stream Start that went on with that stream here, else -1
    cdef State state
    cdef bytes wanted        # of each version, a byte whether its changes are; None where all are
    cdef VersionFilter filter
    cdef bint drop_duplicates
    cdef bint drop_undecided
    cdef bint has_unknown            # there is a change without a version
    cdef readonly int64_t xid        # of the plain transaction, while the state is PLAIN
    cdef readonly int64_t lsn        # its final LSN
    cdef readonly int64_t start      # its first change
    cdef readonly int64_t begin_row  # of its Begin
    cdef public int64_t last_lsn     # the greatest of all commits
    cdef public int64_t session_lsn  # the greatest of the commits of this session
    cdef readonly int64_t n_repeated  # commits in this batch whose LSN is not greater than that of all before
    cdef readonly int64_t last_lsn_row  # of its message where that is in this batch, else -1
    # Whether streamed transactions are open, which a Begin that is sent again may end; whether a Relation message has
    # come in the plain transaction, so that its end is the caller's.
    cdef public bint has_streamed
    cdef public bint has_relations
    cdef readonly bint begun         # there is a Begin or Commit
    cdef readonly bint has_rows      # an Insert, Update or Delete has
    cdef readonly bint has_skipped   # one has that was passed over
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
            One array of payloads, which have been scanned.
        kinds : bytes-like
            A byte a row, the index of its message.
        relations : uint32 of a row each
            The relation's OID of each insert, update and delete.
        stream_flags : bytes-like or None
            Those of the scan, a byte a row; None where no row is in a stream.
        drop_undecided : bool
            A plain transaction that is sent again before its Commit came is left out.
        is_repeated : callable of bytes and int
            Whether a Relation message outside streams, in a row, says only what counts already; it is then passed
            over.
        table : VersionTable
            The versions that count; the caller changes them where a message does.
        wanted : bytes, optional
            Of each version, whether its changes are listed and delivered; changes without a version always are.
        streamed : dict, optional
            The caller's streamed transactions by xid. A block of one of them that follows another block at once is
            begun here, and the block before it is listed for `taken_blocks`.
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

    def __dealloc__(self):
        free(self.blocks)
        free(self.changes)
        free(self.ranges)
        free(self.outcomes)

    def begin(self, int64_t stream=NO_STREAM):
        """A transaction is open that is not for this class to end, in a block of its stream perhaps."""
        self.state = LISTED
        self.stream = stream
        self.block_row = -1
        self.has_relations = False

    def skip(self):
        """Rows are passed over until another transaction begins."""
        self.state = SKIPPED
        self.stream = NO_STREAM

    def end(self):
        """No transaction is open."""
        self.state = OUTSIDE
        self.stream = NO_STREAM
        self.has_relations = False

    @property
    def is_plain(self):
        return self.state == PLAIN

    @property
    def n(self):
        """Changes so far."""
        return self.n_changes

    def list_changes(self, int64_t row):
        """List the changes from a row on; the first row that is for the caller, or the number of rows."""
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
        """Whether a block ends before a row, and another of a transaction that is open begins in it."""
        cdef const uint8_t *first_segment
        if self.streamed is None or self.state != LISTED or self.stream == NO_STREAM or row >= self.n_rows:
            return False
        if ROLES.of_kind[self.kinds[row - 1]] != STREAM_STOP or ROLES.of_kind[self.kinds[row]] != STREAM_START:
            return False
        first_segment = field_at(self.payloads, row, ENDS.first_segment, 1)
        if first_segment == NULL or first_segment[0] != 0:
            return False
        return uint32_at(self.payloads, row, ENDS.stream_xid) in self.streamed

    cdef int begin_block(self, int64_t row) except -1:
        """List the block that ends, and begin the one whose Stream Start is in a row."""
        cdef Block *block
        if not ensure_capacity(<void **>&self.blocks, self.n_blocks, &self.block_capacity, sizeof(Block), 0):
            raise MemoryError("no memory for the blocks of streams")
        block = &self.blocks[self.n_blocks]
        block.stream = self.stream
        block.end = <int64_t>self.n_changes
        block.row = self.block_row
        self.n_blocks += 1
        self.stream = uint32_at(self.payloads, row, ENDS.stream_xid)
        self.block_row = row
        return 0

    def taken_blocks(self):
        """[(xid, end, row of its Stream Start or -1)] of the blocks that have ended here since the last call."""
        cdef size_t i
        found = [(self.blocks[i].stream, self.blocks[i].end, self.blocks[i].row) for i in range(self.n_blocks)]
        self.n_blocks = 0
        return found

    cdef bint is_repeated_relation(self, int64_t row) except -1:
        """Whether a row is a Relation message outside streams that need not be dealt with."""
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
        # Copies, which no store below can change: the loop keeps them in registers.
        cdef Segment payloads = self.payloads[0]
        cdef const uint8_t *kinds = &self.kinds[0] if self.n_rows else NULL
        cdef const uint32_t *relations = &self.relations[0] if self.n_rows else NULL
        cdef State state = self.state
        cdef int64_t row
        cdef uint8_t role
        cdef uint8_t first_read = ROW if self.has_stream_flags else BEGIN  # role from which on payloads are read
        # Of the row before; nothing but the caller changes which version counts.
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
            elif role == STREAM_STOP and state == LISTED and self.goes_on(&payloads, row + 1):
                self.block_row = row + 1
            elif role != PASSED_OVER and not (role == STREAM_START and row == self.block_row):
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

    cdef inline bint goes_on(self, const Segment *payloads, int64_t row) noexcept nogil:
        """Whether the stream whose block ends goes on at once, in another block that begins in this row."""
        cdef const uint8_t *first_segment
        if self.stream == NO_STREAM or row == self.n_rows or ROLES.of_kind[self.kinds[row]] != STREAM_START:
            return False
        first_segment = field_at(payloads, row, ENDS.first_segment, 1)
        return (
            first_segment != NULL
            and first_segment[0] == 0
            and uint32_at(payloads, row, ENDS.stream_xid) == self.stream
        )

    cdef inline bint may_begin(self, const Segment *payloads, int64_t row, State state) noexcept nogil:
        """Whether a Begin needs nothing of the caller."""
        if state == PLAIN:
            return not self.has_streamed and not self.has_relations and self.is_sent_again(payloads, row)
        return not self.has_streamed or int64_at(payloads, row, ENDS.begin_lsn) > self.last_lsn

    cdef inline bint may_commit(self, const Segment *payloads, int64_t row) noexcept nogil:
        """Whether a Commit comes after those of its session, as servers send them, or is left out if it does not."""
        return self.drop_duplicates or int64_at(payloads, row, ENDS.commit_lsn) > self.session_lsn

    cdef inline void begin_at(self, const Segment *payloads, int64_t row) noexcept nogil:
        self.begun = True
        self.end_at(row)
        self.xid = uint32_at(payloads, row, ENDS.begin_xid)
        self.lsn = int64_at(payloads, row, ENDS.begin_lsn)
        self.start = <int64_t>self.n_changes
        self.begin_row = row

    cdef inline bint is_sent_again(self, const Segment *payloads, int64_t row) noexcept nogil:
        """Whether a Begin in a plain transaction is the server starting over, and what came before it is left out."""
        return self.drop_undecided and int64_at(payloads, row, ENDS.begin_lsn) <= self.lsn

    cdef inline FaultCode list_change(
        self, const Segment *payloads, int64_t row, uint32_t relation_id, int32_t version
    ) noexcept nogil:
        cdef int64_t xid = 0
        if not passes(&self.filter, version):
            return OK
        if self.is_streamed(row):
            xid = uint32_at(payloads, row, 1)
        return self.put_change(row, relation_id, xid, version, False)

    cdef inline FaultCode put_change(
        self, int64_t row, int64_t relation_id, int64_t xid, int32_t version, bint is_truncate
    ) noexcept nogil:
        cdef Change *change
        cdef size_t expected = min(<size_t>self.n_rows, <size_t>MOST_AT_FIRST)
        if not ensure_capacity(<void **>&self.changes, self.n_changes, &self.change_capacity, sizeof(Change), expected):
            return FAULT_NO_MEMORY
        change = &self.changes[self.n_changes]
        change.row = row
        change.relation_id = relation_id
        change.xid = xid
        change.version = version
        change.is_truncate = is_truncate
        self.has_unknown |= version < 0
        self.n_changes += 1
        return OK

    cdef inline void end_at(self, int64_t row) noexcept nogil:
        if self.first_end < 0:
            self.first_end = row
        self.last_end = row

    cdef FaultCode put_commit(self, const Segment *payloads, int64_t row) noexcept nogil:
        cdef int64_t lsn = int64_at(payloads, row, ENDS.commit_lsn)
        cdef int64_t since_2000 = int64_at(payloads, row, ENDS.commit_timestamp)
        self.end_at(row)
        if self.repeats(row, lsn) and self.drop_duplicates:
            return OK
        if self.start == <int64_t>self.n_changes:
            return OK
        # As numbers without sign: the sum may pass the greatest.
        if self.put_outcome(
            row, self.xid, lsn, <int64_t>(<uint64_t>since_2000 + <uint64_t>EPOCH_SHIFT_US), 1
        ) != OK:
            return FAULT_NO_MEMORY
        return self.put_range(self.start, <int64_t>self.n_changes)

    cdef inline bint repeats(self, int64_t row, int64_t lsn) noexcept nogil:
        """Take notice of a commit. Whether its LSN is not greater than that of all before."""
        if lsn > self.session_lsn:
            self.session_lsn = lsn
        if lsn <= self.last_lsn:
            self.n_repeated += 1
            return True
        self.last_lsn = lsn
        self.last_lsn_row = row
        return False

    cdef FaultCode put_outcome(
        self, int64_t row, int64_t xid, int64_t lsn, int64_t timestamp, int8_t committed
    ) noexcept nogil:
        cdef Outcome *outcome
        cdef size_t expected = min(<size_t>self.n_rows // FEW, <size_t>MOST_AT_FIRST)
        if not ensure_capacity(
            <void **>&self.outcomes, self.n_outcomes, &self.outcome_capacity, sizeof(Outcome), expected
        ):
            return FAULT_NO_MEMORY
        outcome = &self.outcomes[self.n_outcomes]
        outcome.row = row
        outcome.xid = xid
        outcome.lsn = lsn
        outcome.timestamp = timestamp
        outcome.committed = committed
        self.n_outcomes += 1
        return OK

    cdef FaultCode put_range(self, int64_t start, int64_t end) noexcept nogil:
        """Deliver changes with the newest outcome."""
        cdef Range *range_
        cdef size_t expected = min(<size_t>self.n_rows // FEW, <size_t>MOST_AT_FIRST)
        if not ensure_capacity(<void **>&self.ranges, self.n_ranges, &self.range_capacity, sizeof(Range), expected):
            return FAULT_NO_MEMORY
        range_ = &self.ranges[self.n_ranges]
        range_.start = start
        range_.end = end
        range_.outcome = <int32_t>(self.n_outcomes - 1)
        range_.is_bad = False
        self.n_ranges += 1
        return OK

    def list_row(self, int64_t row, int64_t relation_id, int64_t xid, int32_t version, bint is_truncate=False):
        """List a change for the caller, perhaps a table that a Truncate names."""
        if not passes(&self.filter, version):
            return
        if self.put_change(row, relation_id, xid, version, is_truncate) != OK:
            raise MemoryError("no memory for the changes of the batch")

    def list_bad(self, int64_t row):
        """List a bad payload, and deliver it at once: it belongs to no transaction."""
        if self.put_change(row, -1, 0, BAD_PAYLOAD, False) != OK:
            raise MemoryError("no memory for the changes of the batch")
        self.decide(-1, 0, -1, -1, -1)
        self.deliver(self.n_changes - 1, self.n_changes)
        self.ranges[self.n_ranges - 1].is_bad = True

    def list_buffered(
        self,
        int64_t first_row,
        Source payloads,
        const int64_t[::1] relation_ids,
        const int64_t[::1] xids,
        const int32_t[::1] versions,
    ):
        """List changes of earlier batches, whose payloads, in one array, stand behind this batch's, from a row on."""
        cdef Py_ssize_t i, n = relation_ids.shape[0]
        cdef Span payload
        cdef bint is_truncate
        if payloads.n_segments != 1 or not payloads.n_rows == n == xids.shape[0] == versions.shape[0]:
            raise ValueError("buffered changes are cut")
        for i in range(n):
            is_truncate = (
                payload_at(&payloads.segments[0], i, &payload) == PRESENT
                and payload.length > 0
                and payload.data[0] == c"T"
            )
            if self.put_change(first_row + i, relation_ids[i], xids[i], versions[i], is_truncate) != OK:
                raise MemoryError("no memory for the changes of the batch")

    def decide(self, int64_t row, int64_t xid, int64_t lsn, int64_t timestamp, int8_t committed):
        """Make an outcome, for the changes that are delivered next; its number."""
        if self.put_outcome(row, xid, lsn, timestamp, committed) != OK:
            raise MemoryError("no memory for the changes of the batch")
        return self.n_outcomes - 1

    def deliver(self, int64_t start, int64_t end):
        """Deliver changes start to end with the newest outcome."""
        if start < 0 or end > <int64_t>self.n_changes:
            raise IndexError("there are no such changes")
        if start < end and self.put_range(start, end) != OK:
            raise MemoryError("no memory for the changes of the batch")

    def deliver_alive(self, int64_t start, int64_t end, const int64_t[::1] positions, dict aborted, bint alive):
        """Deliver those of changes start to end that no abort of their sub-transaction has undone, or the others.

        Parameters
        ----------
        positions : memoryview of int64
            The position of each of the changes; or only that of the first one, if no abort comes between them.
        aborted : dict
            xid of each sub-transaction that was aborted -> position of its Stream Abort.
        """
        cdef int64_t i
        cdef int64_t begin = start
        cdef int64_t cut = 0, xid = -1
        cdef int64_t step = 0 if positions.shape[0] == 1 else 1
        cdef bint wanted
        if start < 0 or end > <int64_t>self.n_changes:
            raise IndexError("there are no such changes")
        if step and positions.shape[0] != end - start:
            raise ValueError("positions and changes differ in number")
        if alive and not aborted:
            self.deliver(start, end)
            return
        for i in range(start, end):
            if self.changes[i].xid != xid:
                xid = self.changes[i].xid
                cut = aborted.get(xid, -1)
            wanted = (positions[step * (i - start)] >= cut) == alive
            if not wanted:
                self.deliver(begin, i)
                begin = i + 1
        self.deliver(begin, end)

    def rows_of(self, list ranges):
        """(rows, relation OIDs, xids, versions, whether it is a Truncate's) of changes to buffer, as buffers."""
        return buffered_of(self.changes, self.n_changes, ranges)

    def row_of(self, int64_t change):
        """Row of a change's payload."""
        if not 0 <= change < <int64_t>self.n_changes:
            raise IndexError("there is no such change")
        return self.changes[change].row

    def first_unknown(self):
        """(row, relation OID, version) of the first row whose relation is unknown or invalid, or None."""
        cdef size_t i
        cdef int32_t version
        if not self.has_unknown:
            return None
        for i in range(self.n_changes):
            version = self.changes[i].version
            if version != UNKNOWN_RELATION and version != INVALID_RELATION or self.changes[i].row >= self.n_rows:
                continue
            # A truncate needs no columns, and is good where its table is not known.
            if version == INVALID_RELATION or ROLES.of_kind[self.kinds[self.changes[i].row]] == ROW:
                return self.changes[i].row, self.changes[i].relation_id, version
        return None

    def on_end(self, int64_t row):
        """Take notice of a Begin or Commit that is the caller's to deal with."""
        self.end_at(row)

    def record_lsn(self, int64_t row, int64_t lsn):
        """Take notice of a commit that the caller deals with, as `repeats` does."""
        return self.repeats(row, lsn)

    def delivered(self, positions, int64_t n_versions, bytes wanted=None):
        """What is delivered, in order, as buffers by name, and what all of it has: see `delivered_of`.

        `positions`: `ChunkedInt64` positions of all payloads. `wanted`: as that of all changes, for this call.
        """
        cdef VersionFilter these = self.filter if wanted is None else version_filter(wanted)
        rows = commit_rows_of(self.outcomes, self.n_outcomes)
        taken = positions.taken(memoryview(rows).cast("B").cast("q"))
        cdef const int64_t[::1] commit_positions = memoryview(taken).cast("B").cast("q")
        if <size_t>commit_positions.shape[0] != self.n_outcomes:
            raise ValueError("each commit has a position")
        return delivered_of(
            self.changes,
            self.ranges,
            self.n_ranges,
            self.outcomes,
            self.n_outcomes,
            &commit_positions[0] if self.n_outcomes else NULL,
            &these,
            n_versions,
        )
