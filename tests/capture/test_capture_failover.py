"""After a failover, the server has another timeline: capture refuses it, and continues without a loss on request."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import cluster
import promotion
import pytest

from pgdecode.capture import Capture, GapError
from pgdecode.capture.journal import Journal

pytestmark = pytest.mark.full


def capture(dsn: str, folder: Path, *, accept_gap: bool = False) -> None:
    Capture(dsn, folder, slot="s", publication="p", accept_gap=accept_gap).run(until="now")


@pytest.mark.parametrize("has_lost_changes", [False, True], ids=["behind", "ahead"])
def test_a_promoted_server_is_refused_and_then_captured_from_where_its_timeline_began(
    postgres: cluster.Cluster, tmp_path: Path, *, has_lost_changes: bool
) -> None:
    if postgres.major < 16:
        pytest.skip("older standbys have no logical slots")
    with cluster.running(postgres.programs) as server:
        with contextlib.closing(server.connect()) as session:
            session.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES")
            session.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
            session.execute("INSERT INTO t VALUES (1)")
        capture(server.dsn(), tmp_path / "out")
        server.stop("fast")
        (server.data / "standby.signal").touch()
        server.start()
        server._run("pg_ctl", "-D", str(server.data), "-w", "promote")
        if has_lost_changes:
            # As if the former primary had committed more, which the standby never received.
            journal = Journal(tmp_path / "out")
            journal.add_position((journal.contents.recorded or 0) + 2**16)
            journal.close()
        with contextlib.closing(server.connect()) as session:
            session.execute("INSERT INTO t SELECT generate_series(2, 5)")
            # More WAL than was recorded on the former timeline.
            session.execute("SELECT pg_logical_emit_message(false, 'p', repeat('x', 200000))")
        with pytest.raises(GapError, match="belongs to timeline 1, the server is on 2, which branched off at"):
            capture(server.dsn(), tmp_path / "out")
        capture(server.dsn(), tmp_path / "out", accept_gap=True)
        capture(server.dsn(), tmp_path / "out")
    assert promotion.ids(tmp_path / "out") == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_capture_follows_the_promotion_of_its_standby_over_runs(
    postgres: cluster.Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    # Source: https://github.com/viggy28/streambed/issues/94
    if postgres.major < 16:
        pytest.skip("older standbys have no logical slots")
    assert promotion.follow(postgres.programs, tmp_path / "out", number) == []
