"""Iceberg tables: what other readers see, states after rollbacks and conflicts, schema changes, and failures."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from lake.memory_target import MemoryTable
from lake.test_file_table import NAME, SCHEMAS, Changes, Row, plain_rows, row_groups_of
from lake.test_stored_types import as_read_by_pyiceberg
from lake.test_stored_types import table as table_of_all_types

from pgdecode.datasets.errors import RunError
from pgdecode.datasets.file_digest import NewFile
from pgdecode.lake.applied import Applied
from pgdecode.lake.file_target import FileTarget
from pgdecode.lake.stored_types import stored_schema, to_stored
from pgdecode.lake.target import ColumnSource
from pgdecode.lake.targets import lake_target
from pgdecode.net.schema import ABOUT
from support.emulators import ACCOUNT, AZURE_SECRET, Emulator
from support.tiers import full, long

pytest.importorskip("pyiceberg", reason="pip install 'pgdecode[iceberg]'")

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io import ARROW_FILE_IO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestWriterV2
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

pytest_plugins = ["support.stores"]
KEY = {b"pg:key": b"true"}
ID = pa.field("id", pa.int64(), False, KEY)
ORDERS = pa.schema([ID, pa.field("n", pa.int32()), pa.field("note", pa.string())])


def catalog_in(folder: Path) -> Catalog:
    """The catalog of "iceberg:FOLDER", as documented."""
    return load_catalog("default", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")


def iceberg_table(folder: Path, name: str = NAME) -> Table:
    return catalog_in(folder).load_table(tuple(name.split(".")))


def read_iceberg(folder: Path, name: str = NAME) -> list[Row]:
    rows: list[Row] = iceberg_table(folder, name).scan().to_arrow().to_pylist()
    return rows


def upserts(schema: pa.Schema, rows: list[Row], *, before: bool = False, unknown: tuple[str, ...] = ()) -> pa.Table:
    """Net changes that insert rows, or update those with the same keys."""
    key = pa.struct([item.with_metadata(None) for item in schema if item.metadata])
    about = {item.name: pa.nulls(len(rows), item.type) for item in ABOUT}
    about["_position"] = pa.array(range(len(rows)), pa.int64())
    columns = {
        "_action": pa.array(["upsert"] * len(rows), pa.string()),
        "_key_before": pa.array([{item.name: row[item.name] for item in key} if before else None for row in rows], key),
        "_unknown": pa.array([[*unknown]] * len(rows), pa.list_(pa.string())),
        **about,
        **{item.name: pa.array([row.get(item.name) for row in rows], item.type) for item in schema},
    }
    return pa.table(columns)


def apply(
    folder: Path,
    position: int,
    net: pa.Table | None = None,
    schema: pa.Schema | None = None,
    *,
    file_bytes: int = 2**27,
) -> None:
    """Apply net changes to a table in a catalog of its own, which is created if `schema` is passed."""
    target = lake_target(f"iceberg:{folder}")
    assert isinstance(target, FileTarget)
    target.file_bytes = file_bytes
    with target.opened():
        table = target.table(NAME)
        if schema is not None:
            table.create(schema)
        if net is not None:
            table.apply(net)
        target.commit({NAME: Applied(position, position + 1, position * 16)})


def applied(folder: Path) -> int:
    target = lake_target(f"iceberg:{folder}")
    with target.opened():
        return target.applied[NAME].position


def evolve(folder: Path, position: int, schema: pa.Schema, columns: Mapping[str, ColumnSource]) -> None:
    target = lake_target(f"iceberg:{folder}")
    with target.opened():
        target.table(NAME).evolve(schema, columns)
        target.commit({NAME: Applied(position, position + 1)})


def rows_of(*ids: int, **values: Any) -> list[Row]:
    return [{"id": number, "n": number, "note": f"note {number}", **values} for number in ids]


def files_of(folder: Path) -> set[str]:
    return {task.file.file_path for task in iceberg_table(folder).scan().plan_files()}


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, full(2), *map(long, range(3, 30))])
@pytest.mark.parametrize("form", [form if form == "a number" else full(form) for form in SCHEMAS])
def test_readers_see_the_rows_that_net_changes_leave(form: str, seed: int, tmp_path: Path) -> None:
    rng, schema = random.Random(seed), SCHEMAS[form]
    changes, model = Changes(schema, rng), MemoryTable(lambda _: None)
    model.create(schema)
    most, file_bytes = rng.choice([3, 30, 200]), rng.choice([1, 2000, 20_000, 2**27])
    with row_groups_of(rng.choice([500, 5000, 2**25])):
        for step in range(4):
            target = lake_target(f"iceberg:{tmp_path}")
            assert isinstance(target, FileTarget)
            target.file_bytes = file_bytes
            with target.opened():
                table = target.table(NAME)
                if not step:
                    table.create(schema)
                for _ in range(2):
                    net = changes.of(model.rows, most=most)
                    table.apply(net)
                    model.apply(net)
                target.commit({NAME: Applied(step, step + 1)})
                assert table.counts.rows == len(model.rows)
                # What is not committed is discarded.
                table.apply(changes.of(model.rows, most=most))
            assert plain_rows(read_iceberg(tmp_path)) == plain_rows(model.rows)
    known = {
        Path(file.removeprefix("file://"))
        for file in iceberg_table(tmp_path).inspect.all_files()["file_path"].to_pylist()
    }
    assert {*tmp_path.rglob("*.parquet")} <= known


def test_values_of_every_type_are_read_by_other_readers(tmp_path: Path) -> None:
    typed = table_of_all_types()
    typed = typed.add_column(0, ID, pa.array(range(typed.num_rows)))
    typed = typed.cast(pa.schema([ID, *list(typed.schema)[1:]]))
    apply(tmp_path, 1, upserts(typed.schema, typed.to_pylist()), typed.schema)
    expected = pa.table(
        [to_stored(typed[item.name], item.type) for item in stored_schema(typed.schema, "iceberg")],
        names=typed.schema.names,
    ).to_pylist()
    found = iceberg_table(tmp_path).scan().to_arrow().sort_by("id")
    for item in typed.schema:
        values = [as_read_by_pyiceberg(row[item.name], item.type) for row in expected]
        assert found[item.name].to_pylist() == values, item
    target = lake_target(f"iceberg:{tmp_path}")
    with target.opened():
        again = target.read(NAME).read_all().sort_by("id")
    assert again.to_pylist() == expected


def test_polars_reads_the_rows_that_pyiceberg_reads(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    apply(tmp_path, 1, upserts(ORDERS, rows_of(*range(100))), ORDERS)
    apply(tmp_path, 2, upserts(ORDERS, rows_of(5, 6, n=-1), before=True, unknown=("note",)))
    with pytest.warns() as _:
        found = polars.scan_iceberg(iceberg_table(tmp_path)).collect().sort("id").to_dicts()
    assert found == sorted(read_iceberg(tmp_path), key=lambda row: int(row["id"]))
    assert found[5] == {"id": 5, "n": -1, "note": "note 5"}


@pytest.mark.full
def test_a_null_list_of_ranges_is_null_in_the_file_and_for_polars(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    ranges = pa.list_(pa.struct([("lower", pa.int32()), ("upper", pa.int32())]))
    schema = pa.schema([ID, pa.field("r", ranges)])
    rows = [{"id": 1, "r": None}, {"id": 2, "r": []}, {"id": 3, "r": [{"lower": 1, "upper": None}]}]
    apply(tmp_path, 1, upserts(schema, rows), schema)
    assert pq.read_table(next(tmp_path.rglob("*.parquet"))).to_pylist() == rows
    with pytest.warns() as _:
        assert polars.scan_iceberg(iceberg_table(tmp_path)).collect().to_dicts() == rows
    assert read_iceberg(tmp_path) == [{"id": 1, "r": []}, *rows[1:]]


@pytest.mark.full
def test_duckdb_reads_the_rows_that_pyiceberg_reads(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg"):
        package = pytest.importorskip(f"duckdb_extension_{name}")
        paths = [*Path(next(iter(package.__path__))).rglob(f"{name}.duckdb_extension")]
        try:
            connection.execute(f"load '{paths[0]}'")
        except duckdb.Error as error:
            pytest.skip(str(error).splitlines()[0])
    apply(tmp_path, 1, upserts(ORDERS, rows_of(*range(100))), ORDERS)
    apply(tmp_path, 2, upserts(ORDERS, rows_of(5, 6, n=-1), before=True, unknown=("note",)))
    renamed = pa.schema([ID, pa.field("text", pa.string()), pa.field("more", pa.int32())])
    sources = {
        "id": ColumnSource("id"),
        "text": ColumnSource("note"),
        "more": ColumnSource(None, pa.scalar(None, pa.int32())),
    }
    evolve(tmp_path, 3, renamed, sources)
    location = iceberg_table(tmp_path).metadata_location
    found = connection.execute(f"select * from iceberg_scan('{location}') order by id").fetchall()
    assert found == [tuple(row.values()) for row in sorted(read_iceberg(tmp_path), key=lambda row: int(row["id"]))]
    assert found[5] == (5, "note 5", None)


def test_a_run_removes_files_of_its_own_commits(tmp_path: Path) -> None:
    target = lake_target(f"iceberg:{tmp_path}")
    with target.opened():
        target.table(NAME).create(ORDERS)
        for number in range(3):
            target.table(NAME).apply(upserts(ORDERS, rows_of(1, n=number), before=number > 0))
            target.commit({NAME: Applied(number, number + 1)})
    assert read_iceberg(tmp_path) == rows_of(1, n=2)


def test_engines_skip_files_by_their_bounds(tmp_path: Path) -> None:
    for step in range(3):
        new = upserts(ORDERS, rows_of(*range(step * 1000, step * 1000 + 1000)))
        apply(tmp_path, step, new, None if step else ORDERS, file_bytes=1)
    table = iceberg_table(tmp_path)
    assert len(files_of(tmp_path)) > 1
    assert len([*table.scan(row_filter="id = 2500").plan_files()]) == 1
    assert table.scan(row_filter="note = 'note 2500'").to_arrow().num_rows == 1
    assert table.schema().identifier_field_ids == [1]
    assert [item.required for item in table.schema().fields] == [True, False, False]


# -- states ------------------------------------------------------------------------------------------------------------


def test_a_table_that_was_rolled_back_goes_on_from_its_own_position_and_columns(tmp_path: Path) -> None:
    apply(tmp_path, 1, upserts(ORDERS, rows_of(1)), ORDERS)
    first = iceberg_table(tmp_path).current_snapshot()
    assert first is not None
    assert first.summary is not None
    assert (first.summary["pgdecode.position"], first.summary["pgdecode.commit-lsn"]) == ("1", "0/10")
    apply(tmp_path, 2)  # only the state
    assert (applied(tmp_path), len(iceberg_table(tmp_path).snapshots())) == (2, 1)
    wider = pa.schema([ID, pa.field("more", pa.string()), pa.field("n", pa.int64())])
    more = ColumnSource(None, pa.scalar(None, pa.string()))
    evolve(tmp_path, 3, wider, {"id": ColumnSource("id"), "more": more, "n": ColumnSource("n")})
    assert (applied(tmp_path), len(iceberg_table(tmp_path).snapshots())) == (3, 1)
    apply(tmp_path, 4, upserts(wider, [{"id": 2, "more": "x", "n": 2**40}]))
    second = iceberg_table(tmp_path).current_snapshot()
    apply(tmp_path, 5)
    assert (applied(tmp_path), second is not None) == (5, True)

    iceberg_table(tmp_path).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert applied(tmp_path) == 1
    apply(tmp_path, 2, upserts(ORDERS, rows_of(1, note="new"), before=True))
    assert read_iceberg(tmp_path) == rows_of(1, note="new")
    assert applied(tmp_path) == 2
    evolve(tmp_path, 3, wider, {"id": ColumnSource("id"), "more": more, "n": ColumnSource("n")})
    assert read_iceberg(tmp_path) == [{"id": 1, "more": None, "n": 1}]


def test_snapshots_of_others_do_not_hide_the_state(tmp_path: Path) -> None:
    apply(tmp_path, 1, upserts(ORDERS, rows_of(1)), ORDERS)
    apply(tmp_path, 2)
    table = iceberg_table(tmp_path)
    ours = table.metadata.current_snapshot_id
    table.append(table.scan().to_arrow().set_column(0, "id", pa.array([9], pa.int64())).cast(table.schema().as_arrow()))
    assert applied(tmp_path) == 2
    assert ours is not None
    apply(tmp_path, 3, upserts(ORDERS, rows_of(1, n=7), before=True))
    assert sorted(row["n"] for row in read_iceberg(tmp_path)) == [1, 7]
    iceberg_table(tmp_path).maintenance.expire_snapshots().by_id(ours).commit()
    assert applied(tmp_path) == 3


@pytest.mark.full
def test_another_writer_meanwhile_is_an_error_and_the_next_call_continues(tmp_path: Path) -> None:
    apply(tmp_path, 1, upserts(ORDERS, rows_of(1, 2)), ORDERS)

    def append(table: Table) -> None:
        rows = pa.table([[9], [9], ["foreign"]], schema=table.schema().as_arrow())
        table.append(rows)

    others = {
        "append": append,
        "delete": lambda table: table.delete("id = 2"),
        "column": lambda table: table.update_schema().add_column("x", LongType()).commit(),
    }
    for number, (what, other) in enumerate(others.items(), 2):
        target = lake_target(f"iceberg:{tmp_path}")
        with target.opened():
            target.table(NAME).apply(upserts(ORDERS, rows_of(1, n=-number), before=True))
            other(iceberg_table(tmp_path))
            before = read_iceberg(tmp_path)
            with pytest.raises(
                RunError, match=r"^iceberg:.*, table public.orders: another writer has committed"
            ) as error:
                target.commit({NAME: Applied(number, number + 1)})
            assert "\n" not in str(error.value)
        assert plain_rows(read_iceberg(tmp_path)) == plain_rows(before), what
        if what == "column":
            with pytest.raises(RunError, match="another writer has changed its columns"):
                applied(tmp_path)
            iceberg_table(tmp_path).update_schema().delete_column("x").commit()
        assert applied(tmp_path) == number - 1
        apply(tmp_path, number, upserts(ORDERS, rows_of(1, n=-number), before=True))
        assert [row["n"] for row in read_iceberg(tmp_path) if row["id"] == 1] == [-number]


def test_two_runs_that_create_a_table_do_not_mix(tmp_path: Path) -> None:
    options = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    targets = [lake_target("iceberg:shop/lake", storage_options=options) for _ in range(2)]
    with targets[0].opened(), targets[1].opened():
        for number, target in enumerate(targets):
            table = target.table(NAME)
            table.create(ORDERS)
            table.apply(upserts(ORDERS, rows_of(number)))
        targets[0].commit({NAME: Applied(1, 2)})
        with pytest.raises(RunError, match="another writer has committed meanwhile"):
            targets[1].commit({NAME: Applied(1, 2)})
    catalog = load_catalog("shop", **options)
    assert catalog.load_table("lake.public.orders").scan().to_arrow().to_pylist() == rows_of(0)


# -- columns -----------------------------------------------------------------------------------------------------------


def test_columns_change_in_the_metadata_where_the_format_can(tmp_path: Path) -> None:
    wide = pa.schema(
        [
            ID,
            pa.field("a", pa.int32()),
            pa.field("f", pa.float32()),
            pa.field("d", pa.decimal128(5, 2)),
            pa.field("s", pa.string()),
        ]
    )
    apply(tmp_path, 1, upserts(wide, [{"id": 1, "a": 1, "f": 1.5, "d": None, "s": "x"}]), wide)
    files = files_of(tmp_path)
    none = ColumnSource(None, pa.scalar(None, pa.string()))
    table = iceberg_table(tmp_path)
    with table.update_schema() as change:
        change.update_column("a", doc="a comment")
    # promoted and renamed; dropped and added with the same name; reordered
    new = pa.schema(
        [
            ID,
            pa.field("s", pa.string()),
            pa.field("f", pa.float64()),
            pa.field("b", pa.int64()),
            pa.field("d", pa.decimal128(9, 2)),
        ]
    )
    sources = {
        "id": ColumnSource("id"),
        "s": none,
        "f": ColumnSource("f"),
        "b": ColumnSource("a"),
        "d": ColumnSource("d"),
    }
    evolve(tmp_path, 2, new, sources)
    assert files_of(tmp_path) == files
    assert read_iceberg(tmp_path) == [{"id": 1, "s": None, "f": 1.5, "b": 1, "d": None}]
    table = iceberg_table(tmp_path)
    assert [item.field_id for item in table.schema().fields] == [1, 6, 3, 2, 4]
    assert table.schema().find_field("b").doc == "a comment"
    apply(tmp_path, 3, upserts(new, [{"id": 1, "b": 2**40, "s": "new"}], before=True, unknown=("f",)))
    assert read_iceberg(tmp_path) == [{"id": 1, "s": "new", "f": 1.5, "b": 2**40, "d": None}]
    assert files_of(tmp_path).isdisjoint(files)


def test_columns_that_need_other_values_are_written_anew_under_new_ids(tmp_path: Path) -> None:
    apply(tmp_path, 1, upserts(ORDERS, rows_of(1, 2)), ORDERS)
    new = pa.schema([ID, pa.field("n", pa.string()), pa.field("more", pa.int32())])
    sources = {
        "id": ColumnSource("id"),
        "n": ColumnSource("n", convert=lambda column: pc.cast(column, pa.string())),
        "more": ColumnSource(None, pa.scalar(7, pa.int32())),
    }
    evolve(tmp_path, 2, new, sources)
    assert read_iceberg(tmp_path) == [{"id": number, "n": str(number), "more": 7} for number in (1, 2)]
    assert [item.field_id for item in iceberg_table(tmp_path).schema().fields] == [1, 4, 5]


def test_a_table_that_is_made_anew_has_the_new_rows_only_in_one_commit(tmp_path: Path) -> None:
    apply(tmp_path, 1, upserts(ORDERS, rows_of(1, 2)), ORDERS)
    other = pa.schema([ID, pa.field("n", pa.string())])
    apply(tmp_path, 2, upserts(other, [{"id": 3, "n": "x"}]), other)
    table = iceberg_table(tmp_path)
    assert (read_iceberg(tmp_path), len(table.snapshots())) == ([{"id": 3, "n": "x"}], 2)
    first = table.snapshots()[0].snapshot_id
    assert plain_rows(table.scan(snapshot_id=first).to_arrow().to_pylist()) == plain_rows(rows_of(1, 2))


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_table_of_somebody_else_is_refused(tmp_path: Path) -> None:
    catalog = catalog_in(tmp_path)
    catalog.create_namespace("public")
    catalog.create_table(NAME, Schema(NestedField(1, "id", LongType(), required=True)))
    target = lake_target(f"iceberg:{tmp_path}")
    with target.opened():
        assert target.applied == {}
        with pytest.raises(RunError, match=r"table public\.orders exists without a state of pgdecode"):
            target.table(NAME)


class _DeleteManifest(ManifestWriterV2):
    """A manifest of delete files, which pyiceberg does not write itself."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Deletes(_FastAppendFiles):
    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriterV2:
        return _DeleteManifest(spec, self.schema(), self.new_manifest_output(), self._snapshot_id, "gzip")


def add_file(table: Table, *, content: DataFileContent, format: FileFormat) -> None:
    """Commit a file, as other writers do it."""
    with table.transaction() as transaction:
        kind = _Deletes if content != DataFileContent.DATA else _FastAppendFiles
        producer = kind(Operation.APPEND, transaction, table.io)
        file = DataFile.from_args(
            content=content,
            file_path=f"{table.location()}/data/other",
            file_format=format,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=1,
        )
        file.spec_id = 0
        producer.append_data_file(file)
        producer.commit()


def delete_on_read(table: Table) -> None:
    add_file(table, content=DataFileContent.POSITION_DELETES, format=FileFormat.PARQUET)


def add_orc(table: Table) -> None:
    add_file(table, content=DataFileContent.DATA, format=FileFormat.ORC)


def partition(table: Table) -> None:
    with table.update_spec() as update:
        update.add_field("id", "bucket[4]", "b")


def partition_for_a_time(table: Table) -> None:
    partition(table)
    with table.update_spec() as update:
        update.remove_field("b")


def set_version(number: int) -> Callable[[Table], None]:
    def change(table: Table) -> None:
        path = Path(table.metadata_location.removeprefix("file://"))
        metadata = {**json.loads(path.read_text()), "format-version": number}
        of_version = {"next-row-id": 0, "schema": metadata["schemas"][0], "partition-spec": []}
        path.write_text(json.dumps(metadata | of_version))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (partition, "it has partitions, or had them, which pgdecode does not write: drop it, and apply again"),
        full(partition_for_a_time, "it has partitions, or had them, which pgdecode does not write"),
        full(set_version(1), "it has format version 1, which .* version 2"),
        (set_version(3), "it has format version 3, which .* version 2"),
        (delete_on_read, r"made delete files \(merge-on-read\), .*rewrite the data files .* to copy-on-write"),
        full(add_orc, "made files of format ORC, which .*: rewrite them as Parquet"),
    ],
)
def test_features_that_are_not_written_are_refused_by_name_and_with_a_remedy(
    change: Callable[[Table], None], message: str, tmp_path: Path
) -> None:
    apply(tmp_path, 1, upserts(ORDERS, rows_of(1)), ORDERS)
    change(iceberg_table(tmp_path))
    with (
        lake_target(f"iceberg:{tmp_path}").opened() as target,
        pytest.raises(RunError, match=rf"^iceberg:.*, table public\.orders: .*{message}"),
    ):
        target.table(NAME)


def test_a_sort_order_and_other_branches_of_other_writers_are_allowed(tmp_path: Path) -> None:
    apply(tmp_path, 1, upserts(ORDERS, rows_of(1)), ORDERS)
    table = iceberg_table(tmp_path)
    with table.update_sort_order() as update:
        update.asc("n", IdentityTransform())
    number = table.metadata.current_snapshot_id
    assert number is not None
    table.manage_snapshots().create_branch(number, "dev").create_tag(number, "v1").commit()
    apply(tmp_path, 2, upserts(ORDERS, rows_of(2)))
    table = iceberg_table(tmp_path)
    assert plain_rows(read_iceberg(tmp_path)) == plain_rows(rows_of(1, 2))
    assert {table.metadata.refs[name].snapshot_id for name in ("dev", "v1")} == {number}


@pytest.mark.parametrize(
    ("location", "options", "message"),
    [
        ("nowhere", {}, "configuration has no catalog 'nowhere'.*a folder is ./FOLDER"),
        ("shop", {"uri": "nosuch://x"}, "iceberg:shop: "),
        ("shop", {"uri": "sqlite:////no/such/folder/catalog.db"}, "iceberg:shop: "),
        ("./a?b", {}, "no locations with"),
    ],
)
def test_a_catalog_that_does_not_answer_is_one_line(
    location: str, options: Mapping[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(RunError, match=message) as error,
        lake_target(f"iceberg:{location}", storage_options=options).opened(),
    ):
        pass
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["public.x y", 'public.a"b', "public.ünï", "public.a/b%c#d?e", "Öl.a.b"])
def test_names_of_any_characters_are_names_of_tables(name: str, tmp_path: Path) -> None:
    target = lake_target(f"iceberg:{tmp_path}/a b")
    with target.opened():
        target.table(name).create(ORDERS)
        target.table(name).apply(upserts(ORDERS, rows_of(1)))
        target.commit({name: Applied(1, 2)})
    with target.opened():
        assert [*target.applied] == [name]
        schema, _, table = name.partition(".")
        assert catalog_in(tmp_path / "a b").load_table((schema, table)).scan().to_arrow().to_pylist() == rows_of(1)


# -- failures ----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The end of a process."""


@contextmanager
def killed_at(number: int) -> Iterator[list[str]]:
    """Fail at a write, before or after it is done. Yields the names of the writes."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io.pyarrow import PyArrowFile

    seen: list[str] = []

    def failing(owner: type, name: str) -> Any:
        real = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            seen.append(f"before {name}")
            if len(seen) == number:
                raise Killed
            result = real(*args, **options)
            seen.append(f"after {name}")
            if len(seen) == number:
                raise Killed
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((NewFile, "close"), (PyArrowFile, "create"), (SqlCatalog, "commit_table")):
            patch.setattr(owner, name, failing(owner, name))
        yield seen


@pytest.mark.full
def test_killed_at_every_write_the_table_is_as_before_or_after(tmp_path: Path) -> None:
    apply(tmp_path, 1, upserts(ORDERS, rows_of(*range(10))), ORDERS)
    number, position = 0, 1
    while True:
        number += 1
        before = read_iceberg(tmp_path)
        new = upserts(ORDERS, [*rows_of(*range(5), n=-number), *rows_of(100 + number)], before=False)
        try:
            with killed_at(number) as seen:
                apply(tmp_path, position + 1, new)
        except Killed:
            is_committed = applied(tmp_path) == position + 1
            assert is_committed == ("after commit_table" in seen)
            if not is_committed:
                assert read_iceberg(tmp_path) == before
                apply(tmp_path, position + 1, new)
        else:
            break
        position += 1
        rows = read_iceberg(tmp_path)
        assert sorted(row["id"] for row in rows) == [*range(10), *range(101, 101 + number)]
        assert {row["n"] for row in rows if row["id"] < 5} == {-number}
    assert number > 8


@pytest.mark.long
@pytest.mark.full
def test_killed_at_every_write_to_an_object_store_the_table_is_as_before_or_after(s3: Emulator, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    target = lake_target("iceberg:shop", storage_options={**s3.options, "uri": uri, "warehouse": s3.new_bucket()})

    def put(position: int) -> None:
        with target.opened():
            table = target.table(NAME)
            if position == 1:
                table.create(ORDERS)
            table.apply(upserts(ORDERS, rows_of(1, n=position), before=position > 1))
            target.commit({NAME: Applied(position, position + 1)})

    put(1)
    is_killed, number = True, 1
    while is_killed:
        number += 1
        with killed_at(number) as seen:
            try:
                put(number)
                is_killed = False
            except Killed:
                pass
        with target.opened():
            at = number if "after commit_table" in seen else number - 1
            assert target.applied[NAME].position == at
            assert target.read(NAME).read_all().to_pylist() == rows_of(1, n=at)
        if at < number:
            put(number)
    assert number > 8


def test_two_tables_of_which_one_is_committed_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [NAME, "public.lines"]
    target = lake_target(f"iceberg:{tmp_path}")
    with target.opened():
        for name in names:
            target.table(name).create(ORDERS)
            target.table(name).apply(upserts(ORDERS, rows_of(1)))
        target.commit(dict.fromkeys(names, Applied(1, 2)))
    with target.opened():
        for name in names:
            target.table(name).apply(upserts(ORDERS, rows_of(2)))
        other = iceberg_table(tmp_path, names[1])
        other.delete("id = 1")
        with pytest.raises(RunError, match=r"table public\.lines: another writer"):
            target.commit(dict.fromkeys(names, Applied(2, 3)))
    with target.opened():
        assert {name: item.position for name, item in target.applied.items()} == {NAME: 2, "public.lines": 1}
        assert plain_rows(target.read(NAME).read_all().to_pylist()) == plain_rows(rows_of(1, 2))
        assert target.read(names[1]).read_all().num_rows == 0


# -- object stores and growth ------------------------------------------------------------------------------------------


def test_a_warehouse_in_an_object_store(store: Emulator, tmp_path: Path) -> None:
    bucket = store.new_bucket().replace("az://", "abfss://")
    options = {**store.options, "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"{bucket}/lake"}
    properties = {"uri": options["uri"]}
    if store.kind == "s3":
        properties |= {"s3.endpoint": store.options["endpoint"], "s3.region": "us-east-1"}
    else:
        options["account_key"] = AZURE_SECRET
        host = urlsplit(store.options["endpoint"]).netloc
        properties |= {f"adls.{part}-storage-authority": host for part in ("blob", "dfs")}
        properties |= {f"adls.{part}-storage-scheme": "http" for part in ("blob", "dfs")}
        properties |= {"adls.account-name": ACCOUNT, "adls.account-key": AZURE_SECRET, "py-io-impl": ARROW_FILE_IO}
    target = lake_target("iceberg:shop", storage_options=options)
    with target.opened():
        target.table(NAME).create(ORDERS)
        target.table(NAME).apply(upserts(ORDERS, rows_of(1, 2)))
        target.commit({NAME: Applied(1, 2)})
    with target.opened():
        assert target.applied[NAME].position == 1
        target.table(NAME).apply(upserts(ORDERS, rows_of(2, n=5), before=True, unknown=("note",)))
        target.commit({NAME: Applied(2, 3)})
    table = load_catalog("shop", **properties).load_table(NAME)
    assert table.location().startswith(f"{bucket}/lake/")
    assert plain_rows(table.scan().to_arrow().to_pylist()) == plain_rows([*rows_of(1), *rows_of(2, n=5, note="note 2")])


def test_a_package_that_the_catalog_needs_is_an_error_of_one_line(tmp_path: Path) -> None:
    options = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "abfss://a@b.dfs.core.windows.net/lake"}
    options |= {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
    target = lake_target("iceberg:shop", storage_options=options)
    with target.opened():
        target.table(NAME).create(ORDERS)
        with pytest.raises(RunError, match=r"^iceberg:shop, table public\.orders: .*adlfs"):
            target.commit({NAME: Applied(1, 2)})


def test_a_commit_makes_its_metadata_once_however_often_pyiceberg_asks_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg.table.update import update_table_metadata

    made = []

    def counted(*args: Any) -> Any:
        made.append(args[1])
        return update_table_metadata(*args)

    apply(tmp_path, 1, upserts(ORDERS, rows_of(1)), ORDERS)
    monkeypatch.setattr("pyiceberg.table.update_table_metadata", counted)
    apply(tmp_path, 2, upserts(ORDERS, rows_of(1, 2), before=True))
    # Each copies all snapshots. Only a change of columns needs one, apart from that of the catalog.
    assert len(made) == 0
    more = pa.schema([*ORDERS, pa.field("more", pa.string())])
    target = lake_target(f"iceberg:{tmp_path}")
    with target.opened():
        sources = {item.name: ColumnSource(item.name) for item in ORDERS}
        target.table(NAME).evolve(more, {**sources, "more": ColumnSource(None, pa.scalar(None, pa.string()))})
        target.table(NAME).apply(upserts(more, rows_of(3, more="x")))
        target.commit({NAME: Applied(3, 4)})
    assert len(made) == 1
    assert len(read_iceberg(tmp_path)) == 3


@pytest.mark.full
@pytest.mark.long
def test_metadata_of_many_commits_stay_few(tmp_path: Path) -> None:
    target = lake_target(f"iceberg:{tmp_path}")
    with target.opened():
        table = target.table(NAME)
        table.create(ORDERS)
        for number in range(230):
            table.apply(upserts(ORDERS, rows_of(number % 40, n=number), before=number >= 40))
            target.commit({NAME: Applied(number, number + 1)})
    made = iceberg_table(tmp_path)
    snapshot = made.current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(made.io)) <= 110
    assert len([*tmp_path.rglob("*.metadata.json")]) <= 22
    assert sorted(row["n"] for row in read_iceberg(tmp_path)) == [*range(190, 230)]
