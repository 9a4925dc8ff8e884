"""Paths of Parquet columns for the options of the writer."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgdecode
from pgdecode.changes.change_rows import CHANGES
from pgdecode.envelope.schema import envelope_schema
from pgdecode.files import writers
from pgdecode.files.writers import CHANGE_LAYOUT, _leaves, writer_to
from pgdecode.protocol.options import Format
from support import captures

POINT = pa.struct([("x", pa.int32()), ("y.z", pa.list_(pa.field("anything", pa.string())))])
NESTED = pa.schema(
    [
        ("plain", pa.decimal128(20, 4)),
        ("with.dot", pa.timestamp("us", "UTC")),
        ("struct", POINT),
        ("list", pa.list_(pa.list_(POINT))),
        ("large", pa.large_list(pa.binary())),
        ("vector", pa.list_(pa.float32(), 3)),
        ("map", pa.map_(pa.string(), pa.list_(pa.int64()))),
        ("map of structs", pa.map_(pa.int32(), POINT)),
        ("words", pa.dictionary(pa.int32(), pa.string())),
    ]
)


@pytest.mark.parametrize("schema", [CHANGES, envelope_schema(), NESTED], ids=["changes", "messages", "nested"])
def test_columns_have_the_paths_that_parquet_gives_them(schema: pa.Schema) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    written = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    assert _leaves(schema) == [written.column(number).path for number in range(len(written))]


@pytest.mark.full
@pytest.mark.parametrize("format", ["jsonl", "csv"])
@pytest.mark.parametrize("text_bytes", [10, 5000])
def test_text_is_the_same_in_pieces(format: Format, text_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    capture = captures.capture("16.shop.v1")
    batch = pgdecode.ChangeDecoder().decode(capture.column).slice(0, 300)
    assert batch.nbytes > 5000

    def written() -> bytes:
        file = io.BytesIO()
        with writer_to(file, format, batch.schema, CHANGE_LAYOUT) as write:
            write(batch)
        return file.getvalue()

    whole = written()
    monkeypatch.setattr(writers, "_TEXT_BYTES", text_bytes)
    assert written() == whole
