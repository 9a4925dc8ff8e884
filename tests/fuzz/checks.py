"""What has to hold of an input, by the package's public functions: one function a target, which raises where not.

The native targets check the same of the C core where they can. Here Arrow, the tests' reference decoder and a second
call under other options judge; this is also how the suite replays the corpus.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

import pgdecode
from fuzz import blocks, inputs
from fuzz.inputs import JOINED, LAYOUT_SHIFT, LAYOUTS, STATES, STREAMED, STRICT, TIGHT
from fuzz.variants import VARIANTS
from pgdecode import ChangeDecoder, DecodeError, Limits, decode_messages, decode_rows
from pgdecode._native.arrow.payload_array import Source
from pgdecode._native.literals.encoded_bytes import decoded_text
from pgdecode._native.wire.recvlogical_file import whole_messages
from pgdecode.envelope.decoder import MessageDecoder
from pgdecode.protocol import messages
from support import compare
from support.oracles import encoded_texts
from support.oracles.reference_changes import DELIMITERS
from support.values import composite, decode_inserts, insert, inside

Check = Callable[[bytes], None]

LIMITS = (Limits(), Limits(**inputs.TIGHT_LIMITS))
COLUMNS = [column.name for column in messages.ENVELOPE]
DATA = Path(__file__).parent.parent / "data"
# Whose tables the targets `rows` and `changes` know.
CAPTURES = ("18.types.v2bin", "10.shop.v1", "16.streams.v2")
MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED", "PERMISSIVE")
UNREPRESENTABLE = ("error", "null", "clamp", "text")
FORMS = ("hex", "base64", "auto")
SETTINGS = (("UTF8", "ISO, MDY"), ("UTF8", "SQL, DMY"), ("LATIN1", "ISO, MDY"), ("SJIS", "German, DMY"))


def leaving_nothing(check: Check) -> Check:
    """After a check, Arrow's pool holds what it held before."""

    @wraps(check)
    def checked(data: bytes) -> None:
        before = pa.total_allocated_bytes()
        check(data)
        if pa.total_allocated_bytes() > before:
            # An exception and its frames may hold each other; those of the check before may have gone meanwhile.
            gc.collect()
        assert pa.total_allocated_bytes() <= before, "memory was not given back"

    return checked


@contextmanager
def refusals(found: list[DecodeError]) -> Iterator[None]:
    """Keep what a call refuses; what else is raised passes through."""
    try:
        yield
    except DecodeError as error:
        found.append(error.with_traceback(None))


# -- messages --------------------------------------------------------------------------------------------------------


@leaving_nothing
def check_walk(data: bytes) -> None:
    """One payload, read as the reference decoder reads it."""
    if data:
        _check_messages([data[1:]], bool(data[0] & STREAMED), data[0], "binary", None)


@leaving_nothing
def check_batch(data: bytes) -> None:
    """A batch of payloads, in some layout, into some columns."""
    if len(data) < 5:
        return
    mask = int.from_bytes(data[1:5], "big")
    fields = [name for i, name in enumerate(COLUMNS) if mask >> i & 1 and name not in ("kind", "error")]
    layout = LAYOUTS[data[0] >> LAYOUT_SHIFT & 3]
    wanted = None if mask == 0xFFFFFFFF else ["kind", *fields, "error"]
    _check_messages(inputs.payloads_of(data[5:]), STATES[data[0] & 3], data[0], layout, wanted)


def _check_messages(
    payloads: list[bytes | None], state: Any, options: int, layout: str, fields: list[str] | None
) -> None:
    if layout == "spans":
        column: Any = payloads
    elif options & JOINED and layout != "binary_view":
        column = blocks.whole(payloads, layout)
    else:
        column = blocks.column(payloads, layout)
    limits, strict = LIMITS[bool(options & TIGHT)], bool(options & STRICT)
    given: dict[str, Any] = {"in_stream": state, "limits": limits, "strict_flags": strict}
    batch = decode_messages(column, fields=fields, mode="PERMISSIVE", **given)
    batch.validate(full=True)
    reported = batch["error"].to_pylist()
    first = next((row for row, text in enumerate(reported) if text is not None), None)
    refused: list[DecodeError] = []
    with refusals(refused):
        again = decode_messages(column, fields=fields, mode="FAILFAST", **given)
        assert again.equals(batch), "the modes decode differently"
    assert [error.row for error in refused] == ([] if first is None else [first]), "the modes refuse different rows"
    if first is not None:
        assert reported[first].startswith(f"{refused[0].code} at offset {refused[0].offset}: ")
    if not isinstance(state, bool):
        return
    rows = compare.rows_of(batch)
    for payload, row, text in zip(payloads, rows, reported, strict=True):
        if not payload:  # no bytes are a null row
            assert set(row.values()) == {None}
            continue
        alone: list[DecodeError] = []
        with refusals(alone):
            pgdecode.decode(blocks.exact(payload), in_stream=state, limits=limits, strict_flags=strict)
        if alone and alone[0].code == "OUT_OF_RANGE" and text is None:
            continue  # a timestamp that datetime has not
        assert [error.code for error in alone] == ([] if text is None else [text.split()[0]]), "decode differs"
        if strict and limits == LIMITS[0]:
            stream_flag = compare.reference_verdict(payload, state)
            if isinstance(stream_flag, dict):
                assert row == {name: stream_flag.get(name, row[name]) for name in row}, (
                    "the reference decoder reads something else"
                )
            else:
                assert text.startswith(f"{stream_flag[0]} at offset {stream_flag[1]}: "), (
                    "the reference decoder disagrees"
                )


# -- values ----------------------------------------------------------------------------------------------------------


@leaving_nothing
def check_text(data: bytes) -> None:
    """A value in the text form."""
    _check_value(data, binary=False)


@leaving_nothing
def check_binary(data: bytes) -> None:
    """A value in the binary form."""
    _check_value(data, binary=True)


def _check_value(data: bytes, *, binary: bool) -> None:
    if len(data) < 2:
        return
    decoding = list(VARIANTS.values())[int.from_bytes(data[:2], "big") % len(VARIANTS)]
    value = data[2:]
    found = []
    refused: list[DecodeError] = []
    for payloads in ([insert(value, binary=binary)], [insert(value, binary=binary), insert(None, binary=binary)]):
        with refusals(refused):
            found.append(decode_inserts(decoding, blocks.whole(payloads, "binary"))[:1])
    # A container's items are decoded one by one, and those of a column in blocks.
    whole = insert(composite(value, decoding, binary=binary), binary=binary)
    with refusals(refused):
        found.append(decode_inserts(inside(decoding), blocks.column([whole], "binary")).field("value"))
    assert len(found) in (0, 3), "a block decoder and that of single values have two verdicts"
    for array in found:
        array.validate(full=True)
        assert len(array) == 1
    assert all(compare.same_values(array, found[0]) for array in found), "two decoders made two values"
    assert len({(error.code, error.row, error.column) for error in refused}) <= 1, "two decoders refuse for two reasons"


# -- text and files --------------------------------------------------------------------------------------------------


@leaving_nothing
def check_encoded(data: bytes) -> None:
    """Values in hexadecimal digits or base64, decoded as Python's library decodes them."""
    if not data:
        return
    form = FORMS[data[0] % len(FORMS)]
    layout = LAYOUTS[1:][(data[0] >> LAYOUT_SHIFT) % len(LAYOUTS[1:])]
    values = inputs.payloads_of(data[1:])
    expected = [None if value is None else encoded_texts.decoded(value, form) for value in values]
    first = next(
        (
            row
            for row, (value, found) in enumerate(zip(values, expected, strict=True))
            if value is not None and found is None
        ),
        -1,
    )
    parts = (
        [blocks.whole(values, layout)]
        if data[0] & JOINED and layout != "binary_view"
        else blocks.column(values, layout).chunks
    )
    row, buffers = decoded_text(Source(parts), form)
    assert row == first, "another value is refused"
    if buffers is not None:
        found = pa.Array.from_buffers(pa.large_binary(), len(values), buffers)
        found.validate(full=True)
        assert found.to_pylist() == expected, "a value is decoded to other bytes"


@leaving_nothing
def check_file(data: bytes) -> None:
    """A file of pg_recvlogical, split where the structure of its messages says, each of which is well-formed."""
    if len(data) < 2:
        return
    content, abort_bytes = data[1:], (9, 25)[data[0] & 1]
    expected = encoded_texts.plain_split(content, abort_bytes)
    view = memoryview(blocks.exact(content)).cast("B")
    n, buffers, end, in_stream = whole_messages(view, 0, False, abort_bytes, inputs.MAX_ROWS)
    found = pa.Array.from_buffers(pa.large_binary(), n, buffers)
    found.validate(full=True)
    assert found.to_pylist() == [payload for payload, _ in expected[:n]], "the file is split elsewhere"
    assert end == sum(len(payload) + 1 for payload, _ in expected[:n]), "the end is elsewhere"
    if n < min(len(expected), inputs.MAX_ROWS):
        payload, state = expected[n]
        assert in_stream == state, "the stream state is another"
        refused: list[DecodeError] = []
        with refusals(refused):
            pgdecode.decode(payload, in_stream=state, strict_flags=False)
        assert refused, "a well-formed message is left"


# -- rows and changes ------------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """A table of a capture, and the types that were described before it."""

    capture: str
    relation: pgdecode.Relation
    types: list[pgdecode.Type]


@cache
def relations() -> list[Known]:
    """Tables of the captures, as they were described last."""
    found: dict[tuple[str, int], Known] = {}
    for name in CAPTURES:
        types: list[pgdecode.Type] = []
        for payload in pq.read_table(DATA / f"{name}.parquet", columns=["data"])["data"].to_pylist():
            if payload[:1] not in (b"R", b"Y"):
                continue
            message = None
            for in_stream in (False, True):
                with refusals([]):
                    message = message or pgdecode.decode(payload, in_stream=in_stream)
            if isinstance(message, pgdecode.Type):
                types.append(message)
            elif isinstance(message, pgdecode.Relation):
                found[name, message.relation_id] = Known(name, message, list(types))
    return list(found.values())


@leaving_nothing
def check_rows(data: bytes) -> None:
    """Payloads of one relation, into typed columns."""
    if len(data) < 2:
        return
    encoding, datestyle = SETTINGS[data[0] >> 2 & 3]
    known = relations()[data[1] % len(relations())]
    payloads = inputs.payloads_of(data[2:])
    layout = "large_binary" if data[0] & STRICT else "binary"
    given: dict[str, Any] = {
        "type_messages": known.types,
        "unrepresentable": UNREPRESENTABLE[data[0] & 3],
        "encoding": encoding,
        "datestyle": datestyle,
    }
    batch = decode_rows(blocks.whole(payloads, layout), known.relation, mode="PERMISSIVE", **given)
    batch.validate(full=True)
    reported = batch["_error"].to_pylist()
    first = next((row for row, text in enumerate(reported) if text is not None), None)
    refused: list[DecodeError] = []
    with refusals(refused):
        again = decode_rows(blocks.column(payloads, layout), known.relation, mode="FAILFAST", **given)
        assert again.schema == batch.schema, "the modes decode differently"
        assert all(map(compare.same_values, again.columns, batch.columns)), "the modes decode differently"
    assert [error.row for error in refused] == ([] if first is None else [first]), "the modes refuse different rows"


@leaving_nothing
def check_changes(data: bytes) -> None:
    """Payloads in slot order to committed changes: cut into batches anywhere, the same comes of them."""
    if len(data) < 2:
        return
    payloads = inputs.payloads_of(data[2:])
    given: dict[str, Any] = {
        "mode": MODES[data[0] & 3],
        "include_uncommitted": bool(data[0] & 4),
        "drop_duplicates": bool(data[0] & 8),
        "strict_flags": bool(data[0] & STRICT),
    }
    step = 1 + data[1] % 7
    through_state = bool(data[1] & 0x80)
    decoder = ChangeDecoder(**given)
    refused: list[DecodeError] = []
    whole = None
    with refusals(refused):
        whole = decoder.decode(blocks.whole(payloads, "binary"))
        whole.validate(full=True)
    pieces = []
    other = ChangeDecoder(**given)
    refused_later: list[DecodeError] = []
    for start in range(0, len(payloads), step):
        if through_state:
            other = ChangeDecoder(state=json.loads(json.dumps(other.state)), **given)
        before = other.state
        with refusals(refused_later):
            pieces.append(other.decode(blocks.column(payloads[start : start + step], "large_binary")))
        if refused_later:
            assert other.state == before, "after an exception the decoder stands elsewhere"
            break
    if not _told_alike(payloads, given["strict_flags"]):
        return
    # Not which payload: all of a batch are checked before the values of any, and one of an earlier batch has no row.
    assert len(refused_later) == len(refused), "cut, the payloads are refused or taken otherwise"
    if whole is None:
        return
    table = pa.Table.from_batches(pieces, schema=whole.schema)
    assert table.equals(pa.Table.from_batches([whole])), "cut, other changes come of the payloads"
    assert standing(other) == standing(decoder), "cut, the decoder stands elsewhere"
    if data[0] & TIGHT:
        _check_tables(decoder, given, payloads)


def _told_alike(payloads: list[bytes | None], strict_flags: bool) -> bool:
    """Whether the streams of payloads are the same if each is a batch.

    They may not be before the first delimiter, nor where one contradicts those before: what comes later in a batch
    tells, too, what lies in a stream.
    """
    given: dict[str, Any] = {"fields": ["kind", "xid", "error"], "mode": "PERMISSIVE", "strict_flags": strict_flags}
    whole = pa.Table.from_batches([decode_messages(payloads, **given)])
    decoder = MessageDecoder(**given)
    alone = pa.Table.from_batches([decoder.decode([payload]) for payload in payloads], whole.schema)
    for payload, error in zip(payloads, whole["error"].to_pylist(), strict=True):
        if error is not None:
            return False
        if payload and payload[0] in DELIMITERS:
            break
    return bool(alone.equals(whole))


def standing(decoder: ChangeDecoder) -> dict[str, Any]:
    """The state of a decoder, whatever the batches in which it has been given the payloads that it holds."""
    state = decoder.state
    for item in [state["open"] or {"held": []}, *state["streamed"], *state["prepared"]]:
        held = item["held"]
        item["held"] = {name: [value for piece in held for value in piece[name]] for name in (held[0] if held else ())}
    return state


def _check_tables(decoder: ChangeDecoder, options: dict[str, Any], payloads: list[bytes | None]) -> None:
    """The tables that were described, as typed columns."""
    decoder.undecided().validate(full=True)
    for name in decoder._engine.layout_catalog.names:
        try:
            ChangeDecoder(**options).table(blocks.whole(payloads, "binary"), name).validate(full=True)
        except DecodeError:
            continue
        except ValueError as error:
            # Of a table with columns that have names of our own.
            if "cannot stand side by side" not in str(error) and "metadata column" not in str(error):
                raise
