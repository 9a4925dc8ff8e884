"""The reference fold of changes on a live server, under random interleaved transactions."""

from __future__ import annotations

import os
import random

import pytest

from servers.reading import modes
from servers.server import Server
from servers.trial import run, staged, steps

# How many scenarios; a long run is PGDECODE_TEST_SCENARIOS=300.
N_SCENARIOS = int(os.environ.get("PGDECODE_TEST_SCENARIOS", "1"))


@pytest.mark.full
def test_the_reference_agrees_with_a_live_server_about_random_transactions(server: Server, rng: random.Random) -> None:
    read = set()
    n_read = 0
    for _ in range(3 * N_SCENARIOS):
        seed = rng.randrange(10**9)
        trial = run(server, seed)
        assert trial.problems == [], f"scenario {seed} on PostgreSQL {server.major}"
        read |= {name.split()[0] for name in trial.seen} - trial.unreadable
        # What the server itself cannot read says nothing; another one is taken for it.
        n_read += "test_decoding" not in trial.unreadable
        if n_read == N_SCENARIOS:
            break
    assert n_read == N_SCENARIOS
    assert {mode.name for mode in modes(server.major) if not mode.two_phase} <= read


@pytest.mark.full
def test_a_scenario_is_repeated_by_its_seed(server: Server) -> None:
    logs = []
    for _ in range(2):
        with staged(server, 3) as stage:
            for _ in steps(stage, 3, 40):
                pass
            logs.append(stage.scenario.log)
    assert len(logs[0]) > 40
    assert logs[0] == logs[1]
