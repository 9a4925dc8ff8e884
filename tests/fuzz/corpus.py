"""The inputs to begin with: made of what real servers sent, or those that earlier runs have found."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fuzz import checks, inputs
from fuzz.inputs import STREAMED, STRICT, TIGHT
from fuzz.targets import LONGEST
from fuzz.variants import VARIANTS
from support import captures
from support.generators.samples import SAMPLES
from support.oracles import recorded

HERE = Path(__file__).parent / "corpus"
# Of each type, and of each kind of message in each capture, so many are seeds.
N_EACH = 6
# Of these captures sequences are taken: each kind of transaction and of protocol is in one of them.
SEQUENCES = (
    "14.txns.v1",
    "16.streams.v2",
    "18.streams.v4bin",
    "18.twophase.v3nostream",
    "18.types.v2bin",
    "10.shop.v1",
)
# Of each of these, the number of slices, and the most payloads of one.
N_STRETCHES = 40
N_ROWS = 24


def packed(name: str) -> list[bytes]:
    """The inputs of a target that the repository has."""
    path = HERE / f"{name}.parquet"
    found: list[bytes] = pq.read_table(path)["input"].to_pylist() if path.exists() else []
    return found


def pack(name: str, folder: Path) -> int:
    """Make a folder's inputs those that the repository has of a target; how many they are."""
    found = sorted(path.read_bytes() for path in folder.iterdir())
    table = pa.table({"input": pa.array(found, pa.binary())})
    HERE.mkdir(exist_ok=True)
    pq.write_table(table, HERE / f"{name}.parquet", compression="zstd", compression_level=19, write_statistics=False)
    return len(found)


def unpack(name: str, folder: Path) -> None:
    """Write a target's inputs into a folder, as libFuzzer names them: those of the repository, or the seeds."""
    folder.mkdir(parents=True, exist_ok=True)
    for item in packed(name) or seeds(name):
        (folder / hashlib.sha1(item, usedforsecurity=False).hexdigest()).write_bytes(item)


def seeds(name: str) -> Iterator[bytes]:
    """Inputs made of what real servers sent."""
    if name == "walk":
        yield from _messages()
    elif name in ("scan", "batch"):
        yield from _scans()
    elif name in ("text", "binary"):
        yield from _values(name)
    elif name == "encoded":
        yield from _encoded()
    elif name == "file":
        yield from _files()
    elif name == "rows":
        yield from _rows()
    else:
        yield from _changes()


def _messages() -> Iterator[bytes]:
    for sample in SAMPLES.values():
        for options in (STREAMED if sample.in_stream else 0, STRICT, TIGHT):
            yield bytes([options]) + sample.payload
    for name in captures.NAMES:
        capture = captures.capture(name)
        met: dict[int, int] = {}
        for payload, state in zip(capture.payloads, capture.states, strict=True):
            met[payload[0]] = met.get(payload[0], 0) + 1
            if met[payload[0]] <= N_EACH and len(payload) < LONGEST["walk"]:
                yield bytes([STRICT | (STREAMED if state else 0)]) + payload


def _scans() -> Iterator[bytes]:
    for name in SEQUENCES:
        payloads = captures.capture(name).payloads
        for start in range(0, min(len(payloads), 200), 5):
            rows = inputs.written([None, *payloads[start : start + 5]])
            for options in range(0, 16, 3):
                fields = b"\xff\xff\xff\xff" if options else hashlib.sha1(rows).digest()[:4]
                yield (bytes([STRICT | options]) + fields + rows)[: LONGEST["scan"]]


def _values(name: str) -> Iterator[bytes]:
    for number, variant in enumerate(VARIANTS):
        pg_type = variant.partition(", ")[0].partition(":")[0]
        pairs = [pair for _, pair in recorded.values(pg_type)] + recorded.renderings(pg_type)
        forms = {pair.text if name == "text" else pair.binary for pair in pairs} - {None}
        for form in sorted(forms, key=len)[:: max(1, len(forms) // N_EACH)]:  # type: ignore[arg-type]
            yield (number.to_bytes(2, "big") + form)[: LONGEST[name]]  # type: ignore[operator]


def _encoded() -> Iterator[bytes]:
    """Payloads as text, each in each form, with and without line breaks."""
    payloads = [item for name in SEQUENCES for item in captures.capture(name).payloads[:30] if len(item) < 80]
    for number, payload in enumerate(payloads):
        forms = [
            payload.hex().encode(),
            b"\\x" + payload.hex().upper().encode(),
            base64.b64encode(payload),
            base64.encodebytes(payload),
        ]
        for form in forms:
            yield bytes([number & 0x7F]) + _fitting([None, form, b"", form[:-1]], LONGEST["encoded"] - 1)


def _files() -> Iterator[bytes]:
    """Slices of captures as pg_recvlogical writes them."""
    for name in SEQUENCES:
        payloads = captures.capture(name).payloads
        for start in range(0, len(payloads), max(1, len(payloads) // N_STRETCHES)):
            content = b"".join(item + b"\n" for item in payloads[start : start + N_ROWS])
            yield bytes([start & 1]) + content[: LONGEST["file"] - 1]


def _rows() -> Iterator[bytes]:
    """Inserts, updates and deletes of each table that `checks` knows, under each setting in turn."""
    for number, known in enumerate(checks.relations()):
        oid = known.relation.relation_id.to_bytes(4, "big")
        payloads = captures.capture(known.capture).payloads
        found = [item for item in payloads if item[:1] in (b"I", b"U", b"D") and oid in (item[1:5], item[5:9])]
        for i in range(2 * N_EACH):
            chosen = found[i :: max(1, len(found) // 4)]
            if chosen:
                yield bytes([i, number]) + _fitting([None, *chosen], LONGEST["rows"] - 2)


def _changes() -> Iterator[bytes]:
    """Slices of captures that begin with a transaction or stream, each with the relations that it needs."""
    for name in SEQUENCES:
        capture = captures.capture(name)
        messages = list(zip(capture.payloads, capture.states, strict=True))
        described = {_oid(item, state): _body(item, state) for item, state in messages if item[:1] == b"R"}
        starts = [i for i, (item, _) in enumerate(messages) if item[:1] in (b"B", b"b", b"S")]
        for n, start in enumerate(starts[:: max(1, len(starts) // N_STRETCHES)]):
            piece: list[bytes | None] = []
            met = set()
            for item, state in messages[start : start + N_ROWS]:
                oid = _oid(item, state)
                if item[:1] in (b"I", b"U", b"D") and oid not in met and oid in described:
                    met.add(oid)
                    piece.append(b"R" + (item[1:5] if state else b"") + described[oid])
                if item[:1] == b"R":
                    met.add(oid)
                piece.append(item)
            yield bytes([n & 0x3F, 37 * n & 0xFF]) + _fitting(piece, LONGEST["changes"] - 2)


def _body(payload: bytes, streamed: bool) -> bytes:
    """What stands behind the tag and the xid of a message."""
    return payload[5:] if streamed else payload[1:]


def _oid(payload: bytes, streamed: bool) -> bytes:
    return _body(payload, streamed)[:4]


def _fitting(payloads: list[bytes | None], longest: int) -> bytes:
    """As many payloads as fit, those that are long left out."""
    found: list[bytes | None] = []
    for item in payloads:
        if len(inputs.written([*found, item])) <= longest:
            found.append(item)
    return inputs.written(found)
