"""Control messages in the footers of captured files: they give the index that the rows give, or are ignored."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pgdecode.capture import file_writer
from pgdecode.capture.file_writer import FileWriter
from pgdecode.capture.frames import SCHEMA
from pgdecode.files.file_metadata import CONTROL_KEY, FileControl, control_of
from pgdecode.files.payload_file import Captured, PayloadFile
from pgdecode.files.payload_files import payload_files
from pgdecode.partitions.control_messages import _digest, _needed, from_footer
from pgdecode.protocol.boundaries import ALWAYS_NEEDED, BEGIN_COMMIT, ROWS, needed
from support.captured_files import ORIGIN
from support.footers import check_footers, index_of
from support.tiers import full

DATA = Path(__file__).parent.parent / "data"
CAPTURES = sorted(path.name for path in DATA.glob("*.v*.parquet"))


def written(folder: Path, payloads: list[bytes], n_files: int, first_seq: int = 0) -> list[PayloadFile]:
    """Write payloads to files as a capture does. All are of one session."""
    folder.mkdir(exist_ok=True)
    borders = [len(payloads) * number // n_files for number in range(n_files + 1)]
    for start, end in pairwise(borders):
        writer = FileWriter(folder, first_seq + start, "zstd")
        rows = [
            {"seq": first_seq + number, "lsn": number, "received": 0, "data": payloads[number]}
            for number in range(start, end)
        ]
        for row in range(0, len(rows), 7):
            writer.add(pa.RecordBatch.from_pylist(rows[row : row + 7], schema=SCHEMA))
        writer.seal(1, 1, (0, 0), {"origin": ORIGIN}, {})
    return payload_files(folder, "data", keep=("seq",))


def messages_of(name: str) -> list[bytes]:
    payloads: list[bytes] = pq.read_table(DATA / name)["data"].to_pylist()
    return payloads


@pytest.mark.parametrize("name", CAPTURES)
def test_the_index_from_footers_equals_that_from_all_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "GROUP_ROWS", 41)
    written(tmp_path / "raw", messages_of(name), 3, 100)
    assert check_footers(tmp_path / "raw")


@pytest.mark.full
def test_each_row_group_has_its_messages_and_whether_it_has_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "GROUP_ROWS", 14)
    payloads = messages_of("18.streams.v4.parquet")
    [file] = written(tmp_path / "raw", payloads, 1, 100)
    control = control_of(file, "seq")
    assert control is not None
    assert len(file.groups) == len(control.partitions) > 50
    for group, partition, positions, found in zip(file.groups, *control[:1], *control[2:], strict=True):
        rows = payloads[group.start : group.start + group.n_rows]
        wanted = [number for number, item in enumerate(rows) if item[0] in ALWAYS_NEEDED + BEGIN_COMMIT]
        chosen = [wanted[number] for number in needed([rows[number] for number in wanted])]
        first = 100 + group.start
        assert partition == (first, first + group.n_rows - 1, any(item[0] in ROWS for item in rows))
        assert positions.to_pylist() == [first + number for number in chosen]
        assert found.to_pylist() == [rows[number] for number in chosen]


def test_another_session_is_a_reconnect(tmp_path: Path) -> None:
    payloads = messages_of("18.txns.v1.parquet")
    files = written(tmp_path / "raw", payloads, 2)
    files[1] = replace(files[1], captured=replaced_session(files[1], 2))
    index = index_of(files, "seq")
    assert index is not None
    assert [start.is_reconnected for start in index.starts] == [False, True]


def replaced_session(file: PayloadFile, session: int) -> Captured:
    assert file.captured is not None
    return file.captured._replace(session=session)


def plain(n_transactions: int, rng: random.Random) -> list[bytes]:
    """Begin, Commit and Relation messages of transactions, some of which are odd."""
    messages = []
    lsn = 0
    for _ in range(n_transactions):
        lsn += rng.choice([1, 1, 1, 1, 1, 1, 1, 1, 0, -5])
        begin = b"B" + abs(lsn).to_bytes(8, "big") + bytes(11) + bytes([rng.random() < 0.98])
        commit = b"C\0" + abs(lsn + (rng.random() < 0.03)).to_bytes(8, "big") + bytes(16)
        odd = rng.random()
        messages += [begin[:-1] if odd < 0.02 else begin]
        messages += [b"R", b"Y"] if 0.02 < odd < 0.1 else []
        messages += [] if 0.1 < odd < 0.12 else [commit + b"x" if 0.12 < odd < 0.14 else commit]
        messages += [b"S", b"E"] if 0.14 < odd < 0.145 else []
    return messages


@pytest.mark.parametrize("seed", range(40))
def test_the_same_messages_are_chosen_with_and_without_arrow(seed: int) -> None:
    rng = random.Random(seed)
    messages = plain(rng.choice([0, 1, 2, 3, 5, 20, 200]), rng) if seed % 2 else plain(12, rng)
    assert _needed(pa.array(messages, pa.binary())) == needed(messages)


def test_many_plain_transactions_need_two(tmp_path: Path) -> None:
    rows = [item for number in range(1, 3000) for item in (begin(number), commit(number))]
    [file] = written(tmp_path / "raw", rows, 1)
    control = control_of(file, "seq")
    assert control is not None
    assert control.payloads[0].to_pylist() == [*rows[:2], *rows[-2:]]
    assert len(file.entries[CONTROL_KEY]) < 500


def begin(lsn: int) -> bytes:
    return b"B" + lsn.to_bytes(8, "big") + bytes(11) + b"\1"


def commit(lsn: int) -> bytes:
    return b"C\0" + lsn.to_bytes(8, "big") + bytes(16)


def test_footers_do_not_have_control_messages_that_would_be_a_large_part_of_the_file(tmp_path: Path) -> None:
    rng = random.Random(1)
    blocks = [item for _ in range(2000) for item in (b"S" + rng.randbytes(4) + b"\1", b"E")]
    [file] = written(tmp_path / "raw", blocks, 1)
    assert CONTROL_KEY not in file.entries
    assert control_of(file, "seq") is None
    assert index_of([file], "seq") is None


def opened(path: Path) -> FileControl | None:
    [file] = payload_files(path, "data", keep=("seq",))
    assert CONTROL_KEY in file.entries
    return control_of(file, "seq")


def rewrites() -> dict[str, Callable[[pa.Table], pa.Table]]:
    """What another program may do to a file and keep its metadata."""
    longer = pa.array([b"x" * 50 + item for item in messages_of("18.txns.v1.parquet")], pa.binary())
    return {
        "fewer rows": lambda table: table.slice(1),
        "twice": lambda table: pa.concat_tables([table, table]),
        "another order": lambda table: table.sort_by([("seq", "descending")]),
        "other payloads": lambda table: table.set_column(3, "data", longer),
        "other positions": lambda table: table.set_column(0, "seq", pc.multiply(table["seq"], 2)),
    }


@pytest.mark.parametrize("rewrite", rewrites().values(), ids=rewrites())
def test_a_file_that_another_program_wrote_has_no_control_messages(
    tmp_path: Path, rewrite: Callable[[pa.Table], pa.Table]
) -> None:
    [file] = written(tmp_path / "raw", messages_of("18.txns.v1.parquet"), 1)
    assert opened(tmp_path / "raw") is not None
    metadata = pq.read_metadata(str(file.path)).metadata
    table = rewrite(pq.read_table(str(file.path))).replace_schema_metadata(metadata)
    pq.write_table(table, tmp_path / "other.parquet", compression="zstd")
    assert opened(tmp_path / "other.parquet") is None


@pytest.mark.parametrize("seed", [*range(40), *map(full, range(40, 300))])
def test_damaged_control_messages_are_refused_or_well_formed(
    seed: int, damaged: tuple[bytes, list[tuple[int, int]]]
) -> None:
    rng = random.Random(seed)
    content, groups = damaged
    _, _, text = content.partition(b" ")
    if seed % 2:
        # The digest detects any change.
        place = rng.randrange(len(content))
        changed = content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]
        with pytest.raises(ValueError, match="the digest differs"):
            from_footer(changed, groups)
        return
    plain = json.loads(text)
    body = bytearray(zlib.decompress(base64.b64decode(plain["content"])))
    for _ in range(rng.randrange(1, 4)):
        key = rng.choice(list(plain) or ["version"])
        change = rng.choice(["remove", "value", "value", "content", "content"])
        if change == "remove":
            plain.pop(key, None)
        elif change == "value":
            plain[key] = rng.choice([None, -1, 0, 7, 2**31, 2**70, "", "x", "eJw=", [], {}, [[1, 1, 1]], 1.5, True])
        else:
            body[rng.randrange(len(body))] = rng.randrange(256)
            plain["content"] = base64.b64encode(zlib.compress(body[: rng.choice([len(body), len(body) - 1])])).decode()
    changed = json.dumps(plain).encode()
    try:
        found = from_footer(_digest(changed).encode() + b" " + changed, groups)
    except ValueError:
        return
    for (n_rows, _), group in zip(groups, found, strict=True):
        group.payloads.validate(full=True)
        rows = group.rows.to_pylist()
        assert rows == sorted(set(rows))
        assert group.n_rows == n_rows
        assert not rows or 0 <= rows[0] <= rows[-1] < n_rows


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[tuple[int, int]]]:
    """The control messages of a file, and its row groups."""
    [file] = written(tmp_path_factory.mktemp("raw"), messages_of("18.txns.v1.parquet"), 1)
    return file.entries[CONTROL_KEY], [(group.n_rows, group.end) for group in file.groups]
