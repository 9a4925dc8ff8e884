"""Which columns of a table become those of net changes, from one version of the relation to the next."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from pgdecode import Column, Relation
from pgdecode.lake.reading.schema_steps import UnknownValues
from pgdecode.relations.relation_version import RelationVersion
from pgdecode.relations.schema_metadata import Described
from spark_udfs.lake.evolution import Difference, difference
from spark_udfs.lake.lake_table import LakeTable

TYPES = {"int4": (23, T.IntegerType()), "int8": (20, T.LongType()), "text": (25, T.StringType())}


def version(at: int, text: str) -> RelationVersion:
    """Make a version from "id a:text"."""
    parts = [item.partition(":")[::2] for item in text.split()]
    columns = tuple(Column(int(name == "id"), name, TYPES[kind or "int4"][0], -1) for name, kind in parts)
    return RelationVersion(Relation(1, "public", "t", "d", columns), position=at, visible_from=at)


def columns_of(text: str) -> T.StructType:
    parts = [item.partition(":")[::2] for item in text.split()]
    return T.StructType([T.StructField(name, TYPES[kind or "int4"][1]) for name, kind in parts])


def compared(*texts: str, described_from: int = 1) -> Difference:
    """Compare a table with the columns of the first version with net changes that describe later ones."""
    versions = [version(10 * at, text) for at, text in enumerate(texts, 1)]
    table = LakeTable(cast(SparkSession, None), "t", "iceberg", columns_of(texts[0]), versions[0], False, {})
    return difference(table, columns_of(texts[-1]), Described(tuple(versions[described_from:])))


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
