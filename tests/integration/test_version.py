"""The package's version: said in one place, and known without installed metadata."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import pgdecode

ROOT = Path(pgdecode.__file__).parent.parent


def test_the_version_is_that_of_the_installed_package() -> None:
    assert pgdecode.__version__ == metadata.version("pgdecode")


@pytest.mark.full
def test_a_tree_without_installed_metadata_can_be_imported() -> None:
    script = """
import importlib.metadata

def version(name):
    if name == "pgdecode":
        raise importlib.metadata.PackageNotFoundError(name)
    return "0"

importlib.metadata.version = version
import pytest

import pgdecode
print(pgdecode.__version__, len(pgdecode.decode_messages([b"E"])))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (run.stdout, run.stderr) == (f"{pgdecode.__version__} 1\n", "")


def test_sources_that_are_not_compiled_say_so(tmp_path: Path) -> None:
    copy = tmp_path / "pgdecode"
    shutil.copytree(ROOT / "pgdecode", copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    run = subprocess.run([sys.executable, "-c", "import pgdecode"], capture_output=True, text=True, cwd=tmp_path)
    assert run.stderr.splitlines()[-1] == (
        f"ImportError: the folder {copy / '_native'} has sources that are not compiled: "
        "run `make build` in the clone, or start Python in another folder to use an installed pgdecode"
    )


def test_the_description_of_the_package_has_no_relative_links() -> None:
    text = metadata.metadata("pgdecode").get_payload()
    assert text.startswith("# pgdecode")
    links = ["".join(found) for found in re.findall(r'\]\(([^)]+)\)|(?:src|srcset)="([^"]+)"|\n\[.+\]: (\S+)', text)]
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
