"""Builds the package and the targets for the fuzzer, in build/fuzz, beside the usual build."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from fuzz.targets import LONGEST

ROOT = Path(__file__).parent.parent.parent
HERE = Path(__file__).parent
BUILD = ROOT / "build" / "fuzz"
LIBRARY = BUILD / "lib"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")

# What a sanitizer finds ends the run: libFuzzer then keeps the input.
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
FLAGS = ["-O2", "-g1", "-fno-omit-frame-pointer", *SANITIZE, "-w"]
# Of the code under test; that of the targets is no news.
COVERAGE = "-fsanitize=fuzzer-no-link"
# The driver decides which modules' coverage counts: libFuzzer looks through all counters after each execution.
WRAP = ["-Wl,--wrap=__sanitizer_cov_8bit_counters_init", "-Wl,--wrap=__sanitizer_cov_pcs_init"]
MODULES = ("plain_memory", "scans", "values")


class Lacking(Exception):
    """Something that has to be installed first."""


def check_tools() -> None:
    """Say what the build needs and the machine has not."""
    if sys.platform != "linux":
        raise Lacking("it is written for Linux's linker and loader")
    if shutil.which("clang") is None:
        raise Lacking("there is no clang; on Debian 12: apt-get install clang libclang-rt-14-dev")
    probe = ["clang", "-x", "c", "-", "-fsanitize=fuzzer,address,undefined", "-o", os.devnull]
    program = "int LLVMFuzzerTestOneInput(const char *data, unsigned long size) { return 0; }"
    done = subprocess.run(probe, input=program, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Lacking(
            f"clang lacks libFuzzer or the sanitizers; on Debian 12: apt-get install libclang-rt-14-dev\n{done.stderr}"
        )
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        raise Lacking(f"there is no {header}; on Debian and Ubuntu: apt-get install python3-dev")


def run(*command: str | Path, **environment: str) -> None:
    """Run a command of the build from the root; what it prints is shown only if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}")


def include_flags() -> list[str]:
    return ["-I", sysconfig.get_path("include")]


def build_package() -> None:
    """The package itself, each module with coverage and sanitizers."""
    run(
        *(sys.executable, "setup.py", "--quiet", "build", "--build-base", BUILD, "--build-lib", LIBRARY),
        CC="clang",
        LDSHARED=" ".join(["clang", "-shared", *WRAP]),
        PGDECODE_CFLAGS=" ".join([COVERAGE, *FLAGS]),
    )


def generate(source: Path, generated: Path, include: Path) -> None:
    """Translate one .pyx to C; `include` has the .pxd of the package."""
    directives = "boundscheck=False,wraparound=False,initializedcheck=False,cdivision=True"
    run(
        *(sys.executable, "-m", "cython", "-3", "-X", directives, "-I", include, "-I", HERE),
        *(source, "-o", generated),
    )


def compile_module(source: Path, target: Path, include: Path, *flags: str) -> None:
    """Compile one .pyx to an instrumented module; `include` has the .pxd of the package."""
    generated = target.with_name(f"{source.stem}.c")
    generate(source, generated, include)
    target.unlink(missing_ok=True)
    run("clang", "-shared", "-fPIC", *FLAGS, *flags, *include_flags(), generated, "-o", target)


def build_targets() -> None:
    """The native targets, and the driver under the name of each target."""
    for name in MODULES:
        source, target = HERE / f"{name}.pyx", LIBRARY / f"{name}{SUFFIX}"
        declared = [*HERE.glob("*.pxd"), *(ROOT / "src").rglob("*.pxd")]
        if not _is_newer(target, source, *declared):
            compile_module(source, target, ROOT / "src")
    folder = sysconfig.get_config_var("LIBDIR")
    library = f"-lpython{sysconfig.get_config_var('LDVERSION')}"
    driver = BUILD / "driver"
    if not _is_newer(driver, HERE / "driver.c"):
        run(
            *("clang", "-O1", "-g1", "-fsanitize=fuzzer", *SANITIZE, "-rdynamic", *include_flags(), HERE / "driver.c"),
            *(
                "-L",
                folder,
                "-L",
                sysconfig.get_config_var("LIBPL"),
                f"-Wl,-rpath,{folder}",
                library,
                "-ldl",
                "-lm",
                "-o",
                driver,
            ),
        )
    for name in LONGEST:
        link = BUILD / name
        link.unlink(missing_ok=True)
        link.symlink_to("driver")


def _is_newer(target: Path, *sources: Path) -> bool:
    return target.exists() and all(target.stat().st_mtime > source.stat().st_mtime for source in sources)


def build() -> None:
    """Build everything; what has not changed is not compiled again."""
    check_tools()
    build_package()
    build_targets()
