"""The campaign of calls, in short. `make runs` does hundreds of sequences."""

from __future__ import annotations

import pytest
from run_campaign import trials

from support.emulators import Emulator
from support.tiers import long

pytest_plugins = ["support.stores"]


@pytest.mark.full
@pytest.mark.parametrize("seed", [0, 1, 2, *map(long, (3, 4, *range(10, 16)))])
def test_calls_on_any_engine_give_what_one_call_gives(seed: int) -> None:
    (trial,) = trials([seed])
    assert trial.problems == []


@pytest.mark.full
@pytest.mark.parametrize(("seed", "kills"), [(1, 1), long(2, 3)])
def test_killed_calls_can_be_repeated(seed: int, kills: int) -> None:
    (trial,) = trials([seed], kills=kills)
    assert trial.problems == []
    assert trial.killed > 0


@pytest.mark.full
@pytest.mark.parametrize("seed", [5])
def test_calls_in_a_store_that_are_killed_can_be_repeated(store: Emulator, seed: int) -> None:
    (trial,) = trials([seed], kills=1, store=store)
    assert trial.problems == []
