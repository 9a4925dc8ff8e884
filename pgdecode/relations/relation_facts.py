"""What the catalog of a server tells of a relation, and its messages do not."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pgdecode.protocol.messages import Column, Relation

MAX_ATTNUM = (1 << 15) - 1
UNKNOWN_NUMBER = 0  # of a column that may be one of several
# The files of so many partitions are recorded, those of the newest ones.
MOST_FILES = 16


@dataclass(frozen=True, slots=True)
class RelationFacts:
    """What the catalog of a server tells of a relation, and its messages do not.

    Attributes
    ----------
    attnums : tuple of int
        pg_attribute.attnum of each column. A renamed column keeps its number, another column never gets it. 0 if it
        is not certain which column it is: it then is another one than those of all other versions.
    missing : tuple of str or None
        For each column, the value that rows have which are older than the column (pg_attribute.attmissingval), in
        PostgreSQL's text form. None if there is none: these rows have NULL, or PostgreSQL has rewritten the table.
    primary_key : tuple of int
        Numbers of the columns of the primary key, in its order; empty without one, and for a deferrable one: several
        rows may have the same key until a transaction ends.
    storage : tuple of (int, int)
        OID and pg_class.relfilenode of the table, or of its newest partitions. PostgreSQL rewrites a table to another
        file.
    n_attributes : int
        The greatest number that a column of the table has had, also one that is not sent or was dropped.
    has_same_list : bool
        Whether all versions that a slot has sent so far have had all columns of the table. Otherwise a column that a
        version has, and an earlier one has not, may have been there before.
    """

    attnums: tuple[int, ...]
    missing: tuple[str | None, ...]
    primary_key: tuple[int, ...] = ()
    storage: tuple[tuple[int, int], ...] = ()
    n_attributes: int = MAX_ATTNUM
    has_same_list: bool = False

    def is_other(self, other: RelationFacts) -> bool:
        """Whether the columns or the primary key are others than those of another relation with the same names."""
        return (self.attnums, self.primary_key) != (other.attnums, other.primary_key)

    def may_follow(self, before: RelationFacts) -> bool:
        """Whether the columns may be later ones: a number that was not in use before stays so."""
        if not (self.has_same_list and before.has_same_list) or UNKNOWN_NUMBER in before.attnums:
            return True
        return {number for number in self.attnums if number <= max(before.attnums, default=0)} <= {*before.attnums}

    def has_storage_of(self, before: RelationFacts) -> bool:
        """Whether the rows of a table are certainly in the files in which they were before."""
        files = dict(before.storage)
        common = [node == files[oid] for oid, node in self.storage if oid in files]
        return bool(common) and all(common)

    @property
    def has_first_storage(self) -> bool:
        """Whether the rows of a table are certainly in the files that it was made with, which have its OID as name."""
        return 0 < len(self.storage) < MOST_FILES and all(oid == node for oid, node in self.storage)


class StatedFacts(NamedTuple):
    """Facts of the relation that a message describes, and the position of the first message that they apply to."""

    relation: Relation  # without an xid
    position: int
    facts: RelationFacts


def facts_between(
    relation: Relation, before: StatedFacts | None, looks: Sequence[StatedFacts], after: StatedFacts | None
) -> RelationFacts:
    """Derive the facts of a relation that was altered again before a look at the catalog.

    Of a table that was dropped before it, columns are followed by name, type and order.

    Parameters
    ----------
    relation : Relation
        As a message has described it.
    before : StatedFacts or None
        Facts of the version before it, if they are known.
    looks : sequence of StatedFacts
        Facts of states since then, of which it is not certain whether they are before it.
    after : StatedFacts or None
        Facts of a state of the table after it, if they are known.

    Returns
    -------
    RelationFacts
        A column that may be one of several, or a new one, has no number (`UNKNOWN_NUMBER`).
    """
    known, later = (None if item is None else item.facts for item in (before, after))
    states = [before, *looks, after]
    choices = [_numbers(relation, *pair) for pair in itertools.pairwise(states)]
    attnums = _common_numbers([item for item in choices if item] or [(UNKNOWN_NUMBER,) * len(relation.columns)])
    former = {} if known is None else dict(zip(known.attnums, known.missing, strict=True))
    columns: dict[int, tuple[Column, str | None]] = {}
    if after is not None:
        columns = dict(
            zip(after.facts.attnums, zip(after.relation.columns, after.facts.missing, strict=True), strict=True)
        )
    missing = []
    # Otherwise the table may have been rewritten before or after this version.
    is_stored = later is not None and (later.has_first_storage if known is None else later.has_storage_of(known))
    for number, column in zip(attnums, relation.columns, strict=True):
        last, value = columns.get(number, (column, None))
        is_same = (column.type_id, column.type_modifier) == (last.type_id, last.type_modifier)
        # The value of a column with another type may have been another one.
        missing.append(former.get(number, value if is_same else None) if number else None)
        is_stored = is_stored and is_same and number != UNKNOWN_NUMBER and (number in former or number in columns)
    # Without the numbers of all columns, none of the later state is known to have been added.
    n_attributes = MAX_ATTNUM if later is None else later.n_attributes
    is_complete = all(item is None or item.has_same_list for item in (known, later))
    if is_complete and UNKNOWN_NUMBER not in attnums:
        is_certain = known is not None and UNKNOWN_NUMBER not in known.attnums
        n_attributes = max((*attnums, *former, known.n_attributes if known and is_certain else 0), default=0)
    key = () if known is None else known.primary_key
    if after is None:
        has_key = {*key} <= {*attnums}
    elif after.relation == relation and relation.replica_identity == "d":
        # The columns of the key have flags.
        key, has_key = after.facts.primary_key, attnums == after.facts.attnums
    else:
        has_key = key == after.facts.primary_key
    return RelationFacts(
        attnums,
        tuple(missing),
        key if has_key else (),
        later.storage if is_stored and later is not None else (),
        n_attributes,
        is_complete,
    )


def _numbers(relation: Relation, before: StatedFacts | None, after: StatedFacts | None) -> tuple[int, ...]:
    if after is not None:
        return _choice_between([column.name for column in relation.columns], before, after)
    return () if before is None else _numbers_by_name(relation, before)


def _common_numbers(choices: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(numbers[0] if len({*numbers}) == 1 else UNKNOWN_NUMBER for numbers in zip(*choices, strict=True))


def _numbers_by_name(relation: Relation, before: StatedFacts) -> tuple[int, ...]:
    """Find the numbers of those columns that a former state had with the same names and types, in the same order."""
    columns = zip(before.relation.columns, before.facts.attnums, strict=True)
    known = {(item.name, item.type_id, item.type_modifier): number for item, number in columns}
    numbers: list[int] = []
    for item in relation.columns:
        number = known.get((item.name, item.type_id, item.type_modifier), UNKNOWN_NUMBER)
        numbers.append(number if number > max(numbers, default=0) else UNKNOWN_NUMBER)
    return tuple(numbers)


def numbers_between(names: Sequence[str], before: StatedFacts | None, after: StatedFacts) -> tuple[int, ...]:
    """Find the numbers of the columns with these names, in a state of a table between two others.

    PostgreSQL gives columns ascending numbers, gives no number twice, and sends columns in the order of their numbers.
    A column of both states is in each one between them. A column of the later state is, if one with a greater number
    is. A name of before that no other column has later belongs to the same column, unless this leaves no choice, or it
    may be one that was added and dropped. Other columns may have had other names. A list of columns in a publication
    may have left out any of them.

    Returns
    -------
    tuple of int
        `UNKNOWN_NUMBER` for a column with more than one choice, and for all columns if there is no choice.
    """
    return _choice_between(names, before, after) or (UNKNOWN_NUMBER,) * len(names)


def _choice_between(names: Sequence[str], before: StatedFacts | None, after: StatedFacts) -> tuple[int, ...]:
    """Find the numbers, or none if there is no choice."""
    top = 0 if before is None else max(_names_by_number(before), default=0)
    candidates = (_candidates(names, before, after, is_renamed=is_renamed) for is_renamed in (False, True))
    return next(filter(None, (_only_choice(len(names), top, item) for item in candidates)), ())


def _candidates(
    names: Sequence[str], before: StatedFacts | None, after: StatedFacts, *, is_renamed: bool
) -> list[tuple[int, bool]]:
    """For each number, return which of the names its column may have, as bits, and whether it may be missing.

    With `is_renamed`, columns may have been renamed several times, so that each may have any name.
    """
    first, last = ({} if item is None else _names_by_number(item) for item in (before, after))
    n_numbers = after.facts.n_attributes
    is_complete = after.facts.has_same_list and (before is None or before.facts.has_same_list)
    is_certain = before is None or UNKNOWN_NUMBER not in before.facts.attnums
    n_before = 0 if before is None or not (is_complete and is_certain) else before.facts.n_attributes
    dropped = {*range(1, min(n_before, n_numbers) + 1)} - {*first}
    # A name of before belongs to the same column in between, unless another column has it later, or was added and
    # dropped. Any of the other columns may have had a new name.
    later = {name: number for number, name in last.items()}
    same = {name for number, name in first.items() if later.get(name, number) == number}
    bits: dict[str | None, int] = {name: 1 << index for index, name in enumerate(names)}
    every = (1 << len(names)) - 1
    others = sum(bit for name, bit in bits.items() if name not in same)
    unchanged = sum(bits.get(name, 0) for number, name in first.items() if last.get(number) == name)
    found = []
    for number in range(1, n_numbers + 1):
        name, last_name = first.get(number), last.get(number)
        if number in dropped:
            allowed = 0
        elif is_renamed:
            allowed = every
        elif name in same and (name in bits or name == last_name):
            allowed = bits.get(name, 0)
        elif name is None and last_name is None:
            allowed = every & ~unchanged
        else:
            allowed = others | bits.get(name, 0) | bits.get(last_name, 0)
        found.append((allowed, not is_complete or number not in last))
    return found


def _only_choice(n: int, top: int, candidates: Sequence[tuple[int, bool]]) -> tuple[int, ...]:
    """Find the numbers of so many names, which are ascending; `UNKNOWN_NUMBER` with several choices, none with none.

    The columns up to `top` are there. Those after any later number may have been added since.
    """
    # The bits of a mask are numbers of names: how many may belong to the columns up to a number, and which may be left
    # from there.
    rest = [1 << n]
    for number in range(len(candidates), 0, -1):
        allowed, may_be_missing = candidates[number - 1]
        mask = (rest[-1] >> 1) & allowed | (rest[-1] if may_be_missing else 0)
        rest.append(mask | (1 << n if number > top else 0))
    rest.reverse()
    if not rest[0] & 1:
        return ()
    numbers, once, several, reached = [UNKNOWN_NUMBER] * n, 0, 0, 1
    for number, (allowed, may_be_missing) in enumerate(candidates, 1):
        taken = reached & allowed & (rest[number] >> 1)
        several |= once & taken
        once |= taken
        taken &= ~several
        while taken:
            lowest = taken & -taken
            numbers[lowest.bit_length() - 1] = number
            taken ^= lowest
        reached = (reached & allowed) << 1 | (reached if may_be_missing else 0)
    return tuple(UNKNOWN_NUMBER if several >> index & 1 else number for index, number in enumerate(numbers))


def _names_by_number(stated: StatedFacts) -> Mapping[int, str]:
    columns = zip(stated.facts.attnums, stated.relation.columns, strict=True)
    return {number: column.name for number, column in columns if number != UNKNOWN_NUMBER}
