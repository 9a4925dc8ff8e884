"""The functions have two import names: the package `spark_udfs`, and `pgdecode.spark`."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pgdecode.spark
import spark_udfs


@pytest.mark.parametrize("name", spark_udfs.__all__)
def test_both_names_give_the_same_object(name: str) -> None:
    assert getattr(pgdecode.spark, name) is getattr(spark_udfs, name)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match=r"module 'pgdecode\.spark' has no attribute 'chnages'"):
        pgdecode.spark.chnages  # noqa: B018
    with pytest.raises(ImportError):
        from pgdecode.spark.columns import envelope_column  # type: ignore[import-not-found]  # noqa: F401


def test_the_import_leaves_pyspark_alone() -> None:
    code = "import sys, pgdecode.spark as s; print(dir(s) == sorted(s.__all__), 'pyspark' in sys.modules)"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert seen == "True False\n"
