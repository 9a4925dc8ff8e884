"""Published decoders in other languages: how they are installed, and the programs that call them.

A program has two forms. Timed, it reads payloads, and decodes all of them at each line break; node_timed.cjs describes
that. For answers, it reads a payload with each line of JSON, and writes its message; node_answers.mjs describes that.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
import selectors
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
BUILD = FOLDER.parents[1] / "build" / "peers"
MODULES = BUILD / "node_modules"
PACKAGES = BUILD / "python"
RUST = BUILD / "rust" / "release" / "pgdecode-peers"
GO = BUILD / "pglogrepl-peer"
SECONDS = 2.0  # for one answer
Answer = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """A published decoder. `follows_streams`: the program knows which payloads carry an xid."""

    name: str
    language: str
    repository: str
    follows_streams: bool = False

    @property
    def version(self) -> str:
        """The version that is installed."""
        return _VERSIONS[self.language](self.name)

    @property
    def missing(self) -> str | None:
        """Why it cannot be used."""
        installed = {
            "Rust": RUST,
            "Go": GO,
            "Node": MODULES / self.name / "package.json",
            "Python": PACKAGES / self.name,
        }[self.language]
        if self.language == "Node" and shutil.which("node") is None:
            return "node is not installed"
        return None if installed.exists() else f"`make peers` has not installed it ({self.language})"

    def timed(self) -> list[str]:
        """Return the command of the timed form; decoders in Python are called in this process."""
        return {
            "Rust": [str(RUST), self.name],
            "Go": [str(GO)],
            "Node": [str(shutil.which("node")), str(FOLDER / "node_timed.cjs"), str(MODULES), self.name],
        }[self.language]

    def answers(self) -> list[str]:
        """Return the command of the form for answers."""
        node = [str(shutil.which("node")), "--max-old-space-size=512", str(FOLDER / "node_answers.mjs")]
        return {
            "Rust": [str(RUST), self.name, "answers"],
            "Go": [str(GO), "answers"],
            "Node": [*node, str(MODULES), self.name],
            "Python": [sys.executable, str(FOLDER / "pypgoutput_answers.py"), str(PACKAGES)],
        }[self.language]


PEERS = (
    Peer("elefant-client", "Rust", "https://docs.rs/elefant-client"),
    Peer("pg_walstream", "Rust", "https://github.com/isdaniel/pg-walstream", follows_streams=True),
    Peer("pgoutput", "Rust", "https://github.com/Voldemat/rs-pgoutput"),
    Peer("pglogrepl", "Go", "https://github.com/jackc/pglogrepl", follows_streams=True),
    Peer("pgwire", "Node", "https://github.com/kagis/pgwire"),
    Peer("pg-logical-replication", "Node", "https://github.com/kibae/pg-logical-replication"),
    Peer("pypgoutput", "Python", "https://github.com/dgea005/pypgoutput"),
)


def _crate(name: str) -> str:
    packages = tomllib.loads((FOLDER / "rust" / "Cargo.lock").read_text())["package"]
    return str(next(item["version"] for item in packages if item["name"] == name))


def _module(name: str) -> str:
    (version,) = re.findall(rf"^require \S+/{name} (\S+)", (FOLDER / "go" / "go.mod").read_text(), re.MULTILINE)
    # A commit of a module without releases: its date and the first digits of its hash.
    _, date, commit = version.split("-")
    return f"{date[:4]}-{date[4:6]}-{date[6:8]} ({commit[:7]})"


_VERSIONS: dict[str, Callable[[str], str]] = {
    "Rust": _crate,
    "Go": _module,
    "Node": lambda name: str(json.loads((MODULES / name / "package.json").read_text())["version"]),
    "Python": lambda name: next(iter(importlib.metadata.distributions(name=name, path=[str(PACKAGES)]))).version,
}


def peer(name: str) -> Peer:
    """Find a peer by its name."""
    return next(item for item in PEERS if item.name == name)


def install() -> None:
    """Build and install the peers of each language whose tools are there, and say which are not."""
    BUILD.mkdir(parents=True, exist_ok=True)
    cargo = ["cargo", "build", "--quiet", "--release", "--locked", "--target-dir", str(RUST.parents[1])]
    npm = [item.name for item in PEERS if item.language == "Node"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(PACKAGES)]
    for language, command, folder in (
        ("Rust", cargo, FOLDER / "rust"),
        ("Go", ["go", "build", "-o", str(GO)], FOLDER / "go"),
        ("Node", ["npm", "install", "--silent", "--no-save", "--prefix", str(BUILD), *npm], FOLDER),
        ("Python", [*pip, "pypgoutput"], FOLDER),
    ):
        names = ", ".join(item.name for item in PEERS if item.language == language)
        if shutil.which(command[0]) is None:
            print(f"{language}: {command[0]} is not installed, so not {names}")
        elif subprocess.run(command, cwd=folder).returncode:
            print(f"{language}: `{' '.join(command[:3])}` failed, so not {names}")
        else:
            print(f"{language}: {names}")


@functools.cache
def load_pypgoutput() -> Callable[[bytes], Any]:
    """Load the decoders of the package pypgoutput.

    Its __init__ imports a database driver that decoding does not need, so only the file of the decoders is loaded.
    """
    from benchmarks.peers.pypgoutput_answers import KINDS, load_decoders

    decoders = load_decoders(PACKAGES)
    classes = {ord(letter): getattr(decoders, name) for letter, name in KINDS.items()}
    return lambda payload: classes[payload[0]](payload)


def primes(payload: bytes) -> list[str]:
    """Relation messages for decoders that know rows only by their relations: text columns, more than a row has."""
    if payload[:1] not in (b"I", b"U", b"D", b"T"):
        return []
    at = range(6, min(len(payload), 6 + 4 * 2000), 4) if payload[:1] == b"T" else (1,)
    count = min(int.from_bytes(payload[6:8], "big") + 2, 1600) if payload[:1] != b"T" else 1
    columns = b"".join(b"\0c%d\0\0\0\0\x19\xff\xff\xff\xff" % i for i in range(count))
    head = b"s\0t\0d" + count.to_bytes(2, "big")
    return [(b"R" + payload[i : i + 4].ljust(4, b"\0") + head + columns).hex() for i in at]


class Answers:
    """A decoder in a process of its own that answers line by line.

    If it does not answer in time, or ends, it is started again for the next payload.
    """

    def __init__(self, command: Sequence[str], seconds: float = SECONDS) -> None:
        self._command = command
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, payload: bytes, *, in_stream: bool = False, binary: bool = False) -> Answer:
        """Return the message of a payload, or {"refused": reason}, or {"hung": True}."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        question = {"prime": primes(payload), "payload": payload.hex(), "in_stream": in_stream, "binary": binary}
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            try:
                process.stdin.write(json.dumps(question).encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline() if selector.select(self._seconds) else b""
            except BrokenPipeError:
                line = b""
        if not line:
            self.close()
            return {"hung": True}
        return dict(json.loads(line))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
