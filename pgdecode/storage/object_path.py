"""URIs of object stores, with the options to connect to the store."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from pgdecode.storage.errors import PathError

SCHEMES = ("s3", "gs", "az", "abfs", "abfss")
_URI = re.compile(rf"({'|'.join(SCHEMES)})://([^/]+)/*(.*)", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
# How variables of the environment that have these options begin.
_VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_"}
_PREFIX = re.compile(r"(aws|azure_storage|azure|google|gcs)_")
# Options without credentials. Others may hold secrets, and never leave the process.
_PUBLIC = {
    "account_name",
    "allow_http",
    "allow_invalid_certificates",
    "application_credentials",
    "authority_host",
    "base_url",
    "checksum_algorithm",
    "client_id",
    "conditional_put",
    "connect_timeout",
    "copy_if_not_exists",
    "default_region",
    "disable_bulk_delete",
    "disable_tagging",
    "endpoint",
    "endpoint_url",
    "endpoint_url_s3",
    "federated_token_file",
    "http1_only",
    "http2_only",
    "imdsv1_fallback",
    "metadata_endpoint",
    "msi_endpoint",
    "msi_resource_id",
    "object_id",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "randomize_addresses",
    "read_timeout",
    "region",
    "request_payer",
    "role_arn",
    "role_session_name",
    "s3_express",
    "server_side_encryption",
    "service_account",
    "skip_signature",
    "sse_bucket_key_enabled",
    "sse_kms_key_id",
    "sts_endpoint",
    "tenant_id",
    "timeout",
    "unsigned_payload",
    "use_azure_cli",
    "use_emulator",
    "use_fabric_endpoint",
    "virtual_hosted_style_request",
    "web_identity_token_file",
}


class StorageOptionError(PathError):
    """A URI or a storage option that cannot be used."""


@dataclass(frozen=True)
class ObjectPath:
    """An object, or all objects below it as below a folder. It has the surface of a `Path` that the readers need.

    It can be pickled only without credentials, so that none is sent to a task.

    Attributes
    ----------
    root : str
        The bucket or container, as "s3://bucket".
    key : str
        Without slashes at its ends.
    options : tuple of (str, str)
        How to connect.
    size : int
        In bytes; -1 if it is not known.
    e_tag : str or None
        Identifies the content, if it is known.
    """

    root: str
    key: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    size: int = field(default=-1, repr=False, compare=False)
    e_tag: str | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.root}/{self.key}" if self.key else self.root

    def __truediv__(self, name: str) -> ObjectPath:
        return replace(self, key=f"{self.key}/{name}" if self.key else name, size=-1, e_tag=None)

    def __getstate__(self) -> dict[str, Any]:
        self.check_public()
        return self.__dict__

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The suffix of the name, with its dot."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> ObjectPath:
        """The folder of the object."""
        return replace(self, key=self.key.rpartition("/")[0], size=-1, e_tag=None)

    def below(self, folder: ObjectPath) -> str:
        """Return the key relative to a folder."""
        return self.key.removeprefix(f"{folder.key}/" if folder.key else "")

    def contains(self, other: ObjectPath) -> bool:
        """Whether another path is this one, or below it."""
        return self.root == other.root and f"{other.key}/".startswith(f"{self.key}/" if self.key else "")

    def check_public(self) -> None:
        """Check that the options have no credentials.

        Raises
        ------
        StorageOptionError
            If an option may be a credential.
        """
        for name, value in self.options:
            plain = _PREFIX.sub("", name, count=1)
            if plain not in _PUBLIC or "@" in value:
                variable = _VARIABLES.get(self.root.partition(":")[0], "AZURE_STORAGE_") + plain.upper()
                raise StorageOptionError(
                    f"storage option {name!r} may be a credential, which is not sent to tasks: give the executors a "
                    f"role, or set {variable} in their environment (spark.executorEnv.{variable})"
                )


Location = str | os.PathLike[str] | ObjectPath
FilePath = Path | ObjectPath


def is_object(location: Location) -> bool:
    """Whether a location is in an object store."""
    return isinstance(location, ObjectPath) or (isinstance(location, str) and _URI.match(location) is not None)


def object_path(location: str | ObjectPath, options: Mapping[str, Any] | None = None) -> ObjectPath:
    """Parse a URI: s3://bucket/key, gs://bucket/key, az://container/key or abfss://container@account.host/key.

    Parameters
    ----------
    location : str or ObjectPath
    options : mapping, optional
        Options of the store, as in obstore: region, endpoint, account_name, access_key_id and so on.

    Raises
    ------
    StorageOptionError
        If it is no such URI, or has credentials.
    """
    if isinstance(location, ObjectPath):
        return location
    found = _URI.fullmatch(location)
    if found is None:
        raise StorageOptionError(f"not a URI of an object store, which begins with {', '.join(SCHEMES)}")
    scheme, bucket, key = found.groups()
    # These texts do not repeat the URI, because it may hold a secret.
    if "?" in location:
        raise StorageOptionError(f"{scheme}:// with a query: pass a token as a storage option or by the environment")
    if "@" in bucket and not scheme.startswith("abfs"):
        raise StorageOptionError(f"{scheme}:// with a user: pass credentials by the environment")
    pairs = ((str(name).lower(), _text(value)) for name, value in (options or {}).items())
    return ObjectPath(f"{scheme}://{bucket}", "/".join(part for part in key.split("/") if part), tuple(sorted(pairs)))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def file_path(location: Location, options: Mapping[str, Any] | None = None) -> FilePath:
    """Return a location as a local path or as an object."""
    if isinstance(location, ObjectPath) or is_object(location):
        return object_path(location, options)  # type: ignore[arg-type]
    return Path(location)


def local_path(location: str | os.PathLike[str], what: str) -> Path:
    """Return a location that must be a local path; `what` says what it is.

    Raises
    ------
    PathError
        If it is a URI. The text does not repeat it, because it may hold a secret.
    """
    scheme = _SCHEME.match(location) if isinstance(location, str) else None
    if scheme is not None:
        raise PathError(f"{what} must be a local path, not {scheme[0]}")
    return Path(location)


def real_path(path: Path) -> Path:
    """Make a path absolute, and follow its symbolic links. One that leads to itself stays, and cannot be opened."""
    # `Path.resolve` raises RuntimeError for such a link until Python 3.13.
    return Path(os.path.realpath(path))


def relative_name(path: FilePath, source: FilePath) -> str:
    """Return the name of a file relative to the folder or file where it was found, with "/"."""
    if path == source:
        return path.name
    if isinstance(path, ObjectPath):
        return path.below(source) if isinstance(source, ObjectPath) else path.name
    return path.relative_to(source).as_posix() if isinstance(source, Path) else path.name


def size_of(path: FilePath) -> int:
    """Return the size of a file that was found, in bytes."""
    return path.size if isinstance(path, ObjectPath) else path.stat().st_size
