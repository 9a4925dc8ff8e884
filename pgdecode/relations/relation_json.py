"""Descriptions of relations in JSON's own types, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pgdecode.protocol.messages import Column, Relation, Type
from pgdecode.relations.relation_version import RelationVersion

MAX_OID = MAX_XID = (1 << 32) - 1
MAX_POSITION = (1 << 63) - 1


def version_to_json(version: RelationVersion) -> dict[str, Any]:
    """Say a version in JSON's own types."""
    return {
        "position": version.position,
        "xid": version.xid,
        "visible_from": version.visible_from,
        "relation": asdict(version.relation),
        "types": [type_to_json(item) for item in version.types],
    }


def type_to_json(message: Type) -> dict[str, Any]:
    """Say a Type message in JSON's own types."""
    return asdict(message)


def type_from_json(plain: Mapping[str, Any]) -> Type:
    """Undo `type_to_json`.

    Raises
    ------
    ValueError
        If something is of another kind than it was.
    """
    type_id = whole_number(plain["type_id"], 0, MAX_OID)
    return Type(type_id, _text(plain["namespace"]), _text(plain["name"]))


def relation_from_json(plain: Mapping[str, Any]) -> Relation:
    """Undo `asdict` of a Relation message outside streams.

    Raises
    ------
    ValueError
        If something is of another kind than it was.
    """
    return Relation(
        whole_number(plain["relation_id"], 0, MAX_OID),
        _text(plain["namespace"]),
        _text(plain["name"]),
        _text(plain["replica_identity"]),
        tuple(map(_column_from_json, plain["columns"])),
    )


def _column_from_json(plain: Mapping[str, Any]) -> Column:
    return Column(
        whole_number(plain["flags"], 0, 255),
        _text(plain["name"]),
        whole_number(plain["type_id"], 0, MAX_OID),
        whole_number(plain["type_modifier"], -(1 << 31), (1 << 31) - 1),
    )


def whole_number(value: Any, lowest: int, highest: int) -> int:
    """Check that a value from JSON is an integer in a range.

    Raises
    ------
    ValueError
        If it is not.
    """
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError(f"no integer from {lowest} to {highest} in JSON, but a {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"no text in JSON, but a {type(value).__name__}")
    value.encode()  # JSON can hold half a surrogate pair, which no name can
    return value


def version_from_json(plain: Mapping[str, Any]) -> RelationVersion:
    """Undo `version_to_json`.

    Raises
    ------
    ValueError
        If something is missing, or of another kind than it was.
    """
    try:
        relation = relation_from_json(plain["relation"])
        xid, visible_from = plain["xid"], plain["visible_from"]
        return RelationVersion(
            relation,
            tuple(map(type_from_json, plain["types"])),
            whole_number(plain["position"], 0, MAX_POSITION),
            None if xid is None else whole_number(xid, 0, MAX_XID),
            None if visible_from is None else whole_number(visible_from, 0, MAX_POSITION),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no relation in JSON: {type(error).__name__}") from None
