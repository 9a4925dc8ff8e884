"""A ledger as JSON's own types, and back: what a decoder that is to go on elsewhere must know."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pgdecode.ledger import Held, Ledger, Transaction
from pgdecode.plain import (
    MAX_POSITION,
    MAX_XID,
    type_from_plain,
    type_to_plain,
    version_from_plain,
    version_to_plain,
    whole_number,
)
from pgdecode.spill import held_from, path_in
from pgdecode.versions import RelationVersion
from pgdecode.visibility import IN_DOUBT, CatalogBuilder, Scope
from pgdecode.wire import MAX_LSN

FORMAT = "pgdecode.ChangeDecoder"
FORMAT_VERSION = 1
ROWS = (b"I", b"U", b"D", b"T")  # tags of the messages that are held


def state_to_plain(ledger: Ledger, *, with_versions: bool = True) -> dict[str, Any]:
    """Everything that a ledger holds; payloads of undecided transactions in base 64.

    Without the catalog's versions where these are kept elsewhere.
    """
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "position": ledger.position,
        "begun": ledger.begun,
        "last_lsn": ledger.last_lsn,
        "stream": ledger.stream,
        "open": None if ledger.open is None else _transaction_to_plain(ledger.open),
        "streamed": [_transaction_to_plain(item) for item in ledger.streamed.values()],
        "prepared": [_transaction_to_plain(item) for item in ledger.prepared.values()],
        "catalog": _catalog_to_plain(ledger.catalog, with_versions),
    }


def state_from_plain(
    plain: Mapping[str, Any], spill: Path | None = None, versions: Iterable[RelationVersion] | None = None
) -> Ledger:
    """Undo `state_to_plain`.

    Parameters
    ----------
    plain : mapping
    spill : Path, optional
        The folder of payloads on disk.
    versions : iterable of RelationVersion, optional
        Those of the catalog, where they are kept elsewhere.

    Raises
    ------
    ValueError
        If it is something else, or of a later version of the format.
    FileNotFoundError
        If a file that payloads were spilled to is gone.
    """
    if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
        raise ValueError(f"state is what {FORMAT}.state gave, which this is not")
    if plain.get("version") != FORMAT_VERSION:
        raise ValueError(f"state of another version than {FORMAT_VERSION}, which this pgdecode reads")
    try:
        streamed = [_transaction_from_plain(item, spill) for item in plain["streamed"]]
        prepared = [_transaction_from_plain(item, spill) for item in plain["prepared"]]
        ledger = Ledger(
            position=whole_number(plain["position"], 0, MAX_POSITION + 1),
            begun=bool(plain["begun"]),
            last_lsn=whole_number(plain["last_lsn"], -1, MAX_LSN),
            stream=None if plain["stream"] is None else whole_number(plain["stream"], 0, MAX_XID),
            open=None if plain["open"] is None else _transaction_from_plain(plain["open"], spill),
            streamed={item.xid: item for item in streamed},
            prepared={item.gid or "": item for item in prepared},
            catalog=_catalog_from_plain(plain["catalog"], versions),
        )
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        # Only what this package words itself says nothing of what the state holds.
        wrong = str(error) if type(error) is ValueError else type(error).__name__
        raise ValueError(f"state of {FORMAT} is not whole: {wrong}") from None
    _check(ledger)
    return ledger


def spent_from_plain(plain: Mapping[str, Any] | None, spill: Path | None) -> set[Path]:
    """Find the files that a state names and that nobody needs any more.

    Raises
    ------
    ValueError
        If they are no list of a decoder's files.
    """
    names = (plain or {}).get("spent") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"state of {FORMAT} is not whole: what is spent is no list of files")
    return {path_in(spill, name) for name in names}


def _check(ledger: Ledger) -> None:
    """Refuse versions that the catalog does not have, and a stream that is not open."""
    n_versions = len(ledger.catalog.versions)
    numbers = [
        number
        for item in ledger.undecided
        for held in item.held
        for number in memoryview(held.versions).cast("B").cast("i").tolist()
    ]
    scopes = [ledger.catalog.visible, *(scope.visible for scope in ledger.catalog.scopes.values())]
    visible = [number for scope in scopes for number in scope.values()]
    numbers += visible
    # Neither a bad payload is ever held, nor is a relation visible that is not known.
    if any(number >= n_versions or number == -2 for number in numbers) or -1 in visible:
        raise ValueError(f"state of {FORMAT} names a relation version that its catalog does not have")
    if ledger.stream is not None and ledger.stream not in ledger.streamed:
        raise ValueError(f"state of {FORMAT} is inside a stream that it does not have")


def _transaction_to_plain(item: Transaction) -> dict[str, Any]:
    return {
        "xid": item.xid,
        "begin_position": item.begin_position,
        "gid": item.gid,
        "final_lsn": item.final_lsn,
        "aborted": list(item.aborted.items()),
        "spilled": list(dict.fromkeys(held.path.name for held in item.held if held.path is not None)),
        "held": [_held_to_plain(held) for held in item.held if held.path is None],
    }


def _transaction_from_plain(plain: Mapping[str, Any], spill: Path | None) -> Transaction:
    gid = plain["gid"]
    if gid is not None and not isinstance(gid, str):
        raise ValueError(f"no gid in JSON, but a {type(gid).__name__}")
    held = [held for name in plain["spilled"] for held in held_from(path_in(spill, name))]
    held += map(_held_from_plain, plain["held"])
    return Transaction(
        whole_number(plain["xid"], 0, MAX_XID),
        whole_number(plain["begin_position"], -1, MAX_POSITION),
        gid,
        whole_number(plain["final_lsn"], -1, MAX_LSN),
        held=held,
        aborted=_numbers(plain["aborted"]),
        n_changes=sum(map(len, held)),
    )


def _held_to_plain(held: Held) -> dict[str, Any]:
    return {
        "payloads": [base64.b64encode(item).decode("ascii") for item in held.payloads.to_pylist()],
        "positions": held.positions.to_pylist(),
        "relation_ids": memoryview(held.relation_ids).cast("B").cast("q").tolist(),
        "xids": memoryview(held.xids).cast("B").cast("q").tolist(),
        "versions": memoryview(held.versions).cast("B").cast("i").tolist(),
    }


def _held_from_plain(plain: Mapping[str, Any]) -> Held:
    columns = [plain[name] for name in ("payloads", "positions", "relation_ids", "xids", "versions")]
    if len({len(column) for column in columns}) != 1:
        raise ValueError(f"state of {FORMAT} is not whole: held changes are cut")
    payloads = [base64.b64decode(item, validate=True) for item in columns[0]]
    if not all(payload[:1] in ROWS for payload in payloads):
        raise ValueError(f"state of {FORMAT} holds payloads that change no row")
    types = (pa.int64(), pa.int64(), pa.int64(), pa.int32())
    positions, *others = (pa.array(column, type) for column, type in zip(columns[1:], types, strict=True))
    if positions.null_count or any(column.null_count for column in others):
        raise ValueError(f"state of {FORMAT} is not whole: held changes have nulls")
    buffers = [column.buffers()[1] or pa.py_buffer(b"") for column in others]
    return Held(pa.array(payloads, pa.large_binary()), positions, *buffers)


def _catalog_to_plain(catalog: CatalogBuilder, with_versions: bool) -> dict[str, Any]:
    return {
        "versions": [version_to_plain(item) for item in catalog.versions] if with_versions else [],
        "visible": list(catalog.visible.items()),
        "types": [type_to_plain(item) for item in catalog.types.values()],
        "scopes": [
            {
                "xid": xid,
                "visible": list(scope.visible.items()),
                "types": [type_to_plain(t) for t in scope.types.values()],
            }
            for xid, scope in catalog.scopes.items()
        ],
    }


def _catalog_from_plain(plain: Mapping[str, Any], versions: Iterable[RelationVersion] | None) -> CatalogBuilder:
    builder = CatalogBuilder()
    builder.versions = [version_from_plain(item) for item in plain["versions"]] if versions is None else list(versions)
    builder.visible = _visible(plain["visible"])
    builder.types = {item.type_id: item for item in map(type_from_plain, plain["types"])}
    builder.scopes = {
        whole_number(scope["xid"], 0, MAX_XID): Scope(
            _visible(scope["visible"]), {item.type_id: item for item in map(type_from_plain, scope["types"])}
        )
        for scope in plain["scopes"]
    }
    return builder


def _visible(pairs: list[list[int]]) -> dict[int, int]:
    lowest = IN_DOUBT - MAX_POSITION
    return {whole_number(key, 0, MAX_XID): whole_number(value, lowest, MAX_POSITION) for key, value in pairs}


def _numbers(pairs: list[list[int]]) -> dict[int, int]:
    return {whole_number(key, 0, MAX_XID): whole_number(value, -1, MAX_POSITION) for key, value in pairs}
