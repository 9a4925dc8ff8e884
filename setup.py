"""Builds every .pyx under src/ into the package whose path it mirrors; all Cython directives are here."""

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

# Both checks come first: a build that fails for them after minutes, behind a compiler's output, explains nothing.
if sys.version_info < (3, 11):  # noqa: UP036
    raise SystemExit(f"pgdecode needs Python 3.11 or newer, and this is {sys.version.split()[0]}")
COMPILER = (shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "") or [""])[0]
BUILDS = {"build", "build_ext", "bdist_wheel", "develop", "editable_wheel", "install"}
if BUILDS & set(sys.argv) and not shutil.which(COMPILER):
    raise SystemExit(
        f"pgdecode is compiled with {COMPILER or 'a C compiler'}, which is not installed: install it"
        " (Debian: apt-get install gcc; macOS: xcode-select --install), or install a wheel of pgdecode"
    )

from Cython.Build import cythonize  # noqa: E402
from setuptools import Extension, setup  # noqa: E402

ROOT = Path(__file__).parent
SOURCES = Path("src")
PROCESSES = os.cpu_count() or 1
# The commands of `pip install -e`, and the names of compiled modules.
EDITABLE, EXTENSION = {"egg_info", "dist_info", "editable_wheel"}, sysconfig.get_config_var("EXT_SUFFIX")
# Cython generates this module: its memoryview class and other code that every module would have a copy of otherwise.
SHARED = "pgdecode._native._cyutility"
# What runs once for a call or a process, never for a row. With -O1 gcc takes half the time.
COLD = {SHARED, "pgdecode._native.fault", "pgdecode._native.changes.text_layouts", "pgdecode._native.wire.wire_plan"}
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "embedsignature": True,
    "warn.maybe_uninitialized": True,
}
# Modules whose memoryviews are indexed by numbers that come from Python. Their loops over rows use pointers, or do much
# more than a check costs.
CHECKED = (
    "pgdecode._native.arrow.int64_kernels",
    "pgdecode._native.changes.text_maps",
    "pgdecode._native.changes.transaction_index",
)
# One switch for instrumented builds (see CONTRIBUTING): PGDECODE_CFLAGS="-O1 -g -fsanitize=address,undefined".
EXTRA = os.environ.get("PGDECODE_CFLAGS", "").split()
# `cdef inline` is a promise here: the compiler would keep some of the small functions of the hot loops as calls.
INLINE = "-DCYTHON_INLINE=inline __attribute__((always_inline))"
# A second line of defence, if a bounds check is missing. Instrumented builds have their own checks.
HARDENED = [] if EXTRA else ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
READ_ONLY = ["-Wl,-z,relro,-z,now"] if sys.platform == "linux" else []
FLAGS = ["-g0", "-Wno-unused-function", INLINE, *HARDENED]
LINK = [*READ_ONLY, *(flag for flag in EXTRA if "sanitize" in flag)]


def extension(name: str, source: Path) -> Extension:
    """One compiled module."""
    level = "-O1" if name in COLD else "-O3"
    return Extension(name, [str(source)], extra_compile_args=[level, *FLAGS, *EXTRA], extra_link_args=LINK)


def extensions() -> list[Extension]:
    """One extension per .pyx; src/pgdecode/_native/scan/scanner.pyx becomes pgdecode._native.scan.scanner."""
    found = [extension(SHARED, Path(*SHARED.split(".")).with_suffix(".c"))]
    for path in sorted((ROOT / SOURCES).rglob("*.pyx")):
        relative = path.relative_to(ROOT)
        found.append(extension(".".join(relative.relative_to(SOURCES).with_suffix("").parts), relative))
    return found


def compiled() -> list[Extension]:
    """Make C of all modules, those in `CHECKED` with bounds checks."""
    found = []
    for checked in (True, False):
        found += cythonize(
            [extension for extension in extensions() if (extension.name in CHECKED) is checked],
            include_path=[str(SOURCES)],
            build_dir="build/cython",
            compiler_directives={**DIRECTIVES, "boundscheck": checked},
            nthreads=PROCESSES,
            shared_utility_qualified_name=SHARED,
        )
    return found


def are_compiled() -> bool:
    """Whether all modules are beside the sources, and were made after every change."""
    sources = [ROOT / "setup.py", *(path for path in (ROOT / SOURCES).rglob("*") if path.suffix in (".pyx", ".pxd"))]
    made = [ROOT.joinpath(*item.name.split(".")).with_suffix(EXTENSION) for item in extensions()]
    changed = max(path.stat().st_mtime for path in sources)
    return not EXTRA and all(path.exists() and path.stat().st_mtime > changed for path in made)


# An editable install uses the modules beside the sources, so that only the first one takes minutes.
is_done = bool(EDITABLE & set(sys.argv)) and are_compiled()
# `pip install` has no option for a parallel build.
setup(ext_modules=[] if is_done else compiled(), options={"build_ext": {"parallel": PROCESSES}})
