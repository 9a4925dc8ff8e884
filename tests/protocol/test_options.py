"""Options with few values: which values they have, and what is said of others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import pgdecode
from pgdecode.payloads.unwrap import unwrap
from pgdecode.protocol.options import ChangeOptions, Format, Mode, check_option, check_row_mode
from support.captures import capture

SHOP = capture("16.shop.v1").column
RELATION = pgdecode.Relation(16385, "public", "t", "d", ())


@pytest.mark.parametrize(
    ("name", "value", "values", "error", "text"),
    [
        pytest.param("mode", "FAILFAST", Mode, None, "", id="a value"),
        pytest.param(
            "mode",
            "permissive",
            Mode,
            ValueError,
            'mode is "FAILFAST", "PERMISSIVE" or "DROPMALFORMED", not \'permissive\'',
            id="another string",
        ),
        pytest.param(
            "format", None, Format, TypeError, 'format is "parquet", "jsonl" or "csv", not NoneType', id="None"
        ),
        pytest.param(
            "format", ["csv"], Format, TypeError, 'format is "parquet", "jsonl" or "csv", not list', id="list"
        ),
    ],
)
def test_one_wording_says_which_values_there_are(
    name: str, value: object, values: Any, error: type[Exception] | None, text: str
) -> None:
    if error is None:
        check_option(name, value, values)
        return
    with pytest.raises(error) as raised:
        check_option(name, value, values)
    assert str(raised.value) == text


@pytest.mark.parametrize("option", ["mode", "start", "empty"])
@pytest.mark.parametrize(("value", "error"), [("x", ValueError), (None, TypeError)])
def test_change_options_are_checked_when_they_are_made(option: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{option} is "):
        ChangeOptions(**{option: value})


def test_limits_of_another_type_are_refused() -> None:
    calls: list[Callable[[Any], Any]] = [
        lambda limits: pgdecode.decode_messages([], limits=limits),
        lambda limits: pgdecode.decode_rows([], RELATION, limits=limits),
        lambda limits: pgdecode.ChangeDecoder(limits=limits),
        lambda limits: pgdecode.snapshot([], "public.t", limits=limits),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"^limits is a Limits, not int$"):
            call(5)


ROWS_STAY: dict[str, Callable[..., Any]] = {
    "decode_messages": lambda mode: pgdecode.decode_messages([], mode=mode),
    "MessageDecoder": lambda mode: pgdecode.MessageDecoder(mode=mode),
    "decode_rows": lambda mode: pgdecode.decode_rows([], RELATION, mode=mode),
}
ROWS_MAY_GO: dict[str, Callable[..., Any]] = {
    "ChangeDecoder": lambda mode: pgdecode.ChangeDecoder(mode=mode),
    "snapshot": lambda mode: pgdecode.snapshot(SHOP, "public.orders", mode=mode),
}


@pytest.mark.parametrize("name", ROWS_STAY)
def test_a_function_with_a_row_for_each_payload_refuses_to_drop_rows(name: str) -> None:
    with pytest.raises(ValueError, match=r'"DROPMALFORMED": the result has a row for each payload; use "PERMISSIVE"'):
        ROWS_STAY[name]("DROPMALFORMED")
    with pytest.raises(ValueError, match=r"""^mode is "FAILFAST" or "PERMISSIVE", not 'failfast'$"""):
        ROWS_STAY[name]("failfast")


@pytest.mark.parametrize("name", ROWS_MAY_GO)
def test_a_function_of_changes_may_drop_rows(name: str) -> None:
    assert ROWS_MAY_GO[name]("DROPMALFORMED") is not None
    with pytest.raises(ValueError, match=r"""^mode is "FAILFAST", "PERMISSIVE" or "DROPMALFORMED", not 'x'$"""):
        ROWS_MAY_GO[name]("x")


def test_the_text_of_a_refused_mode_names_the_column_of_errors() -> None:
    for column in ("error", "_error"):
        with pytest.raises(ValueError, match=f"a filter on {column}$"):
            check_row_mode("DROPMALFORMED", column)


def test_an_unknown_frame_is_refused_in_the_same_words() -> None:
    with pytest.raises(ValueError, match=r"""^unwrap is "auto", "none", "hex", "base64" or "xlogdata", not 'gzip'$"""):
        unwrap(pa.array([b"E"]), "gzip")  # type: ignore[arg-type]
