"""Flips bits of captured files. Each command must report an error, or give what it gives for the file as it was.

python -m flips [--flips N] [--seed N]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pgdecode.capture.file_writer import FileWriter
from pgdecode.capture.frames import SCHEMA
from pgdecode.cli.main import main as pgdecode
from pgdecode.files.file_metadata import TYPES_KEY
from pgdecode.types.user_types import UserType, to_json
from support.captured_files import GAP, ORIGIN, transaction

COMMANDS = (
    ("decode", "raw", "OUT", "--changes"),
    ("decode", "raw", "OUT", "--snapshot", "p.t"),
    ("inspect", "raw", "--json"),
    ("cat", "raw"),
    ("decode", "raw", "OUT"),
)


def write_file(folder: Path, compression: str, n_transactions: int) -> Path:
    """Write a captured file with types and a gap in its footer."""
    folder.mkdir()
    writer = FileWriter(folder, 0, compression)
    payloads = [payload for number in range(n_transactions) for payload in transaction(number)]
    rows = [{"seq": at, "lsn": at, "received": at // 9, "data": payload} for at, payload in enumerate(payloads)]
    writer.add(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    types = to_json([UserType(23, "pg_catalog.int4", "int4")])
    metadata = {"origin": ORIGIN, "gaps": [GAP]}
    return folder / writer.seal(5, 1, (0, 0), metadata, {TYPES_KEY: types}).name


def outcome(path: Path, command: tuple[str, ...]) -> bytes | None:
    """Return what a command writes; None if it reports an error."""
    out = path.with_name("out.jsonl")
    out.unlink(missing_ok=True)
    printed, errors = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    words = [str(path) if word == "raw" else str(out) if word == "OUT" else word for word in command]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        if pgdecode([*words, "--accept-gap"] if "decode" in command else words):
            assert b"Traceback" not in errors.buffer.getvalue()  # type: ignore[attr-defined]
            return None
    written = out.read_bytes() if out.exists() else b""
    return bytes(printed.buffer.getvalue()) + written  # type: ignore[attr-defined]


def wrong_flips(folder: Path, n_flips: int, rng: random.Random) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Flip one bit after another; yield those that change what a command gives."""
    for compression in ("none", "zstd"):
        path = write_file(folder / compression, compression, 40)
        content = path.read_bytes()
        expected = {command: outcome(path, command) for command in COMMANDS}
        assert None not in expected.values()
        for number in range(n_flips // 2):
            bit, command = rng.randrange(8 * len(content)), COMMANDS[number % len(COMMANDS)]
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            if outcome(path, command) not in (None, expected[command]):
                yield compression, bit, command


def main() -> int:
    """Print the flips that went unnoticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = [*wrong_flips(Path(folder), given.flips, random.Random(given.seed))]
    for item in wrong:
        print(*item)
    print(f"{given.flips} flips, {len(wrong)} of them changed what a command gives and were no error")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
