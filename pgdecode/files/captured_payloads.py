"""`read_capture`: the payloads of captured files, and what their footers say for decoding them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from pgdecode.datasets.input_listing import find_files
from pgdecode.files.file_metadata import Gap, accepted_gaps, catalog_of, encoding_of, notes_of, source_of, user_types_of
from pgdecode.files.ordered_files import OrderedFiles, open_ordered
from pgdecode.files.payload_file import BATCH_ROWS
from pgdecode.relations.catalog import RelationCatalog, before_payloads
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import Location, ObjectPath, file_path
from pgdecode.types.user_types import DescribedTypes

PAYLOAD = "data"


@dataclass(frozen=True)
class CaptureFacts:
    """What the footers of captured files say for decoding their payloads. `read_capture` documents the attributes."""

    types: Mapping[str | int, str]
    relations: RelationCatalog
    encoding: str
    gaps: tuple[Gap, ...]
    notes: tuple[str, ...]

    @property
    def options(self) -> dict[str, Any]:
        """`types=`, `catalog=` and `encoding=` of the functions that decode the payloads."""
        return {"types": self.types or None, "catalog": self.relations or None, "encoding": self.encoding}


class CapturedBatch(NamedTuple):
    """Consecutive payloads of one session.

    Attributes
    ----------
    payloads : pa.Array of binary
    positions : pa.Array of int64
    is_reconnected : bool
        Whether a new session begins here: call `ChangeDecoder.reconnected` first.
    """

    payloads: pa.Array
    positions: pa.Array
    is_reconnected: bool


@dataclass(frozen=True)
class CapturedPayloads(CaptureFacts):
    """The payloads of captured files, in slot order, and what the footers say for decoding them.

    `read_capture` makes it. Payloads are read when they are needed.

    Attributes
    ----------
    types : mapping of OID or "schema.type" to a PostgreSQL type's name
        The user-defined types, for `types=`.
    relations : RelationCatalog
        The relations that were described before the first payload, and what the server's catalog tells of all, for
        `catalog=`.
    encoding : str
        client_encoding of the session that captured the files.
    gaps : tuple
        Gaps that the capture accepted, each with `file`, `start`, `end` (LSNs) and `reason`.
    notes : tuple of str
        What is missing before or between the files, one line each: the gaps, and a folder that begins within a slot
        that was read before.

    Examples
    --------
    >>> capture = pgdecode.read_capture("tests/data/capture")
    >>> decoder = pgdecode.ChangeDecoder(**capture.options)
    >>> for batch in capture.batches(100):
    ...     if batch.is_reconnected:
    ...         decoder.reconnected()
    ...     changes = decoder.decode(batch.payloads, batch.positions)
    """

    ordered: OrderedFiles

    def __repr__(self) -> str:
        files = self.ordered.files
        return f"CapturedPayloads({len(files):,} file{'s' * (len(files) != 1)}, {self.ordered.n_rows:,} payloads)"

    @property
    def payloads(self) -> pa.ChunkedArray:
        """All payloads, as binary. They are read once, and stay in memory; `batches` needs less."""
        return self._columns[0]

    @property
    def positions(self) -> pa.ChunkedArray:
        """The position of each payload, as int64: `seq`."""
        return self._columns[1]

    def batches(self, max_rows: int = BATCH_ROWS) -> Iterator[CapturedBatch]:
        """Read the payloads in batches of at most `max_rows` and about 32 MB, each of one session.

        Raises
        ------
        ValueError
            If a file is damaged, or a position is null or not greater than the one before.
        """
        return (
            CapturedBatch(batch.payloads, batch.positions, batch.is_reconnected)
            for batch in self.ordered.batches(max_rows)
        )

    @cached_property
    def _columns(self) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
        batches = list(self.batches())
        is_large = any(batch.payloads.type == pa.large_binary() for batch in batches)
        type = pa.large_binary() if is_large else pa.binary()
        payloads = [batch.payloads.cast(type) for batch in batches]
        return pa.chunked_array(payloads, type), pa.chunked_array([batch.positions for batch in batches], pa.int64())


def read_capture(
    source: Location | Iterable[Location],
    *,
    types: Mapping[str | int, str] | None = None,
    accept_gap: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> CapturedPayloads:
    """Read files that `pgdecode capture` has written, with what their footers say for decoding them.

    Parameters
    ----------
    source : path or URI, or an iterable of them
        A file, a folder with `*.parquet` files at any depth, or several of them. A URI of an object store is possible
        too (`s3://`, `gs://`, `az://`, `abfss://`). Other files with columns `data` and `seq` are also read. Their
        footers say nothing.
    types : mapping of OID or "schema.type" to a PostgreSQL type's name, optional
        They take precedence over the types in the footers.
    accept_gap : bool
        Read over gaps that the capture accepted, where changes are missing. Otherwise they are an error.
    storage_options : mapping, optional
        How to connect to an object store, such as {"region": "eu-west-1"}.

    Returns
    -------
    CapturedPayloads
        `payloads` and `positions` in slot order; `types`, `relations`, `encoding`, `gaps` and `notes` from the footers.
        `options` has `types=`, `catalog=` and `encoding=` for `ChangeDecoder` and `snapshot`. `batches` reads large
        captures piece by piece.

    Raises
    ------
    PathError
        If there is no file, or a column is missing.
    RunError
        If a capture accepted a gap, without `accept_gap`. It is a ValueError.
    ValueError
        If a footer is damaged, or the files are of different slots or encodings.

    Examples
    --------
    >>> capture = pgdecode.read_capture("tests/data/capture")
    >>> decoder = pgdecode.ChangeDecoder(**capture.options)
    >>> orders = decoder.table(capture.payloads, "public.orders", capture.positions)
    >>> orders.select(["_op", "id", "status"]).slice(1, 1).to_pylist()
    [{'_op': 'insert', 'id': 1, 'status': 'new'}]
    >>> len(pgdecode.snapshot(capture.payloads, "public.orders", capture.positions, **capture.options))
    2
    """
    locations = [source] if isinstance(source, str | os.PathLike | ObjectPath) else source
    paths = [path for location in locations for path in find_files(file_path(location, storage_options))]
    if not paths:
        raise PathError("no path of a captured file is given")
    ordered = open_ordered(list(dict.fromkeys(paths)), PAYLOAD)
    files = ordered.files
    source_of(files)
    gaps = accepted_gaps(files, accept_gap=accept_gap)
    catalog = catalog_of(files) or RelationCatalog()
    return CapturedPayloads(
        DescribedTypes(user_types_of(files), types),
        before_payloads(catalog) if ordered.position is None else catalog,
        encoding_of(files, "UTF8"),
        tuple(gaps),
        tuple(notes_of(files)),
        ordered,
    )
