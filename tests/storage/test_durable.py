"""Durable files: what a name has after a failure, files that one process creates, and locks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgdecode.storage.durable import locked, write_durably


def test_a_file_has_its_former_content_if_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_durably(path, b"former")

    def fail(handle: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"former"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_file_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, b"first", create=True)
    with pytest.raises(FileExistsError):
        write_durably(path, b"second", create=True)
    assert path.read_bytes() == b"first"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_lock_is_held_once_and_released_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, ValueError("taken")), pytest.raises(ValueError, match="taken"), locked(path, ValueError("taken")):
        pass
    with locked(path, ValueError("taken"), remove=True):
        assert path.exists()
    assert not path.exists()
