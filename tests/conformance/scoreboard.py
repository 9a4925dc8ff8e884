"""Other decoders on the message cases of the suite: `make scoreboard` installs them, and writes docs/scoreboard.md.

A decoder is compared only in the fields that it has. A process that does not answer in time, or ends, is started again.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import selectors
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PAGE = ROOT / "docs" / "scoreboard.md"
MODULES = ROOT / "build" / "scoreboard"
FILES = ("framing", "lengths", "tags", "states", "strings")
LATER = "SEcAbPKrp"  # tags of protocol versions 2 to 4
NODE = ("pg-logical-replication", "pgwire")
REPOSITORIES = {
    "pgdecode": "https://github.com/pgdecode/pgdecode",
    "pg-logical-replication": "https://github.com/kibae/pg-logical-replication",
    "pgwire": "https://github.com/kagis/pgwire",
    "pypgoutput": "https://github.com/dgea005/pypgoutput",
}
SECONDS = 2.0  # for one answer
Case = dict[str, Any]
Answer = dict[str, Any]


def cases() -> list[Case]:
    return [json.loads(line) for name in FILES for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


def payload_of(case: Case) -> bytes:
    """The bytes of a case: (digits*n) is n times the same."""
    return bytes.fromhex(re.sub(r"\(([0-9a-f]*)\*(\d+)\)", lambda found: found[1] * int(found[2]), case["payload"]))


def primes(payload: bytes) -> list[str]:
    """Relation messages for decoders that know rows only by their relations: text columns, more than a row has."""
    if payload[:1] not in (b"I", b"U", b"D", b"T"):
        return []
    at = range(6, min(len(payload), 6 + 4 * 2000), 4) if payload[:1] == b"T" else (1,)
    count = min(int.from_bytes(payload[6:8], "big") + 2, 1600) if payload[:1] != b"T" else 1
    columns = b"".join(b"\0c%d\0\0\0\0\x19\xff\xff\xff\xff" % i for i in range(count))
    head = b"s\0t\0d" + count.to_bytes(2, "big")
    return [(b"R" + payload[i : i + 4].ljust(4, b"\0") + head + columns).hex() for i in at]


class Peer:
    """A decoder in a process of its own that answers line by line."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, payload: bytes) -> Answer:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        question = json.dumps({"prime": primes(payload), "payload": payload.hex()})
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            try:
                process.stdin.write(question.encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline() if selector.select(SECONDS) else b""
            except BrokenPipeError:
                line = b""
        if not line:
            self.close()
            return {"hung": True}
        return dict(json.loads(line))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@dataclass
class Score:
    """How many cases a decoder gets right, of how many."""

    right: Counter[str]
    of: Counter[str]
    silently_wrong: int = 0
    hangs: int = 0


def is_text_of(value: object, number: object) -> bool:
    """Whether a value is a number of 64 bits as text, since node's JSON has no such numbers."""
    return isinstance(value, str) and isinstance(number, int) and value == str(number)


def score(decode: Callable[[Case, bytes], Answer]) -> Score:
    found = Score(Counter(), Counter())
    for case in cases():
        payload = payload_of(case)
        later = case["in_stream"] or payload[:1].decode("latin-1") in LATER
        group = ("valid" if "message" in case else "bad") + (", later" if later else "")
        found.of[group] += 1
        answer = decode(case, payload)
        if "hung" in answer:
            found.hangs += 1
        elif "refused" in answer:
            found.right[group] += "fault" in case
        elif "message" in case and all(
            case["message"].get(name) == value or is_text_of(value, case["message"].get(name))
            for name, value in answer.items()
        ):
            found.right[group] += 1
        else:
            found.silently_wrong += 1
    return found


def pgdecode_answer(case: Case, payload: bytes) -> Answer:
    import pgdecode

    try:
        options = {"in_stream": case["in_stream"], "strict_flags": case.get("strict_flags", True), "empty": "error"}
        (row,) = pgdecode.decode_messages(
            [payload], fields=["kind", "xid", "relation_id", "new", "old"], **options
        ).to_pylist()
    except pgdecode.DecodeError as error:
        return {"refused": error.code}
    digits = {
        name: [None if cell is None else cell.hex() for cell in row[name]] for name in ("new", "old") if row[name]
    }
    return {name: value for name, value in {**row, **digits}.items() if value is not None}


def install() -> None:
    """Install the decoders of npm and of pip, each beside the build."""
    MODULES.mkdir(parents=True, exist_ok=True)
    if shutil.which("npm"):
        subprocess.run(["npm", "install", "--prefix", MODULES, "--no-save", "--silent", *NODE], check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", MODULES / "python", "pypgoutput"]
    subprocess.run(pip, check=True)


def peers() -> dict[str, tuple[str, list[str]]]:
    """The decoders that are installed: their versions and commands."""
    found = {}
    node = shutil.which("node")
    for name in NODE if node else ():
        package = MODULES / "node_modules" / name / "package.json"
        if package.is_file():
            version = json.loads(package.read_text())["version"]
            script = [str(node), "--max-old-space-size=512", str(FOLDER / "peers" / "node_peers.mjs")]
            found[name] = (version, [*script, str(MODULES / "node_modules"), name])
    metadata = list((MODULES / "python").glob("pypgoutput-*.dist-info"))
    if metadata:
        version = importlib.metadata.Distribution.at(metadata[0]).version
        script = f"import sys, runpy; sys.path.insert(0, {str(MODULES / 'python')!r}); runpy.run_path(sys.argv[1])"
        found["pypgoutput"] = (version, [sys.executable, "-c", script, str(FOLDER / "peers" / "pypgoutput_peer.py")])
    return found


def table() -> str:
    """One line per decoder."""
    import pgdecode

    scores = {"pgdecode": (pgdecode.__version__, score(pgdecode_answer))}
    for name, (version, command) in peers().items():
        peer = Peer(command)
        scores[name] = (version, score(lambda case, payload, peer=peer: peer(payload)))
        peer.close()
    groups = {
        "valid": "protocol 1 read",
        "bad": "bad ones refused",
        "valid, later": "streams, two-phase read",
        "bad, later": "bad ones refused",
    }
    heads = ["decoder", "version", *groups.values(), "silently wrong", "no answer"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for name, (version, found) in scores.items():
        cells = [f"{found.right[group]} of {found.of[group]}" for group in groups]
        cells += [str(found.silently_wrong), str(found.hangs)]
        lines.append(f"| [{name}]({REPOSITORIES[name]}) | {version} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Install, compare, and write the table into the page."""
    install()
    text = PAGE.read_text()
    begin, end = "<!-- scoreboard -->\n", "<!-- end -->"
    before, _, rest = text.partition(begin)
    PAGE.write_text(before + begin + table() + end + rest.partition(end)[2])
    print(table())


if __name__ == "__main__":
    main()
