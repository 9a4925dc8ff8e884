"""The native targets of the fuzzer follow the sources, also where clang is missing and nobody compiles them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.build import HERE, MODULES, ROOT, generate

pytest.importorskip("Cython", reason="Cython is only installed for development")
pytestmark = pytest.mark.full


@pytest.mark.parametrize("name", MODULES)
def test_a_native_target_is_valid_cython(name: str, tmp_path: Path) -> None:
    generate(HERE / f"{name}.pyx", tmp_path / f"{name}.c", ROOT / "src")
    assert (tmp_path / f"{name}.c").stat().st_size > 0
