"""Benchmark cases that decode one message at a time: `decode`, the tests' reference decoder, and other projects."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases.case import Case, Work, require
from benchmarks.datasets import DataSet, recorded

NODE_SCRIPT = Path(__file__).with_name("node_decoder.cjs")
NODE_MODULES = Path(__file__).parents[1] / "node_modules"


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


@functools.cache
def load_pypgoutput() -> Callable[[bytes], Any]:
    """Load the decoders of the package pypgoutput.

    Its __init__ imports a database driver that decoding does not need, so only the file of the decoders is loaded.
    """
    found = importlib.util.find_spec("pypgoutput")
    if found is None or not found.submodule_search_locations:
        raise ImportError("not installed")
    path = Path(found.submodule_search_locations[0]) / "decoders.py"
    spec = importlib.util.spec_from_file_location("pypgoutput_decoders", path)
    if spec is None or spec.loader is None:
        raise ImportError("has no decoders.py")
    decoders = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(decoders)
    classes = {
        ord(name[0]): getattr(decoders, name)
        for name in ("Begin", "Commit", "Relation", "Insert", "Update", "Delete", "Truncate")
    }
    return lambda payload: classes[payload[0]](payload)


def without_pypgoutput(data: DataSet) -> str | None:
    """Return the reason why pypgoutput cannot decode this data set."""
    if data.name.endswith(".bin"):
        return "skips the values of binary cells and reads what follows wrongly"
    try:
        load_pypgoutput()
    except (ImportError, AttributeError) as problem:
        return str(problem)
    return without_order(data)


class NodeParser:
    """The parser of a package in a node process. One byte starts a repetition."""

    def __init__(self, data: DataSet, package: str) -> None:
        # The parser needs the Relation message of a row, and a sample lacks most Relation messages.
        described = [payload for payload in recorded(data.name).to_pylist() if payload[:1] in (b"R", b"Y")]
        command = [str(shutil.which("node")), str(NODE_SCRIPT), str(NODE_MODULES), package]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._write(described)
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


def without_node(data: DataSet, package: str) -> str | None:
    """Return the reason why a package cannot decode this data set."""
    if shutil.which("node") is None:
        return "node is not installed"
    if not (NODE_MODULES / package).is_dir():
        return f"npm install --prefix benchmarks --no-save {package}"
    return without_order(data)


def verify_node(data: DataSet, work: NodeParser) -> None:
    """Compare the sum of the relation ids of all messages with the sum read from the bytes."""
    require(data, "sum of relation ids", work(), data.relation_id_sum)


def node_decoder(package: str, sample: int) -> Case:
    """Make the case of `NodeParser`. Only a few bytes pass through the pipes while it is timed."""
    prepare = functools.partial(NodeParser, package=package)
    missing = functools.partial(without_node, package=package)
    return Case(package, "other decoders", prepare, verify_node, int, missing, sample)
