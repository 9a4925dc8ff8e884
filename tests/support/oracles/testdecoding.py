"""The text of the server's test_decoding plugin, parsed and compared change by change.

The format is that of contrib/test_decoding/test_decoding.c. Names are quoted as identifiers. Numbers are not quoted,
bits are B'...', and booleans are words. Every other value is its type's text in quotes, in which only a quote is
escaped, by doubling it. A value may contain newlines, so the text is parsed from the front, not line by line.
"""

from __future__ import annotations

import functools
import gzip
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Used as a value for columns in the change's `unchanged`. Text of a server never has a NUL, so it is not a real value.
UNCHANGED = "\0unchanged"

# Name, then the compared parts of a change: names and values in the order of the columns.
Cells = list[tuple[str, str | None]]

IDENTIFIER = re.compile(r'"(?:[^"]|"")*"|[^\s".\[:,]+')
TYPE = re.compile(r'\[((?:"(?:[^"]|"")*"|[^"\[\]]|\[\])*)\]:')
BARE = re.compile(r"[^\s']+")
QUOTED = re.compile(r"(B?)'((?:[^']|'')*)'")
TRANSACTION_END = re.compile(r"COMMIT (\d+)|(PREPARE TRANSACTION|COMMIT PREPARED|ROLLBACK PREPARED) '((?:[^']|'')*)'")
# The content is cut at a NUL regardless of the printed size. It may contain newlines; it ends at the next record.
MESSAGE = re.compile(r"message: (?s:.*?)(?=\n(?:BEGIN|COMMIT|table|message:|PREPARE|ROLLBACK) |\n?\Z)")


@dataclass(frozen=True)
class TextChange:
    """One change as test_decoding prints it; `old` and `new` are None if they are not printed."""

    table: str
    op: str
    old: Cells | None = None
    new: Cells | None = None


@dataclass
class TextTransaction:
    """A transaction with its changes in order; `gid` if it was prepared."""

    xid: int
    gid: str | None = None
    changes: list[TextChange] = field(default_factory=list)


class Parser:
    """Parser of a slot's text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def has(self, literal: str) -> bool:
        """Consume a literal if it is next; return whether it was."""
        found = self.text.startswith(literal, self.at)
        self.at += len(literal) if found else 0
        return found

    def expect(self, literal: str) -> None:
        assert self.has(literal), f"no {literal!r} at {self.at}"

    def match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self.text, self.at)
        assert found, f"no {pattern.pattern!r} at {self.at}"
        self.at = found.end()
        return found

    def identifier(self) -> str:
        return unquoted(self.match(IDENTIFIER)[0])

    def table(self) -> str:
        namespace = self.identifier()
        self.expect(".")
        return f"{namespace}.{self.identifier()}"

    def value(self, type_name: str) -> str | None:
        """A value in the text form of its type, as pgoutput sends it."""
        if self.has("unchanged-toast-datum"):
            return UNCHANGED
        if self.text[self.at] in "B'":
            return self.match(QUOTED)[2].replace("''", "'")
        bare = self.match(BARE)[0]
        if bare == "null":
            return None
        return {"true": "t", "false": "f"}[bare] if type_name == "boolean" else bare

    def tuple(self) -> Cells:
        cells: Cells = []
        while not self.text.startswith(" new-tuple:", self.at) and self.has(" "):
            name = self.identifier()
            cells.append((name, self.value(self.match(TYPE)[1])))
        return cells

    def changes(self) -> list[TextChange]:
        """Parse the text after "table ": one change, or one per table for a truncate."""
        tables = [self.table()]
        while self.has(", "):
            tables.append(self.table())
        if self.has(": TRUNCATE:"):
            for flag in (" (no-flags)", " restart_seqs", " cascade"):
                self.has(flag)
            return [TextChange(table, "truncate") for table in tables]
        if self.has(": INSERT:"):
            return [TextChange(tables[0], "insert", new=self.tuple())]
        if self.has(": DELETE:"):
            return [TextChange(tables[0], "delete", old=None if self.has(" (no-tuple-data)") else self.tuple())]
        self.expect(": UPDATE:")
        old = None
        if self.has(" old-key:"):
            old = self.tuple()
            self.expect(" new-tuple:")
        return [TextChange(tables[0], "update", old=old, new=self.tuple())]


def unquoted(identifier: str) -> str:
    return identifier[1:-1].replace('""', '"') if identifier.startswith('"') else identifier


def parse(text: str) -> list[TextTransaction]:
    """The committed transactions with at least one change, in the order of their commits."""
    parser = Parser(text)
    committed: list[TextTransaction] = []
    prepared: dict[str, TextTransaction] = {}
    current: TextTransaction | None = None
    while parser.at < len(text):
        if parser.has("BEGIN "):
            current = TextTransaction(int(parser.match(re.compile(r"\d+"))[0]))
        elif parser.has("table "):
            assert current is not None
            current.changes += parser.changes()
        elif text.startswith("message:", parser.at):
            parser.match(MESSAGE)
        else:
            end = parser.match(TRANSACTION_END)
            gid = (end[3] or "").replace("''", "'")
            if end[1]:
                assert current is not None
                assert current.xid == int(end[1])
                committed.append(current)
            elif end[2] == "PREPARE TRANSACTION":
                assert current is not None
                current.gid = gid
                prepared[gid] = current
            elif end[2] == "COMMIT PREPARED":
                committed.append(prepared.pop(gid))
            else:
                del prepared[gid]
            parser.match(re.compile(r"(?:, txid \d+)?"))
        parser.match(re.compile(r"\n|\Z"))
    return [transaction for transaction in committed if transaction.changes]


@functools.cache
def load(path: Path) -> list[TextTransaction]:
    """Parse a recorded test_decoding text and cache it. Do not modify the result."""
    return parse(gzip.decompress(path.read_bytes()).decode())


def without(
    transactions: Iterable[TextTransaction],
    *,
    tables: Collection[str] = (),
    columns: Mapping[str, Collection[str]] = {},
    published_as: Mapping[str, str] = {},
) -> list[TextTransaction]:
    """Leave out what a publication does not publish: tables, columns by table, and the names of partitions.

    `published_as` has the root that a partition's changes are published as.
    """

    def kept(cells: Cells | None, table: str) -> Cells | None:
        return None if cells is None else [cell for cell in cells if cell[0] not in columns.get(table, ())]

    filtered = []
    for transaction in transactions:
        changes = [
            TextChange(
                published_as.get(change.table, change.table),
                change.op,
                kept(change.old, change.table),
                kept(change.new, change.table),
            )
            for change in transaction.changes
            if not any(re.fullmatch(pattern, change.table) for pattern in tables)
        ]
        if changes:
            filtered.append(TextTransaction(transaction.xid, transaction.gid, changes))
    return filtered


def as_text(changes: Iterable[Mapping[str, Any]]) -> list[TextTransaction]:
    """Committed changes, in the order in which to apply them, as test_decoding would print them.

    It does not print nulls of a whole old row, and a key has none. It prints an unchanged value only as unchanged, even
    if the old tuple has it.
    """
    transactions: list[TextTransaction] = []
    commit_position = None
    for change in changes:
        if not transactions or change["commit_position"] != commit_position:
            commit_position = change["commit_position"]
            transactions.append(TextTransaction(change["xid"], change["gid"]))
        old, new, is_key = change["old"], change["new"], change["old_type"] == "K"
        transactions[-1].changes.append(
            TextChange(
                f"{change['namespace']}.{change['relation_name']}",
                change["op"],
                None if old is None else [cell for cell in old.items() if cell[1] is not None or is_key],
                None if new is None else [*new.items(), *((name, UNCHANGED) for name in change["unchanged"])],
            )
        )
    return transactions


def differences(
    ours: Iterable[Mapping[str, Any]], theirs: list[TextTransaction], *, unordered: Collection[str] = ()
) -> list[str]:
    """The first ten differences between changes and a test_decoding text, without values.

    `unordered` tables may have their columns in another order: a partition's order may differ from its root's.
    """
    mine = as_text(ours)
    found = []
    if [(t.xid, len(t.changes)) for t in mine] != [(t.xid, len(t.changes)) for t in theirs]:
        found.append(f"transactions and their sizes: {sizes(mine)} but {sizes(theirs)}")
    for left, right in zip(mine, theirs, strict=False):
        if left.gid != right.gid:
            found.append(f"transaction {left.xid}: another gid")
        for number, (a, b) in enumerate(zip(left.changes, right.changes, strict=False)):
            if a.table in unordered:
                a, b = by_name(a), by_name(b)
            wrong = [part for part in ("table", "op") if getattr(a, part) != getattr(b, part)]
            wrong += [] if a.old == b.old else ["old"]
            wrong += [] if same_new(a, b) else ["new"]
            if wrong:
                found.append(f"transaction {left.xid}, change {number}, {a.op} of {a.table}: another {wrong}")
    return found[:10]


def by_name(change: TextChange) -> TextChange:
    """A change with its columns ordered by name."""
    parts = [None if cells is None else sorted(cells, key=lambda cell: cell[0]) for cells in (change.old, change.new)]
    return TextChange(change.table, change.op, *parts)


def sizes(transactions: list[TextTransaction]) -> str:
    return " ".join(f"{t.xid}:{len(t.changes)}" for t in transactions)


def same_new(ours: TextChange, theirs: TextChange) -> bool:
    """Whether new values are equal. An unchanged value of test_decoding is unchanged here or from the old tuple."""
    if ours.new is None or theirs.new is None:
        return ours.new is theirs.new
    old = dict(theirs.old or [])
    expected = [(name, old.get(name, UNCHANGED) if value == UNCHANGED else value) for name, value in theirs.new]
    order = [name for name, value in expected if value != UNCHANGED]
    return dict(ours.new) == dict(expected) and [name for name, v in ours.new if v != UNCHANGED] == order
