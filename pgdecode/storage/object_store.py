"""Requests to object stores, by obstore. Stores are made in each process, from options and the environment."""

from __future__ import annotations

import errno
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from pgdecode.storage.errors import AccessDenied, StorageError, StoreUnreachable
from pgdecode.storage.object_path import FilePath, ObjectPath, StorageOptionError

# Options of the HTTP client, and not of the store.
_OF_CLIENT = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_url",
    "randomize_addresses",
    "read_timeout",
    "timeout",
    "user_agent",
}
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_STATUS = re.compile(r"status code: (\d{3}(?: [A-Z][A-Za-z]*)*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_REASON = re.compile(r"HTTP error: ([\w ]+)")


class ObjectChanged(StorageError):
    """An object was replaced after it was found."""


def import_obstore(path: object) -> ModuleType:
    """Import obstore, which the path needs.

    Raises
    ------
    ModuleNotFoundError
        If it is not installed.
    """
    try:
        import obstore
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{path} needs: pip install 'pgdecode[cloud]'", name=error.name) from None
    return obstore


def store_of(path: ObjectPath) -> Any:
    """Return the store of a path. It is made once in each process.

    Raises
    ------
    ModuleNotFoundError
        Without obstore.
    StorageOptionError
        For an option that the store does not have.
    """
    return _store(path.root, path.options)


@functools.lru_cache(32)
def _store(root: str, options: tuple[tuple[str, str], ...]) -> Any:
    import_obstore(root)
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    config = {name: value for name, value in options if name not in _OF_CLIENT}
    client: dict[str, Any] = {name: value for name, value in options if name in _OF_CLIENT}
    if _has_http_endpoint(root, config):
        client.setdefault("allow_http", "true")
    for name in client.keys() & {"allow_http", "allow_invalid_certificates", "http1_only", "http2_only"}:
        client[name] = client[name] == "true"
    provider = _shared_credentials(config) if root.startswith("s3:") else {}
    try:
        made: Any = from_url
        return made(root, config=config or None, client_options=client or None, **provider)
    except (BaseError, ValueError) as error:
        # The first line names the option, but no value.
        unknown = next((name for name in config if name in str(error).partition("\n")[0]), None)
        reason = "an option is not valid" if unknown is None else f"no option {unknown!r}"
        raise StorageOptionError(f"{root}: {reason}") from None


def _has_http_endpoint(root: str, config: Mapping[str, str]) -> bool:
    family = "az" if root.startswith("a") else root.partition(":")[0]
    endpoints = [value for name, value in config.items() if name.endswith(("endpoint", "endpoint_url", "base_url"))]
    endpoints += [os.environ.get(name, "") for name in _ENDPOINTS[family]]
    return any(endpoint.startswith("http://") for endpoint in endpoints)


def connection_options(path: ObjectPath) -> dict[str, str]:
    """Return the options of a path for other libraries that connect by object_store of Rust, such as deltalake.

    They read credentials from the environment, and S3's also from AWS's shared files.
    """
    options = dict(path.options)
    if _has_http_endpoint(path.root, options):
        options.setdefault("allow_http", "true")
    return options


def _shared_credentials(config: dict[str, str]) -> dict[str, Any]:
    """Use the profile in AWS's shared files, which obstore does not read, if the environment has no credentials."""
    names = {"AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"}
    given = {name.removeprefix("aws_") for name in config} & {"access_key_id", "skip_signature"}
    file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or Path.home() / ".aws" / "credentials")
    if given or names & set(os.environ) or not ("AWS_PROFILE" in os.environ or file.exists()):
        return {}
    from boto3 import Session
    from obstore.auth.boto3 import Boto3CredentialProvider

    return {"credential_provider": Boto3CredentialProvider(Session())}


@contextmanager
def store_errors(path: object) -> Iterator[None]:
    """Convert errors of obstore, whose texts may have secrets, to errors that name the object and the cause.

    Raises
    ------
    FileNotFoundError
        If there is no such object or bucket.
    AccessDenied, ObjectChanged, StoreUnreachable
    """
    import_obstore(path)
    from obstore import exceptions as of

    try:
        yield
    except FileNotFoundError as error:
        missing = "no such bucket" if "NoSuchBucket" in str(error) else "no such object"
        raise FileNotFoundError(errno.ENOENT, missing, str(path)) from None
    except of.PreconditionError:
        raise ObjectChanged(path, "has changed since it was found") from None
    except of.BaseError as error:
        cause = error_cause(str(error))
        if "404" in cause:
            raise FileNotFoundError(errno.ENOENT, f"no such bucket ({cause})", str(path)) from None
        if isinstance(error, of.PermissionDeniedError | of.UnauthenticatedError) or cause.startswith(("401", "403")):
            raise AccessDenied(path, f"permission denied ({cause})") from None
        raise StoreUnreachable(path, f"the store does not answer, or refuses ({cause})") from None


def error_cause(text: str) -> str:
    """Describe an error by the status and the code of the response, because texts of errors may have secrets."""
    status, code, reason = _STATUS.search(text), _CODE.search(text), _REASON.search(text.partition("\n")[0])
    found = [item[1] for item in (status, code, reason) if item]
    return " ".join(dict.fromkeys(found)) or text.partition(":")[0].partition(" error")[0]


def listed(path: ObjectPath, after: str | None = None) -> list[tuple[ObjectPath, datetime]]:
    """List all objects below a path as below a folder, with the times at which they were written.

    With `after`, list only those whose names come after this one.
    """
    obstore = import_obstore(path)
    with store_errors(path):
        offset = None if after is None else (path / after).key
        chunks = obstore.list(store_of(path), path.key or None, offset=offset, chunk_size=1000)
        return [
            (replace(path, key=item["path"], size=item["size"], e_tag=_quoted(item["e_tag"])), item["last_modified"])
            for chunk in chunks
            for item in chunk
        ]


def folders_below(path: ObjectPath) -> list[ObjectPath]:
    """List the folders of a path: those parts of keys that are followed by a slash."""
    obstore = import_obstore(path)
    with store_errors(path):
        found = obstore.list_with_delimiter(store_of(path), path.key or None)["common_prefixes"]
    return [replace(path, key=key.strip("/"), size=-1, e_tag=None) for key in sorted(found)]


def found_object(path: ObjectPath) -> ObjectPath | None:
    """Return a path with the size and the ETag of the object; None if there is none."""
    if not path.key:
        return None
    obstore = import_obstore(path)
    try:
        with store_errors(path):
            item = obstore.head(store_of(path), path.key)
    except FileNotFoundError:
        return None
    return replace(path, size=item["size"], e_tag=_quoted(item["e_tag"]))


def read_range(path: ObjectPath, start: int, end: int) -> Any:
    """Read bytes of an object, as a buffer.

    Raises
    ------
    ObjectChanged
        If `path` has an ETag, and the object has another one now.
    """
    obstore = import_obstore(path)
    options: dict[str, Any] = {"range": (start, end)}
    if path.e_tag is not None:
        options["if_match"] = path.e_tag
    with store_errors(path):
        return obstore.get(store_of(path), path.key, options=options).bytes()


def read_object(path: ObjectPath) -> bytes | None:
    """Read a small object; None if there is none."""
    obstore = import_obstore(path)
    try:
        with store_errors(path):
            return bytes(obstore.get(store_of(path), path.key).bytes())
    except FileNotFoundError:
        return None


def create_object(path: ObjectPath, content: bytes) -> bool:
    """Write a small object if there is none. Return whether it was written."""
    obstore = import_obstore(path)
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    with store_errors(path):
        try:
            obstore.put(store_of(path), path.key, content, mode="create")
        except (AlreadyExistsError, PreconditionError):
            return False
    return True


def created_object(path: ObjectPath, content: bytes) -> bytes | None:
    """Write a small object if there is none. Return the content of another one that is there already."""
    try:
        if create_object(path, content):
            return None
    except StorageError:
        # The store may have it all the same.
        if read_object(path) != content:
            raise
        return None
    # A request that was repeated after a lost response meets its own object.
    other = read_object(path)
    return None if other == content else other or b""


def delete_objects(paths: Sequence[ObjectPath]) -> None:
    """Delete objects, if they are there."""
    for path in paths:
        try:
            with store_errors(path):
                import_obstore(path).delete(store_of(path), path.key)
        except FileNotFoundError:
            continue


def remove_file(path: FilePath) -> None:
    """Remove a local file or an object, if it is there."""
    if isinstance(path, ObjectPath):
        delete_objects([path])
    else:
        path.unlink(missing_ok=True)


def _quoted(e_tag: str | None) -> str | None:
    """Return an ETag as in HTTP. A listing on Azure has no quotes."""
    return e_tag if e_tag is None or e_tag.startswith(('"', "W/")) else f'"{e_tag}"'
