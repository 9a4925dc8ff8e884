import subprocess
import sys
from pathlib import Path

import pgdecode

# The package without its __init__, which would import the registry first.
IMPORT_REGISTRY = f"""
import sys, types
sys.modules["pgdecode"] = types.ModuleType("pgdecode")
sys.modules["pgdecode"].__path__ = [{str(Path(pgdecode.__file__).parent)!r}]
from pgdecode.types import pgtypes
pgtypes.TYPES += (pgtypes.TYPES[0]._replace(name="total", codec="summed"),)
import pgdecode._native.codecs.registry
"""


def test_a_type_without_a_codec_makes_the_import_fail() -> None:
    found = subprocess.run([sys.executable, "-c", IMPORT_REGISTRY], capture_output=True, text=True)
    assert found.stderr.splitlines()[-1] == ("ImportError: type total has the codec 'summed', which no module adds")
