"""`net_changes` of random changes of a table under ALTER TABLE, cut anywhere: the plain fold, and the server's rows."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given

from pgdecode import ChangeDecoder
from support.generators.altered_table import AlteredTable, T
from support.generators.sequences import per_property, seeds
from support.net_batches import ABOUT, net_of, of_batch, random_cuts, values_of
from support.oracles import reference_changes
from support.oracles.net_fold import applied, net_rows
from support.oracles.reference_changes import Change
from support.oracles.replay import UNKNOWN, unmatched
from support.tiers import full

# The arguments of the table, and whether `key` is named.
FORMS: dict[str, tuple[dict[str, Any], bool]] = {
    "one key column": ({}, False),
    "two key columns": ({"n_key": 2}, False),
    "an index": ({"identity": "i"}, False),
    "full": ({"identity": "f", "n_key": 0}, False),
    "full, with a key": ({"identity": "f", "n_key": 2}, True),
    "nothing": ({"identity": "n", "n_key": 0}, False),
}


def numbered(table: AlteredTable) -> list[Change]:
    """The changes by the reference, with the numbers of columns in place of their names."""
    found = []
    for change in reference_changes.changes(enumerate(table.payloads)):
        names = table.names[max(at for at in table.names if at < change["position"])]
        values = {part: change[part] and {names[k]: v for k, v in change[part].items()} for part in ("old", "new")}
        found.append({**change, **values, "unchanged": [names[name] for name in change["unchanged"]]})
    return found


def by_number(net: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[Any, Any]:
    """A net change with the numbers of columns in place of their names. An unknown value is no part of a key."""
    about = {name: net[name] for name in ABOUT}
    before, unknown = net["_key_before"], net["_unknown"]
    about["_unknown"] = [numbers[name] for name in unknown if name in numbers]
    if before is not None:
        about["_key_before"] = {
            numbers[name]: value for name, value in before.items() if name in numbers and name not in unknown
        }
    return {**about, **{numbers[name]: value for name, value in net.items() if name in numbers}}


def check(rng: random.Random, form: str, *, with_facts: bool, alters: bool = True, n_steps: int = 120) -> None:
    """Fold and apply the changes of a random table in batches, and compare the rows with those of the server."""
    arguments, is_named = FORMS[form]
    table = AlteredTable(rng, alters=alters, renames=with_facts, **arguments).run(n_steps)
    if not table.names:
        return
    payloads, changes = table.payloads, numbered(table)
    decoder = ChangeDecoder(catalog=table.catalog if with_facts else None)
    key = table.key if table.identity in "di" or is_named else None
    keys: dict[Any, Any] = {(item["position"], T): table.key for item in changes}
    missing = {
        number: value
        for stated in table.facts
        for number, value in zip(stated.facts.attnums, stated.facts.missing, strict=True)
        if with_facts
    }
    rows: list[dict[Any, Any]] = []
    for start, end in pairwise(random_cuts(rng, len(payloads))):
        # Versions of a transaction that has not committed do not count.
        committed = max((at for at, payload in enumerate(payloads[:end]) if payload[:1] == b"C"), default=-1)
        described = [at for at in table.names if at < committed]
        batch = of_batch(changes, start, end)
        if not described:
            decoder.decode(payloads[start:end], range(start, end))
            continue
        typed = decoder.table(payloads[start:end], f"public.t{T}", range(start, end))
        numbers = table.names[max(described)]
        names = {number: name for name, number in numbers.items()}
        net = net_of(rng, typed, [names[number] for number in table.key] if is_named else None)
        found = [by_number(item, numbers) for item in net.to_pylist()]
        if key is not None:
            expected = net_rows(batch, keys, key)
            for ours, theirs in zip(found, expected, strict=True):
                assert (ours["_action"], ours["_position"]) == (theirs["_action"], theirs["_position"])
                assert ours["_key_before"] == theirs["_key_before"]
                if ours["_action"] == "upsert":
                    added = {number: missing.get(number, UNKNOWN) for number in names}
                    assert values_of(ours, names) == {n: {**added, **theirs["values"]}[n] for n in names}
        # ALTER TABLE, and then the changes.
        rows = [{n: row.get(n, missing.get(n, UNKNOWN)) for n in names} for row in rows]
        rows = applied(rows, found, key)
    last = [item.number for item in table.columns if item.number in {*table.names[max(table.names)].values()}]
    left = [[row[number] for number in last] for row in rows]
    expected = [
        [row[n] if with_facts or n in told else UNKNOWN for n in last]
        for row, told in zip(table.rows, table.told, strict=True)
    ]
    if key is None and not with_facts:
        # A whole row may be one of several, if it has an unknown value.
        assert len(left) == len(expected)
        assert unmatched(left, [[row[number] for number in last] for row in table.rows]) == 0
        return
    assert sorted(map(repr, left)) == sorted(map(repr, expected))


def check_seeds(form: str, seeds: range, **options: Any) -> None:
    for seed in seeds:
        try:
            check(random.Random(seed), form, **options)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise


SEEDS = pytest.mark.parametrize("seeds", [range(1), full(range(1, 10))], ids=["few", "many"])


@SEEDS
@pytest.mark.parametrize("form", FORMS)
def test_rows_before_and_net_changes_are_the_rows_after(form: str, seeds: range) -> None:
    check_seeds(form, seeds, with_facts=False, alters=False)


@SEEDS
@pytest.mark.parametrize("with_facts", [False, True], ids=["no facts", "facts"])
@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_of_the_server_after_columns_were_renamed_added_and_dropped(
    form: str, with_facts: bool, seeds: range
) -> None:
    check_seeds(form, seeds, with_facts=with_facts)


@per_property
@given(seed=seeds)
def test_rows_before_and_net_changes_are_the_rows_after_for_any_table(seed: int) -> None:
    rng = random.Random(seed)
    check(rng, rng.choice([*FORMS]), with_facts=True, alters=rng.random() < 0.7, n_steps=rng.randrange(1, 200))
