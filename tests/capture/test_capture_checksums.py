"""Captured files have checksums of pages and footers, so that a changed byte is found without compression too."""

from __future__ import annotations

import random
from pathlib import Path

import flips
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgdecode.capture.file_writer import FileWriter
from pgdecode.capture.frames import SCHEMA
from support.captured_files import ORIGIN, transaction
from support.shell import Shell

COMMANDS = {
    "messages": ("decode", "raw", "out"),
    "changes": ("decode", "raw", "out", "--changes"),
    "snapshot": ("decode", "raw", "out.parquet", "--snapshot", "p.t"),
    "inspect": ("inspect", "raw"),
    "cat": ("cat", "raw"),
}


# Small files are read at once, and large ones page by page.
@pytest.mark.parametrize("n_transactions", [500, 5000])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_changed_byte_in_a_row_is_found(run: Shell, command: str, n_transactions: int) -> None:
    Path("raw").mkdir()
    writer = FileWriter(Path("raw"), 0, "none")
    payloads = [payload for number in range(n_transactions) for payload in transaction(number)]
    rows = [{"seq": seq, "lsn": seq, "received": 0, "data": payload} for seq, payload in enumerate(payloads)]
    writer.add(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    entry = writer.seal(5, 1, (0, 0), {"origin": ORIGIN}, {})
    assert run(*COMMANDS[command]).code == 0
    path = Path("raw") / entry.name
    content = path.read_bytes()
    # The value of one row, which stays a good value.
    path.write_bytes(content.replace(b"\0\0\0\x03333", b"\0\0\0\x03334"))
    assert path.read_bytes() != content
    done = run(*(word.replace("out", "other") for word in COMMANDS[command]))
    assert done.code == 1
    assert done.err.startswith(f"pgdecode: {path}: cannot be read further: could not verify page integrity")
    assert done.err.count("\n") == 1


@pytest.mark.full
def test_a_flipped_bit_anywhere_in_a_file_is_an_error_or_harmless(tmp_path: Path) -> None:
    assert [*flips.wrong_flips(tmp_path, 60, random.Random(7))] == []


def test_a_flipped_bit_in_a_footer_is_an_error_for_all_commands(tmp_path: Path) -> None:
    path = flips.write_file(tmp_path / "raw", "zstd", 5)
    content = path.read_bytes()
    # A declaration of a type, which stays a good one.
    path.write_bytes(content.replace(b'"int4"', b'"int8"'))
    assert path.read_bytes() != content
    assert [flips.outcome(path, command) for command in flips.COMMANDS] == [None] * len(flips.COMMANDS)


def test_a_file_that_another_program_has_written_anew_is_read(run: Shell, tmp_path: Path) -> None:
    path = flips.write_file(tmp_path / "raw", "zstd", 5)
    before = run("cat", path).out
    pq.write_table(pq.read_table(path), path)
    assert run("cat", path).out == before
