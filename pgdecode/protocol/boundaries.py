"""Which Begin and Commit messages an index of runs needs, where streams, prepared transactions or relations matter."""

from __future__ import annotations

from collections.abc import Sequence

# First bytes of the messages that matter to other runs wherever they stand ...
EVERYWHERE = b"SEcAbPKrpRY"
# ... and of those that do only as the first or last of their run, where all of these are good and none is of `APART`.
AT_THE_ENDS = b"BC"
# Of messages that describe relations ...
RELATIONS = b"RY"
# ... and of those of streams and of two-phase commits.
APART = bytes(tag for tag in EVERYWHERE if tag not in RELATIONS)
# Of those that tell whether what is around them is in a stream.
DELIMITERS = APART + AT_THE_ENDS
# Of those that are a run's rows.
ROWS = b"IUDT"


def needed(messages: Sequence[bytes]) -> list[int]:
    """Choose among messages, in slot order, those that tell as much as all of them.

    They are all but pairs of Begin and Commit between other such pairs, where LSNs ascend: after these, what is known
    is what is known after the last of them.

    Parameters
    ----------
    messages : sequence of bytes
        All of `EVERYWHERE` and `AT_THE_ENDS` in a piece of one run.

    Returns
    -------
    list of int
        Their places.
    """
    found: list[int] = []
    n = len(messages)
    place, last = 0, b""
    former: list[int] = []  # the pair before, not taken yet
    is_between = False  # whether a pair came before
    while place < n:
        lsn = _lsn_of_pair(messages, place)
        if lsn is not None and lsn > last:
            # The first of several, or the last: those between tell nothing.
            if not is_between:
                found += [place, place + 1]
                former = []
            else:
                former = [place, place + 1]
            is_between, last = True, lsn
            place += 2
            continue
        found += former
        found.append(place)
        former, is_between = [], False
        if _is_commit(messages[place]):
            last = max(last, messages[place][2:10])
        elif messages[place][:1] in (b"c", b"K"):
            # Their LSN counts too, and stands elsewhere: what follows is compared anew, and kept if in doubt.
            last = max(last, _lsn_of_end(messages[place]))
        place += 1
    return found + former


def are_good(messages: Sequence[bytes]) -> bool:
    """Whether each Begin and Commit is well-formed: one that is not bounds no transaction, and hides one that does."""
    return all(
        _is_begin(item) if item[:1] == b"B" else _is_commit(item) for item in messages if item[:1] in (b"B", b"C")
    )


def _lsn_of_pair(messages: Sequence[bytes], place: int) -> bytes | None:
    """LSN of a whole transaction without other messages that matter; None of what is anything else."""
    if place + 1 == len(messages):
        return None
    begin, commit = messages[place], messages[place + 1]
    if not (_is_begin(begin) and _is_commit(commit)) or begin[1:9] != commit[2:10]:
        return None
    return begin[1:9]


def _is_begin(message: bytes) -> bool:
    """Whether it is a Begin that every reader takes: LSN and time are of this age."""
    return len(message) == 21 and message[:1] == b"B" and message[1] < 0x80 and message[9] == 0


def _is_commit(message: bytes) -> bool:
    return (
        len(message) == 26 and message[:2] == b"C\0" and message[2] < 0x80 and message[10] < 0x80 and message[18] == 0
    )


def _lsn_of_end(message: bytes) -> bytes:
    """LSN of a Stream Commit, after xid and flags, or a Commit Prepared, after flags."""
    start = 6 if message[:1] == b"c" else 2
    return message[start : start + 8]
