"""The campaign of killed drivers, in short. `make killed-drivers` kills 30."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from support.emulators import Emulator

sys.path.append(str(Path(__file__).parent))
from killed_drivers import campaign

pytest_plugins = ["support.stores"]


@pytest.mark.full
def test_a_killed_driver_leaves_all_or_nothing(store: Emulator, rng: random.Random) -> None:
    outcomes = campaign(store, 2, rng, ("local",))
    assert sum(outcomes.values()) == 2
