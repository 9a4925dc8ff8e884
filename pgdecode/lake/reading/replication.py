"""The state of the decoder as each table has it: small, without payloads, and of other tables only their names."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping
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
# How many changes are compressed at once.
_LIST_ROWS = 1 << 17

Json = dict[str, Any]
# Positions, xids and versions of changes.
Columns = tuple[pa.Array, pa.Array, pa.Array]


class ChangeList:
    """The positions, xids and versions of changes of a table, in order: compressed, so that most need less than a byte.

    Attributes
    ----------
    versions : dict of int to int
        Those that the changes have, with their numbers in the list.
    """

    def __init__(self) -> None:
        self.versions: dict[int, int] = {}
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_stream(self._sink, _COLUMNS, options=pa.ipc.IpcWriteOptions(compression="zstd"))
        self._waiting: list[Columns] = []
        self._n_waiting = 0
        self._last = pa.array([0], pa.int64())

    def add(self, positions: pa.Array, xids: pa.Array, versions: pa.Array) -> None:
        """Add the next changes."""
        unique = pc.unique(versions)
        numbers = [self.versions.setdefault(number, len(self.versions)) for number in unique.to_pylist()]
        in_list = pa.array(numbers, pa.int32()).take(pc.index_in(versions, unique))
        self._waiting.append((positions, xids, in_list))
        self._n_waiting += len(positions)
        if self._n_waiting >= _LIST_ROWS:
            self._write()

    def _write(self) -> None:
        if self._n_waiting:
            positions, xids, versions = (pa.concat_arrays(columns) for columns in zip(*self._waiting, strict=True))
            # Steps from one position to the next take less than positions.
            before = pa.concat_arrays([self._last, positions[:-1]])
            steps = pc.subtract(positions, before)
            self._writer.write_batch(pa.RecordBatch.from_arrays([steps, xids, versions], schema=_COLUMNS))
            self._last = positions[-1:]
        self._waiting, self._n_waiting = [], 0

    def content(self) -> pa.Buffer:
        """End the list, and return it as an Arrow stream."""
        self._write()
        self._writer.close()
        return self._sink.getvalue()


def _columns_in(content: Any) -> Iterator[Columns]:
    """Read a list of changes in parts."""
    last = pa.scalar(0, pa.int64())
    for steps, xids, versions in (batch.columns for batch in pa.ipc.open_stream(content)):
        positions = pc.add(pc.cumulative_sum(steps), last)
        if len(positions):
            last = positions[-1]
            yield positions, xids, versions


@dataclass
class StoredPositions:
    """Changes of an undecided transaction whose payloads are read from the source when it ends.

    Attributes
    ----------
    source : PayloadSource
    relation_id : int
    content : bytes
        The list of the changes, as `ChangeList.content` returns it.
    versions : tuple of int
        The versions that the list has, by their numbers in it. Without a version, the number is negative.
    path : Path or None
        The spill file.
    """

    source: PayloadSource
    relation_id: int
    content: bytes
    versions: tuple[int, ...]
    path: Path | None = None

    def __len__(self) -> int:
        return sum(len(positions) for positions, *_ in _columns_in(self.content))

    def columns(self) -> Iterator[Columns]:
        """Yield the positions, xids and versions of the changes, in parts."""
        numbers = pa.array(self.versions, pa.int32())
        for positions, xids, versions in _columns_in(self.content):
            yield positions, xids, numbers.take(versions)

    def parts(self) -> Iterator[ChangePart]:
        """Read the changes in order."""
        if self.path is None:
            return self._read()
        stored = buffered_in(self.path) if self.path.exists() else spilled_to(self.path, self._read())
        return stored.parts()

    def _read(self) -> Iterator[BufferedChanges]:
        for every, xids, versions in self.columns():
            first = 0
            for positions, payloads in self.source.at(every):
                n = len(positions)
                # Of a Truncate only the tag is buffered, because there is one change for each of its tables.
                is_truncate = pc.equal(pc.binary_slice(payloads, 0, 1), _TRUNCATE)
                payloads = pc.if_else(is_truncate, pa.scalar(_TRUNCATE, payloads.type), payloads)
                relation_ids = pa.repeat(pa.scalar(self.relation_id, pa.int64()), n)
                numbers = (relation_ids, xids.slice(first, n), versions.slice(first, n))
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
    without_columns : collection of int
        Those of them that have had no columns.
    """

    def __init__(self, state: ReplicationState, others: Mapping[int, str], without_columns: Collection[int]) -> None:
        self._state = state
        self._others, self._without_columns = others, without_columns
        self._plain = state_to_json(state, with_payloads=False)
        self._undecided = {item.begin_position: _changes_of(item) for item in state.undecided}

    def table(self, relation_id: int) -> Json:
        """Return the state as JSON values, with what one table needs."""
        versions = self._state.relations.versions
        catalog = self._plain["catalog"]
        own = {number for number, version in enumerate(versions) if version.relation_id == relation_id}
        undecided = {begin: found[relation_id] for begin, found in self._undecided.items() if relation_id in found}
        used = {number for number in self._in_use() if number in own}
        used |= {number for found in undecided.values() for number in found.versions}
        used |= {max(own & self._state.relations.in_layout, default=-1)}
        numbers = {number: at for at, number in enumerate(sorted(number for number in used if number >= 0))}
        rest = len(numbers)

        def number_of(number: int) -> int:
            return number if number < 0 else numbers.get(number, rest)

        def transaction(item: Json | None) -> Json | None:
            if item is None:
                return None
            return {**item, "relations": [numbers[number] for number in item["relations"] if number in numbers]}

        names = {str(oid): name for oid, name in self._others.items() if oid != relation_id}
        without_columns = {*self._without_columns} & {*self._others}
        for number in sorted({*self._state.relations.in_layout, *self._pending()}):
            version = versions[number]
            if number in own or not version.relation_id:
                continue
            if version.columns:
                without_columns.discard(version.relation_id)
            elif str(version.relation_id) not in names:
                without_columns.add(version.relation_id)
            names[str(version.relation_id)] = version.qualified_name
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
            str(begin): {
                "versions": [*map(number_of, found.versions)],
                "changes": base64.b64encode(found.content()).decode(),
            }
            for begin, found in undecided.items()
        }
        return {
            "engine": engine,
            "others": names,
            "without_columns": sorted(without_columns),
            "undecided": stored,
        }

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
            for changes in found.values():
                yield from (number for number in changes.versions if number >= 0)


def _changes_of(transaction: Transaction) -> dict[int, ChangeList]:
    """List a transaction's changes by table."""
    found: dict[int, ChangeList] = {}
    for part in transaction.buffered:
        if isinstance(part, StoredPositions):
            for columns in part.columns():
                found.setdefault(part.relation_id, ChangeList()).add(*columns)
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
                found.setdefault(relation_id, ChangeList()).add(*columns)
    return found


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
        for begin, listed in item["undecided"].items():
            content = base64.b64decode(listed["changes"], validate=True)
            versions = tuple(moved(number, relation_id) for number in listed["versions"])
            first_position = next(_columns_in(content))[0][0].as_py()
            path = spill_path(spill, relation_id, int(begin), first_position)
            part = StoredPositions(source, relation_id, content, versions, path)
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
