"""A server for the tests of this folder; without one they are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servers.server import Server, find_server, running


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    programs = find_server()
    if programs is None:
        pytest.skip("no PostgreSQL server with test_decoding was found; PGDECODE_TEST_PGBIN names its programs")
    with running(programs) as started:
        yield started
