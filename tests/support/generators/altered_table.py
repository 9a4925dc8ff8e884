"""Random changes of one table under ALTER TABLE, with the rows that the server would have."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pgdecode
from pgdecode import RelationCatalog
from pgdecode.relations.relation_facts import RelationFacts, StatedFacts
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED

T = 16385
Row = dict[int, str | None]  # by the numbers of columns
_KEYS = [str(number) for number in range(1, 13)]


@dataclass
class Column:
    """A column of the table. Old rows read `missing` in it."""

    number: int
    name: str
    missing: str | None = None


@dataclass
class AlteredTable(Slot):
    """A table with a key of `n_key` columns, or a replica identity of all columns ("f") or none ("n").

    A long value is one that starts with "long": it is TOAST, which an update that keeps it does not send.

    Attributes
    ----------
    rows : list of Row
        What the server has.
    told : list of set of int
        For each row, the columns whose values were sent.
    names : dict of int to dict of str to int
        The numbers of the columns by name, by the position of the Relation message.
    facts : list of StatedFacts
        What the server's catalog tells.
    """

    rng: random.Random
    identity: str = "d"
    n_key: int = 1
    alters: bool = True
    renames: bool = True  # also columns that get a name that another one had; only their numbers tell these
    columns: list[Column] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    told: list[set[int]] = field(default_factory=list)
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    facts: list[StatedFacts] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.columns = [Column(number, name) for number, name in enumerate(["id", "k", "a", "b", "z"], 1)]
        self.n_numbers = len(self.columns)
        self.xid = 700
        self.is_described = False

    @property
    def key(self) -> list[int]:
        """The numbers of the key's columns: the first ones."""
        return [item.number for item in self.columns[: self.n_key]]

    @property
    def identity_columns(self) -> list[int]:
        return [] if self.identity == "n" else [c.number for c in self.columns] if self.identity == "f" else self.key

    def run(self, n_steps: int) -> AlteredTable:
        """Write changes."""
        for _ in range(n_steps):
            if self.plain is None:
                self.begin(self.xid)
                self.xid += 1
            rng = self.rng
            steps: list[Any] = [self.insert_row] * 8
            if self.identity != "n":
                steps += [self.update_row] * 8 + [self.move_row] * 3 + [self.swap_rows] * 2 + [self.delete_row] * 4
            if self.alters:
                steps += [self.alter]
            steps += [self.end] * 4 + [self.truncate_rows] * (rng.random() < 0.2)
            rng.choice(steps)()
        self.end()
        return self

    def end(self) -> None:
        if self.plain is not None:
            self.commit()
            self.plain = None

    # -- rows ----------------------------------------------------------------------------------------------------------

    def describe(self) -> None:
        """Send the relation, if it has changed or by chance."""
        if self.is_described and self.rng.random() < 0.9:
            return
        self.is_described = True
        names = [item.name for item in self.columns]
        flagged = set(self.identity_columns)
        position = len(self.payloads)
        self.names[position] = {item.name: item.number for item in self.columns}
        self.relation(T, names, keys=[c.name for c in self.columns if c.number in flagged], identity=self.identity)
        relation = pgdecode.decode(self.payloads[-1])
        assert isinstance(relation, pgdecode.Relation)
        numbers, missing = tuple(c.number for c in self.columns), tuple(c.missing for c in self.columns)
        primary_key = tuple(self.key) if self.identity != "n" and not self.is_bag else ()
        facts = RelationFacts(numbers, missing, primary_key, ((T, T),), self.n_numbers)
        self.facts.append(StatedFacts(relation, position, facts))

    @property
    def is_bag(self) -> bool:
        """Whether rows may be equal."""
        return self.n_key == 0 or self.identity == "n"

    def values(self) -> Row:
        rng = self.rng
        return {item.number: rng.choice(["x", "y", None, "", f"long {rng.randrange(3)}"]) for item in self.columns}

    def free_key(self) -> list[str] | None:
        """Values of a key that no row has, often one that a row had before."""
        taken = {tuple(row[number] for number in self.key) for row in self.rows}
        for _ in range(20):
            key = tuple(self.rng.choice(["1", "2", "3", "long k"] if number else _KEYS) for number in range(self.n_key))
            if key not in taken:
                return [*key]
        return None

    def cells(self, row: Row) -> list[str | None]:
        return [row[item.number] for item in self.columns]

    def insert_row(self) -> None:
        row = self.values()
        if not self.is_bag:
            key = self.free_key()
            if key is None:
                return
            row |= dict(zip(self.key, key, strict=True))
        self.describe()
        self.insert(T, *self.cells(row))
        self.rows.append(row)
        self.told.append(set(row))

    def send_update(self, at: int, row: Row) -> None:
        """Update a row as the server does: a kept long value is not sent, but as part of the identity it is."""
        self.describe()
        before = self.rows[at]
        # The value of a column that was added since the row was written becomes part of the row now.
        kept = {
            number
            for number, value in row.items()
            if value == before[number] and (value or "").startswith("long") and number in self.told[at]
        }
        new: list[Any] = [UNCHANGED if item.number in kept else row[item.number] for item in self.columns]
        if self.identity == "f":
            self.update(T, *new, old=self.cells(before), old_type="O")
        elif any(row[number] != before[number] or number in kept for number in self.key):
            old = [before[c.number] if c.number in self.key else None for c in self.columns]
            self.update(T, *new, old=old, old_type="K")
        else:
            self.update(T, *new)
        self.rows[at] = row
        sent = set(row) if self.identity == "f" else set(row) - (kept - set(self.key))
        self.told[at] = (self.told[at] & kept) | sent

    def update_row(self) -> None:
        if self.rows:
            at = self.rng.randrange(len(self.rows))
            changed = {number: v for number, v in self.values().items() if self.rng.random() < 0.5}
            if not self.is_bag:
                changed = {number: value for number, value in changed.items() if number not in self.key}
            self.send_update(at, {**self.rows[at], **changed})

    def move_row(self) -> None:
        key = None if self.is_bag else self.free_key()
        if self.rows and key is not None:
            at = self.rng.randrange(len(self.rows))
            self.send_update(at, {**self.rows[at], **dict(zip(self.key, key, strict=True))})

    def swap_rows(self) -> None:
        """Swap the keys of two rows, by a third key."""
        key = None if self.is_bag else self.free_key()
        if len(self.rows) > 1 and key is not None:
            at, other = self.rng.sample(range(len(self.rows)), 2)
            mine, theirs = ([self.rows[row][number] for number in self.key] for row in (at, other))
            for row, new in ((at, key), (other, mine), (at, theirs)):
                self.send_update(row, {**self.rows[row], **dict(zip(self.key, new, strict=True))})

    def delete_row(self) -> None:
        if self.rows:
            self.describe()
            at = self.rng.randrange(len(self.rows))
            row = self.rows.pop(at)
            del self.told[at]
            if self.identity == "f":
                self.delete(T, *self.cells(row), old_type="O")
            else:
                old = [row[item.number] if item.number in self.key else None for item in self.columns]
                self.delete(T, *old, old_type="K")

    def truncate_rows(self) -> None:
        self.describe()
        self.truncate(T)
        self.rows, self.told = [], []

    # -- ALTER TABLE ---------------------------------------------------------------------------------------------------

    def alter(self) -> None:
        """Rename, add or drop a column."""
        kind = self.rng.choice(["rename", "add", "drop"] if self.renames else ["add", "drop"])
        n_own = max(self.n_key, 1)
        if kind == "rename":
            column = self.rng.choice(self.columns)
            column.name = self.fresh_name()
        elif kind == "add" and len(self.columns) < 9:
            self.n_numbers += 1
            added = Column(self.n_numbers, self.fresh_name(), self.rng.choice([None, "default", "long default"]))
            self.columns.append(added)
            for row in self.rows:
                row[added.number] = added.missing
        elif kind == "drop" and len(self.columns) > n_own + 1:
            column = self.columns.pop(self.rng.randrange(n_own, len(self.columns)))
            for row, told in zip(self.rows, self.told, strict=True):
                del row[column.number]
                told.discard(column.number)
        self.is_described = False

    def fresh_name(self) -> str:
        """A name that is free now. A column may have had it before."""
        if not self.renames:
            return f"c{self.n_numbers}"
        taken = {item.name for item in self.columns}
        return self.rng.choice(
            [name for name in ("id", "k", "a", "b", "z", "p", "q", "r", "s", "t") if name not in taken]
        )

    @property
    def catalog(self) -> RelationCatalog:
        """The facts that the server's catalog tells."""
        return RelationCatalog((), self.facts)
