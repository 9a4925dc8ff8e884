"""Converts a replication state to plain JSON types and back, so that another decoder can continue from it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from pgdecode.changes.replication_state import BufferedChanges, ReplicationState, Skipped, StoredChanges, Transaction
from pgdecode.changes.spill_files import SpilledChanges, buffered_in, path_in
from pgdecode.protocol.wire import MAX_LSN
from pgdecode.relations.relation_json import (
    MAX_POSITION,
    MAX_XID,
    relation_from_json,
    relation_to_json,
    stated_from_json,
    stated_to_json,
    type_from_json,
    type_to_json,
    version_from_json,
    version_to_json,
    whole_number,
)
from pgdecode.relations.version_tracker import (
    BAD_PAYLOAD,
    INVALID,
    UNKNOWN,
    Contradiction,
    RelationTracker,
    Scope,
    Sent,
    SentType,
)

FORMAT = "pgdecode.ChangeDecoder"
FORMAT_VERSION = 3
T = TypeVar("T")
ROWS = (b"I", b"U", b"D", b"T")  # tags of the messages that are buffered


def state_to_json(state: ReplicationState, *, with_payloads: bool = True) -> dict[str, Any]:
    """Convert a state to plain JSON types. Payloads of undecided transactions become base 64.

    Without `with_payloads`, the payloads are left out, because the caller stores them elsewhere.
    """
    to_json = _transaction_to_json if with_payloads else _ledger_entry
    skipped = state.skipped
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "position": state.position,
        "begun": state.has_seen_boundary,
        "in_stream": state.in_stream,
        "is_reconnected": state.is_reconnected,
        "last_lsn": state.last_lsn,
        "last_lsn_position": state.last_lsn_position,
        "session_lsn": state.session_lsn,
        "n_repeated": state.n_repeated,
        "stream": state.stream,
        "open": None if state.open is None else to_json(state.open),
        "streamed": [to_json(item) for item in state.streamed.values()],
        "prepared": [to_json(item) for item in state.prepared.values()],
        "skipped": {
            "n": skipped.n,
            "xids": sorted(skipped.xids),
            "gids": sorted(skipped.gids),
            "has_head": skipped.has_head,
            "has_streamed_head": skipped.has_streamed_head,
        },
        "catalog": _relations_to_json(state.relations, state.position),
    }


def state_from_json(
    plain: Mapping[str, Any],
    spill: Path | None = None,
    stored: Mapping[int, Sequence[StoredChanges]] | None = None,
) -> ReplicationState:
    """Read a state that `state_to_json` made.

    Parameters
    ----------
    plain : mapping
    spill : Path, optional
        The folder of spilled payloads.
    stored : mapping of int to sequence of StoredChanges, optional
        The changes of undecided transactions, by begin_position, if the state was written without payloads.

    Raises
    ------
    ValueError
        If it is not a state, or has another version of the format.
    FileNotFoundError
        If a file of spilled payloads is missing.
    """
    if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
        raise ValueError(f"state must be a mapping from {FORMAT}.state")
    if plain.get("version") != FORMAT_VERSION:
        raise ValueError(f"state has another version than {FORMAT_VERSION}, the one that this pgdecode reads")
    try:

        def transaction(item: Mapping[str, Any]) -> Transaction:
            buffered = _buffered_of(item, spill) if stored is None else stored.get(item["begin_position"], ())
            return _transaction_from_json(item, buffered)

        streamed = [transaction(item) for item in plain["streamed"]]
        prepared = [transaction(item) for item in plain["prepared"]]
        state = ReplicationState(
            position=whole_number(plain["position"], 0, MAX_POSITION + 1),
            has_seen_boundary=bool(plain["begun"]),
            in_stream=None if plain["in_stream"] is None else bool(plain["in_stream"]),
            is_reconnected=bool(plain["is_reconnected"]),
            last_lsn=whole_number(plain["last_lsn"], -1, MAX_LSN),
            last_lsn_position=whole_number(plain["last_lsn_position"], -1, MAX_POSITION),
            # States of earlier releases do not have the next two.
            session_lsn=whole_number(plain.get("session_lsn", plain["last_lsn"]), -1, MAX_LSN),
            n_repeated=whole_number(plain.get("n_repeated", 0), 0, MAX_POSITION),
            stream=None if plain["stream"] is None else whole_number(plain["stream"], 0, MAX_XID),
            open=None if plain["open"] is None else transaction(plain["open"]),
            streamed={item.xid: item for item in streamed},
            prepared={item.gid or "": item for item in prepared},
            relations=_relations_from_json(plain["catalog"]),
            skipped=_skipped_from_json(plain["skipped"]),
        )
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        # Only messages from this package are known to contain no values of the state.
        wrong = str(error) if type(error) is ValueError else type(error).__name__
        raise ValueError(f"state of {FORMAT} is invalid: {wrong}") from None
    _check(state)
    return state


def spent_from_json(plain: Mapping[str, Any] | None, spill: Path | None) -> set[Path]:
    """Find the spill files of ended transactions, which can be deleted.

    Raises
    ------
    ValueError
        If the state does not have a list of spill files.
    """
    names = (plain or {}).get("spent") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"state of {FORMAT} is invalid: spent is not a list of file names")
    return {path_in(spill, name) for name in names}


def _check(state: ReplicationState) -> None:
    """Check that the catalog has all versions, and that not both a stream and a plain transaction are open.

    Raises
    ------
    ValueError
    """
    relations = state.relations
    n_versions = len(relations.versions)
    numbers = [
        number
        for item in state.undecided
        for buffered in item.buffered
        if isinstance(buffered, BufferedChanges | SpilledChanges)  # others are checked when they are read
        for part in buffered.parts()
        for number in memoryview(part.read(with_payloads=False).versions).cast("B").cast("i").tolist()
    ]
    numbers += [number for item in state.undecided for number in item.relations]
    sent = [item.number for item in relations.common.values()]
    sent += [
        item.number
        for scope in relations.scopes.values()
        for sendings in scope.relations.values()
        for item in sendings.by_xid.values()
    ]
    # Bad payloads are never buffered, and an unknown relation is never visible.
    if any(number >= n_versions or number == BAD_PAYLOAD for number in (*numbers, *sent)) or UNKNOWN in sent:
        raise ValueError(f"state of {FORMAT} names a relation version that its catalog does not have")
    others = [n for scope in relations.scopes.values() for numbers in scope.numbers_by_xid.values() for n in numbers]
    if any(number >= n_versions for number in (*relations.in_layout, *others)):
        raise ValueError(f"state of {FORMAT} names a relation version that its catalog does not have")
    if state.stream is not None and state.stream not in state.streamed and state.open is not None:
        raise ValueError(f"state of {FORMAT} is inside a stream and inside a plain transaction")


def _transaction_to_json(item: Transaction) -> dict[str, Any]:
    spilled: dict[str, None] = {}
    held = []
    for part in item.parts():
        if part.path is None:
            held.append(_buffered_to_json(part.read()))
        else:
            spilled[part.path.name] = None
    return {**_ledger_entry(item), "spilled": list(spilled), "held": held}


def _ledger_entry(item: Transaction) -> dict[str, Any]:
    return {
        "xid": item.xid,
        "begin_position": item.begin_position,
        "gid": item.gid,
        "final_lsn": item.final_lsn,
        "aborted": list(item.aborted.items()),
        "relations": item.relations,
        "block_position": item.block_position,
    }


def _buffered_of(plain: Mapping[str, Any], spill: Path | None) -> list[BufferedChanges | StoredChanges]:
    spilled = [buffered_in(path_in(spill, name)) for name in plain["spilled"]]
    return [*spilled, *map(_buffered_from_json, plain["held"])]


def _transaction_from_json(
    plain: Mapping[str, Any], buffered: Sequence[BufferedChanges | StoredChanges]
) -> Transaction:
    gid = plain["gid"]
    if gid is not None and not isinstance(gid, str):
        raise ValueError(f"gid is not a string, but {type(gid).__name__}")
    return Transaction(
        whole_number(plain["xid"], 0, MAX_XID),
        whole_number(plain["begin_position"], -1, MAX_POSITION),
        gid,
        whole_number(plain["final_lsn"], -1, MAX_LSN),
        buffered=list(buffered),
        aborted=_numbers(plain["aborted"]),
        relations=[whole_number(number, 0, MAX_POSITION) for number in plain["relations"]],
        block_position=whole_number(plain["block_position"], -1, MAX_POSITION),
    )


def _buffered_to_json(buffered: BufferedChanges) -> dict[str, Any]:
    return {
        "payloads": [base64.b64encode(item).decode("ascii") for item in buffered.payloads.to_pylist()],
        "positions": buffered.positions.to_pylist(),
        "relation_ids": memoryview(buffered.relation_ids).cast("B").cast("q").tolist(),
        "xids": memoryview(buffered.xids).cast("B").cast("q").tolist(),
        "versions": memoryview(buffered.versions).cast("B").cast("i").tolist(),
    }


def _buffered_from_json(plain: Mapping[str, Any]) -> BufferedChanges:
    columns = [plain[name] for name in ("payloads", "positions", "relation_ids", "xids", "versions")]
    if len({len(column) for column in columns}) != 1:
        raise ValueError(f"state of {FORMAT} is invalid: columns of buffered changes have different lengths")
    payloads = [base64.b64decode(item, validate=True) for item in columns[0]]
    if not all(payload[:1] in ROWS for payload in payloads):
        raise ValueError(f"state of {FORMAT} has buffered payloads that are not row changes")
    types = (pa.int64(), pa.int64(), pa.int64(), pa.int32())
    positions, *others = (pa.array(column, type) for column, type in zip(columns[1:], types, strict=True))
    if positions.null_count or any(column.null_count for column in others):
        raise ValueError(f"state of {FORMAT} is invalid: buffered changes have nulls")
    buffers = [column.buffers()[1] or pa.py_buffer(b"") for column in others]
    return BufferedChanges(pa.array(payloads, pa.large_binary()), positions, *buffers)


def _skipped_from_json(plain: Mapping[str, Any]) -> Skipped:
    if not all(isinstance(gid, str) for gid in plain["gids"]):
        raise ValueError(f"state of {FORMAT} is invalid: a gid is not a string")
    xids = {whole_number(xid, 0, MAX_XID) for xid in plain["xids"]}
    n = whole_number(plain["n"], 0, MAX_POSITION)
    return Skipped(n, xids, set(plain["gids"]), bool(plain["has_head"]), bool(plain["has_streamed_head"]))


def _relations_to_json(relations: RelationTracker, position: int) -> dict[str, Any]:
    # Sorted by OID and xid: the order of the dictionaries depends on messages that no longer count, such as those of
    # an aborted sub-transaction. Equal states have equal JSON.
    facts = [stated_to_json(item) for item in relations.facts_from(position)]
    return {
        "versions": [version_to_json(item) for item in relations.versions],
        **({"facts": facts} if facts else {}),
        "shape": sorted(relations.in_layout),
        "visible": [[oid, *sent] for oid, sent in _in_order(relations.common)],
        "types": [[sent.position, type_to_json(sent.type)] for _, sent in _in_order(relations.types)],
        "contradictions": [
            [relation_to_json(item.relation), item.position, item.other_position, item.common_position]
            for _, item in _in_order(relations.contradictions)
        ],
        "scopes": [
            {
                "xid": xid,
                "visible": [
                    [oid, own, *sent] for oid, sendings in _in_order(scope.relations) for own, sent in sendings.in_order
                ],
                "numbers": _in_order(scope.numbers_by_xid),
                "types": [
                    [own, sent.position, type_to_json(sent.type)]
                    for _, sendings in _in_order(scope.types)
                    for own, sent in sendings.in_order
                ],
            }
            for xid, scope in _in_order(relations.scopes)
        ],
    }


def _in_order(items: Mapping[int, T]) -> list[tuple[int, T]]:
    return [(key, items[key]) for key in sorted(items)]


def _relations_from_json(plain: Mapping[str, Any]) -> RelationTracker:
    relations = RelationTracker(facts=map(stated_from_json, plain.get("facts", ())))
    for version in map(version_from_json, plain["versions"]):
        relations.append(version)
    relations.in_layout = {whole_number(number, 0, MAX_POSITION) for number in plain["shape"]}
    relations.common = {whole_number(oid, 0, MAX_XID): _sent(*sent) for oid, *sent in plain["visible"]}
    for position, item in plain["types"]:
        sent = SentType(type_from_json(item), _position(position))
        relations.types[sent.type.type_id] = sent
    for item, position, other, common in plain["contradictions"]:
        relation = relation_from_json(item)
        found = Contradiction(relation, _position(position), _position(other), _position(common))
        relations.contradictions[relation.relation_id] = found
    for item in plain["scopes"]:
        scope = relations.scopes.setdefault(whole_number(item["xid"], 0, MAX_XID), Scope())
        for oid, own, *sent_relation in item["visible"]:
            xid = whole_number(own, 0, MAX_XID)
            scope.send("relations", whole_number(oid, 0, MAX_XID), xid, _sent(*sent_relation), relations.undo_log)
        scope.numbers_by_xid = {
            whole_number(own, 0, MAX_XID): [whole_number(number, 0, MAX_POSITION) for number in numbers]
            for own, numbers in item["numbers"]
        }
        for own, position, found_type in item["types"]:
            sent = SentType(type_from_json(found_type), _position(position))
            scope.send("types", sent.type.type_id, whole_number(own, 0, MAX_XID), sent, relations.undo_log)
    relations.fill_table()
    return relations


def _sent(number: Any, position: Any) -> Sent:
    return Sent(whole_number(number, INVALID, MAX_POSITION), _position(position))


def _position(value: Any) -> int:
    return whole_number(value, -1, MAX_POSITION)


def _numbers(pairs: list[list[int]]) -> dict[int, int]:
    return {whole_number(key, 0, MAX_XID): whole_number(value, -1, MAX_POSITION) for key, value in pairs}
