"""The recorded captures in data/, each with the rows of the reference decoder."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.oracles import reference

DATA = Path(__file__).parent.parent / "data"

# "18.streams.v2" and so on: major version, scenario, mode.
NAMES = tuple(sorted(path.stem for path in DATA.glob("*.parquet")))
# For each scenario and mode, the capture of the newest server.
NEWEST = frozenset({name.split(".", 1)[1]: name for name in NAMES}.values())
# Of these, the modes that have most of what the others have: what the quick tier decodes.
QUICK = NEWEST - {
    f"18.{mode}"
    for mode in (
        "streams.v1bin",
        "streams.v2",
        "streams.v2bin",
        "twophase.v3nostream",
        "txns.v1",
        "txns.v1bin",
        "txns.v2bin",
        "txns.v3nostream",
        "types.v2",
        "types.v2bin",
    )
}


@dataclass(frozen=True)
class Capture:
    """One capture in slot order: payloads as an Arrow column and as bytes, and the reference's states and rows."""

    name: str
    column: pa.BinaryArray = field(repr=False)
    payloads: list[bytes] = field(repr=False)
    states: list[bool] = field(repr=False)
    rows: list[dict[str, Any]] = field(repr=False)


@functools.cache
def capture(name: str) -> Capture:
    """Load a capture and cache it."""
    column = pq.read_table(DATA / f"{name}.parquet", columns=["data"])["data"].combine_chunks()
    payloads = column.to_pylist()
    return Capture(name, column, payloads, reference.stream_states(payloads), reference.decode_sequence(payloads))
