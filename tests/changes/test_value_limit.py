"""A value above `Limits.max_value_bytes`: in PERMISSIVE mode it is null, and the other values of its row stay."""

from __future__ import annotations

from typing import Any

import pytest

import pgdecode
from pgdecode import ChangeDecoder, Limits
from support.generators.slot import Slot
from support.generators.slots import UNCHANGED
from support.oracles import reference_changes

T = 16385
TABLE = f"public.t{T}"
LIMITS = Limits(max_value_bytes=20)
FAULT = "LIMIT_VALUE at offset 15: column 'v' has {} bytes, limit 20"


def slot() -> Slot:
    made = Slot()
    made.begin(7)
    made.relation(T, ["id", "v", "w"], keys=["id"], types=[23, 25, 25])
    made.insert(T, "1", "x" * 50, "ok")
    made.insert(T, "2", "y" * 20, "z")
    made.update(T, "3", UNCHANGED, "w", old=["3", "o" * 70, None], old_type="O")
    made.delete(T, "4", "d" * 80, "e")
    made.commit()
    return made


def test_a_value_above_the_limit_is_null_in_a_table_and_its_row_is_not() -> None:
    rows = ChangeDecoder(mode="PERMISSIVE", limits=LIMITS).table(slot().payloads, TABLE).to_pylist()
    assert [(row["id"], row["v"], row["w"], row["_error"]) for row in rows] == [
        (1, None, "ok", FAULT.format(50)),
        (2, "y" * 20, "z", None),
        (3, None, "w", FAULT.format(70)),
        (4, None, "e", FAULT.format(80)),
    ]
    assert [row["_old"] for row in rows[2:]] == [{"id": 3, "v": None, "w": None}, {"id": 4, "v": None, "w": "e"}]
    # The old tuple has the value that the update left out, but it was not decoded.
    assert [row["_unchanged"] for row in rows] == [[], [], ["v"], []]


def test_a_value_above_the_limit_is_null_in_changes_and_its_row_is_not() -> None:
    rows = ChangeDecoder(mode="PERMISSIVE", limits=LIMITS).decode(slot().payloads).to_pylist()
    assert [(row["old"] and dict(row["old"]), row["new"] and dict(row["new"]), row["error"]) for row in rows] == [
        (None, {"id": "1", "v": None, "w": "ok"}, FAULT.format(50)),
        (None, {"id": "2", "v": "y" * 20, "w": "z"}, None),
        ({"id": "3", "v": None, "w": None}, {"id": "3", "w": "w"}, FAULT.format(70)),
        ({"id": "4", "v": None, "w": "e"}, None, FAULT.format(80)),
    ]


@pytest.mark.parametrize("n", [1, 700])
def test_rows_of_one_relation_keep_their_other_values(n: int) -> None:
    payloads = slot().payloads
    relation = pgdecode.decode(payloads[1])
    assert isinstance(relation, pgdecode.Relation)
    batch = pgdecode.decode_rows([*[payloads[3]] * (n - 1), payloads[2]], relation, mode="PERMISSIVE", limits=LIMITS)
    batch.validate(full=True)
    last = batch.to_pylist()[-1]
    assert (last["id"], last["v"], last["w"], last["_error"]) == (1, None, "ok", FAULT.format(50))
    assert batch["_error"].null_count == n - 1


@pytest.mark.parametrize("what", ["table", "decode"])
@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
def test_other_modes_refuse_the_row(what: str, mode: Any) -> None:
    decoder = ChangeDecoder(mode=mode, limits=LIMITS)
    arguments = (TABLE,) if what == "table" else ()
    if mode == "DROPMALFORMED":
        assert getattr(decoder, what)(slot().payloads, *arguments).num_rows == 1
        assert dict(decoder.bad_rows) == {"LIMIT_VALUE": 3}
        return
    with pytest.raises(pgdecode.ValueTooLong, match=r"^row 2, offset 15: column 'v' has 50 bytes, limit 20$") as caught:
        getattr(decoder, what)(slot().payloads, *arguments)
    assert (caught.value.column, caught.value.expected, caught.value.seen) == ("v", 20, 50)


@pytest.mark.full
def test_a_transaction_with_values_above_64_mib_is_decoded_by_default() -> None:
    made = Slot()
    made.begin(7)
    made.relation(T, ["id", "v"], keys=["id"], types=[23, 17])
    made.insert(T, "1", "\\x" + "ab" * (34 << 20))
    made.insert(T, "2", "\\x00")
    made.commit()
    (row, other) = ChangeDecoder().table(made.payloads, TABLE)["v"].to_pylist()
    assert (row, other) == (b"\xab" * (34 << 20), b"\0")
    del row
    expected = reference_changes.changes(enumerate(made.payloads))
    assert len(ChangeDecoder().decode(made.payloads)["new"][0][1][1].as_py()) == len(expected[0]["new"]["v"])


def test_changes_with_large_values_are_built_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgdecode.changes.record_batches._SLICE_BYTES", 3000)
    made = Slot()
    made.begin(7)
    made.relation(T, ["id", "v"], keys=["id"], types=[23, 25])
    for number in range(12):
        made.insert(T, str(number), "x" * 1000)
    made.commit()
    batches = list(ChangeDecoder().table_batches(made.payloads, TABLE))
    assert max(map(len, batches)) <= 3
    assert [row for batch in batches for row in batch["id"].to_pylist()] == list(range(12))
    assert ChangeDecoder().table(made.payloads, TABLE).num_rows == 12
