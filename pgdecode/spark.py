"""The package `spark_udfs` under its other name: `from pgdecode.spark import changes` imports the same function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import spark_udfs

if TYPE_CHECKING:
    from spark_udfs import *  # noqa: F403

__all__ = spark_udfs.__all__


def __dir__() -> list[str]:
    """List the public names."""
    return dir(spark_udfs)


def __getattr__(name: str) -> Any:
    if name not in spark_udfs.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(spark_udfs, name)
