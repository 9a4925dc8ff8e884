"""The campaign of calls with the engines of Spark, in short."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from run_campaign import trials

from support.tiers import full, long

pytest_plugins = ["support.spark_session"]


@pytest.mark.parametrize("seed", [full(10), *map(long, (6, 9, 15, 16, *range(30, 34)))])
def test_calls_on_any_engine_give_what_one_call_gives(spark: SparkSession, seed: int) -> None:
    (trial,) = trials([seed], spark=spark)
    assert trial.problems == []
