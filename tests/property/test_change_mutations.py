"""Sequences with mutations in them: flagged in both modes, or right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pgdecode
from pgdecode.changes.change_decoder import ChangeDecoder
from support.change_rows import through_json, with_errors
from support.generators.slot import RandomSlot
from support.oracles import reference, reference_changes
from support.oracles.reference_changes import Change


def mutated(rng: Any, payloads: list[bytes]) -> list[bytes]:
    """Some messages deleted, repeated, exchanged, overwritten or cut."""
    found = list(payloads)
    for _ in range(rng.randrange(1, 4)):
        one, other = rng.randrange(len(found)), rng.randrange(len(found))
        what = rng.randrange(5)
        if what == 0 and len(found) > 1:
            del found[one]
        elif what == 1:
            found.insert(other, found[one])
        elif what == 2:
            found[one], found[other] = found[other], found[one]
        elif what == 3 and found[one]:
            at = rng.randrange(len(found[one]))
            found[one] = found[one][:at] + bytes([rng.randrange(256)]) + found[one][at + 1 :]
        else:
            found[one] = found[one][: rng.randrange(len(found[one]) + 1)]
    return found


def all_of(payloads: list[bytes], size: int, mode: str) -> list[Change]:
    """Everything that a decoder says of payloads, so many at a call."""
    decoder = ChangeDecoder(mode=mode, include_uncommitted=True)
    rows = []
    for at in range(0, len(payloads), size):
        rows += with_errors(decoder.decode(payloads[at : at + size]))
    undecided = with_errors(decoder.undecided())
    resumed = through_json(decoder, mode=mode, include_uncommitted=True)
    assert with_errors(resumed.undecided()) == undecided
    return rows + undecided


@pytest.mark.full
@given(st.randoms(use_true_random=False), st.integers(1, 12), st.sampled_from([1, 3, 10_000]))
def test_mutated_sequences_are_flagged_in_both_modes_or_right(rng: Any, n_steps: int, size: int) -> None:
    payloads = mutated(rng, RandomSlot(rng, n_steps).payloads)
    permissive = all_of(payloads, size, "PERMISSIVE")
    dropped = all_of(payloads, size, "DROPMALFORMED")
    assert dropped == [row for row in permissive if row["error"] is None]
    if any(row["error"] for row in permissive):
        with pytest.raises(pgdecode.DecodeError):
            all_of(payloads, size, "FAILFAST")
        return
    assert all_of(payloads, size, "FAILFAST") == permissive
    try:
        expected = reference_changes.changes(enumerate(payloads))
    except (AssertionError, reference.Malformed, reference_changes.Refused, UnicodeDecodeError):
        return  # a sequence that the reference is not made for
    # Begin Prepare and Prepare may have come to name different gids.
    aside = {"error", "gid"}
    committed = [{k: v for k, v in row.items() if k not in aside} for row in permissive if row["committed"]]
    assert committed == [{k: v for k, v in change.items() if k not in aside} for change in expected]
