"""Which columns of a table become those of net changes, from one version of the relation to the next."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from pgdecode import Column, Relation
from pgdecode.datasets.errors import RunError
from pgdecode.lake.reading.schema_steps import UnknownValues
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.schema_metadata import Described
from spark_udfs.lake.apply_stream import _merge_table
from spark_udfs.lake.evolution import Difference, difference
from spark_udfs.lake.lake_table import Applied, LakeTable
from spark_udfs.sources.packed_tables import ChangesOfVersion

merge_module = importlib.import_module("spark_udfs.lake.merge_into")
TYPES = {"int4": (23, T.IntegerType()), "int8": (20, T.LongType()), "text": (25, T.StringType())}


def version(at: int, text: str) -> RelationVersion:
    """Make a version from "id a:text"."""
    parts = [item.partition(":")[::2] for item in text.split()]
    columns = tuple(Column(int(name == "id"), name, TYPES[kind or "int4"][0], -1) for name, kind in parts)
    return RelationVersion(Relation(1, "public", "t", "d", columns), position=at, visible_from=at)


def columns_of(text: str) -> T.StructType:
    parts = [item.partition(":")[::2] for item in text.split()]
    return T.StructType([T.StructField(name, TYPES[kind or "int4"][1]) for name, kind in parts])


def table_of(item: RelationVersion, text: str) -> LakeTable:
    return LakeTable(cast(SparkSession, None), "t", "iceberg", columns_of(text), item, False, {})


def compared(*texts: str, described_from: int = 1) -> Difference:
    """Compare a table with the columns of the first version with net changes that describe later ones."""
    versions = [version(10 * at, text) for at, text in enumerate(texts, 1)]
    return difference(
        table_of(versions[0], texts[0]), columns_of(texts[-1]), Described(tuple(versions[described_from:]))
    )


@pytest.mark.parametrize("described_from", [0, 1])
@pytest.mark.parametrize(
    ("texts", "names", "added"),
    [
        (("id a b", "id a", "id a b"), {"id": "id", "a": "a"}, ("b",)),
        # The payloads do not show that a last column was renamed, so that it is dropped and added.
        (("id a b", "id a", "id b"), {"id": "id"}, ("b",)),
        (("id a b:text", "id a", "id a b:text", "id b:text"), {"id": "id"}, ("b",)),
        (("id a b", "id b", "id c", "id c b"), {"id": "id"}, ("c", "b")),
        (("id a b z", "id b z", "id c z"), {"id": "id", "b": "c", "z": "z"}, ()),
        (("id a z", "id b z", "id c z", "id c z a"), {"id": "id", "a": "c", "z": "z"}, ("a",)),
    ],
)
def test_a_column_is_followed_through_each_version_between(
    texts: tuple[str, ...], names: dict[str, str], added: tuple[str, ...], described_from: int
) -> None:
    found = compared(*texts, described_from=described_from)
    assert (found.names, found.added) == (names, added)
    assert {*found.dropped} == {*columns_of(texts[0]).names} - {*names}
    if added:
        with pytest.raises(UnknownValues, match=f"column '{added[0]}' was added, and its values in older rows"):
            found.sources(is_empty=False)
        assert {*found.sources(is_empty=True)} == {*columns_of(texts[-1]).names}
    else:
        assert {name: item.name for name, item in found.sources(is_empty=False).items()} == {
            new: old for old, new in names.items()
        }


def test_values_that_several_changes_of_a_type_may_have_altered_are_not_known() -> None:
    with pytest.raises(UnknownValues, match="the type of column 'a' was changed, and the new values"):
        compared("id a:int8", "id a:int4", "id a:text", "id a:int8").sources(is_empty=False)
    found = compared("id a:int4", "id a:int8", "id a:int4", "id a:int8")
    assert found.sources(is_empty=False)["a"].name == "a"
    assert [*found.retyped] == ["a"]


@pytest.mark.parametrize(("position", "texts"), [(None, []), (20, []), (21, ["id a"])])
def test_net_changes_without_rows_give_the_table_their_columns_if_they_are_new(
    monkeypatch: pytest.MonkeyPatch, position: int | None, texts: list[str]
) -> None:
    # Otherwise the next version, with another b, would be compared with the first one.
    for at, expected in ((2, texts), (0, [])):  # the version 0 is one before that of the table
        table = LakeTable(
            cast(SparkSession, None), "t", "iceberg", columns_of("id a b"), version(10, "id a b"), False, {}
        )
        evolved: list[str] = []
        monkeypatch.setattr(LakeTable, "open", lambda *_, table=table: table)
        monkeypatch.setattr(LakeTable, "applied", lambda _: Applied(20))
        monkeypatch.setattr(LakeTable, "frame", lambda _: SimpleNamespace(isEmpty=lambda: False))
        monkeypatch.setattr(
            merge_module, "evolve", lambda _, net, *__, evolved=evolved, **___: evolved.append(" ".join(net.names))
        )
        merge = object.__new__(merge_module._Merge)
        merge.__dict__.update(
            spark=None, name="t", columns=columns_of("id a"), described=Described((version(10 * at, "id a"),))
        )
        monkeypatch.setattr(merge, "_summary", lambda: {"last": None})
        assert not merge.run("evolve", position, None).is_applied
        assert evolved == expected


def test_versions_that_overlap_are_an_error_that_a_copy_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LakeTable, "open", lambda *_: None)
    packed = cast(DataFrame, SimpleNamespace(sparkSession=None))
    versions = [
        ChangesOfVersion(0, 0, pa.schema([]), (10, 1), (10, 5), None),
        ChangesOfVersion(0, 1, pa.schema([]), (10, 3), (10, 4), None),
    ]
    with pytest.raises(RunError, match=r"position 3 overlap.*\. Copy the table .*without maxFilesPerTrigger"):
        _merge_table(packed, versions, "t", "t", None, "evolve", None)
    copied = ChangesOfVersion(0, 2, pa.schema([]), (20, 15), (20, 16), (20, 15))
    merged: list[ChangesOfVersion] = []
    monkeypatch.setattr(ChangesOfVersion, "changes", lambda item, _: merged.append(item))
    with pytest.raises(AttributeError):  # there is no session
        _merge_table(packed, [*versions, copied], "t", "t", None, "evolve", None)
    assert merged == [copied]
