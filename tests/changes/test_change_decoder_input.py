"""Input of a ChangeDecoder: payloads in any layout, positions, options and threads."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from pgdecode.changes.change_decoder import ChangeDecoder
from pgdecode.changes.change_rows import CHANGES
from support import captures
from support.change_rows import changes_of, decoded
from support.generators.slot import one_row
from support.oracles import expected_changes, reference_changes

T = 16385  # OID of a table


STREAMS = "18.streams.v2"


def sliced(column: pa.Array) -> pa.Array:
    framed = pa.concat_arrays([pa.array([b"?"], column.type), column, pa.array([b"?"], column.type)])
    return framed.slice(1, len(column))


@pytest.mark.parametrize(
    "as_input",
    [
        pytest.param(lambda column: column.to_pylist(), id="list"),
        pytest.param(lambda column: iter(column.to_pylist()), id="iterator"),
        pytest.param(lambda column: column.cast(pa.large_binary()), id="large_binary"),
        pytest.param(lambda column: column.cast(pa.binary_view()), id="binary_view"),
        pytest.param(lambda column: column.dictionary_encode(), id="dictionary"),
        pytest.param(sliced, id="sliced"),
        pytest.param(lambda column: sliced(column.cast(pa.large_binary())), id="sliced large_binary"),
        pytest.param(lambda column: pa.chunked_array([column]), id="one chunk"),
        pytest.param(
            lambda column: pa.chunked_array([column[:1], column[1:1], column[1:700], column[700:]]), id="chunks"
        ),
        pytest.param(
            lambda column: pa.chunked_array([column[:700].cast(pa.binary_view()), column[700:].cast(pa.binary_view())]),
            id="binary_view chunks",
        ),
    ],
)
def test_payloads_come_in_any_layout(as_input: Any) -> None:
    assert decoded(as_input(captures.capture(STREAMS).column)) == expected_changes.as_text(STREAMS)


def test_calls_may_have_payloads_in_different_layouts() -> None:
    column = captures.capture(STREAMS).column
    decoder = ChangeDecoder()
    changes = []
    types = [pa.binary(), pa.large_binary(), pa.binary_view()]
    for number, start in enumerate(range(0, len(column), 500)):
        changes += changes_of(decoder.decode(column[start : start + 500].cast(types[number % 3])))
    assert changes == expected_changes.as_text(STREAMS)


@pytest.mark.parametrize("size", [1, 3, 44, 45, 1000])
def test_batches_have_at_most_max_rows_and_all_the_changes(size: int) -> None:
    column = captures.capture("18.txns.v2").column
    batches = list(ChangeDecoder().decode_batches(column, max_rows=size))  # 45 changes
    assert [len(batch) for batch in batches[:-1]] == [size] * (45 // size - (45 % size == 0))
    assert 0 < len(batches[-1]) <= size
    assert pa.concat_batches(batches).equals(ChangeDecoder().decode(column))


def test_an_empty_input_gives_no_changes_and_leaves_the_state_unchanged() -> None:
    decoder = ChangeDecoder()
    before = decoder.state
    for nothing in ([], pa.array([], pa.binary()), pa.chunked_array([], pa.binary())):
        batch = decoder.decode(nothing)
        assert batch.schema == CHANGES
        assert len(batch) == 0
    assert decoder.undecided().equals(decoder.decode([]))
    assert decoder.state == before


def test_null_payloads_are_ignored_but_have_positions() -> None:
    payloads = captures.capture("18.txns.v2").payloads
    holes = [None, *(item for payload in payloads for item in (payload, None))]
    found = decoded(holes)
    expected = expected_changes.as_text("18.txns.v2")
    positions = {"position", "commit_position"}
    assert [{k: v * 2 + 1 if k in positions else v for k, v in change.items()} for change in expected] == found


def test_positions_may_have_gaps_and_be_of_any_integer_type() -> None:
    column = captures.capture(STREAMS).column
    positions = pa.array([10 + 7 * i for i in range(len(column))])
    expected = reference_changes.changes(zip(positions.to_pylist(), column.to_pylist(), strict=True))
    for given_as in (positions, positions.cast(pa.uint64()), positions.to_pylist(), pa.chunked_array([positions])):
        assert decoded(column, given_as) == expected


def test_default_positions_continue_from_call_to_call() -> None:
    slot = one_row()
    decoder = ChangeDecoder()
    assert [row["position"] for row in changes_of(decoder.decode(slot.payloads))] == [2]
    decoder.decode([b"E"[:0] or None], [99])
    decoder.reconnected()  # the same transaction again
    assert [row["position"] for row in changes_of(decoder.decode(slot.payloads))] == [102]


@pytest.mark.parametrize(
    ("position", "error", "text"),
    [
        pytest.param([3, 4, 4, 5], ValueError, "row 2: position 4 does not come after 4", id="repeated"),
        pytest.param([3, 4, 5, 1], ValueError, "row 3: position 1 does not come after 5", id="descending"),
        pytest.param([1, 2, 3], ValueError, "position has 3 values for 4 payloads", id="too few"),
        pytest.param([1, 2, 3, None], ValueError, "position has 1 nulls", id="null"),
        pytest.param([1.0, 2.0, 3.0, 4.0], TypeError, "position is a column of integers, not double", id="floats"),
        pytest.param(["1", "2", "3", "4"], TypeError, "position is a column of integers, not string", id="texts"),
        pytest.param([-1, 0, 1, 2], ValueError, "position starts at -1", id="negative"),
        pytest.param([1, 2, 3, 2**63], ValueError, "position exceeds int64", id="past int64"),
        pytest.param([1, 2, 3, 2**70], ValueError, "position exceeds int64", id="past uint64"),
    ],
)
def test_positions_that_do_not_ascend_are_refused(position: list[Any], error: type[Exception], text: str) -> None:
    decoder = ChangeDecoder()
    before = decoder.state
    with pytest.raises(error, match=text):
        decoder.decode(one_row().payloads, position)
    assert decoder.state == before


def test_a_position_before_those_of_an_earlier_call_is_refused() -> None:
    decoder = ChangeDecoder()
    decoder.decode(one_row().payloads, [5, 6, 7, 8])
    with pytest.raises(ValueError, match="position starts at 8, but earlier payloads end at 8"):
        decoder.decode([b"E"], [8])


def test_the_largest_int64_position_can_be_used() -> None:
    decoder = ChangeDecoder()
    last = 2**63 - 1
    assert len(decoder.decode(one_row().payloads, [1, 2, 3, last])) == 1
    assert len(decoder.decode([])) == 0
    with pytest.raises(ValueError, match=f"no position is left for 1 payloads after {last}"):
        decoder.decode([b"E"])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        pytest.param({"mode": "failfast"}, ValueError, id="mode"),
        pytest.param({"limits": {}}, TypeError, id="limits"),
        pytest.param({"state": {}}, ValueError, id="state"),
        pytest.param({"catalog": "public.t"}, TypeError, id="catalog"),
        pytest.param({"catalog": {}}, TypeError, id="an empty mapping as catalog"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        ChangeDecoder(**options)


def test_max_rows_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="max_rows is at least 1, not 0"):
        list(ChangeDecoder().decode_batches([], max_rows=0))


def test_decoders_in_different_threads_are_independent() -> None:
    name = "18.shop.v1"
    column = captures.capture(name).column
    wrong: list[object] = []

    def work(step: int) -> None:
        decoder = ChangeDecoder()
        changes = [
            change
            for start in range(0, len(column), step)
            for change in changes_of(decoder.decode(column[start : start + step]))
        ]
        if changes != expected_changes.as_text(name):
            wrong.append(step)

    expected_changes.as_text(name)
    threads = [threading.Thread(target=work, args=(step,)) for step in (97, 193, 389, 5000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
