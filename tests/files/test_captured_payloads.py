"""`read_capture`: the payloads of captured files, and what their footers say, from each place and for each reader."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pgdecode
from pgdecode.datasets.errors import RunError
from pgdecode.files.payload_file import FileFault
from pgdecode.storage.errors import PathError
from support import captures
from support.captured_files import GAP, ORIGIN, RELATION, captured

BINARY = captures.DATA / "capture"


def test_binary_tuples_of_user_defined_types_are_decoded_without_types() -> None:
    # `pgdecode.capture.demo` has the statements, whose status is an enum and whose price a domain.
    capture = pgdecode.read_capture(BINARY)
    assert (capture.positions.to_pylist(), capture.payloads.type) == ([*range(52)], pa.binary())
    assert repr(capture) == "CapturedPayloads(2 files, 52 payloads)"
    decoder = pgdecode.ChangeDecoder(**capture.options)
    products = decoder.table(capture.payloads, "public.products", capture.positions)
    assert products.schema.field("price").type == pa.decimal128(10, 2)
    rows = pgdecode.snapshot(capture.payloads, "public.orders", capture.positions, **capture.options)
    assert rows.sort_by("id")["status"].to_pylist() == ["paid", "new"]
    assert decoder.table_schema("public.orders").field("status").metadata[b"pg:type"] == b"order_status"
    assert len(pgdecode.decode_messages(capture.payloads)) == 52


def test_a_file_a_folder_and_several_of_them_are_read_in_slot_order(tmp_path: Path) -> None:
    first, second = sorted(BINARY.glob("*.parquet"))
    whole = pgdecode.read_capture(BINARY)
    (tmp_path / "day=2" / "deep").mkdir(parents=True)
    moved = Path(shutil.copy(second, tmp_path / "day=2" / "deep"))
    for source in ([second, first], [str(tmp_path), first], (path for path in (moved, first, moved))):
        found = pgdecode.read_capture(source)
        assert (found.payloads, found.positions, found.types) == (whole.payloads, whole.positions, whole.types)
    later = pgdecode.read_capture(second)
    decoder = pgdecode.ChangeDecoder(**later.options)
    assert len(decoder.table(later.payloads, "public.orders", later.positions)) == 6


def test_batches_are_those_of_sessions(tmp_path: Path) -> None:
    sessions = [{"file": {"session": n, "first_seq": 4 * at, "open_streams": 0}} for at, n in enumerate((1, 1, 2))]
    capture = pgdecode.read_capture(captured(tmp_path / "raw", sessions))
    batches = list(capture.batches(3))
    assert [batch.positions.to_pylist() for batch in batches] == [[0, 1, 2], [3], [4, 5, 6], [7], [8, 9, 10], [11]]
    assert [batch.is_reconnected for batch in batches] == [False] * 4 + [True, False]
    decoder, one = pgdecode.ChangeDecoder(), pgdecode.ChangeDecoder()
    found = [decoder.decode(batch.payloads, batch.positions) for batch in batches]
    assert pa.Table.from_batches(found).to_pylist() == one.decode(capture.payloads, capture.positions).to_pylist()


def test_relations_from_footers_are_known_from_the_first_payload(tmp_path: Path) -> None:
    raw = captured(tmp_path / "raw", [{}])
    [path] = raw.iterdir()
    rows = pq.read_table(path)
    catalog = pgdecode.RelationCatalog.from_messages([RELATION], [0])
    without = rows.filter(pa.compute.not_equal(rows["data"], RELATION))
    metadata = {**rows.schema.metadata, b"pgdecode.catalog": catalog.to_json()}
    pq.write_table(without.replace_schema_metadata(metadata), path)
    capture = pgdecode.read_capture(raw)
    assert capture.relations["p.t"].relation.name == "t"
    changes = pgdecode.ChangeDecoder(**capture.options).decode(capture.payloads, capture.positions)
    assert changes["relation_name"].to_pylist() == ["t"]


def test_a_gap_is_refused_unless_it_is_accepted(tmp_path: Path) -> None:
    raw = captured(tmp_path / "raw", [{"beginning": {"lsn": "0/5", "slot_was_read": True}}, {"gaps": [GAP]}])
    with pytest.raises(RunError, match=r"the changes from 0/20 to 0/1A0 are missing before it; .* accept_gap=True$"):
        pgdecode.read_capture(raw)
    capture = pgdecode.read_capture(raw, accept_gap=True)
    [gap] = capture.gaps
    assert (gap.start, gap.end, gap.reason) == (0x20, 0x1A0, GAP["reason"])
    assert [note.split(": ")[1].split()[0] for note in capture.notes] == ["begins", "the"]


def test_files_of_other_slots_and_encodings_are_errors(tmp_path: Path) -> None:
    raw = captured(tmp_path / "raw", [{}, {"origin": {**ORIGIN, "slot": "other"}}])
    with pytest.raises(FileFault, match="was captured from another slot or server"):
        pgdecode.read_capture(raw)
    raw = captured(tmp_path / "latin", [{"settings": {"client_encoding": "LATIN1"}}])
    assert pgdecode.read_capture(raw).options["encoding"] == "LATIN1"


def test_types_of_the_caller_take_precedence() -> None:
    capture = pgdecode.read_capture(BINARY, types={"public.price": "numeric(14,4)"})
    rows = pgdecode.snapshot(capture.payloads, "public.products", capture.positions, **capture.options)
    assert rows.schema.field("price").type == pa.decimal128(14, 4)


def test_other_files_are_read_too_and_say_nothing(tmp_path: Path) -> None:
    capture = pgdecode.read_capture(captures.DATA / "16.shop.v1.parquet")
    assert capture.options == {"types": None, "catalog": None, "encoding": "UTF8"}
    pq.write_table(pa.table({"data": capture.payloads[:3]}), tmp_path / "plain.parquet")
    assert pgdecode.read_capture(tmp_path / "plain.parquet").positions.to_pylist() == [0, 1, 2]
    with pytest.raises(PathError, match="no such file or folder"):
        pgdecode.read_capture(tmp_path / "nowhere")
    pq.write_table(pa.table({"x": capture.payloads[:3]}), tmp_path / "plain.parquet")
    with pytest.raises(PathError, match="no column 'data'"):
        pgdecode.read_capture(tmp_path)
    with pytest.raises(PathError, match="no path"):
        pgdecode.read_capture([])


def test_a_decoder_that_continues_knows_the_types_of_all_files(tmp_path: Path) -> None:
    first, second = sorted(BINARY.glob("*.parquet"))
    footer = pq.read_table(first)
    [status, price] = json.loads(footer.schema.metadata[b"pgdecode.types"])
    tables = {}
    for name, path, types in (("1", first, [status, price]), ("2", second, [price])):
        rows = pq.read_table(path)
        metadata = {**rows.schema.metadata, b"pgdecode.types": json.dumps(types)}
        pq.write_table(rows.replace_schema_metadata(metadata), tmp_path / f"{name}.parquet")
        capture = pgdecode.read_capture(tmp_path / f"{name}.parquet")
        tables[name] = capture
    decoder = pgdecode.ChangeDecoder(**tables["1"].options)
    decoder.decode(tables["1"].payloads, tables["1"].positions)
    decoder.save(tmp_path / "state")
    # A file's footer has the types that the file uses, so they are not the same in each.
    decoder = pgdecode.ChangeDecoder.load(tmp_path / "state", **tables["2"].options)
    orders = decoder.table(tables["2"].payloads, "public.orders", tables["2"].positions)
    assert "cancelled" in orders["status"].to_pylist()
    decoder.save(tmp_path / "state")
    with pytest.raises(RunError, match="was written with types null"):
        pgdecode.ChangeDecoder.load(tmp_path / "state", types={"public.price": "text"})


def test_types_of_the_caller_take_precedence_when_a_decoder_continues(tmp_path: Path) -> None:
    capture = pgdecode.read_capture(BINARY, types={"public.price": "numeric(14,4)"})
    decoder = pgdecode.ChangeDecoder(**capture.options)
    decoder.decode(capture.payloads[:23], capture.positions[:23])
    decoder.save(tmp_path / "state")
    decoder = pgdecode.ChangeDecoder.load(tmp_path / "state", types={"public.price": "numeric(14,4)"})
    products = decoder.table(capture.payloads[23:], "public.products", capture.positions[23:])
    assert products.schema.field("price").type == pa.decimal128(14, 4)
