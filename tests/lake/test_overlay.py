"""Net changes in memory on top of a target give the rows that the target has after them."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from memory_target import MemoryTarget
from test_file_table import NAME, SCHEMAS, Changes, plain_rows

from pgdecode.lake.applied import Applied
from pgdecode.lake.target import ColumnSource
from pgdecode.lake.verification.overlay import Overlay


@pytest.mark.parametrize("form", SCHEMAS)
def test_an_overlay_has_the_rows_that_the_target_has_after_the_changes(form: str, rng: random.Random) -> None:
    for most in (3, 30, 100):
        schema = SCHEMAS[form]
        changes, target = Changes(schema, rng), MemoryTarget()
        with target.opened():
            target.table(NAME).create(schema)
            target.table(NAME).apply(changes.of([], most=200))
            target.commit({NAME: Applied(0, 1)})
            committed = [*target.committed[NAME][1]]
            with Overlay(target).opened() as overlay:
                table, model = overlay.table(NAME), target.table(NAME)
                for step in range(8):
                    net = changes.of(model.rows, most=most)
                    table.apply(net)
                    model.apply(net)
                    assert plain_rows(overlay.read(NAME).read_all().to_pylist()) == plain_rows(model.rows)
                    if step == 4:
                        note = pa.field("more", pa.int64())
                        schema = schema.append(note)
                        sources = {item.name: ColumnSource(item.name) for item in schema}
                        sources["more"] = ColumnSource(missing=pa.scalar(7, pa.int64()))
                        for one in (table, model):
                            one.evolve(schema, sources)
                        if not changes.is_unique:
                            break
                        changes.schema = schema
            assert plain_rows(target.committed[NAME][1]) == plain_rows(committed)


@pytest.mark.parametrize("form", ["a number", "no key"])
def test_an_overlay_discards_what_was_done_since_the_last_commit(form: str, rng: random.Random) -> None:
    schema = SCHEMAS[form]
    changes, target = Changes(schema, rng), MemoryTarget()
    with target.opened():
        target.table(NAME).create(schema)
        target.table(NAME).apply(changes.of([], most=200))
        target.commit({NAME: Applied(0, 1)})
        model = target.table(NAME)
        with Overlay(target).opened() as overlay:
            before = [*model.rows]
            overlay.table(NAME).apply(changes.of(before, most=30))
            overlay.roll_back()
            assert plain_rows(overlay.read(NAME).read_all().to_pylist()) == plain_rows(before)
            net = changes.of(before, most=30)
            overlay.table(NAME).apply(net)
            model.apply(net)
            overlay.commit({NAME: Applied(1, 2)})
            for _ in range(2):
                overlay.table(NAME).apply(changes.of(model.rows, most=30))
                note = pa.field("more", pa.int64())
                sources = {item.name: ColumnSource(item.name) for item in schema} | {"more": ColumnSource()}
                overlay.table(NAME).evolve(schema.append(note), sources)
                overlay.roll_back()
                found = overlay.read(NAME).read_all()
                assert found.column_names == schema.names
                assert plain_rows(found.to_pylist()) == plain_rows(model.rows)
            assert overlay.applied[NAME] == Applied(1, 2)
