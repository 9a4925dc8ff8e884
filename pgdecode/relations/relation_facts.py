"""What the catalog of a server tells of a relation, and its messages do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pgdecode.protocol.messages import Relation

MAX_ATTNUM = (1 << 15) - 1
# The files of so many partitions are recorded, those of the newest ones.
MOST_FILES = 16


@dataclass(frozen=True, slots=True)
class RelationFacts:
    """What the catalog of a server tells of a relation, and its messages do not.

    Attributes
    ----------
    attnums : tuple of int
        pg_attribute.attnum of each column. A renamed column keeps its number, another column never gets it.
    missing : tuple of str or None
        For each column, the value that rows have which are older than the column (pg_attribute.attmissingval), in
        PostgreSQL's text form. None if there is none: these rows have NULL, or PostgreSQL has rewritten the table.
    primary_key : tuple of int
        Numbers of the columns of the primary key, in its order; empty without one.
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
        if not (self.has_same_list and before.has_same_list):
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


def facts_between(relation: Relation, before: StatedFacts | None, after: StatedFacts) -> RelationFacts | None:
    """Derive the facts of a relation that was altered again before a look at the catalog.

    PostgreSQL gives columns ascending numbers, gives no number twice, and sends columns in the order of their numbers.
    So the columns before and after often leave one possibility.

    Parameters
    ----------
    relation : Relation
        As a message outside streams has described it.
    before : StatedFacts or None
        Facts of the version before it, if they are known.
    after : StatedFacts
        Facts of a state of the table after it.

    Returns
    -------
    RelationFacts or None
        None if more than one state of the table may have been described, or values of older rows are not certain.
    """
    known, later = None if before is None else before.facts, after.facts
    if not later.has_same_list or (known is not None and not known.has_same_list):
        return None
    attnums = numbers_between([column.name for column in relation.columns], before, after)
    if attnums is None:
        return None
    former = {} if known is None else dict(zip(known.attnums, known.missing, strict=True))
    columns = dict(zip(later.attnums, zip(after.relation.columns, later.missing, strict=True), strict=True))
    missing = []
    # Otherwise the table may have been rewritten before or after this version.
    is_stored = later.has_first_storage if known is None else later.has_storage_of(known)
    for number, column in zip(attnums, relation.columns, strict=True):
        last, value = columns.get(number, (column, None))
        is_same = (column.type_id, column.type_modifier) == (last.type_id, last.type_modifier)
        if value is not None and not is_same and number not in former:
            return None
        missing.append(former.get(number, value))
        is_stored = is_stored and is_same and (number in former or number in columns)
    return RelationFacts(
        attnums,
        tuple(missing),
        known.primary_key if known is not None and known.primary_key == later.primary_key else (),
        later.storage if is_stored else (),
        max((*attnums, *former), default=0),
        has_same_list=True,
    )


def numbers_between(names: Sequence[str], before: StatedFacts | None, after: StatedFacts) -> tuple[int, ...] | None:
    """Find the numbers of the columns with these names, in a state of a table between two others.

    A column of both states is in each one between them. A column of the later state is, if one with a greater number
    is. Each has its name before or after.

    Returns
    -------
    tuple of int or None
        None unless there is exactly one choice.
    """
    first, last = ({} if item is None else _names_by_number(item) for item in (before, after))
    top, n = max(first, default=0), len(names)
    # How many choices there are for so many of the names, and one of them: its last number, and those before it.
    choices: dict[int, tuple[int, Any]] = {0: (1, None)}
    complete: list[tuple[int, Any]] = []
    for number in range(1, after.facts.n_attributes + 1):
        allowed = {item[number] for item in (first, last) if number in item}
        if number <= top and number not in first:
            if allowed:
                return None
            continue  # dropped before
        if number in last and number > top and n in choices:
            complete.append(choices[n])  # as before this column was added
        following = {} if number in last else dict(choices)
        for count, (ways, chosen) in choices.items():
            if count < n and (not allowed or names[count] in allowed):
                others = following.get(count + 1, (0, None))[0]
                following[count + 1] = (ways + others, (number, chosen))
        choices = following
    if n in choices:
        complete.append(choices[n])
    if sum(ways for ways, _ in complete) != 1:
        return None
    numbers, [(_, rest)] = [], complete
    while rest is not None:
        number, rest = rest
        numbers.append(number)
    return tuple(reversed(numbers))


def _names_by_number(stated: StatedFacts) -> Mapping[int, str]:
    columns = zip(stated.facts.attnums, stated.relation.columns, strict=True)
    return {number: column.name for number, column in columns}
