"""A replication state in a data set: undecided payloads are stored once, and a decoder continues."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pgdecode import ChangeDecoder
from pgdecode.changes.checkpoint import state_from_json
from pgdecode.changes.stored_state import replication_of, with_replication
from pgdecode.datasets.errors import RunFault
from pgdecode.datasets.local_folder import LocalFolder
from pgdecode.datasets.manifest import Manifest
from pgdecode.datasets.state import LOG
from pgdecode.datasets.target import target_at
from pgdecode.storage.object_path import FilePath, object_path
from support.emulators import Emulator
from support.generators.slot import Slot
from support.tiers import full

pytest_plugins = ["support.stores"]
T = 20001


@pytest.fixture(params=["local", "s3", full("azure")])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> FilePath:
    """A folder without files."""
    if request.param == "local":
        return tmp_path / "out"
    store: Emulator = request.getfixturevalue(request.param)
    return object_path(f"{store.new_bucket()}/out", store.options)


def pieces() -> list[list[bytes]]:
    """Three pieces of a sequence, with a streamed transaction over all of them."""
    slot = Slot()
    found = []
    for number in range(3):
        done = len(slot.payloads)
        slot.start(9, first=number == 0)
        if number == 0:
            slot.relation(T, ["id"], xid=9)
        slot.insert(T, f"{number}.1", xid=9)
        slot.insert(T, f"{number}.2", xid=9)
        slot.stop()
        if number == 2:
            slot.stream_commit(9)
        found.append(slot.payloads[done:])
    return found


@pytest.mark.parametrize("with_spill", [False, True])
def test_undecided_payloads_are_stored_once_and_committed_by_a_later_run(
    folder: FilePath, tmp_path: Path, with_spill: bool
) -> None:
    spill = tmp_path / "spill" if with_spill else None
    target = target_at(folder)
    stored: list[set[str]] = []
    for piece in pieces():
        with target.begin([], {}) as run:
            decoder = ChangeDecoder(spill=spill)
            decoder._engine.begin(replication_of(run.state, spill), None)
            changes = decoder.decode(pa.array(piece, pa.binary()))
            after = with_replication(run.state, decoder._engine.state, run.files.payload_path())
            run.commit(Manifest("python", ()), after)
        stored.append({item.name for item in target.last().state[1:]})  # type: ignore[union-attr]
    assert [len(names) for names in stored] == [1, 2, 0]
    assert stored[0] < stored[1]
    assert [row["new"] for row in changes.to_pylist()] == [[("id", f"{n}.{m}")] for n in range(3) for m in (1, 2)]


def test_payloads_of_another_data_set_are_copied(tmp_path: Path) -> None:
    first, second = LocalFolder(tmp_path / "a"), LocalFolder(tmp_path / "b")
    decoder = ChangeDecoder()
    decoder.decode(pa.array(pieces()[0], pa.binary()))
    with first.begin([], {}) as run:
        state = with_replication(run.state, state_from_json(decoder.state), run.files.payload_path())
        manifest = run.commit(Manifest("python", ()), state)
    before = replication_of(first.state(manifest))
    with second.begin([], {}) as run:
        copied = run.commit(Manifest("python", ()), with_replication(run.state, before, run.files.payload_path()))
    for item in (tmp_path / "a" / LOG).iterdir():
        item.unlink()
    (part,) = replication_of(second.state(copied)).streamed[9].buffered
    assert len(part) == 2
    assert [payload for changes in part.parts() for payload in changes.payloads.to_pylist()] == [
        payload for payload in pieces()[0] if payload[:1] == b"I"
    ]


def test_a_damaged_payload_file_is_named(tmp_path: Path) -> None:
    decoder = ChangeDecoder()
    decoder.decode(pa.array(pieces()[0], pa.binary()))
    target = LocalFolder(tmp_path / "a")
    with target.begin([], {}) as run:
        state = with_replication(run.state, state_from_json(decoder.state), run.files.payload_path())
        manifest = run.commit(Manifest("python", ()), state)
    (path,) = (tmp_path / "a" / LOG).glob("payloads-*.parquet")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (part,) = replication_of(target.state(manifest)).streamed[9].buffered
    with pytest.raises(RunFault, match=r"payloads-.*\.parquet: has another SHA-256 than in the manifest"):
        list(part.parts())
