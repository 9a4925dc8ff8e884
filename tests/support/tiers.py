"""Which cases of a test the quick tier and `.ci/run` leave out."""

from __future__ import annotations

from typing import Any

import pytest


def full(*values: Any, id: str | None = None) -> Any:
    """Give a case of the full tier: others of the same test are in the quick tier."""
    return pytest.param(*values, marks=pytest.mark.full, id=id)


def long(*values: Any, id: str | None = None) -> Any:
    """Give a case that only `make test-all` runs: others of the same test are in the full tier."""
    return pytest.param(*values, marks=[pytest.mark.full, pytest.mark.long], id=id)
