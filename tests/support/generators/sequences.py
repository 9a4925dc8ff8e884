"""Random sequences of payloads, and the result of the reference fold for each."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from pgdecode import ChangeDecoder, DecodeError
from pgdecode.protocol.options import Mode
from support.change_rows import with_errors
from support.generators import slots
from support.generators.workload import Reader, Workload
from support.oracles import reference, reference_changes
from support.oracles.reference_changes import Change, Fold, Refused

# A sequence takes about ten milliseconds: 25 sequences per property, 10 in the quick tier, 2,000 in `make properties`.
per_property = settings(max_examples=max(min(60, settings().max_examples), settings().max_examples // 10))

seeds = st.integers(0, 2**48 - 1)
sizes = st.integers(1, 80)

# A row that is an error: its position and code.
Error = tuple[int, str]


def random_reader(seed: int, n_steps: int, n_sessions: int = 1, *, ends: bool = False) -> Reader:
    """Payloads of random transactions that a reader has received; all of them, if `ends` is true."""
    rng = random.Random(seed)
    workload = Workload(rng, n_steps)
    if ends or rng.random() < 0.5:
        workload.finish()
    return Reader(rng, workload, n_sessions, two_phase=rng.random() < 0.7, whole=ends or rng.random() < 0.5)


def damaged(rng: random.Random, payloads: Sequence[bytes]) -> list[bytes]:
    """Payloads of which some are missing, reordered, repeated or truncated."""
    found = list(payloads)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if len(found) < 3:
            break
        at, other = rng.randrange(len(found)), rng.randrange(len(found))
        kind = rng.choice(["drop", "drop", "swap", "neighbours", "twice", "move", "slice", "cut"])
        if kind == "drop":
            del found[at]
        elif kind == "swap":
            found[at], found[other] = found[other], found[at]
        elif kind == "neighbours":
            found[at - 1], found[at] = found[at], found[at - 1]
        elif kind == "twice":
            found.insert(other, found[at])
        elif kind == "move":
            found.insert(other, found.pop(at))
        elif kind == "slice":
            del found[at : at + rng.randrange(1, 6)]
        else:
            found[at] = found[at][:-1]
    return found


@dataclass
class Outcome:
    """The result of a sequence: committed changes in order, other changes, and errors by position."""

    changes: list[Change] = field(default_factory=list)
    others: list[Change] = field(default_factory=list)
    errors: list[Error] = field(default_factory=list)
    bad_rows: dict[str, int] = field(default_factory=dict)
    skipped: int = 0
    empty_payloads: int = 0
    n_undecided: int = 0


def expected(fold: Fold, *, include_uncommitted: bool = False) -> Outcome:
    """The expected result of a sequence, from the reference fold."""
    changes, errors = fold.results()
    return Outcome(
        changes,
        fold.others() if include_uncommitted else [],
        errors,
        fold.bad_rows(),
        fold.skipped,
        fold.empty_payloads,
        fold.n_undecided,
    )


def sorted_rows(rows: list[Change]) -> tuple[list[Change], list[Change], list[Error]]:
    """Split rows of a decoder into committed changes in order, others by position, and errors."""
    errors = sorted((row["position"], row["error"].split()[0]) for row in rows if row["error"])
    good = [{name: row[name] for name in reference_changes.CHANGE_COLUMNS} for row in rows if not row["error"]]
    changes = sorted(
        (row for row in good if row["committed"]), key=lambda row: (row["commit_position"], row["position"])
    )
    others = sorted((row for row in good if not row["committed"]), key=lambda row: row["position"])
    return changes, others, errors


def outcome(
    payloads: Sequence[bytes | None],
    *,
    first: int = 0,
    cuts: Collection[int] = (),
    sessions: Collection[int] = (),
    stored: bool = False,
    **options: Any,
) -> Outcome:
    """Decode payloads in parts with a ChangeDecoder.

    Parameters
    ----------
    first : int
        Position of the first payload.
    cuts : collection of int
        Indices at which a part begins.
    sessions : collection of int
        Indices before which a reconnect is announced; a part begins there too.
    stored : bool
        Write the state as JSON after each part, and read it into a new decoder.
    """
    decoder = ChangeDecoder(**options)
    rows: list[Change] = []
    bounds = sorted({0, len(payloads), *(at for at in (*cuts, *sessions) if 0 <= at <= len(payloads))})
    for start, end in pairwise(bounds) if len(bounds) > 1 else [(0, 0)]:
        if start in sessions:
            decoder.reconnected()
        rows += with_errors(decoder.decode(payloads[start:end], range(first + start, first + end)))
        if stored:
            options = {name: value for name, value in options.items() if name != "catalog"}
            decoder = ChangeDecoder(state=json.loads(json.dumps(decoder.state)), **options)
    if options.get("include_uncommitted"):
        rows += with_errors(decoder.undecided())
    found = Outcome(*sorted_rows(rows))
    found.n_undecided = decoder.n_undecided
    if not stored:
        # Each decoder counts only its own payloads.
        found.bad_rows = dict(getattr(decoder, "bad_rows", {}))
        found.skipped = getattr(decoder, "skipped", 0)
        found.empty_payloads = getattr(decoder, "empty_payloads", 0)
    return found


def on_both(*payloads: bytes, sessions: Collection[int] = (), mode: Mode = "FAILFAST", **options: Any) -> Outcome:
    """The outcome of payloads, after checking that the reference fold and ChangeDecoder agree on it.

    The decoder reads them in one call, and one by one. What is uncommitted is part of the outcome in FAILFAST mode.

    Raises
    ------
    Refused
        If both refuse the same payload with the same code.
    """
    rules = {"drop_duplicates": options.get("drop_duplicates", False), "reconnects": sessions}
    rules |= {"anywhere": options.get("start") == "anywhere", "empty_is_error": options.get("empty") == "error"}
    is_strict = mode == "FAILFAST"
    try:
        wanted = expected(Fold(enumerate(payloads), permissive=not is_strict, **rules), include_uncommitted=is_strict)
    except Refused as refused:
        with pytest.raises(DecodeError) as caught:
            ChangeDecoder(**options).decode(payloads, range(len(payloads)))
        if (caught.value.row, caught.value.code) != (refused.position, refused.code):
            raise AssertionError(f"{caught.value}, but by the fold {refused}") from refused
        raise
    options |= {"mode": mode, "include_uncommitted": is_strict, "sessions": sessions}
    one_by_one = range(len(payloads))
    assert_same(outcome(payloads, **options), wanted)
    assert_same(outcome(payloads, cuts=one_by_one, **options), wanted)
    assert_same(outcome(payloads, cuts=one_by_one, stored=True, **options), wanted, counts=False)
    return wanted


def random_cuts(rng: random.Random, payloads: Sequence[object]) -> list[int]:
    """Some indices, or all of them."""
    places = range(1, len(payloads))
    return list(places) if rng.random() < 0.2 else sorted(rng.sample(places, min(len(places), rng.randrange(1, 6))))


def assert_same(found: Outcome, wanted: Outcome, *, counts: bool = True) -> None:
    """Compare the most important parts first, so that a difference is easy to read."""
    assert found.errors == wanted.errors
    assert found.changes == wanted.changes
    assert found.others == wanted.others
    assert found.n_undecided == wanted.n_undecided
    if counts:
        names = ("bad_rows", "skipped", "empty_payloads")
        assert [getattr(found, name) for name in names] == [getattr(wanted, name) for name in names]


def spread(readers: Sequence[tuple[Any, Sequence[bytes]]]) -> Iterator[tuple[Any, int, bytes]]:
    """Sequences as rows of one table: source, position, payload."""
    for source, payloads in readers:
        for position, payload in enumerate(payloads):
            yield source, position, payload


def with_copies(rng: random.Random, payloads: Sequence[bytes]) -> list[bytes]:
    """Add copies of tables at some places outside transactions and blocks, between the commits before and after."""
    lsns = [_commit_lsn(payload) for payload in payloads]
    found: list[bytes] = []
    described: dict[bytes, bytes] = {}
    is_open, last = False, 0
    for at, payload in enumerate(payloads):
        if not is_open and described and rng.random() < 0.1:
            following = next((lsn for lsn in lsns[at:] if lsn), last + 8)
            lsn = rng.choice([last + 1, max(following, last + 1)])
            for relation in rng.sample(list(described.values()), rng.randrange(1, len(described) + 1)):
                oid = int.from_bytes(relation[1:5], "big")
                n_columns = len(reference.decode_payload(relation, False)["columns"])
                row = slots.insert(str(len(found)), *["c"] * (n_columns - 1), relation_id=oid)
                found += [slots.begin(0, lsn), slots.message(1, lsn=lsn), relation, slots.truncate(oid)]
                found += [*[row] * rng.randrange(3), slots.commit(lsn)]
        found.append(payload)
        is_open = payload[:1] in b"BbS" or (is_open and payload[:1] not in b"CPE")
        last = max(last, lsns[at])
        if payload[:1] == b"R" and not in_block(payloads, at):
            described[payload[1:5]] = payload
    return found


def in_block(payloads: Sequence[bytes], at: int) -> bool:
    """Whether a payload is in a block of a stream."""
    return next((item[:1] == b"S" for item in reversed(payloads[:at]) if item[:1] in b"SE"), False)


def _commit_lsn(payload: bytes) -> int:
    """The LSN of a commit, or 0. Message kinds: B has it as final_lsn; C, c and K as commit_lsn."""
    offset = {b"C": 2, b"c": 6, b"K": 2}.get(payload[:1])
    return int.from_bytes(payload[offset : offset + 8], "big") if offset else 0
