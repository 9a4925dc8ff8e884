"""The campaign of `make capture-servers`, short: one scenario with kills, cuts and restarts."""

from __future__ import annotations

from pathlib import Path

import campaign
import cluster
import pytest

from servers.server import find_server


@pytest.mark.full
def test_every_committed_change_is_captured_once_despite_failures(tmp_path: Path) -> None:
    programs = find_server()
    if programs is None:
        pytest.skip("no PostgreSQL server with test_decoding is installed")
    weights = {"kill": 4.0, "cut": 2.0, "fast": 1.0, "immediate": 1.0}
    with cluster.running(programs) as server:
        trial = campaign.run(server, 11, 6, weights, tmp_path)
    assert trial.problems == []
    assert trial.changes
