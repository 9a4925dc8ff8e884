"""The campaigns of `make sync-servers` and `make sync-soak`, short: kills, restarts, lost targets; and many cycles."""

from __future__ import annotations

from pathlib import Path

import pytest
import sync_campaign
import sync_soak

from servers.database import Database
from servers.server import find_server, running_cluster


@pytest.mark.full
def test_targets_equal_the_server_despite_failures(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    programs = find_server()
    if programs is None:
        pytest.skip("no PostgreSQL server with test_decoding is installed")
    with running_cluster(programs) as server:
        trial = sync_campaign.run(server, 2, 4, ["parquet"], tmp_path / "scenario")
    assert trial.problems == []
    assert trial.events["verified"]


@pytest.mark.long
@pytest.mark.full
def test_nothing_grows_with_the_number_of_cycles(database: Database, tmp_path: Path) -> None:
    assert sync_soak.Soak(database, tmp_path, ["parquet"], 10).run() == []
