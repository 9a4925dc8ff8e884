"""Conversion of relation versions to and from JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from pgdecode.protocol.json_document import json_type
from pgdecode.protocol.messages import Column, Relation, Type
from pgdecode.relations.relation_facts import MAX_ATTNUM, UNKNOWN_NUMBER, RelationFacts, StatedFacts
from pgdecode.relations.relation_version import BEFORE, RelationVersion

MAX_OID = MAX_XID = (1 << 32) - 1
MAX_POSITION = (1 << 63) - 1
_RELATION, _COLUMN = (tuple(item.name for item in fields(kind)) for kind in (Relation, Column))


def version_to_json(version: RelationVersion) -> dict[str, Any]:
    """Convert a version to JSON values."""
    facts = {} if version.facts is None else {"facts": _facts_to_json(version.facts)}
    return {
        "position": version.position,
        "xid": version.xid,
        "visible_from": version.visible_from,
        "relation": relation_to_json(version.relation),
        "types": [type_to_json(item) for item in version.types],
        **facts,
    }


def stated_to_json(stated: StatedFacts) -> dict[str, Any]:
    """Convert stated facts to JSON values."""
    # A footer may have thousands of them, so columns are lists.
    relation = relation_to_json(stated.relation)
    relation["columns"] = [[*column.values()] for column in relation["columns"]]
    return {"position": stated.position, "relation": relation, "facts": _facts_to_json(stated.facts)}


def stated_from_json(plain: Mapping[str, Any]) -> StatedFacts:
    """Convert back what `stated_to_json` returned.

    Raises
    ------
    ValueError
        If a value is missing or has the wrong type.
    """
    try:
        columns = [dict(zip(_COLUMN, column, strict=True)) for column in plain["relation"]["columns"]]
        relation = relation_from_json({**plain["relation"], "columns": columns})
        position = whole_number(plain["position"], BEFORE, MAX_POSITION)
        return StatedFacts(relation, position, _facts_from_json(plain["facts"], len(relation.columns)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the JSON is not facts of a relation: {type(error).__name__}") from None


def _facts_to_json(facts: RelationFacts) -> dict[str, Any]:
    missing = {
        str(number): value for number, value in zip(facts.attnums, facts.missing, strict=True) if value is not None
    }
    return {**asdict(facts), "missing": missing}


def _facts_from_json(plain: Mapping[str, Any], n_columns: int) -> RelationFacts:
    attnums = tuple(whole_number(number, UNKNOWN_NUMBER, MAX_ATTNUM) for number in plain["attnums"])
    values = {number: _text(value) for number, value in dict(plain["missing"]).items()}
    known = [number for number in attnums if number != UNKNOWN_NUMBER]
    if len(attnums) != n_columns or len(set(known)) != len(known):
        raise ValueError(f"facts of {len(attnums)} columns, the relation has {n_columns}")
    return RelationFacts(
        attnums,
        tuple(values.get(str(number)) for number in attnums),
        tuple(whole_number(number, 1, MAX_ATTNUM) for number in plain["primary_key"]),
        tuple((whole_number(oid, 0, MAX_OID), whole_number(node, 0, MAX_OID)) for oid, node in plain["storage"]),
        # Without them, no column is known to have been added.
        whole_number(plain.get("n_attributes", MAX_ATTNUM), 0, MAX_ATTNUM),
        plain.get("has_same_list") is True,
    )


def type_to_json(message: Type) -> dict[str, Any]:
    """Convert a Type message to JSON values."""
    return asdict(message)


def type_from_json(plain: Mapping[str, Any]) -> Type:
    """Convert back what `type_to_json` returned.

    Raises
    ------
    ValueError
        If a value has the wrong type.
    """
    type_id = whole_number(plain["type_id"], 0, MAX_OID)
    return Type(type_id, _text(plain["namespace"]), _text(plain["name"]))


def relation_to_json(relation: Relation) -> dict[str, Any]:
    """Convert a Relation message to JSON values."""
    # `asdict` would copy each value. Each table that is decoded has its versions in its metadata.
    columns = [{name: getattr(column, name) for name in _COLUMN} for column in relation.columns]
    return {name: getattr(relation, name) for name in _RELATION} | {"columns": columns}


def relation_from_json(plain: Mapping[str, Any]) -> Relation:
    """Convert back what `relation_to_json` returned for a message outside streams.

    Raises
    ------
    ValueError
        If a value has the wrong type.
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
    """Check that a value from JSON is an integer in a range, and return it.

    Raises
    ------
    ValueError
        If it is not.
    """
    if type(value) is not int or not lowest <= value <= highest:
        raise ValueError(f"a JSON value of type {json_type(value)}, expected an integer from {lowest} to {highest}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a JSON value of type {json_type(value)}, expected a string")
    value.encode()  # raises UnicodeEncodeError, a ValueError, for half a surrogate pair, which JSON allows
    return value


def version_from_json(plain: Mapping[str, Any]) -> RelationVersion:
    """Convert back what `version_to_json` returned.

    Raises
    ------
    ValueError
        If a value is missing or has the wrong type.
    """
    try:
        relation = relation_from_json(plain["relation"])
        xid, visible_from = plain["xid"], plain["visible_from"]
        return RelationVersion(
            relation,
            tuple(map(type_from_json, plain["types"])),
            whole_number(plain["position"], BEFORE, MAX_POSITION),
            None if xid is None else whole_number(xid, 0, MAX_XID),
            None if visible_from is None else whole_number(visible_from, BEFORE, MAX_POSITION),
            _facts_from_json(plain["facts"], len(relation.columns)) if "facts" in plain else None,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the JSON is not a relation: {type(error).__name__}") from None
