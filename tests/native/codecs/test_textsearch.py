"""tsvector and tsquery, against what servers wrote and an independent printer that follows the documentation."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.oracles.recorded import decoded, refused, value_or_fault

TYPES = ["tsvector", "tsquery"]


lexemes = st.text(
    st.one_of(st.sampled_from("ab'\\ é"), st.characters(exclude_characters="\0", codec="utf-8")), max_size=9
)


def quoted(lexeme: str) -> str:
    """Write a lexeme in quotes."""
    return "'" + lexeme.replace("\\", "\\\\").replace("'", "''") + "'"


@given(
    st.dictionaries(
        lexemes,
        st.dictionaries(st.integers(0, 16383), st.integers(0, 3), max_size=4).map(
            lambda weights: sorted(weights.items())
        ),
    )
)
def test_any_tsvector_is_written_with_positions_and_weights(entries: dict[str, list[tuple[int, int]]]) -> None:
    form = struct.pack(">i", len(entries))
    words = []
    for lexeme, positions in entries.items():
        form += lexeme.encode() + b"\0" + struct.pack(">H", len(positions))
        form += b"".join(struct.pack(">H", weight << 14 | position) for position, weight in positions)
        labels = ",".join(f"{position}{['', 'C', 'B', 'A'][weight]}" for position, weight in positions)
        words.append(quoted(lexeme) + (":" + labels if labels else ""))
    assert decoded("tsvector", [form], binary=True) == [" ".join(words)]


# tsvectorrecv of utils/adt/tsvector.c rejects each of these.
@pytest.mark.parametrize(
    ("form", "code"),
    [
        pytest.param("", "WRONG_SIZE", id="empty"),
        pytest.param("00000000 00", "WRONG_SIZE", id="a byte left over"),
        pytest.param("00000001", "WRONG_SIZE", id="no lexeme"),
        pytest.param("7fffffff 6100 0000", "WRONG_SIZE", id="a count costs nothing"),
        pytest.param("00000001 61", "WRONG_SIZE", id="lexeme without NUL"),
        pytest.param("00000001 6100 00", "WRONG_SIZE", id="count of positions cut short"),
        pytest.param("00000001 6100 0001 00", "WRONG_SIZE", id="position cut short"),
        pytest.param("00000001 6100 0101" + "0001" * 257, "BAD_VALUE", id="257 positions"),
        pytest.param("00000001 6100 0002 0002 0001", "BAD_VALUE", id="positions fall"),
        pytest.param("00000001 6100 0002 0001 c001", "BAD_VALUE", id="position twice"),
        pytest.param("00000001" + "61" * 2048 + "00 0000", "BAD_VALUE", id="lexeme of 2048 bytes"),
        pytest.param("00000001 ff00 0000", "ENCODING", id="not UTF-8"),
    ],
)
def test_a_tsvector_the_server_rejects_is_refused(form: str, code: str) -> None:
    assert refused("tsvector", bytes.fromhex(form), binary=True) == code


# A query as a tree: a lexeme with weights and prefix, ("!", operand), or (operator, left, right).
NOT, AND, OR = 1, 2, 3
operands = st.tuples(lexemes, st.integers(0, 15), st.booleans())
queries = st.recursive(
    operands,
    lambda inner: st.one_of(
        st.tuples(st.just("!"), inner),
        st.tuples(st.sampled_from(["&", "|"]) | st.integers(0, 16384), inner, inner),
    ),
    max_leaves=25,
)


def packed(query) -> tuple[int, bytes]:
    """Write a tree's items in prefix order, right operands first; returns their number too."""
    if len(query) == 2:
        count, form = packed(query[1])
        return count + 1, bytes([2, NOT]) + form
    if len(query) == 3 and isinstance(query[1], tuple):
        operator, (n_left, left), (n_right, right) = query[0], packed(query[1]), packed(query[2])
        head = bytes([2, {"&": AND, "|": OR}.get(operator, 4)])
        head += struct.pack(">H", operator) if isinstance(operator, int) else b""
        return n_left + n_right + 1, head + right + left
    lexeme, weights, prefix = query
    return 1, bytes([1, weights, prefix]) + lexeme.encode() + b"\0"


def binding(query) -> int:
    """How tightly a tree's operator binds: NOT, then phrases, AND, OR (documentation, 8.11.2)."""
    if len(query) == 2:
        return 4
    if len(query) == 3 and isinstance(query[1], tuple):
        return {"&": 2, "|": 1}.get(query[0], 3)
    return 5


def printed(query) -> str:
    """Write a tree as the server does: an operand in parentheses where it binds less tightly than its operator."""

    def operand(inner, right_of_phrase: bool) -> str:
        enclosed = binding(inner) < binding(query) or (right_of_phrase and binding(inner) == 3)
        return f"( {printed(inner)} )" if enclosed else printed(inner)

    if binding(query) == 5:
        lexeme, weights, prefix = query
        labels = "*" * prefix + "".join(letter for i, letter in enumerate("DCBA") if weights >> i & 1)[::-1]
        return quoted(lexeme) + (":" + labels if labels else "")
    if len(query) == 2:
        return "!" + operand(query[1], False)
    sign = f"<{query[0]}>" if isinstance(query[0], int) else query[0]
    left, right = operand(query[1], False), operand(query[2], isinstance(query[0], int))
    return f"{left} {sign.replace('<1>', '<->')} {right}"


@given(queries)
def test_any_tsquery_is_written_with_the_parentheses_it_needs(query) -> None:
    count, form = packed(query)
    assert decoded("tsquery", [struct.pack(">i", count) + form], binary=True) == [printed(query)]


@pytest.mark.parametrize("depth", [63, 64, 65, 10_000, 1_000_000])
def test_nesting_costs_no_stack(depth: int) -> None:
    operand = bytes.fromhex("01 00 00 6100")
    nots = struct.pack(">i", depth + 1) + bytes([2, NOT]) * depth + operand
    assert decoded("tsquery", [nots], binary=True) == ["!" * depth + "'a'"]
    # Every right operand is a phrase again, so that every one but the outermost has its parentheses.
    phrases = struct.pack(">i", 2 * depth + 1) + bytes.fromhex("02 04 0001") * depth + operand * (depth + 1)
    text = "'a' <-> ( " * (depth - 1) + "'a' <-> 'a'" + " )" * (depth - 1)
    assert decoded("tsquery", [phrases], binary=True) == [text]


# tsqueryrecv of utils/adt/tsquery.c rejects each of these. It rejects the empty query too, which tsquerysend sends.
@pytest.mark.parametrize(
    ("form", "code"),
    [
        pytest.param("", "WRONG_SIZE", id="empty"),
        pytest.param("00000000 00", "WRONG_SIZE", id="a byte left over"),
        pytest.param("00000001", "WRONG_SIZE", id="no item"),
        pytest.param("7fffffff 01 00 00 6100", "BAD_VALUE", id="a count costs nothing"),
        pytest.param("00000001 01 00 00 61", "WRONG_SIZE", id="operand without NUL"),
        pytest.param("00000001 01 10 00 6100", "BAD_VALUE", id="weights past ABCD"),
        pytest.param("00000001 01 00 00 ff00", "ENCODING", id="not UTF-8"),
        pytest.param("00000001 01 00 00" + "61" * 2048 + "00", "BAD_VALUE", id="lexeme of 2048 bytes"),
        pytest.param("00000001 03 00 00 6100", "BAD_VALUE", id="item of type 3"),
        pytest.param("00000002 02 00 01 00 00 6100", "BAD_VALUE", id="operator 0"),
        pytest.param("00000002 02 05 01 00 00 6100", "BAD_VALUE", id="operator 5"),
        pytest.param("00000001 02 01", "BAD_VALUE", id="operator without operand"),
        pytest.param("00000002 02 02 01 00 00 6100", "BAD_VALUE", id="operator with one operand of two"),
        pytest.param("00000002 01 00 00 6100 01 00 00 6200", "BAD_VALUE", id="two queries"),
        pytest.param("00000001 02 04 00", "WRONG_SIZE", id="distance cut short"),
    ],
)
def test_a_tsquery_the_server_rejects_is_refused(form: str, code: str) -> None:
    assert refused("tsquery", bytes.fromhex(form), binary=True) == code


@given(st.sampled_from(TYPES), st.binary(max_size=40), st.booleans())
def test_any_bytes_are_a_value_or_a_fault(pg_type: str, form: bytes, binary: bool) -> None:
    value_or_fault(pg_type, form, binary=binary)


@given(
    st.lists(st.sampled_from([b"\1\0\0a\0", b"\2\1", b"\2\2", b"\2\3", b"\2\4\0\2", b"\0", b"a"])), st.integers(0, 20)
)
def test_items_in_any_order_are_a_query_or_a_fault(items: list[bytes], count: int) -> None:
    value_or_fault("tsquery", count.to_bytes(4, "big") + b"".join(items), binary=True)
