"""Tables without columns, which PostgreSQL has, and targets do not have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from lake.memory_target import MemoryTarget
from lake.test_apply_captures import write_payloads

from pgdecode.lake import StaleTables, apply
from support.generators.slot import Slot

T, OTHER = 16385, 16386


def applied(path: Path, *layouts: Sequence[str], truncated: bool = False) -> tuple[MemoryTarget, tuple[str, ...]]:
    """A table with other columns in each transaction, and one row more; the notes of the call."""
    slot, target = Slot(), MemoryTarget()
    for number, columns in enumerate(layouts):
        slot.begin(700 + number)
        slot.relation(OTHER, ["a"])
        slot.insert(OTHER, "1")
        slot.relation(T, columns)
        if truncated and number == len(layouts) - 1:
            slot.truncate(T)
        slot.insert(T, *"1" * len(columns))
        slot.commit()
    write_payloads(path, pa.array(slot.payloads, pa.binary()), 0, len(slot.payloads))
    return target, apply(path, target).notes


def test_a_table_without_columns_is_left_out_with_a_note(tmp_path: Path) -> None:
    target, notes = applied(tmp_path, [])
    assert {*target.committed} == {f"public.t{OTHER}"}
    assert notes == (f"table public.t{T}: position 3: it has no columns: it is left out",)


@pytest.mark.parametrize("layouts", [([], ["a"]), (["a"], [])])
def test_rows_from_before_or_after_a_time_without_columns_are_not_known(
    layouts: Sequence[Sequence[str]], tmp_path: Path
) -> None:
    with pytest.raises(StaleTables, match="no columns") as error:
        applied(tmp_path, *layouts)
    assert {*error.value.tables} == {f"public.t{T}"}
    assert {*error.value.result.tables} >= {f"public.t{OTHER}"}


def test_a_truncate_after_a_time_without_columns_makes_the_rows_known(tmp_path: Path) -> None:
    target, _ = applied(tmp_path, [], ["a"], truncated=True)
    assert len(target.committed[f"public.t{T}"][1]) == 1


def test_a_table_without_columns_may_be_named_and_is_not_read_again(tmp_path: Path) -> None:
    slot, target = Slot(), MemoryTarget()
    names = [f"public.t{OTHER}", f"public.t{T}"]
    notes = []
    for number in range(3):
        start = len(slot.payloads)
        slot.begin(700 + number)
        slot.relation(OTHER, ["a"])
        slot.insert(OTHER, "1")
        if number == 0:
            slot.relation(T, [])
            slot.insert(T)
        slot.commit()
        write_payloads(tmp_path / "raw", pa.array(slot.payloads, pa.binary()), start, len(slot.payloads))
        notes.append(apply(tmp_path / "raw", target, tables=names).notes)
        assert apply(tmp_path / "raw", target).notes == ()
    assert notes == [(f"table public.t{T}: position 3: it has no columns: it is left out",), (), ()]
