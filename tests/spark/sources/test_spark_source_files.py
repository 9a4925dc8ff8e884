"""Files of a stream that change, vanish or come late, and what the stream remembers of earlier files."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from stream_engine import KINDS, Query, write_file

from pgdecode import RelationCatalog
from pgdecode.files.payload_file import FileFault
from pgdecode.storage.errors import PathError
from spark_udfs.sources.data_source import PgoutputSource
from spark_udfs.sources.decoded_schema import SchemaDiffers
from spark_udfs.sources.payload_folder import FilesChanged
from spark_udfs.sources.stream_reader import StreamReader, UnlimitedStreamReader
from support.generators.slot import Slot

T = 16385


class Folder:
    """A folder of files with one transaction each, and a query that reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.slot = Slot()
        self.n_written = 0

    def add(self, name: str, *, with_catalog: bool = False, at: int | None = None) -> None:
        """Write the new payloads of the slot to a file."""
        payloads = self.slot.payloads[self.n_written :]
        catalog = (
            RelationCatalog.from_messages(self.slot.payloads[: self.n_written]).to_json() if with_catalog else None
        )
        first = self.n_written if at is None else at
        write_file(self.path / name, payloads, first, random.Random(0), catalog)
        self.n_written = len(self.slot.payloads)

    def transaction(self, name: str, value: str, **options: Any) -> None:
        """Write a file with a transaction that inserts a row."""
        self.slot.begin(len(self.slot.payloads) + 700)
        if not self.slot.payloads[1:]:
            self.slot.relation(T, ["id"])
        self.slot.insert(T, value)
        self.slot.commit()
        self.add(name, **options)

    def query(self, kind: type[StreamReader] | None = None, **options: str) -> Query:
        query = Query({"path": str(self.path), "what": "changes", **options}, kind)
        query.restart()
        return query


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    found = Folder(tmp_path / "raw")
    found.transaction("a.parquet", "1")
    found.transaction("b.parquet", "2")
    return found


def ids(query: Query) -> list[str]:
    return [dict(row["new"])["id"] for row in query.rows()]


# -- files that are not as they were ---------------------------------------------------------------------------------


def test_a_file_between_two_others_is_too_late(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "raw")
    folder.transaction("a.parquet", "1")
    folder.transaction("b.parquet", "2", at=10)
    query = folder.query()
    query.step()
    folder.transaction("late.parquet", "3", at=5)
    with pytest.raises(FilesChanged, match=r"late.parquet: came too late: it begins at seq 5, but .* seq 12"):
        query.step()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_file_that_came_between_before_a_restart_is_named(tmp_path: Path, kind: type[StreamReader]) -> None:
    folder = Folder(tmp_path / "raw")
    folder.transaction("a.parquet", "1")
    folder.transaction("b.parquet", "2", at=10)
    query = folder.query(kind)
    query.step()
    folder.transaction("late.parquet", "3", at=5)
    folder.transaction("c.parquet", "4", at=20)
    with pytest.raises(FilesChanged, match=r"2 files from seq 0 to 12, but .*late.parquet came later, .* seq 5"):
        query.go_on()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda path: path.unlink(), r"2 files from seq 0 to 6, but now there are 1: files were removed"),
        (lambda path: path.rename(path.with_name("d.parquet")), r"from seq 0 to 6, but one of them has changed"),
    ],
    ids=["removed", "renamed"],
)
def test_files_must_be_the_same_after_a_restart(
    folder: Folder, kind: type[StreamReader], change: Any, text: str
) -> None:
    query = folder.query(kind)
    query.step()
    change(folder.path / "b.parquet")
    folder.transaction("c.parquet", "3")
    with pytest.raises(FilesChanged, match=text):
        query.go_on()


def test_a_file_that_changes_or_vanishes_while_the_query_runs_is_named(folder: Folder) -> None:
    query = folder.query()
    query.step()
    path = folder.path / "b.parquet"
    kept = path.read_bytes()
    write_file(path, folder.slot.payloads[4:6], 4, random.Random(0))
    with pytest.raises(FilesChanged, match=r"b.parquet: has changed since it was read"):
        query.step()
    path.write_bytes(kept)
    assert not query.step()
    path.unlink()
    with pytest.raises(FilesChanged, match=r"b.parquet: was removed, but the stream still needs it"):
        query.step()


def test_a_file_that_is_replaced_after_the_plan_fails_the_task(folder: Folder) -> None:
    query = folder.query()
    end = query.reader.latestOffset(json.loads(query.first), _all()) if KINDS[0] is not UnlimitedStreamReader else None
    planned = query.reader.partitions(json.loads(query.first), end or query.reader.latestOffset())
    write_file(folder.path / "b.parquet", folder.slot.payloads[4:6], 4, random.Random(0))
    with pytest.raises(FileFault, match=r"b.parquet: has changed since it was found"):
        [list(query.for_tasks.read(partition)) for partition in planned]


def _all() -> Any:
    from spark_udfs.sources import stream_reader

    return stream_reader.ReadAllAvailable()


def test_an_incomplete_file_stops_the_query_with_advice(folder: Folder) -> None:
    query = folder.query()
    (folder.path / "c.parquet").write_bytes(b"PAR1 incomplete")
    with pytest.raises(FileFault, match=r"c.parquet: not a Parquet file: .*; files must be complete"):
        query.step()
    (folder.path / "c.parquet").unlink()
    query.step()
    assert ids(query) == ["1", "2"]


def test_hidden_and_empty_files_do_not_matter(folder: Folder) -> None:
    query = folder.query()
    (folder.path / "_metadata.parquet").write_bytes(b"")
    (folder.path / ".c.parquet").write_bytes(b"PAR1 incomplete")
    write_file(folder.path / "empty.parquet", [], 0, random.Random(0))
    query.step()
    assert ids(query) == ["1", "2"]


def test_an_empty_folder_gets_files_later(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "raw")
    query = folder.query()
    assert not query.step()
    folder.transaction("a.parquet", "1")
    query.step()
    assert ids(query) == ["1"]


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PathError, match=r"nothing: no such file or folder"):
        Query({"path": str(tmp_path / "nothing"), "what": "public.t"}).restart()


def test_a_checkpoint_of_another_version_is_refused(folder: Folder) -> None:
    query = folder.query()
    query.step()
    query.offsets[-1] = json.dumps({**json.loads(query.offsets[-1]), "version": 2})
    with pytest.raises(ValueError, match="an offset of another source or version"):
        query.reader.partitions(json.loads(query.end), json.loads(query.end))


# -- what is remembered ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_captured_files_may_be_deleted_when_the_next_file_has_a_catalog(
    tmp_path: Path, kind: type[StreamReader]
) -> None:
    folder = Folder(tmp_path / "raw")
    for number, name in enumerate("abcd"):
        folder.transaction(f"{name}.parquet", str(number), with_catalog=number > 0)
    query = folder.query(kind)
    query.step()
    assert json.loads(query.end)["files"] == 1
    for name in "abc":
        (folder.path / f"{name}.parquet").unlink()
    folder.transaction("e.parquet", "4", with_catalog=True)
    query.step()
    folder.transaction("f.parquet", "5", with_catalog=True)
    query.restart()
    query.step()
    assert ids(query) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_transaction_comes_whole_with_its_commit_many_files_later(tmp_path: Path, kind: type[StreamReader]) -> None:
    folder = Folder(tmp_path / "raw")
    slot = folder.slot
    slot.begin_prepare(9, "g")
    slot.relation(T, ["id"])
    slot.insert(T, "prepared")
    slot.prepare("g")
    folder.add("a.parquet")
    query = folder.query(kind)
    for number in range(5):
        slot.start(10, first=number == 0)
        slot.insert(T, f"streamed {number}", xid=10)
        slot.insert(T, "rolled back", xid=11)
        slot.stop()
        folder.transaction(f"b{number}.parquet", str(number))
        assert query.step()
        if number % 2:
            query.restart()
    assert ids(query) == ["0", "1", "2", "3", "4"]
    assert json.loads(query.end)["open"] == 0
    slot.stream_abort(10, 11)
    slot.stream_commit(10)
    folder.add("c.parquet")
    query.step()
    assert ids(query)[5:] == [f"streamed {number}" for number in range(5)]
    slot.commit_prepared(9, "g")
    folder.add("d.parquet")
    query.restart()
    query.step()
    assert ids(query)[10:] == ["prepared"]
    assert json.loads(query.end)["open"] == -1


def test_only_files_of_open_transactions_are_remembered(folder: Folder) -> None:
    query = folder.query()
    query.step()
    for number in range(5):
        folder.transaction(f"c{number}.parquet", str(number))
        query.step()
    index = query.reader._sequence.index
    assert len(index.pieces) <= 2
    assert index.outcomes.transaction_outcomes == {}


def test_columns_of_a_transaction_that_was_rolled_back_do_not_stop_the_query(folder: Folder) -> None:
    query = folder.query(what="public.t16385")
    query.step()
    slot = folder.slot
    slot.start(9, first=True)
    slot.relation(T, ["id", "price"], xid=9)
    slot.insert(T, "3", "9.99", xid=9)
    slot.stop()
    folder.add("c.parquet")
    query.step()
    slot.stream_abort(9)
    folder.transaction("d.parquet", "4")
    query.step()
    assert [row["id"] for row in query.rows()] == ["1", "2", "4"]


def test_a_new_column_stops_the_query_unless_fields_names_the_columns(folder: Folder) -> None:
    query, of_fields = (
        folder.query(what="public.t16385"),
        folder.query(what="public.t16385", fields="id,_commit_position"),
    )
    query.step()
    of_fields.step()
    slot = folder.slot
    slot.begin(9)
    slot.relation(T, ["id", "price"])
    slot.insert(T, "3", "9.99")
    slot.commit()
    folder.add("c.parquet")
    with pytest.raises(SchemaDiffers, match=r"table public.t16385: column 'price' is not in the schema of the query"):
        query.step()
    of_fields.step()
    assert [row["id"] for row in of_fields.rows()] == ["1", "2", "3"]
    query.restart()
    assert [row["id"] for row in query.rows()] == ["1", "2", "3"]
    assert query.rows()[-1]["price"] == "9.99"


def test_another_type_of_a_column_that_text_can_represent_does_not_stop_the_query(folder: Folder) -> None:
    query = folder.query(what="public.t16385")
    query.step()
    folder.slot.begin(9)
    folder.slot.relation(T, ["id"], types=[23])
    folder.slot.insert(T, "3")
    folder.slot.commit()
    folder.add("c.parquet")
    query.step()
    assert [row["id"] for row in query.rows()] == ["1", "2", "3"]


def test_duplicates_are_dropped_across_files_and_restarts(folder: Folder) -> None:
    query = folder.query(drop_duplicates="true")
    query.step()
    folder.slot.payloads += folder.slot.payloads[4:7]
    folder.add("c.parquet")
    query.restart()
    query.step()
    assert ids(query) == ["1", "2"]


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "the path is missing"),
        (
            {"path": "raw", "modus": "x"},
            r"no such option: 'modus' \(did you mean mode\?\); there are path, what, payload",
        ),
        ({"path": "raw", "mode": "failfast"}, 'mode is "FAILFAST", "PERMISSIVE" or "DROPMALFORMED", not .failfast.'),
        ({"path": "raw", "what": "changes", "keep": "seq"}, "keep: only for messages"),
        ({"path": "raw", "start": "anywhere"}, "start: only for changes and tables"),
        ({"path": "raw", "what": "changes", "columns": "{}"}, "columns: only for tables"),
        ({"path": "raw", "what": "changes", "types": "[]"}, "option types: it is a JSON object"),
        ({"path": "raw", "what": "changes", "include_uncommitted": "yes"}, 'option include_uncommitted: it is "true"'),
        ({"path": "raw", "maxFilesPerTrigger": "0"}, "option maxFilesPerTrigger: it is a number from 1, not .0."),
        ({"path": "s3a://bucket/raw"}, "s3a://bucket/raw: is a URI"),
        ({"path": "raw", "what": "changes", "catalog": "{}"}, "option catalog: the JSON is not a pgdecode"),
    ],
    ids=lambda item: None if isinstance(item, str) else next(reversed(item), "none"),
)
def test_a_wrong_option_is_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PgoutputSource(options)


def test_names_of_options_have_no_case(folder: Folder) -> None:
    source = PgoutputSource({"PATH": str(folder.path), "What": "changes", "fields": '["op", "new"]'})
    assert source.schema().names == ["op", "new"]


def test_uncommitted_changes_are_refused_in_a_stream(folder: Folder) -> None:
    with pytest.raises(ValueError, match="include_uncommitted: not in a stream"):
        folder.query(include_uncommitted="true")


def test_a_limit_is_refused_where_pyspark_does_not_pass_it_on(folder: Folder) -> None:
    with pytest.raises(ValueError, match=r"maxFilesPerTrigger needs pyspark 4.2 or later"):
        folder.query(UnlimitedStreamReader, maxFilesPerTrigger="1")
    with pytest.raises(ValueError, match="maxFilesPerTrigger: only for streams"):
        PgoutputSource({"path": str(folder.path), "maxFilesPerTrigger": "1"}).reader(folder.query().schema)
