"""The reference's changes of each recorded capture, and where the server's own output differs.

All exceptions are listed here: tables and columns that a publication leaves out, messages that PostgreSQL 10 does not
send, and values of the final state that are not in the WAL.
"""

from __future__ import annotations

import functools
from typing import Any

from support import captures
from support.oracles import reference_changes, replay, testdecoding
from support.oracles.reference_changes import Change

# PostgreSQL 10 and older print the rows that ALTER TABLE rewrites as rows of a table that does not exist.
REWRITES = r"public\.pg_temp_\d+"
# The publication of `txns` names the root of a partitioned table from 13 on, where that can be asked for, and
# generated columns are not published.
PUBLISHED_AS = {"public.part_eu": "public.part", "public.part_us": "public.part"}
UNPUBLISHED = {"public.gen": {"dbl"}}

# A row without columns cannot be recorded, so the recorded state has no rows of this table.
WITHOUT_COLUMNS = {"public.zero"}
# Truncated tables. PostgreSQL 10 does not send truncates.
TRUNCATED = {
    "txns": {"public.a2", "public.b", "public.d", "public.nokey"},
    "streams": {"public.s2"},
}
# Number of values of the final state that were never sent: a column added with a default, renamed or generated.
NEVER_SENT = {
    "txns": {"public.a2": {"ex2": 1}, "public.gen": {"dbl": 1}},
    "streams": {"public.s1": {"added": 2101}},
    "shop": {"public.customers": {"phone": 11}, "public.order_items": {"quantity": 145}},
}
# Tables of these whose values were all sent under the former name of a column.
RENAMED = {"public.order_items"}

BINARY = tuple(name for name in captures.NAMES if name.endswith("bin"))
TEXT = tuple(name for name in captures.NAMES if name not in BINARY)


def pairs(name: str) -> list[tuple[int, bytes]]:
    """A capture as (position, payload); positions count from 0."""
    return list(enumerate(captures.capture(name).payloads))


def text_twin(name: str) -> str:
    """The text capture of the same WAL with the same rows as a binary capture; a text capture is its own twin."""
    same_mode = name.removesuffix("bin")
    return same_mode if same_mode in captures.NAMES else same_mode.replace(".v4", ".v3")


@functools.cache
def as_sent(name: str, include_uncommitted: bool = False) -> list[Change]:
    """The reference's changes of a capture; a binary value is bytes. Do not modify the result."""
    return reference_changes.changes(pairs(name), include_uncommitted=include_uncommitted)


@functools.cache
def as_text(name: str, include_uncommitted: bool = False) -> list[Change]:
    """The reference's changes of a capture with every value as text. Do not modify the result."""
    texts = as_sent(text_twin(name), include_uncommitted)
    return [
        {**change, "old": text["old"], "new": text["new"]}
        for change, text in zip(as_sent(name, include_uncommitted), texts, strict=True)
    ]


@functools.cache
def key_columns(name: str) -> dict[tuple[int, int], list[str]]:
    """The replica identity of each row of a capture, for replay.replay."""
    return reference_changes.key_columns(pairs(name))


def differences_from_test_decoding(name: str, changes: list[Any]) -> list[str]:
    """Differences between committed changes of a capture, as text, and what the server prints for the same WAL."""
    major, scenario, _ = name.split(".")
    text = testdecoding.load(captures.DATA / f"{major}.{scenario}.test_decoding.txt.gz")
    theirs = testdecoding.without(
        text,
        tables={REWRITES} if major == "10" else (),
        columns=UNPUBLISHED if scenario == "txns" else {},
        published_as=PUBLISHED_AS if scenario == "txns" else {},
    )
    return testdecoding.differences(changes, theirs)


def differences_from_state(name: str, changes: list[Any]) -> list[str]:
    """Differences between tables replayed from committed changes, as text, and the tables on the server."""
    major, scenario, _ = name.split(".")
    state = replay.load_state(captures.DATA / f"{major}.{scenario}.state.json.gz")
    left_out = WITHOUT_COLUMNS | (TRUNCATED.get(scenario, set()) if major == "10" else set())
    found, unknown = replay.differences(replay.replay(changes, key_columns(name)), state, tables=left_out)
    expected = {
        table: counts
        for table, counts in NEVER_SENT.get(scenario, {}).items()
        if table in state and table not in left_out
    }
    return found if unknown == expected else [*found, f"values that were never sent: {unknown}, expected {expected}"]
