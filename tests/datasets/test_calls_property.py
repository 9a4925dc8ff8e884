"""Random sequences, cut into calls at random places: the data set has what the plain fold over everything gives."""

from __future__ import annotations

import contextlib
import io
import random
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgdecode import ChangeDecoder
from pgdecode.cli.main import main
from support.change_rows import with_errors
from support.data_sets import local
from support.generators.sequences import damaged, expected, per_property, random_reader, seeds, sizes, sorted_rows
from support.oracles.reference_changes import Change, Fold


def call(*words: str | Path) -> str:
    """Make a call that must succeed, and return what it says."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        assert main([str(word) for word in words]) == 0, said.getvalue()
    return said.getvalue()


class Growing:
    """A folder to which payloads come, and its data set."""

    def __init__(self, folder: str, rng: random.Random, payloads: list[bytes], **options: Any) -> None:
        self.raw, self.out = Path(folder, "raw"), Path(folder, "out")
        self.raw.mkdir()
        self.rng = rng
        self.payloads = payloads
        self.options = options
        self.rows: list[Change] = []

    def write(self, start: int, end: int, sessions: list[int]) -> None:
        """Write payloads as files. Some files of earlier calls are deleted."""
        for path in self.raw.iterdir():
            if self.rng.random() < 0.2:
                path.unlink()
        bounds = sorted({start, end, self.rng.randint(start, end)})
        for low, high in pairwise(bounds):
            columns = {
                "seq": range(low, high),
                "session": [sum(at <= row for at in sessions) for row in range(low, high)],
                "data": pa.array(self.payloads[low:high], pa.binary()),
            }
            pq.write_table(pa.table(columns), self.raw / f"{self.rng.getrandbits(32)}.parquet", row_group_size=5)

    def decode(self, start: int, end: int, engine: str) -> None:
        if engine == "shell":
            words = [f"--{name.replace('_', '-')}" for name, value in self.options.items() if value is True]
            words += ["--mode", self.options["mode"], "--session", "session", "--batch-rows", "9"]
            call("decode", self.raw, self.out, "--changes", *words)
        else:
            has_run = (self.out / "_pgdecode").exists()
            decoder = ChangeDecoder.load(self.out, **self.options) if has_run else ChangeDecoder(**self.options)
            self.rows += with_errors(decoder.decode(self.payloads[start:end], range(start, end)))
            decoder.save(self.out)

    def found(self) -> list[Change]:
        rows = list(self.rows)
        for name in local(self.out).outputs():
            for batch in pq.read_table(self.out / name).to_batches():
                rows += with_errors(batch)
        return rows


def check(payloads: list[bytes], sessions: list[int], seed: int, engines: list[str], **options: Any) -> None:
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, len(payloads)), min(len(payloads) - 1, rng.randrange(1, 5))))
    fold = Fold(enumerate(payloads), permissive=True, drop_duplicates=options["drop_duplicates"], reconnects=sessions)
    wanted = expected(fold)
    with tempfile.TemporaryDirectory() as folder:
        growing = Growing(folder, rng, payloads, **options)
        for start, end in pairwise([0, *cuts, len(payloads)]):
            growing.write(start, end, sessions)
            growing.decode(start, end, rng.choice(engines))
        last = local(growing.out).checked()[-1]
        found = growing.found()
        assert "nothing new" in call(
            *("decode", growing.raw, growing.out, "--changes", "--mode", options["mode"], "--session", "session"),
            *["--drop-duplicates"] * options["drop_duplicates"],
        )
    changes, _, errors = sorted_rows(found)
    assert (errors, changes) == (wanted.errors, wanted.changes)
    assert last["undecided"] == wanted.n_undecided


@pytest.mark.full
@per_property
@given(seeds, sizes, st.integers(1, 3), st.booleans())
def test_calls_of_the_shell_give_what_the_fold_gives(
    seed: int, n_steps: int, n_sessions: int, drop_duplicates: bool
) -> None:
    reader = random_reader(seed, n_steps, n_sessions)
    sessions = [at for at in reader.sessions if at]
    if len(reader.payloads) > 1:
        check(reader.payloads, sessions, seed, ["shell"], mode="PERMISSIVE", drop_duplicates=drop_duplicates)


@per_property
@given(seeds, sizes, st.booleans())
def test_calls_of_the_shell_and_python_give_what_the_fold_gives(seed: int, n_steps: int, drop_duplicates: bool) -> None:
    payloads = random_reader(seed, n_steps).payloads
    if len(payloads) > 1:
        check(payloads, [], seed, ["shell", "python"], mode="PERMISSIVE", drop_duplicates=drop_duplicates)


@pytest.mark.full
@per_property
@given(seeds, sizes)
def test_calls_over_damaged_sequences_give_what_one_call_gives(seed: int, n_steps: int) -> None:
    rng = random.Random(seed)
    payloads = damaged(rng, random_reader(seed, n_steps).payloads)
    # Where a batch begins without a boundary before it, only the structure of a message tells whether it stands in a
    # block. More rows may tell more.
    boundary = next((at for at, payload in enumerate(payloads) if payload[0] in b"BCSEcAbPKrp"), len(payloads))
    payloads = payloads[boundary:]
    if len(payloads) < 2:
        return
    options: dict[str, Any] = {"mode": "PERMISSIVE", "drop_duplicates": False}
    cuts = rng.sample(range(1, len(payloads)), 1)
    whole = sorted_rows(with_errors(ChangeDecoder(**options).decode(payloads, range(len(payloads)))))
    with tempfile.TemporaryDirectory() as folder:
        growing = Growing(folder, rng, payloads, **options)
        for start, end in pairwise([0, *cuts, len(payloads)]):
            growing.write(start, end, [])
            growing.decode(start, end, "shell")
        assert sorted_rows(growing.found()) == whole
