"""`NetChanges` keeps the changes that rows need, and forgets the others."""

from __future__ import annotations

import random

import pytest

from pgdecode import ChangeDecoder, NetChanges, net_changes
from pgdecode.net import net_changes as module
from pgdecode.net import touched_rows
from support.generators.random_tables import T, random_table


@pytest.mark.parametrize("identity", ["d", "f", "n"])
def test_changes_that_no_row_needs_are_forgotten(
    identity: str, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, _ = random_table(rng, identity)
    changes = ChangeDecoder().table(slot.payloads, f"public.t{T}")
    expected = net_changes(changes)
    monkeypatch.setattr(touched_rows, "_FEW_ROWS", 0)
    monkeypatch.setattr(module, "_CHANGES", 1)
    net = NetChanges()
    for start in range(0, len(changes), 3):
        net.add(changes.slice(start, 3))
        rows = net._rows
        assert rows is not None
        assert rows._n_changes <= 4 * len(rows) + 3
    assert net.table().to_pylist() == expected.to_pylist()
