"""`ChangeDecoder.save` and `load`: Python and the shell continue one data set."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from growing_input import captured_file, sequence

from pgdecode import ChangeDecoder
from support.compare import rows_of
from support.data_sets import local
from support.generators.slot import Slot
from support.shell import Shell
from support.tiers import full

PAYLOADS, ENDS = sequence()
BOUNDS = [0, *ENDS]


def column(start: int, end: int) -> tuple[pa.Array, pa.Array]:
    return pa.array(PAYLOADS[start:end], pa.binary()), pa.array(range(start, end), pa.int64())


def decode(decoder: ChangeDecoder, start: int, end: int) -> list[dict[str, Any]]:
    return rows_of(decoder.decode(*column(start, end)))


WHOLE = decode(ChangeDecoder(), 0, len(PAYLOADS))


@pytest.mark.parametrize("options", [{}, full({"max_held_bytes": 0})], ids=["in memory", "in files"])
def test_a_decoder_is_saved_and_loaded_again_and_again(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = tmp_path / "state"
    if options:
        options = {**options, "spill": tmp_path / "spill"}
    found = []
    for number, (start, end) in enumerate(pairwise(BOUNDS)):
        decoder = ChangeDecoder.load(folder, **options) if number else ChangeDecoder(**options)
        found += decode(decoder, start, end)
        decoder.save(folder)
        runs = local(folder).checked()
        assert (len(runs), runs[-1]["engine"], runs[-1]["input"]["rows"]) == (number + 1, "python", end - start)
    assert found == WHOLE


def test_one_decoder_is_saved_after_each_call(tmp_path: Path) -> None:
    decoder = ChangeDecoder()
    found = []
    for start, end in pairwise(BOUNDS):
        found += decode(decoder, start, end)
        decoder.save(tmp_path)
    assert found == WHOLE
    assert len(local(tmp_path).checked()) == len(ENDS)
    assert ChangeDecoder.load(tmp_path).state == decoder.state


@pytest.mark.parametrize("turns", ["ps", "sp", full("pspp"), full("spsp")])
def test_python_and_the_shell_take_turns(run: Shell, turns: str) -> None:
    found = []
    for turn, (start, end) in zip(turns, pairwise(BOUNDS), strict=False):
        captured_file(Path(f"raw/{start:020}.parquet"), PAYLOADS[start:end], start)
        if turn == "s":
            done = run("decode", "raw", "out", "--changes")
            assert done.code == 0, done.err
            (file,) = local(Path("out")).manifests()[-1]["files"]
            found += [row for batch in pq.read_table(f"out/{file['name']}").to_batches() for row in rows_of(batch)]
        else:
            decoder = ChangeDecoder.load("out") if start else ChangeDecoder()
            found += decode(decoder, start, end)
            decoder.save("out")
    assert found == decode(ChangeDecoder(), 0, BOUNDS[len(turns)])


def test_the_shell_knows_what_several_calls_of_python_have_decoded(run: Shell) -> None:
    decoder = ChangeDecoder()
    for start, end in pairwise(BOUNDS[:3]):
        for low, high in ((start, start + 4), (start + 4, end)):
            captured_file(Path(f"raw/{low:020}.parquet"), PAYLOADS[low:high], low)
        decode(decoder, start, end)
        decoder.save("out")
    captured_file(Path("raw/last.parquet"), PAYLOADS[ENDS[1] :], ENDS[1])
    for _ in range(2):
        assert run("decode", "raw", "out", "--changes").code == 0
        for path in Path("raw").iterdir():
            path.touch()
    assert len(local(Path("out")).checked()) == 3


def test_input_may_be_deleted_and_the_folder_moved(tmp_path: Path) -> None:
    decoder = ChangeDecoder()
    found = decode(decoder, 0, ENDS[0])
    decoder.save(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    found += decode(ChangeDecoder.load(tmp_path / "two"), ENDS[0], len(PAYLOADS))
    assert found == WHOLE


def test_of_two_decoders_that_continue_one_run_the_second_is_refused(tmp_path: Path) -> None:
    decoder = ChangeDecoder()
    decode(decoder, 0, ENDS[0])
    decoder.save(tmp_path)
    one, two = (ChangeDecoder.load(tmp_path) for _ in range(2))
    for loaded in (one, two):
        decode(loaded, ENDS[0], ENDS[1])
    one.save(tmp_path)
    before = local(tmp_path).contents()
    with pytest.raises(ValueError, match=str(tmp_path)):
        two.save(tmp_path)
    with pytest.raises(ValueError, match=str(tmp_path)):
        ChangeDecoder().save(tmp_path)
    assert local(tmp_path).contents() == before
    decode(one, ENDS[1], ENDS[2])
    one.save(tmp_path)


def test_a_loaded_decoder_is_saved_to_another_folder_too(tmp_path: Path) -> None:
    decoder = ChangeDecoder()
    decode(decoder, 0, ENDS[0])
    decoder.save(tmp_path / "one")
    loaded = ChangeDecoder.load(tmp_path / "one")
    decode(loaded, ENDS[0], ENDS[1])
    loaded.save(tmp_path / "two")
    # Each folder is whole in itself.
    shutil.rmtree(tmp_path / "one")
    rest = decode(ChangeDecoder.load(tmp_path / "two"), ENDS[1], len(PAYLOADS))
    assert rest == decode(loaded, ENDS[1], len(PAYLOADS))


def test_the_state_as_json_is_that_of_a_loaded_decoder(tmp_path: Path) -> None:
    decoder = ChangeDecoder()
    decode(decoder, 0, ENDS[1])
    decoder.save(tmp_path)
    loaded = ChangeDecoder.load(tmp_path)
    assert json.loads(json.dumps(loaded.state)) == json.loads(json.dumps(decoder.state))
    assert decode(loaded, ENDS[1], len(PAYLOADS)) == decode(decoder, ENDS[1], len(PAYLOADS))


def test_a_folder_that_has_no_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=str(tmp_path)):
        ChangeDecoder.load(tmp_path)
    with pytest.raises(ValueError, match="missing"):
        ChangeDecoder.load(tmp_path / "missing")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match=str(tmp_path)):
        ChangeDecoder().save(tmp_path)


def test_other_options_than_those_that_were_saved_are_refused(tmp_path: Path) -> None:
    decoder = ChangeDecoder(drop_duplicates=True)
    decode(decoder, 0, ENDS[0])
    decoder.save(tmp_path)
    with pytest.raises(ValueError, match="drop_duplicates"):
        ChangeDecoder.load(tmp_path)
    loaded = ChangeDecoder.load(tmp_path, drop_duplicates=True)
    decode(loaded, ENDS[0], ENDS[1])
    loaded.save(tmp_path)


def test_a_failed_call_can_be_repeated_after_load(tmp_path: Path) -> None:
    decoder = ChangeDecoder()
    decode(decoder, 0, ENDS[0])
    decoder.save(tmp_path)
    loaded = ChangeDecoder.load(tmp_path)
    with pytest.raises(ValueError, match="unknown message tag"):
        loaded.decode([*PAYLOADS[ENDS[0] : ENDS[1]], b"Z"], range(ENDS[0], ENDS[1] + 1))
    assert decode(loaded, ENDS[0], len(PAYLOADS)) == decode(decoder, ENDS[0], len(PAYLOADS))


def test_the_cost_of_a_saved_state_does_not_grow_with_open_transactions(tmp_path: Path) -> None:
    sizes = {}
    for n_rows in (10, 20_000):
        slot = Slot()
        slot.start(9, first=True)
        slot.relation(20001, ["id"], xid=9)
        for row in range(n_rows):
            slot.insert(20001, str(row), xid=9)
        slot.stop()
        decoder = ChangeDecoder()
        decoder.decode(slot.payloads)
        decoder.save(tmp_path / str(n_rows))
        (path,) = (tmp_path / str(n_rows) / "_pgdecode").glob("state-*")
        sizes[n_rows] = path.stat().st_size
    assert sizes[20_000] < sizes[10] + 200
