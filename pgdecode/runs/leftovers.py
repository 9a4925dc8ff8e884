"""Finds and removes what killed runs have left, in object stores and beside local outputs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pgdecode.runs.errors import RunError
from pgdecode.runs.manifest import MANIFEST, parse_manifest
from pgdecode.runs.object_run import CLAIM, PART
from pgdecode.storage.durable import locked
from pgdecode.storage.object_path import FilePath, ObjectPath
from pgdecode.storage.object_store import delete_objects, listed, read_object, s3_client

# Hidden files beside a local output, and the folders of jobs on file systems of Hadoop.
_LOCAL = re.compile(r"\.(?P<name>.+)\.(partial|former|spill)|.+\.[0-9a-f]{32}\.partial", re.DOTALL)


def remove_leftovers(path: FilePath, older_than: timedelta) -> list[str]:
    """Remove what killed runs have left at a path and below it. Return the names of what was removed.

    Parameters
    ----------
    path : Path or ObjectPath
        A target, or a folder with targets.
    older_than : timedelta
        Only what was written longer ago. It must be longer than any run takes: in an object store, nothing else tells
        a run that is slow from one that was killed.

    Raises
    ------
    AccessDenied, StoreUnreachable
        If an object store refuses a request, or does not answer.
    """
    before = datetime.now(UTC) - older_than
    if isinstance(path, ObjectPath):
        return [*_remove_objects(path, before), *_abort_uploads(path, before)]
    return sorted(str(found) for found in _local(path, before))


def _remove_objects(path: ObjectPath, before: datetime) -> list[str]:
    found = listed(path)
    keys = {item.key for item, _ in found}
    claims = {item.parent.key: written for item, written in found if item.name == CLAIM}
    named: set[str] = set()
    for item, _ in found:
        if item.name == MANIFEST:
            there = read_object(item)
            manifest = None if there is None else parse_manifest(there[0], item)
            named |= {(item.parent / file.name).key for file in (() if manifest is None else manifest.files)}
    old = []
    for item, written in found:
        # A part is in the folder of the target, or in the folder of a table below it.
        claimed = max((claims[key] for key in (item.parent.key, item.parent.parent.key) if key in claims), default=None)
        is_ours = item.name == CLAIM or (PART.fullmatch(item.name) is not None and item.key not in named)
        if is_ours and written < before and (claimed is None or claimed < before):
            old.append(item)
    # The claim is removed last: it protects parts whose removal fails.
    old.sort(key=lambda item: item.name == CLAIM)
    delete_objects(old)
    return [str(item) for item in old if item.key in keys]


def _abort_uploads(path: ObjectPath, before: datetime) -> list[str]:
    """Abort uploads to S3 that have no key yet. Azure and GCS remove theirs by themselves or by a rule."""
    if not path.root.startswith("s3://"):
        return []
    bucket = path.root.removeprefix("s3://")
    removed = []
    with s3_client(path) as client:
        pages: Any = client.get_paginator("list_multipart_uploads").paginate(
            Bucket=bucket, Prefix=f"{path.key}/" if path.key else ""
        )
        for upload in [upload for page in pages for upload in page.get("Uploads", ())]:
            if PART.fullmatch(upload["Key"].rpartition("/")[2]) and upload["Initiated"] < before:
                client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                removed.append(f"{path.root}/{upload['Key']} (upload)")
    return removed


def _local(path: Path, before: datetime) -> Iterator[Path]:
    candidates = [*path.parent.glob(f".{path.name}.*"), *path.parent.glob(f"{path.name}.*.partial")]
    candidates += path.rglob("*") if path.is_dir() else ()
    for found in candidates:
        match = _LOCAL.fullmatch(found.name)
        if match is None or not found.exists() or _last_change(found) >= before:
            continue
        target = found.parent / (match["name"] or found.name)
        if match[2] == "former" and not target.exists():
            # This is the former output, which was being replaced.
            found.rename(target)
            continue
        try:
            with locked(target.parent / f".{target.name}.lock", RunError(), remove=True):
                shutil.rmtree(found) if found.is_dir() else found.unlink()
                yield found
        except RunError:
            continue  # A process is writing this target now.


def _last_change(path: Path) -> datetime:
    newest = max(item.lstat().st_mtime for item in (path, *(path.rglob("*") if path.is_dir() else ())))
    return datetime.fromtimestamp(newest, UTC)
