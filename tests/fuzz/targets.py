"""The targets by name, for the driver: the address of a C function, or a function in Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

# Called without Python: name -> native module.
NATIVE = {"walk": "scans", "scan": "scans", "text": "values", "binary": "values"}
# Of these, the modules whose coverage counts, as parts of their paths; of the others, all.
COUNTED = {
    "scans": (
        "/scan/fast_path. /scan/tuple_copy. /wire/walker. /wire/variable_length_fields. /wire/tuples. "
        "/wire/envelope_builder. /wire/stream_state. /arrow/builder."
    ),
    "values": "/codecs/ /arrow/column_builder. /memory/transcoding.",
}
# Functions of `checks`.
CHECKS = ("encoded", "file", "batch", "rows", "changes")
# The targets, with the length of their longest input: executions a second count for more than long inputs do.
LONGEST = {
    "walk": 512,
    "scan": 768,
    "text": 160,
    "binary": 256,
    "encoded": 256,
    "file": 768,
    "batch": 768,
    "rows": 1024,
    "changes": 1024,
}


def target(name: str) -> int | Callable[[bytes], None]:
    """Find what the driver is to call for each input."""
    if name in NATIVE:
        use_plain_memory()
        address: int = import_module(NATIVE[name]).target(name)
        return address
    found: Callable[[bytes], None] = getattr(import_module("fuzz.checks"), f"check_{name}")
    return found


def counted(name: str) -> str:
    """Find whose coverage guides a target; empty where that of all modules does."""
    return COUNTED[NATIVE[name]] if name in NATIVE else ""


def use_plain_memory() -> None:
    """Make all native modules of pgdecode allocate by `plain_memory`; none of them may have been imported before."""
    location = find_spec("pgdecode")
    if location is None or "pgdecode" in sys.modules:
        raise ImportError("pgdecode is not there, or has been imported with its own memory")
    # The package's own __init__ would import everything: an empty one stands in for it.
    package = ModuleType("pgdecode")
    package.__path__ = list(location.submodule_search_locations or ())
    sys.modules["pgdecode"] = package
    memory, plain = import_module("pgdecode._native.memory.buffers"), import_module("plain_memory")
    for function in ("grow", "open_zeroed", "free_bytes"):
        # What other modules cimport, they look up here.
        memory.__pyx_capi__[function] = plain.__pyx_capi__[function]
    del sys.modules["pgdecode"]
