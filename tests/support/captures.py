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
# What the quick tier decodes: scenarios of the newest server, in modes that have most of what the others have.
QUICK = frozenset({"18.shop.v1", "18.shop.v1bin", "18.streams.v4", "18.twophase.v3", "18.types.v1", "18.types.v1bin"})
# What `.ci/run` decodes where the bytes themselves are not what is tested: also the oldest server, and more modes.
FULL = QUICK | {"10.shop.v1", "18.streams.v2bin", "18.twophase.v4bin"}


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
