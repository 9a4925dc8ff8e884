"""Builds every .pyx under src/ into the package whose path it mirrors; all Cython directives are here."""

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

ROOT = Path(__file__).parent
SOURCES = Path("src")
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "embedsignature": True,
    "warn.maybe_uninitialized": True,
}
# One switch for instrumented builds (see CONTRIBUTING): PGDECODE_CFLAGS="-O1 -g -fsanitize=address,undefined".
EXTRA = os.environ.get("PGDECODE_CFLAGS", "").split()
# The walk is one hot loop over small inline functions; left to itself the compiler keeps some of them as calls.
INLINE = "-DCYTHON_INLINE=inline __attribute__((always_inline))"
# Should a bounds check ever be missing all the same. Instrumented builds have checks of their own in these places.
HARDENED = [] if EXTRA else ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
READ_ONLY = ["-Wl,-z,relro,-z,now"] if sys.platform == "linux" else []
FLAGS = [] if os.name == "nt" else ["-O3", "-g0", "-Wno-unused-function", INLINE, *HARDENED, *EXTRA]


def extensions() -> list[Extension]:
    """One extension per .pyx; src/pgdecode/_scan.pyx becomes pgdecode._scan."""
    found = []
    for path in sorted((ROOT / SOURCES).rglob("*.pyx")):
        relative = path.relative_to(ROOT)
        module = ".".join(relative.relative_to(SOURCES).with_suffix("").parts)
        found.append(
            Extension(
                module,
                [str(relative)],
                extra_compile_args=FLAGS,
                extra_link_args=[*READ_ONLY, *(flag for flag in EXTRA if "sanitize" in flag)],
            )
        )
    return found


setup(
    ext_modules=cythonize(
        extensions(),
        include_path=[str(SOURCES)],
        build_dir="build/cython",
        compiler_directives=DIRECTIVES,
        nthreads=0 if os.name == "nt" else os.cpu_count() or 1,
    )
)
