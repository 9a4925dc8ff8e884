"""Types whose values are text in Arrow: both forms give the text that the server prints."""

from __future__ import annotations

import pytest

from support.oracles.recorded import Pair, both, renderings, values

TYPES = [
    *("uuid", "inet", "cidr", "macaddr", "macaddr8", "pg_lsn", "tid"),
    *("point", "lseg", "path", "box", "polygon", "line", "circle", "cube"),
    *("tsvector", "tsquery"),
]


@pytest.mark.parametrize(
    ("pg_type", "pair"),
    [pytest.param(pg_type, pair, id=name) for pg_type in TYPES for name, pair in values(pg_type)],
)
def test_a_recorded_value_is_the_servers_text_in_both_forms(pg_type: str, pair: Pair) -> None:
    assert both(pg_type, pair) == {pair.text.decode()}


@pytest.mark.parametrize("pg_type", TYPES)
def test_the_server_and_we_write_the_same_text(pg_type: str) -> None:
    pairs = renderings(pg_type)
    assert len(pairs) >= (30 if pg_type.startswith("ts") else 40)
    for pair in pairs:
        assert both(pg_type, pair) == {pair.text.decode()}
