"""Payloads of random changes of one table: inserts, updates, changed keys, deletes and truncates."""

from __future__ import annotations

import random
from typing import Any

from support.generators.slot import Slot
from support.generators.slots import UNCHANGED

T = 16385
Rows = list[list[str | None]]


def random_table(rng: random.Random, identity: str, n: int = 300) -> tuple[Slot, Rows]:
    """Write changes of a table (id, v, toast); "d" has the key id, "f" the whole row, "n" none."""
    slot = Slot()
    keys = {"d": ["id"], "f": ["id", "v", "toast"], "n": []}[identity]
    rows: Rows = []
    numbers = iter(range(n))
    slot.begin(700)
    slot.relation(T, ["id", "v", "toast"], keys=keys, identity=identity)
    for number in numbers:
        if rng.random() < 0.2:
            slot.commit()
            slot.begin(701 + number)
        op = rng.choices(["insert", "update", "move", "delete", "truncate"], [40, 30, 15, 14, 1])[0]
        if identity == "n" and op not in ("insert", "truncate"):
            op = "insert"
        if op == "insert" or (not rows and op != "truncate"):
            row = [str(number) if identity == "d" else str(rng.randrange(3)), rng.choice(["a", None]), rng.choice("xy")]
            rows.append(row)
            slot.insert(T, *row)
        elif op == "truncate":
            rows.clear()
            slot.truncate(T)
        elif op == "delete":
            row = rows.pop(rng.randrange(len(rows)))
            if identity == "d":
                slot.delete(T, row[0], None, None, old_type="K")
            else:
                slot.delete(T, *row, old_type="O")
        else:
            at = rng.randrange(len(rows))
            before = rows[at]
            # A key that is free now. Another row may have had it before.
            free = sorted({str(item) for item in (*range(number), *range(n, 2 * n))} - {str(row[0]) for row in rows})
            key = rng.choice(free) if op == "move" and identity == "d" else before[0]
            keeps = rng.random() < 0.7
            rows[at] = [key, rng.choice(["a", "b", None]), before[2] if keeps else rng.choice("xyz")]
            # The old row includes the value.
            sent: list[Any] = [*rows[at][:2], UNCHANGED if keeps else rows[at][2]]
            if identity == "f":
                slot.update(T, *sent, old=before, old_type="O")
            elif key != before[0]:
                slot.update(T, *sent, old=[before[0], None, None], old_type="K")
            else:
                slot.update(T, *sent)
    slot.commit()
    return slot, rows
