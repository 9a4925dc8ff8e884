"""Other decoders on the message cases of the suite: `make scoreboard` installs them, and writes docs/scoreboard.md.

A decoder is compared only in the fields that it has.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PAGE = ROOT / "docs" / "scoreboard.md"
FILES = ("framing", "lengths", "tags", "states", "strings")
LATER = "SEcAbPKrp"  # tags of protocol versions 2 to 4
Case = dict[str, Any]
Answer = dict[str, Any]


def cases() -> list[Case]:
    return [json.loads(line) for name in FILES for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


def payload_of(case: Case) -> bytes:
    """The bytes of a case: (digits*n) is n times the same."""
    return bytes.fromhex(re.sub(r"\(([0-9a-f]*)\*(\d+)\)", lambda found: found[1] * int(found[2]), case["payload"]))


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


def table() -> str:
    """One line per decoder."""
    import pgdecode
    from benchmarks.peers.programs import PEERS, Answers

    first = f"| [pgdecode](https://github.com/pgdecode/pgdecode) | Python | {pgdecode.__version__} |"
    scores = {first: score(pgdecode_answer)}
    for peer in PEERS:
        if peer.missing:
            print(f"without {peer.name}: {peer.missing}")
            continue
        answers = Answers(peer.answers())

        def ask(case: Case, payload: bytes, answers: Answers = answers) -> Answer:
            binary = any("b" in case.get("message", {}).get(f"{side}_formats", "") for side in ("old", "new"))
            return answers(payload, in_stream=case["in_stream"], binary=binary)

        scores[f"| [{peer.name}]({peer.repository}) | {peer.language} | {peer.version} |"] = score(ask)
        answers.close()
    groups = {
        "valid": "protocol 1 read",
        "bad": "bad ones refused",
        "valid, later": "streams, two-phase read",
        "bad, later": "bad ones refused",
    }
    heads = ["decoder", "language", "version", *groups.values(), "silently wrong", "no answer"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|" + "---:|" * (len(heads) - 3)]
    for first, found in scores.items():
        cells = [f"{found.right[group]} of {found.of[group]}" for group in groups]
        cells += [str(found.silently_wrong), str(found.hangs)]
        lines.append(f"{first} {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compare, and write the table into the page."""
    text = PAGE.read_text()
    begin, end = "<!-- scoreboard -->\n", "<!-- end -->"
    before, _, rest = text.partition(begin)
    PAGE.write_text(before + begin + table() + end + rest.partition(end)[2])
    print(table())


if __name__ == "__main__":
    main()
