"""Input that grows between calls, in the forms in which it is found."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.captured_files import ORIGIN
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED

A, B = 20001, 20002


def sequence() -> tuple[list[bytes], list[int]]:
    """Payloads, and where calls end: inside a transaction, a block and a prepared transaction.

    A streamed transaction goes on over all calls, and some of its rows are rolled back. The table `a` gets a column in
    the second call.
    """
    slot = Slot()
    ends = []
    slot.begin(700)
    slot.relation(A, ["id", "v"], name="a", keys=["id"])
    slot.relation(B, ["id"], name="b", keys=["id"])
    slot.insert(A, "1", "one")
    slot.insert(B, "1")
    slot.commit()
    slot.start(701, first=True)
    slot.relation(B, ["id"], name="b", keys=["id"], xid=701)
    slot.insert(B, "2", xid=701)
    slot.insert(B, "rolled back", xid=702)
    slot.stop()
    slot.begin(703)
    slot.insert(A, "2", "two")
    ends.append(len(slot.payloads))
    slot.update(A, "1", UNCHANGED)
    slot.commit()
    slot.stream_abort(701, 702)
    slot.begin_prepare(704, "g")
    slot.relation(A, ["id", "v", "w"], name="a", keys=["id"])
    slot.insert(A, "3", None, "new")
    slot.prepare("g")
    slot.start(701)
    slot.insert(B, "3", xid=701)
    ends.append(len(slot.payloads))
    slot.insert(B, "4", xid=701)
    slot.stop()
    slot.commit_prepared(704, "g")
    slot.begin(705)
    slot.delete(A, "2", None, None, old_type="K")
    slot.truncate(B)
    slot.commit()
    slot.stream_commit(701)
    ends.append(len(slot.payloads))
    slot.begin(706)
    slot.update(A, "3", "three", "again")
    slot.insert(B, "5")
    slot.commit()
    slot.begin(707)
    slot.insert(A, "9", "open", None)
    ends.append(len(slot.payloads))
    return slot.payloads, ends


# Adds payloads from one number to another to the input in a folder.
Add = Callable[[Path, Sequence[bytes], int, int], object]


@dataclass(frozen=True)
class Form:
    """A form of input. `name` is what a call names as IN, in the folder of a test."""

    name: str
    add: Add
    has_positions: bool = True


def in_parquet(path: Path, payloads: Sequence[bytes], **columns: Any) -> Path:
    """Write a Parquet file, of several row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({**columns, "data": pa.array(payloads, pa.binary())}), path, row_group_size=3)
    return path


def captured_file(path: Path, payloads: Sequence[bytes], first: int, **footer: Any) -> Path:
    """Write a file as `pgdecode capture` names and marks it."""
    content = {"origin": ORIGIN, "file": {"session": 1, "first_seq": first, "open_streams": 0}, **footer}
    table = pa.table({"seq": range(first, first + len(payloads)), "data": pa.array(payloads, pa.binary())})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata({"pgdecode.capture": json.dumps(content)}), path, row_group_size=3)
    return path


def _captured(folder: Path, payloads: Sequence[bytes], start: int, end: int) -> None:
    captured_file(folder / "raw" / f"{start:020}.parquet", payloads[start:end], start)


def _files(folder: Path, payloads: Sequence[bytes], start: int, end: int) -> None:
    # In two files, whose names do not tell their order. Positions have holes.
    rng = random.Random(start)
    middle = (start + end) // 2
    for low, high in ((start, middle), (middle, end)):
        name = f"{rng.getrandbits(64):016x}.parquet"
        in_parquet(folder / "raw" / name, payloads[low:high], seq=[1000 + 7 * row for row in range(low, high)])


def _counted_files(folder: Path, payloads: Sequence[bytes], start: int, end: int) -> None:
    middle = (start + end) // 2
    for low, high in ((start, middle), (middle, end)):
        in_parquet(folder / "raw" / f"{low:09}.parquet", payloads[low:high])


def _days(folder: Path, payloads: Sequence[bytes], start: int, end: int) -> None:
    day = 1 + len(list((folder / "raw").glob("day=*")))
    in_parquet(folder / "raw" / f"day={day}" / "part-0.parquet", payloads[start:end], seq=range(start, end))


def _rewritten(folder: Path, payloads: Sequence[bytes], start: int, end: int) -> None:
    in_parquet(folder / "raw.parquet", payloads[:end], position=range(end))


def _rewritten_counted(folder: Path, payloads: Sequence[bytes], start: int, end: int) -> None:
    in_parquet(folder / "raw.parquet", payloads[:end])


def _recvlogical(folder: Path, payloads: Sequence[bytes], start: int, end: int) -> None:
    with open(folder / "raw.bin", "ab") as file:
        file.write(b"".join(payload + b"\n" for payload in payloads[start:end]))


def _csv(folder: Path, payloads: Sequence[bytes], start: int, end: int) -> None:
    path = folder / "raw.csv"
    header = "" if path.exists() else "lsn,xid,data\n"
    with open(path, "a") as file:
        file.write(header + "".join(f"0/1,7,\\x{payload.hex()}\n" for payload in payloads[start:end]))


def _csv_with_positions(folder: Path, payloads: Sequence[bytes], start: int, end: int) -> None:
    path = folder / "raw.csv"
    header = "" if path.exists() else "seq,data\n"
    with open(path, "a") as file:
        file.write(header + "".join(f"{3 * row},\\x{payloads[row].hex()}\n" for row in range(start, end)))


def _json_lines(folder: Path, payloads: Sequence[bytes], start: int, end: int) -> None:
    lines = [json.dumps({"data": base64.b64encode(payload).decode()}) for payload in payloads[start:end]]
    with open(folder / "raw.jsonl", "a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def _hexadecimal(folder: Path, payloads: Sequence[bytes], start: int, end: int) -> None:
    with open(folder / "raw.txt", "a") as file:
        file.write("".join(f"\\x{payload.hex()}\n" for payload in payloads[start:end]))


FORMS = {
    "captured": Form("raw", _captured),
    "files": Form("raw", _files),
    "counted files": Form("raw", _counted_files, has_positions=False),
    "days": Form("raw", _days),
    "rewritten": Form("raw.parquet", _rewritten),
    "rewritten, counted": Form("raw.parquet", _rewritten_counted, has_positions=False),
    "pg_recvlogical": Form("raw.bin", _recvlogical, has_positions=False),
    "CSV": Form("raw.csv", _csv, has_positions=False),
    "CSV with positions": Form("raw.csv", _csv_with_positions),
    "JSON lines": Form("raw.jsonl", _json_lines, has_positions=False),
    "hexadecimal lines": Form("raw.txt", _hexadecimal, has_positions=False),
}
