"""The fuzzer's corpus, replayed on the usual build by the public functions; and that it is what the fuzzer reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz import checks, corpus, inputs, planted
from fuzz.__main__ import main as fuzz_main
from fuzz.build import ROOT
from fuzz.targets import COUNTED, LONGEST
from support.tiers import full

# The native targets are for the sanitizers; what they check of the C core is checked of its callers here.
CHECKS = {
    "walk": checks.check_walk,
    "scan": checks.check_batch,
    "text": checks.check_text,
    "binary": checks.check_binary,
    "encoded": checks.check_encoded,
    "file": checks.check_file,
    "batch": checks.check_batch,
    "rows": checks.check_rows,
    "changes": checks.check_changes,
}


@pytest.mark.parametrize("step", [pytest.param(20, id="some"), full(1, id="all")])
@pytest.mark.parametrize("target", LONGEST)
def test_what_has_to_hold_of_an_input_holds_of_the_corpus(target: str, step: int) -> None:
    found = corpus.packed(target)
    assert len(found) >= 50
    for data in found[::step]:
        try:
            CHECKS[target](data)
        except Exception as error:
            error.add_note(f"the input is {data.hex()}")
            raise


def test_the_corpus_is_small_and_without_repetition() -> None:
    assert sum(path.stat().st_size for path in corpus.HERE.iterdir()) < 1_500_000
    for target, longest in LONGEST.items():
        found = corpus.packed(target)
        assert len(set(found)) == len(found)
        assert max(map(len, found)) <= longest


def test_payloads_are_read_as_they_are_written() -> None:
    payloads = [b"E", None, b"", b"S" * 300]
    assert inputs.payloads_of(inputs.written(payloads)) == payloads
    # The last payload is as long as the bytes that are left.
    assert inputs.payloads_of(b"\x00\x05ab") == [b"ab"]


@pytest.mark.full
@pytest.mark.long
def test_every_target_has_seeds_from_the_captures() -> None:
    for target, longest in LONGEST.items():
        found = list(corpus.seeds(target))
        assert len(found) >= 50
        assert max(map(len, found)) <= longest


def test_the_native_targets_have_the_numbers_of_inputs() -> None:
    source = (Path(__file__).parent.parent / "fuzz" / "scans.pyx").read_text()
    assert f"MAX_ROWS = {inputs.MAX_ROWS} " in source
    assert f"NULL_LENGTH = 0x{inputs.NULL:04X} " in source


def test_the_fuzzer_says_what_has_to_be_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("sys.argv", ["fuzz", "run"])
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert fuzz_main() == 3
    assert capsys.readouterr().err.startswith("the fuzzer cannot be built: there is no clang; on Debian 12: apt-get")


def test_the_modules_whose_coverage_counts_are_there() -> None:
    modules = [f"/{path.relative_to(ROOT / 'src')}" for path in (ROOT / "src").rglob("*.pyx")]
    parts = [part for names in COUNTED.values() for part in names.split()]
    assert [part for part in parts if not any(part in module for module in modules)] == []


@pytest.mark.parametrize("bug", planted.BUGS, ids=[bug.target for bug in planted.BUGS])
def test_a_planted_bug_has_its_line_in_the_sources(bug: planted.Bug) -> None:
    sources = ROOT / "src" / "pgdecode"
    assert (sources / bug.module).with_suffix(".pyx").is_file()
    assert (sources / bug.source).read_text().count(bug.right) == 1
