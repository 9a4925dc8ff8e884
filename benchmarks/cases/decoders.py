"""Benchmark cases that decode one message at a time: `decode`, the tests' reference decoder, and other projects."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

import pgdecode
from benchmarks.cases.case import C_WALK, MEMORY_READ, TUPLES_LINE, Case, Work, require
from benchmarks.datasets import DataSet, followed, recorded
from benchmarks.peers.programs import Answers, Peer, load_pypgoutput, peer

CHECKED = 1_000  # messages whose columns and values are compared
BESIDE = (MEMORY_READ, C_WALK, TUPLES_LINE)


@dataclass(frozen=True)
class OneByOne:
    """A loop in C over payloads as bytes objects. Each message is dropped when the next one is decoded."""

    decode: Callable[[bytes], Any]
    payloads: list[bytes]

    def __call__(self) -> deque[Any]:
        """Decode all messages and keep the last."""
        return deque(map(self.decode, self.payloads), maxlen=1)


def relation_of(message: Any) -> int:
    """Return the relation id of a decoded message, an attribute or a key; 0 without one."""
    found = message.get("relation_id") if isinstance(message, dict) else getattr(message, "relation_id", None)
    return found or 0


def verify_one_by_one(data: DataSet, work: OneByOne) -> None:
    """Compare the sum of the relation ids of all messages with the sum read from the bytes."""
    seen = sum(map(relation_of, map(work.decode, work.payloads)))
    require(data, "sum of relation ids", seen, data.relation_id_sum)


def without_order(data: DataSet) -> str | None:
    """Return the reason why a decoder of single messages cannot decode a data set."""
    return "a decoder of single messages cannot know which messages carry an xid" if data.streamed else None


def one_by_one(
    name: str,
    group: str,
    load: Callable[[], Callable[[bytes], Any]],
    sample: int,
    missing: Callable[[DataSet], str | None] = without_order,
) -> Case:
    """Make a case of `OneByOne`; `load` returns the decoder."""

    def prepare(data: DataSet) -> Work:
        return OneByOne(load(), data.payloads.to_pylist())

    def digest(result: Iterable[Any]) -> int:
        (last,) = result
        return relation_of(last)

    return Case(name, group, prepare, verify_one_by_one, digest, missing, sample)


def load_reference() -> Callable[[bytes], Any]:
    """Load the tests' own decoder, which is plain Python written from the documentation."""
    decode = importlib.import_module("tests.support.oracles.reference").decode_payload
    return functools.partial(decode, in_stream=False)


def without_reference(data: DataSet) -> str | None:
    """Return the reason why the tests' decoder cannot be used."""
    try:
        load_reference()
    except ImportError:
        return "tests/support/oracles/reference.py is not importable (run from the source tree)"
    return without_order(data)


def verify_answers(data: DataSet, other: Peer) -> None:
    """Compare what another decoder makes of some messages with pgdecode: messages, columns and bytes of values."""
    some = data.sample(CHECKED)
    payloads = some.payloads.to_pylist()
    ask = Answers(other.answers(), seconds=60.0)
    binary = data.name.endswith(".bin")
    answers = [
        ask(payload, in_stream=seen.xid is not None, binary=binary)
        for payload, seen in zip(payloads, followed(payloads), strict=True)
    ]
    ask.close()
    require(data, f"{other.name}, number of messages", sum("kind" in answer for answer in answers), len(payloads))
    # Decoders in node keep of an old key only the columns that Relation messages call a key.
    for side in ("new",) if other.language == "Node" else ("new", "old"):
        cells = pgdecode.decode_messages(some.payloads, fields=[side])[side].flatten()
        columns = [value for answer in answers for value in answer.get(side, ())]
        require(data, f"{other.name}, number of {side} columns", len(columns), len(cells))
        n_bytes = sum(len(value or "") for value in columns) // 2
        require(data, f"{other.name}, bytes of {side} values", n_bytes, pc.sum(pc.binary_length(cells)).as_py() or 0)


def without_peer(data: DataSet, other: Peer) -> str | None:
    """Return the reason why another decoder cannot be used on a data set."""
    if other.name in TEXT_ONLY and data.name.endswith(".bin"):
        return TEXT_ONLY[other.name]
    return other.missing or (None if other.follows_streams else without_order(data))


TEXT_ONLY = {
    "pypgoutput": "skips the values of binary cells and reads what follows wrongly",
    "pgoutput": "the program calls it for text; values in text and in binary are two types of it",
}


class PeerProgram:
    """A decoder in a process of its own. One byte starts a repetition."""

    def __init__(self, data: DataSet, other: Peer) -> None:
        # Parsers in node need the Relation message of a row, and a sample lacks most Relation messages.
        described = [payload for payload in recorded(data.name).to_pylist() if payload[:1] in (b"R", b"Y")]
        self._process = subprocess.Popen(other.timed(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._write([] if other.follows_streams else described)
        self._write(data.payloads.to_pylist())

    def _write(self, payloads: Sequence[bytes]) -> None:
        assert self._process.stdin is not None
        framed = [part for payload in payloads for part in (len(payload).to_bytes(4, "little"), payload)]
        self._process.stdin.write(b"".join([len(payloads).to_bytes(4, "little"), *framed]))

    def __call__(self) -> int:
        """Decode all payloads once; return the sum of the relation ids."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def __del__(self) -> None:
        self._process.kill()
        self._process.communicate()


def peer_case(name: str, sample: int) -> Case:
    """Make the case of a peer. Only a few bytes pass through the pipes of a program while it is timed."""
    other = peer(name)
    missing = functools.partial(without_peer, other=other)
    if other.language == "Python":
        case = one_by_one(name, "other decoders", load_pypgoutput, sample, missing)
        verify = case.verify
    else:
        case = Case(
            name, "other decoders", functools.partial(PeerProgram, other=other), _verify_sum, int, missing, sample
        )
        verify = _verify_sum

    def verify_all(data: DataSet, work: Work) -> None:
        verify(data, work)
        verify_answers(data, other)

    return dataclasses.replace(case, verify=verify_all, baselines=BESIDE)


def _verify_sum(data: DataSet, work: Work) -> None:
    require(data, "sum of relation ids", work(), data.relation_id_sum)
