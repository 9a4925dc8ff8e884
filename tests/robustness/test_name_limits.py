"""`Limits.max_expansion` counts names too: short payloads of tables with long names make no batch of any size."""

from __future__ import annotations

import pyarrow as pa
import pytest

import pgdecode
from pgdecode import ChangeDecoder, Column, Insert, Limits, Relation, Truncate, Update
from pgdecode.protocol.limits import FREE_EXPANSION
from support.generators.encoder import encode
from support.generators.slot import Slot
from support.tiers import full

TEXT = 25


def relation(n_columns: int, name_bytes: int, relation_id: int = 1, name: str = "t") -> Relation:
    names = (f"c{i:04}".ljust(name_bytes, "x") for i in range(n_columns))
    return Relation(relation_id, "s", name, "d", tuple(Column(0, item, TEXT, -1) for item in names))


def nulls(n_columns: int) -> bytes:
    return encode(Insert(relation_id=1, new=(None,) * n_columns, new_formats="n" * n_columns))


def unchanged(n_columns: int) -> bytes:
    return encode(
        Update(
            relation_id=1,
            old_type=None,
            old=None,
            old_formats=None,
            new=(None,) * n_columns,
            new_formats="u" * n_columns,
        )
    )


def transaction(described: Relation, rows: list[bytes]) -> list[bytes]:
    slot = Slot()
    slot.begin(700)
    slot.payloads += [encode(described), *rows]
    slot.commit()
    return slot.payloads


def most_of(payloads: list[bytes], times: int = 16) -> int:
    """The limit of a batch, and some for columns of constant width and for memory that is reserved."""
    return FREE_EXPANSION + times * sum(map(len, payloads)) + 2**20


HOSTILE = [
    full(relation(1600, 252), [nulls(1600)] * 600, id="nulls in maps"),
    pytest.param(relation(1600, 252), [unchanged(1600)] * 600, id="unchanged values"),
    pytest.param(
        relation(0, 0, name="n" * 252), [encode(Insert(relation_id=1, new=(), new_formats=""))] * 400_000, id="relation"
    ),
    pytest.param(
        relation(0, 0, name="n" * 252),
        [encode(Truncate(relation_ids=(1,) * 100_000, options=0))] * 4,
        id="truncates of a table",
    ),
]


@pytest.mark.parametrize(("described", "rows"), HOSTILE)
def test_names_past_the_limit_come_in_several_batches(described: Relation, rows: list[bytes]) -> None:
    payloads = transaction(described, rows)
    n_rows = 400_000 if rows[0][:1] == b"T" else len(rows)
    batches = [(batch.num_rows, text_of(batch)) for batch in ChangeDecoder().decode_batches(payloads, max_rows=2**30)]
    assert len(batches) > 1
    assert sum(n for n, _ in batches) == n_rows
    assert max(n_bytes for _, n_bytes in batches) <= most_of(payloads)


def text_of(batch: pa.RecordBatch) -> int:
    """Bytes of names and values in a batch of changes."""
    total = 0
    for column in batch.columns:
        leaves = [column.keys, column.items] if pa.types.is_map(column.type) else [column]
        leaves = [leaf.flatten() if pa.types.is_list(leaf.type) else leaf for leaf in leaves]
        # Columns of nothing but nulls share pages of zeros, as many as any call of the process has needed.
        leaves = [leaf for leaf in leaves if pa.types.is_string(leaf.type) and leaf.null_count < len(leaf)]
        total += sum(leaf.buffers()[2].size for leaf in leaves if leaf.buffers()[2])
    return total


@pytest.mark.parametrize("mode", [full("FAILFAST"), "PERMISSIVE"])
@pytest.mark.parametrize("make", [nulls, full(unchanged)])
def test_one_batch_past_the_limit_is_refused_and_leaves_the_decoder_as_it_was(mode: str, make: object) -> None:
    payloads = transaction(relation(1600, 252), [make(1600)] * 600)  # type: ignore[operator]
    decoder = ChangeDecoder(mode=mode)
    with pytest.raises(pgdecode.BatchExpands, match=r"would exceed Limits\.max_expansion; decode fewer rows at once"):
        decoder.decode(payloads)
    assert sum(batch.num_rows for batch in decoder.decode_batches(payloads)) == 600


@pytest.mark.full
def test_names_of_unchanged_values_count_in_a_typed_table() -> None:
    described = relation(1600, 252)
    rows = [unchanged(1600)] * 600
    for decode in (
        lambda: pgdecode.decode_rows(rows, described),
        lambda: ChangeDecoder().table(transaction(described, rows), "s.t"),
    ):
        with pytest.raises(pgdecode.BatchExpands):
            decode()
    # What is null has no name in a typed table.
    assert pgdecode.decode_rows([nulls(1600)] * 600, described).num_rows == 600
    batches = list(ChangeDecoder().table_batches(transaction(described, rows), "s.t"))
    assert sum(batch.num_rows for batch in batches) == 600
    assert len(batches) > 1


@pytest.mark.full
@pytest.mark.parametrize("name_bytes", [10, 30, 63])
@pytest.mark.parametrize("make", [nulls, unchanged])
def test_an_honest_table_of_many_columns_and_few_values_passes(name_bytes: int, make: object) -> None:
    described = relation(200, name_bytes)
    rows = [make(200)] * 6000  # type: ignore[operator]
    payloads = transaction(described, rows)
    assert ChangeDecoder().decode(payloads).num_rows == 6000
    assert ChangeDecoder().table(payloads, "s.t").num_rows == 6000
    assert pgdecode.decode_rows(rows, described).num_rows == 6000
    assert sum(batch.num_rows for batch in ChangeDecoder().decode_batches(payloads)) == 6000


def test_one_letter_values_under_long_names_pass() -> None:
    described = relation(50, 63)
    rows = [encode(Insert(relation_id=1, new=(b"x",) * 50, new_formats="t" * 50))] * 20_000
    payloads = transaction(described, rows)
    assert ChangeDecoder().decode(payloads, None).num_rows == 20_000


def test_many_small_chunks_do_not_each_have_what_is_free() -> None:
    chunk = transaction(relation(1600, 252), [nulls(1600)] * 30)
    payloads = pa.chunked_array([pa.array(chunk, pa.binary())] * 30)
    with pytest.raises(pgdecode.BatchExpands):
        # Each chunk is the same transaction.
        ChangeDecoder(mode="PERMISSIVE", limits=Limits(max_expansion=1)).decode(payloads)


@pytest.mark.full
@pytest.mark.long
def test_errors_of_one_batch_count_as_those_of_two() -> None:
    payloads = pa.array([b""] * 450_000, pa.binary())
    for column in (payloads, pa.chunked_array([payloads[:200_000], payloads[200_000:]])):
        with pytest.raises(pgdecode.BatchExpands):
            ChangeDecoder(mode="PERMISSIVE", empty="error").decode(column)
