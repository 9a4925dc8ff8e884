"""Groups of message tags, and the choice of the Begin and Commit messages that an index of partitions needs."""

from __future__ import annotations

from collections.abc import Sequence

from pgdecode.protocol.messages import COPY_XID, Begin, Commit, CommitPrepared, StreamCommit
from pgdecode.protocol.wire import length_of, offset_of

# Each constant holds message tags. A partition is a range of positions that one task reads in order.
# The index always needs these messages.
ALWAYS_NEEDED = b"SEcAbPKrpRY"
# The index needs only the first and the last of these in each partition, if all of them are well-formed and no message
# is of `STREAM_AND_TWO_PHASE`.
BEGIN_COMMIT = b"BC"
# Descriptions of relations and types.
RELATIONS = b"RY"
# Streams and two-phase commits.
STREAM_AND_TWO_PHASE = bytes(tag for tag in ALWAYS_NEEDED if tag not in RELATIONS)
# These show whether the messages around them are inside a stream.
DELIMITERS = STREAM_AND_TWO_PHASE + BEGIN_COMMIT
# Changes of rows.
ROWS = b"IUDT"
# Offsets and lengths of Begin and Commit. LSNs and timestamps are big-endian: their first byte shows whether they are
# plausible.
BEGIN_LENGTH, BEGIN_LSN, BEGIN_TIME, BEGIN_XID = (
    length_of(Begin),
    offset_of(Begin, "final_lsn"),
    offset_of(Begin, "commit_timestamp"),
    offset_of(Begin, "xid"),
)
COMMIT_LENGTH, COMMIT_LSN, COMMIT_END, COMMIT_TIME = (
    length_of(Commit),
    offset_of(Commit, "commit_lsn"),
    offset_of(Commit, "end_lsn"),
    offset_of(Commit, "commit_timestamp"),
)
# The xid of a copy, whose commit does not change the state.
OF_COPY = COPY_XID.to_bytes(4, "big")
_LSN_OF_END = {
    ord(kind.tag): slice(offset_of(kind, "commit_lsn"), offset_of(kind, "end_lsn"))
    for kind in (StreamCommit, CommitPrepared)
}


def needed(messages: Sequence[bytes]) -> list[int]:
    """Choose the messages that an index needs.

    A pair of a Begin and its Commit is left out if it lies between other such pairs and their LSNs ascend. The state
    after several such pairs is the state after the last of them.

    Parameters
    ----------
    messages : sequence of bytes
        All messages of `ALWAYS_NEEDED` and `BEGIN_COMMIT` in a part of one partition, in slot order.

    Returns
    -------
    list of int
        Indices of the chosen messages.
    """
    chosen: list[int] = []
    row, last_lsn = 0, b""
    former: list[int] = []  # the previous pair, if it has not been added yet
    is_between = False  # whether the previous messages were a pair
    while row < len(messages):
        lsn = _lsn_of_pair(messages, row)
        if lsn is not None and lsn > last_lsn:
            # Of several consecutive pairs, only the first and the last are needed.
            if not is_between:
                chosen += [row, row + 1]
                former = []
            else:
                former = [row, row + 1]
            is_between, last_lsn = True, lsn
            row += 2
            continue
        chosen += [*former, row]
        former, is_between = [], False
        message = messages[row]
        if _is_commit(message):
            last_lsn = max(last_lsn, message[COMMIT_LSN:COMMIT_END])
        elif message[0] in _LSN_OF_END:
            # A Stream Commit and a Commit Prepared also have a commit LSN.
            last_lsn = max(last_lsn, message[_LSN_OF_END[message[0]]])
        row += 1
    return chosen + former


def are_good(messages: Sequence[bytes]) -> bool:
    """Whether each Begin and Commit is well-formed.

    A malformed one does not delimit a transaction, and it may hide a well-formed one next to it.
    """
    return all(
        _is_begin(item) if item[:1] == b"B" else _is_commit(item) for item in messages if item[:1] in (b"B", b"C")
    )


def _lsn_of_pair(messages: Sequence[bytes], row: int) -> bytes | None:
    """Commit LSN, if a Begin and its Commit, not of a copy, follow each other at `row`; otherwise None."""
    if row + 1 == len(messages) or messages[row][BEGIN_XID:] == OF_COPY:
        return None
    begin, commit = messages[row], messages[row + 1]
    lsn = begin[BEGIN_LSN:BEGIN_TIME]
    return lsn if _is_begin(begin) and _is_commit(commit) and lsn == commit[COMMIT_LSN:COMMIT_END] else None


def _is_begin(message: bytes) -> bool:
    """Whether a message is a Begin whose LSN and timestamp are plausible."""
    return (
        len(message) == BEGIN_LENGTH and message[:1] == b"B" and message[BEGIN_LSN] < 0x80 and message[BEGIN_TIME] == 0
    )


def _is_commit(message: bytes) -> bool:
    return (
        len(message) == COMMIT_LENGTH
        and message[:2] == b"C\0"
        and message[COMMIT_LSN] < 0x80
        and message[COMMIT_END] < 0x80
        and message[COMMIT_TIME] == 0
    )
