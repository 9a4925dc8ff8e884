"""Outputs that are complete or missing."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from pgdecode.datasets.single_file import check_target, staged
from pgdecode.storage.errors import PathError
from support.generators.samples import SAMPLES
from support.payload_files import written

BEGIN = SAMPLES["begin"].payload


def test_a_file_takes_its_name_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "out.parquet"
    with staged(target) as hidden:
        hidden.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert os.listdir(tmp_path) == ["out.parquet"]


@pytest.mark.parametrize("former", [None, "former"])
@pytest.mark.parametrize("outcome", [None, RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_output_is_complete_or_missing(
    tmp_path: Path, former: str | None, outcome: type[BaseException] | None
) -> None:
    target = tmp_path / "out"
    if former is not None:
        target.write_text(former)
    with nullcontext() if outcome is None else pytest.raises(outcome), staged(target) as hidden:
        hidden.write_text("latter")
        if outcome is not None:
            raise outcome
    found = target.read_text() if target.exists() else None
    assert found == ("latter" if outcome is None else former)
    assert os.listdir(tmp_path) == ([] if found is None else ["out"])


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        pytest.param("raw", "raw", "is the input", id="the input itself"),
        pytest.param("raw", "raw/out", "is inside the input", id="inside the input"),
        pytest.param("raw/in.parquet", "raw", "contains the input", id="around the input"),
        pytest.param("raw", "there", "exists already", id="something else"),
        pytest.param("raw", "nowhere/out", "there is no folder", id="in a folder that is not there"),
    ],
)
def test_an_unsuitable_target_is_refused(
    tmp_path: Path, source: str, target: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "raw" / "in.parquet", [BEGIN])
    (tmp_path / "there").mkdir()
    with pytest.raises(PathError) as caught:
        check_target(Path(target), Path(source), overwrite=False)
    assert str(caught.value).startswith(f"{target}: {message}")


@pytest.mark.parametrize(
    ("name", "why"),
    [("out.parquet", "by a file, because it is a folder"), ("thesis.tex", "because pgdecode does not write")],
)
def test_overwriting_is_for_files_that_decode_writes(tmp_path: Path, name: str, why: str) -> None:
    source = written(tmp_path / "in.parquet", [BEGIN])
    (tmp_path / "out.parquet").mkdir()
    for file in ("thesis.tex", "out.csv"):
        (tmp_path / file).touch()
    check_target(tmp_path / "out.csv", source, overwrite=True)
    with pytest.raises(PathError, match=f"{name}: not replaced,? {why}"):
        check_target(tmp_path / name, source, overwrite=True)


def test_a_link_to_the_input_is_the_input(tmp_path: Path) -> None:
    source = written(tmp_path / "in.parquet", [BEGIN])
    (tmp_path / "link.parquet").symlink_to(source)
    with pytest.raises(PathError, match="is the input"):
        check_target(tmp_path / "link.parquet", source, overwrite=True)
