"""Files that a clone of the repository has, and the sdist has not: documentation and benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def path_of(name: str) -> Path:
    """The path of a file or folder; without it, the test or the whole module is skipped."""
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{name} is not in the sdist", allow_module_level=True)
    return path
