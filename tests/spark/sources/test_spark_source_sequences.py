"""Random sequences of files, micro-batches and restarts: the stream returns each change once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from stream_engine import KINDS, Row, stream_through

from pgdecode import ChangeDecoder
from spark_udfs.sources.stream_reader import StreamReader
from support import captures
from support.generators.slot import RandomSlot
from support.oracles import expected_changes
from support.tiers import full

SEEDS = [*range(2), *map(full, range(10, 20))]


def in_order(rows: list[Row]) -> list[Row]:
    """Sort changes as they are to be applied. Bad rows have no commit."""
    prefix = "_" if rows and "_position" in rows[0] else ""

    def key(row: Row) -> tuple[Any, ...]:
        commit, position = row[f"{prefix}commit_position"], row[f"{prefix}position"]
        return (position if commit is None else commit, position, row.get("relation_id") or 0)

    return sorted(rows, key=key)


def whole(payloads: list[bytes], table: str | None = None) -> list[Row]:
    decoder = ChangeDecoder(mode="PERMISSIVE")
    column, positions = pa.array(payloads, pa.binary()), range(len(payloads))
    if table is None:
        return in_order(decoder.decode(column, positions).to_pylist())
    return in_order(decoder.table(column, table, positions).to_pylist())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_of_random_transactions_returns_each_change_once(
    tmp_path: Path, seed: int, kind: type[StreamReader]
) -> None:
    rng = random.Random(f"{seed} {kind.__name__}")
    payloads = RandomSlot(rng, rng.randrange(5, 80)).payloads
    if rng.random() < 0.3:
        # The server sends something again, or something is missing: then there are bad rows.
        payloads = payloads[: rng.randrange(1, len(payloads))] + payloads[rng.randrange(len(payloads)) :]
    query = stream_through(tmp_path / "raw", payloads, {"what": "changes", "mode": "PERMISSIVE"}, rng, kind)
    assert in_order(query.rows()) == whole(payloads)


@pytest.mark.full
@pytest.mark.parametrize("name", captures.NAMES)
def test_a_stream_of_a_recorded_capture_returns_what_the_server_has_committed(
    tmp_path: Path, name: str, rng: random.Random
) -> None:
    payloads = captures.capture(name).payloads
    query = stream_through(tmp_path / "raw", payloads, {"what": "changes", "mode": "PERMISSIVE"}, rng, KINDS[0])
    rows = in_order(query.rows())
    assert rows == whole(payloads)
    if name in expected_changes.BINARY:
        return
    changes = [
        {**row, **{part: None if row[part] is None else dict(row[part]) for part in ("old", "new")}} for row in rows
    ]
    assert expected_changes.differences_from_test_decoding(name, changes) == []


@pytest.mark.parametrize("seed", [*range(2), *map(full, range(10, 20))])
def test_a_stream_of_a_table_has_the_columns_of_its_start(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    payloads = RandomSlot(rng, rng.randrange(5, 80), with_versions=False).payloads
    kind = rng.choice(KINDS)
    query = stream_through(tmp_path / "raw", payloads, {"what": "public.t20001", "mode": "PERMISSIVE"}, rng, kind)
    assert in_order(query.rows()) == whole(payloads, "public.t20001")
