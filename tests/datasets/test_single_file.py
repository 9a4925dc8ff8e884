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


@pytest.mark.parametrize("former", ["nothing", "file", "folder"])
@pytest.mark.parametrize("latter", ["file", "folder"])
@pytest.mark.parametrize("outcome", [None, RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_output_is_complete_or_missing(
    tmp_path: Path, former: str, latter: str, outcome: type[BaseException] | None
) -> None:
    def make(path: Path, kind: str, text: str) -> None:
        if kind == "folder":
            path.mkdir()
            (path / "part.parquet").write_text(text)
        elif kind == "file":
            path.write_text(text)

    def seen(path: Path) -> tuple[str, str]:
        if path.is_dir():
            return "folder", (path / "part.parquet").read_text()
        return ("file", path.read_text()) if path.exists() else ("nothing", "")

    target = tmp_path / "out"
    make(target, former, "former")
    before = seen(target)
    with nullcontext() if outcome is None else pytest.raises(outcome), staged(target) as hidden:
        make(hidden, latter, "latter")
        if outcome is not None:
            raise outcome
    assert seen(target) == ((latter, "latter") if outcome is None else before)
    assert os.listdir(tmp_path) == ([] if seen(target)[0] == "nothing" else ["out"])


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


def test_overwriting_is_for_what_decode_writes_and_not_for_a_folder_of_other_things(tmp_path: Path) -> None:
    source = written(tmp_path / "in.parquet", [BEGIN])
    target = tmp_path / "out"
    for name in ("day=1/part-0.snappy.parquet", "_SUCCESS", ".part-0.parquet.crc"):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    check_target(target, source, overwrite=True)
    (target / "day=1" / "thesis.tex").touch()
    with pytest.raises(
        PathError, match=r"not replaced, because it has a file that pgdecode did not write: day=1/thesis\.tex"
    ):
        check_target(target, source, overwrite=True)


def test_a_link_to_the_input_is_the_input(tmp_path: Path) -> None:
    source = written(tmp_path / "in.parquet", [BEGIN])
    (tmp_path / "link.parquet").symlink_to(source)
    with pytest.raises(PathError, match="is the input"):
        check_target(tmp_path / "link.parquet", source, overwrite=True)
