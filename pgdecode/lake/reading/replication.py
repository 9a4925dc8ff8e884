"""The state of the decoder as each table has it: small, without payloads, and of other tables only their names."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode.changes.checkpoint import state_from_json, state_to_json
from pgdecode.changes.replication_state import BufferedChanges, ChangePart, ReplicationState, Transaction
from pgdecode.changes.spill_files import buffered_in, spill_path, spilled_to
from pgdecode.lake.reading.payload_source import PayloadSource

# Stands for the versions of all other tables.
_OTHER: dict[str, Any] = {
    "position": -1,
    "xid": None,
    "visible_from": -1,
    "relation": {"relation_id": 0, "namespace": "", "name": "", "replica_identity": "d", "columns": []},
    "types": [],
}
_COLUMNS = pa.schema([("step", pa.int64()), ("xid", pa.int64()), ("version", pa.int32())])
_TRUNCATE = b"T"

Json = dict[str, Any]
# For each undecided transaction, by its begin_position: the positions, xids and versions of its changes of a table.
Undecided = Mapping[int, tuple[pa.Array, pa.Array, pa.Array]]


@dataclass
class StoredPositions:
    """Changes of an undecided transaction whose payloads are read from the source when it ends.

    Attributes
    ----------
    source : PayloadSource
    relation_id : int
    positions, xids, versions : pa.Array
        Of each change.
    path : Path or None
        The spill file.
    """

    source: PayloadSource
    relation_id: int
    positions: pa.Array
    xids: pa.Array
    versions: pa.Array
    path: Path | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def parts(self) -> Iterator[ChangePart]:
        """Read the changes in order."""
        if self.path is None:
            return self._read()
        return iter(buffered_in(self.path) if self.path.exists() else spilled_to(self.path, self._read()))

    def _read(self) -> Iterator[BufferedChanges]:
        first = 0
        for positions, payloads in self.source.at(self.positions):
            n = len(positions)
            # Of a Truncate only the tag is buffered, because there is one change for each of its tables.
            is_truncate = pc.equal(pc.binary_slice(payloads, 0, 1), _TRUNCATE)
            payloads = pc.if_else(is_truncate, pa.scalar(_TRUNCATE, payloads.type), payloads)
            relation_ids = pa.repeat(pa.scalar(self.relation_id, pa.int64()), n)
            numbers = (relation_ids, self.xids.slice(first, n), self.versions.slice(first, n))
            yield BufferedChanges(payloads, positions, *map(_buffer, numbers))
            first += n


def _buffer(values: pa.Array) -> pa.Buffer:
    """Return the values of an array without nulls as a buffer of their own."""
    width = values.type.bit_width // 8
    return values.buffers()[1].slice(values.offset * width, len(values) * width)


# -- the state of one table --------------------------------------------------------------------------------------------


class StateWriter:
    """Makes the states of tables from that of the decoder.

    Parameters
    ----------
    state : ReplicationState
    others : mapping of int to str
        The names of other tables that the payloads before this state have described, by OID.
    """

    def __init__(self, state: ReplicationState, others: Mapping[int, str]) -> None:
        self._state = state
        self._others = others
        self._plain = state_to_json(state, with_payloads=False)
        self._undecided = {item.begin_position: _changes_of(item) for item in state.undecided}

    def table(self, relation_id: int) -> Json:
        """Return the state as JSON values, with what one table needs."""
        versions = self._state.relations.versions
        catalog = self._plain["catalog"]
        own = {number for number, version in enumerate(versions) if version.relation_id == relation_id}
        undecided = {begin: found[relation_id] for begin, found in self._undecided.items() if relation_id in found}
        used = {number for number in self._in_use() if number in own}
        used |= {number for *_, numbers in undecided.values() for number in pc.unique(numbers).to_pylist()}
        used |= {max(own & self._state.relations.in_shape, default=-1)}
        numbers = {number: at for at, number in enumerate(sorted(number for number in used if number >= 0))}
        rest = len(numbers)

        def number_of(number: int) -> int:
            return number if number < 0 else numbers.get(number, rest)

        def transaction(item: Json | None) -> Json | None:
            if item is None:
                return None
            return {**item, "relations": [numbers[number] for number in item["relations"] if number in numbers]}

        names = {str(oid): name for oid, name in self._others.items() if oid != relation_id}
        names |= {
            str(versions[number].relation_id): versions[number].qualified_name
            for number in sorted({*self._state.relations.in_shape, *self._pending()})
            if number not in own and versions[number].relation_id
        }
        own_catalog = {
            **catalog,
            "versions": [catalog["versions"][number] for number in numbers],
            "facts": [item for item in catalog.get("facts", ()) if item["relation"]["relation_id"] == relation_id],
            "shape": [numbers[number] for number in catalog["shape"] if number in numbers],
            "visible": [[oid, number_of(number), position] for oid, number, position in catalog["visible"]],
            "scopes": [
                {
                    **scope,
                    "visible": [[oid, xid, number_of(no), position] for oid, xid, no, position in scope["visible"]],
                    "numbers": [[xid, [numbers[no] for no in nos if no in numbers]] for xid, nos in scope["numbers"]],
                }
                for scope in catalog["scopes"]
            ],
        }
        engine = {
            **self._plain,
            "open": transaction(self._plain["open"]),
            "streamed": [transaction(item) for item in self._plain["streamed"]],
            "prepared": [transaction(item) for item in self._plain["prepared"]],
            "catalog": own_catalog,
        }
        stored = {
            str(begin): _encoded(positions, xids, pa.array(map(number_of, of.to_pylist()), pa.int32()))
            for begin, (positions, xids, of) in undecided.items()
        }
        return {"engine": engine, "others": names, "undecided": stored}

    def _in_use(self) -> Iterator[int]:
        """Yield the numbers of versions that next rows, or outcomes of transactions, may use."""
        relations = self._state.relations
        yield from (sent.number for sent in relations.common.values())
        yield from self._pending()
        for scope in relations.scopes.values():
            yield from (sent.number for items in scope.relations.values() for sent in items.by_xid.values())

    def _pending(self) -> Iterator[int]:
        """Yield the numbers of versions that undecided transactions have sent or used."""
        for item in self._state.undecided:
            yield from item.relations
        for scope in self._state.relations.scopes.values():
            yield from (number for numbers in scope.numbers_by_xid.values() for number in numbers)
        for found in self._undecided.values():
            for *_, numbers in found.values():
                yield from (number for number in pc.unique(numbers).to_pylist() if number >= 0)


def _changes_of(transaction: Transaction) -> dict[int, tuple[pa.Array, pa.Array, pa.Array]]:
    """Return the positions, xids and versions of a transaction's changes, by table."""
    found: dict[int, list[tuple[pa.Array, pa.Array, pa.Array]]] = {}
    for part in transaction.buffered:
        if isinstance(part, StoredPositions):
            found.setdefault(part.relation_id, []).append((part.positions, part.xids, part.versions))
            continue
        for changes in (item.read(with_payloads=False) for item in part.parts()):
            n = len(changes)
            ids, xids = (
                pa.Array.from_buffers(pa.int64(), n, [None, of]) for of in (changes.relation_ids, changes.xids)
            )
            versions = pa.Array.from_buffers(pa.int32(), n, [None, changes.versions])
            for relation_id in pc.unique(ids).to_pylist():
                is_own = pc.equal(ids, relation_id)
                columns = (changes.positions.filter(is_own), xids.filter(is_own), versions.filter(is_own))
                found.setdefault(relation_id, []).append(columns)
    joined = {}
    for relation_id, parts in found.items():
        positions, xids, versions = (pa.concat_arrays(columns) for columns in zip(*parts, strict=True))
        order = pc.sort_indices(positions)
        joined[relation_id] = positions.take(order), xids.take(order), versions.take(order)
    return joined


def _encoded(positions: pa.Array, xids: pa.Array, versions: pa.Array) -> str:
    """Encode columns as compressed Arrow, in base 64. Steps from one position to the next take less than positions."""
    before = pa.concat_arrays([pa.array([0], pa.int64()), positions[:-1]])
    batch = pa.RecordBatch.from_arrays([pc.subtract(positions, before), xids, versions], schema=_COLUMNS)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _COLUMNS, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    return base64.b64encode(sink.getvalue()).decode()


def _decoded(text: str) -> tuple[pa.Array, pa.Array, pa.Array]:
    table = pa.ipc.open_stream(base64.b64decode(text, validate=True)).read_all()
    steps, xids, versions = (column.combine_chunks() for column in table.select(_COLUMNS.names).columns)
    return pc.cumulative_sum(steps), xids, versions


# -- the state of several tables ---------------------------------------------------------------------------------------


def joined_state(
    stored: Mapping[int, Mapping[str, Any]], source: PayloadSource, spill: Path
) -> tuple[ReplicationState, dict[int, str]]:
    """Make the state of a decoder from those of tables, by OID, all at the same position.

    Parameters
    ----------
    stored : mapping of int to mapping
        As `StateWriter.table` made them.
    source : PayloadSource
    spill : Path
        A folder for the payloads of transactions when they end.

    Returns
    -------
    state : ReplicationState
    others : dict of int to str
        The last names of the other tables, by OID.

    Raises
    ------
    ValueError
        If a state is damaged.
    """
    first = next(iter(stored.values()))["engine"]
    catalog = {**first["catalog"], "versions": [], "facts": [], "shape": []}
    offsets: dict[int, int] = {}
    for relation_id, item in stored.items():
        own = item["engine"]["catalog"]
        offset = offsets[relation_id] = len(catalog["versions"])
        catalog["versions"] += own["versions"]
        catalog["facts"] += own.get("facts", ())
        catalog["shape"] += [number + offset for number in own["shape"]]
    rest = len(catalog["versions"])
    catalog["versions"].append(_OTHER)
    visible: list[tuple[Json, int | None]] = [
        (item["engine"]["catalog"], relation_id) for relation_id, item in stored.items()
    ]
    visible.append((first["catalog"], None))

    def moved(number: int, relation_id: int | None) -> int:
        if number < 0:
            return number
        return rest if relation_id is None else number + offsets[relation_id]

    def is_of(oid: int, relation_id: int | None) -> bool:
        return oid not in stored if relation_id is None else oid == relation_id

    catalog["visible"] = [
        [oid, moved(number, of), position]
        for plain, of in visible
        for oid, number, position in plain["visible"]
        if is_of(oid, of)
    ]
    catalog["scopes"] = [
        {
            **scope,
            "visible": [
                [oid, xid, moved(number, of), position]
                for plain, of in visible
                for oid, xid, number, position in plain["scopes"][at]["visible"]
                if is_of(oid, of)
            ],
            "numbers": [
                [
                    xid,
                    [
                        moved(number, of)
                        for plain, of in visible[:-1]
                        for number in plain["scopes"][at]["numbers"][nth][1]
                    ],
                ]
                for nth, (xid, _) in enumerate(scope["numbers"])
            ],
        }
        for at, scope in enumerate(first["catalog"]["scopes"])
    ]

    def transactions(name: str) -> list[Json]:
        found = []
        for nth, item in enumerate(first[name]):
            relations = [
                moved(number, of) for of, other in stored.items() for number in other["engine"][name][nth]["relations"]
            ]
            found.append({**item, "relations": relations})
        return found

    opened = first["open"]
    if opened is not None:
        relations = [moved(no, of) for of, other in stored.items() for no in other["engine"]["open"]["relations"]]
        opened = {**opened, "relations": relations}
    parts: dict[int, list[StoredPositions]] = {}
    for relation_id, item in stored.items():
        for begin, text in item["undecided"].items():
            positions, xids, versions = _decoded(text)
            path = spill_path(spill, relation_id, int(begin), positions[0].as_py())
            # Without a version, the number is negative.
            moved_versions = pc.add(versions, pa.scalar(offsets[relation_id], pa.int32()))
            versions = pc.if_else(pc.less(versions, 0), versions, moved_versions)
            part = StoredPositions(source, relation_id, positions, xids, versions, path)
            parts.setdefault(int(begin), []).append(part)
    plain = {
        **first,
        "open": opened,
        "streamed": transactions("streamed"),
        "prepared": transactions("prepared"),
        "catalog": catalog,
    }
    others = {int(oid): name for item in stored.values() for oid, name in item["others"].items()}
    return state_from_json(plain, stored=parts), {oid: name for oid, name in others.items() if oid not in stored}
