"""A capture that has become a synchronous standby, for which all commits wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Database, Warnings

from pgdecode.capture import Capture


@pytest.fixture
def local(database: Database) -> Database:
    """A database whose own sessions do not wait, and a role that does not see the states of standbys."""
    database.execute("SET synchronous_commit = local")
    database.execute("DROP ROLE IF EXISTS blind; CREATE ROLE blind LOGIN REPLICATION")
    database.create_slot()
    return database


@pytest.mark.full
@pytest.mark.parametrize(
    ("names", "user"),
    [
        pytest.param("*", "postgres", id="any"),
        pytest.param("*", "blind", id="any, without seeing the state"),
        pytest.param("ANY 1 (other, pgdecode_capture)", "postgres", id="named"),
        pytest.param("FIRST 1 (other, PGDECODE_capture)", "blind", id="named, without seeing the state"),
    ],
)
def test_a_synchronous_standby_is_a_warning(local: Database, tmp_path: Path, names: str, user: str) -> None:
    # Source: https://github.com/greenplum-db/gpdb/pull/17509
    said = Warnings()
    local.server.set("synchronous_standby_names", names)
    try:
        dsn = local.server.dsn(local.name, user=user, application_name="pgdecode_capture")
        Capture(dsn, tmp_path / "raw", slot=local.slot, publication="p", on_warning=said.append).run(until="500ms")
    finally:
        local.server.set("synchronous_standby_names", "")
    assert len(said) == 1
    assert said[0].startswith(
        f"the capture is a synchronous standby (synchronous_standby_names = {names}): commits wait"
    )


@pytest.mark.full
def test_an_asynchronous_standby_is_no_warning(local: Database, tmp_path: Path) -> None:
    said = Warnings()
    local.server.set("synchronous_standby_names", "other")
    try:
        for user in ("postgres", "blind"):
            dsn = local.server.dsn(local.name, user=user)
            Capture(dsn, tmp_path / "raw", slot=local.slot, publication="p", on_warning=said.append).run(until="500ms")
    finally:
        local.server.set("synchronous_standby_names", "")
    assert said == []
