"""Which cases of a test the quick tier leaves out."""

from __future__ import annotations

from typing import Any

import pytest


def full(*values: Any, id: str | None = None) -> Any:
    """Give a case that only `make test-all` runs: others of the same test are in the quick tier."""
    return pytest.param(*values, marks=pytest.mark.full, id=id)
