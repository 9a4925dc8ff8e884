"""The small files of a state: `state.json`, `catalog.parquet` and `transactions.parquet`.

Their contents are plain values, as `changes.checkpoint` makes and checks them. Here they are only divided over files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pgdecode.protocol.json_document import load_json
from pgdecode.relations.relation_json import MAX_OID, whole_number
from pgdecode.runs.digested_file import DigestedFile, FileDigest, check_file
from pgdecode.runs.errors import RunFault
from pgdecode.runs.manifest import Manifest
from pgdecode.runs.payload_ranges import STATE, PayloadRange

FORMAT = "pgdecode.State"
FORMAT_VERSION = 1
_JSON, _CATALOG, _TRANSACTIONS = "state.json", "catalog.parquet", "transactions.parquet"

_INT = pa.int64()
_TYPE = pa.struct([("type_id", _INT), ("namespace", pa.string()), ("name", pa.string())])
_COLUMN = pa.struct([("flags", pa.int16()), ("name", pa.string()), ("type_id", _INT), ("type_modifier", pa.int32())])
_RELATION = pa.struct(
    [
        ("relation_id", _INT),
        ("namespace", pa.string()),
        ("name", pa.string()),
        ("replica_identity", pa.string()),
        ("columns", pa.list_(_COLUMN)),
    ]
)
# One row per fact. Each kind of fact fills some of the columns:
#   version        relation, types, position, xid, visible_from, in_shape; the rows are in the order of their numbers
#   visible        relation_id, number, position; in a stream: transaction, xid
#   sent           transaction, xid, number: all versions that the stream has sent
#   type           type, position; in a stream: transaction, xid
#   contradiction  relation, position, other_position, common_position
CATALOG = pa.schema(
    [
        ("kind", pa.string()),
        ("transaction", _INT),  # top-level xid of the stream
        ("xid", _INT),
        ("relation_id", _INT),
        ("number", pa.int32()),
        ("position", _INT),
        ("visible_from", _INT),
        ("other_position", _INT),
        ("common_position", _INT),
        ("in_shape", pa.bool_()),
        ("relation", _RELATION),
        ("types", pa.list_(_TYPE)),
        ("type", _TYPE),
    ]
)
_RANGE = pa.struct(
    [
        ("file", pa.string()),
        ("first_row", _INT),
        ("rows", _INT),
        ("first_position", _INT),
        ("last_position", _INT),
    ]
)
# One row per undecided transaction: open between Begin and Commit, streamed or prepared. Rows of the status "skipped"
# have only the xid or the gid of a transaction that is left out, because its beginning is missing, and has not ended.
TRANSACTIONS = pa.schema(
    [
        ("status", pa.string()),
        ("xid", _INT),
        ("begin_position", _INT),
        ("gid", pa.string()),
        ("final_lsn", _INT),
        ("block_position", _INT),  # of its last Stream Start
        ("aborted", pa.list_(pa.struct([("xid", _INT), ("position", _INT)]))),  # position of the Stream Abort
        ("relations", pa.list_(_INT)),  # numbers of versions that it has sent, visible outside its stream
        ("payloads", pa.list_(_RANGE)),  # in the order of its changes
    ]
)


@dataclass(frozen=True)
class SourceState:
    """What later payload files of the same source do not say again.

    Attributes
    ----------
    user_types : sequence of (OID, name, declaration)
        Types from the footers of all payload files so far.
    session : str or None
        The last value of the session column, as text. None if there was no such column.
    """

    user_types: Sequence[tuple[int, str, str]] = ()
    session: str | None = None


@dataclass(frozen=True)
class StoredFiles:
    """The contents of the small files of a state.

    Attributes
    ----------
    plain : dict
        For `checkpoint.state_from_json`, which checks the values.
    ranges : dict of int to list of PayloadRange
        The payloads of each undecided transaction, by its begin_position, in the order of its changes.
    source : SourceState
    """

    plain: dict[str, Any]
    ranges: dict[int, list[PayloadRange]]
    source: SourceState


def write_state(
    folder: Path,
    plain: Mapping[str, Any],
    ranges: Mapping[int, Sequence[PayloadRange]],
    source: SourceState,
) -> list[FileDigest]:
    """Write the small files of a state into `_state`, and describe them for the manifest.

    Parameters
    ----------
    folder : Path
        Of the run.
    plain : mapping
        `checkpoint.state_to_json(state, with_payloads=False)`.
    ranges : mapping of int to sequence of PayloadRange
        The payloads of each undecided transaction, by its begin_position. A transaction without changes may be missing.
    source : SourceState
    """
    place = folder / STATE
    place.mkdir(exist_ok=True)
    small = {name: value for name, value in plain.items() if name not in ("open", "streamed", "prepared", "catalog")}
    skipped = dict(small.pop("skipped"))
    transactions = [
        {**item, "status": status, "payloads": [item._asdict() for item in ranges.get(item["begin_position"], ())]}
        for status, item in _transactions(plain)
    ]
    transactions += [{"status": "skipped", "xid": xid} for xid in skipped.pop("xids")]
    transactions += [{"status": "skipped", "gid": gid} for gid in skipped.pop("gids")]
    for item in transactions:
        item["aborted"] = [{"xid": xid, "position": position} for xid, position in item.get("aborted", ())]
    small |= {"format": FORMAT, "version": FORMAT_VERSION, "skipped": skipped, **asdict(source)}
    with DigestedFile(place / _JSON) as file:
        file.write(json.dumps(small, indent=1).encode() + b"\n")
        written = [file.digested(f"{STATE}/{_JSON}", 1)]
    for name, schema, rows in (
        (_CATALOG, CATALOG, list(_catalog_rows(plain["catalog"]))),
        (_TRANSACTIONS, TRANSACTIONS, transactions),
    ):
        with DigestedFile(place / name) as file:
            pq.write_table(pa.Table.from_pylist(rows, schema), file, compression="zstd")
            written.append(file.digested(f"{STATE}/{name}", len(rows)))
    return written


def read_state(folder: Path, manifest: Manifest) -> StoredFiles:
    """Read the small files of a state, and check all files against the manifest.

    Of payload files only the size is checked, because they may be large: `PayloadReader` checks their SHA-256.

    Raises
    ------
    RunFault
        If a file is missing, is not the one that the manifest names, or has another format.
    """
    known = {item.name: item for item in manifest.state}
    if not known:
        raise RunFault(f"{folder}: has no state: a run that decodes messages cannot be continued")
    small_files = [f"{STATE}/{name}" for name in (_JSON, _CATALOG, _TRANSACTIONS)]
    for name in small_files:
        if name not in known:
            raise RunFault(f"{folder}: the manifest does not name {name}")
    for name, item in known.items():
        check_file(folder / name, item, only_size=name not in small_files)
    try:
        small = load_json((folder / STATE / _JSON).read_bytes())
        if not isinstance(small, dict) or small.get("format") != FORMAT:
            raise RunFault(f"{folder / STATE / _JSON}: is not a {FORMAT}")
        if small.get("version") != FORMAT_VERSION:
            raise RunFault(
                f"{folder / STATE / _JSON}: has another version than {FORMAT_VERSION}, the one that this pgdecode reads"
            )
        plain, ranges = _undecided(_rows(folder, _TRANSACTIONS, TRANSACTIONS), small)
        for places in ranges.values():
            for place in places:
                if f"{STATE}/{place.file}" not in known:
                    raise RunFault(f"{folder / STATE / _TRANSACTIONS}: names a payload file that the manifest does not")
        plain["catalog"] = _catalog_from(_rows(folder, _CATALOG, CATALOG))
        types = [(whole_number(oid, 0, MAX_OID), str(name), str(text)) for oid, name, text in small["user_types"]]
        session = small["session"]
        return StoredFiles(plain, ranges, SourceState(types, None if session is None else str(session)))
    except RunFault:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, pa.ArrowException) as error:
        raise RunFault(f"{folder / STATE}: is damaged: {type(error).__name__}") from error


def _transactions(plain: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    yield from (("open", item) for item in (plain["open"],) if item is not None)
    for status in ("streamed", "prepared"):
        yield from ((status, item) for item in plain[status])


def _undecided(
    rows: Sequence[Mapping[str, Any]], small: dict[str, Any]
) -> tuple[dict[str, Any], dict[int, list[PayloadRange]]]:
    """Put undecided and skipped transactions back to the small values."""
    found: dict[str, list[Any]] = {status: [] for status in ("open", "streamed", "prepared")}
    skipped = {**small["skipped"], "xids": [], "gids": []}
    ranges = {}
    for row in rows:
        if row["status"] == "skipped":
            skipped["xids" if row["gid"] is None else "gids"].append(row["xid"] if row["gid"] is None else row["gid"])
            continue
        aborted = [[item["xid"], item["position"]] for item in row["aborted"]]
        found[row["status"]].append({**row, "aborted": aborted})
        if row["begin_position"] in ranges:
            raise ValueError("two transactions began at one position")
        ranges[row["begin_position"]] = [_range(**item) for item in row["payloads"]]
    if len(found["open"]) > 1:
        raise ValueError("two transactions are open")
    is_open = found.pop("open")
    return {**small, **found, "open": is_open[0] if is_open else None, "skipped": skipped}, ranges


def _range(file: str, first_row: int, rows: int, first_position: int, last_position: int) -> PayloadRange:
    if min(first_row, rows - 1, first_position, last_position - first_position) < 0:
        raise ValueError("a range of payloads is negative")
    return PayloadRange(file, first_row, rows, first_position, last_position)


def _rows(folder: Path, name: str, schema: pa.Schema) -> list[dict[str, Any]]:
    # Half of the cost of `read_table`, which is most of what a run that continues another one costs.
    with pq.ParquetFile(folder / STATE / name) as file:
        table = file.read(use_threads=False)
    if not table.schema.equals(schema):
        raise RunFault(f"{folder / STATE / name}: has other columns than in this version of the format")
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def _catalog_rows(catalog: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Convert a catalog of `checkpoint` to rows of `CATALOG`."""
    in_shape = set(catalog["shape"])
    for number, version in enumerate(catalog["versions"]):
        yield {"kind": "version", **version, "in_shape": number in in_shape}
    for oid, number, position in catalog["visible"]:
        yield {"kind": "visible", "relation_id": oid, "number": number, "position": position}
    for position, item in catalog["types"]:
        yield {"kind": "type", "type": item, "position": position}
    for relation, position, other, common in catalog["contradictions"]:
        yield {
            "kind": "contradiction",
            "relation": relation,
            "position": position,
            "other_position": other,
            "common_position": common,
        }
    for scope in catalog["scopes"]:
        stream = {"transaction": scope["xid"]}
        for oid, xid, number, position in scope["visible"]:
            yield {
                "kind": "visible",
                **stream,
                "xid": xid,
                "relation_id": oid,
                "number": number,
                "position": position,
            }
        for xid, numbers in scope["numbers"]:
            for number in numbers:
                yield {"kind": "sent", **stream, "xid": xid, "number": number}
        for xid, position, item in scope["types"]:
            yield {"kind": "type", **stream, "xid": xid, "type": item, "position": position}


def _catalog_from(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Convert rows of `CATALOG` back to a catalog for `checkpoint`."""
    catalog: dict[str, Any] = {"versions": [], "shape": [], "visible": [], "types": [], "contradictions": []}
    scopes: dict[int, dict[str, Any]] = {}
    for row in rows:
        kind, position, xid, stream = row["kind"], row["position"], row["xid"], row["transaction"]
        scope = None
        if stream is not None:
            scope = scopes.setdefault(stream, {"xid": stream, "visible": [], "numbers": {}, "types": []})
        if kind == "version":
            if row["in_shape"]:
                catalog["shape"].append(len(catalog["versions"]))
            catalog["versions"].append({name: row[name] for name in _OF_VERSION})
        elif kind == "contradiction":
            places = [row[name] for name in ("position", "other_position", "common_position")]
            catalog["contradictions"].append([row["relation"], *places])
        elif kind == "visible" and scope is None:
            catalog["visible"].append([row["relation_id"], row["number"], position])
        elif kind == "visible" and scope is not None:
            scope["visible"].append([row["relation_id"], xid, row["number"], position])
        elif kind == "sent" and scope is not None:
            scope["numbers"].setdefault(xid, []).append(row["number"])
        elif kind == "type" and scope is None:
            catalog["types"].append([position, row["type"]])
        elif kind == "type" and scope is not None:
            scope["types"].append([xid, position, row["type"]])
        else:
            raise ValueError("a row of the catalog has an unknown kind")
    catalog["scopes"] = [{**scope, "numbers": list(scope["numbers"].items())} for scope in scopes.values()]
    return catalog


_OF_VERSION = ("position", "xid", "visible_from", "relation", "types")
