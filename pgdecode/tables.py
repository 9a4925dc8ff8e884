"""The changes of one table as typed columns, over all versions that the table has had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._rows import Rows
from pgdecode.deliveries import TIMESTAMP, Stretch, values_of
from pgdecode.errors import DecodeError
from pgdecode.ledger import Options
from pgdecode.nulls import null_array
from pgdecode.pgtypes import Decoding
from pgdecode.readings import Reading
from pgdecode.rows import texts
from pgdecode.versions import RelationVersion

META = (
    ("_op", pa.string()),
    ("_position", pa.int64()),
    ("_commit_position", pa.int64()),
    ("_xid", pa.int64()),
    ("_commit_lsn", pa.int64()),
    ("_commit_timestamp", TIMESTAMP),
    ("_old_type", pa.string()),
)
META_BEHIND = (("_unchanged", pa.list_(pa.string())), ("_error", pa.string()))
_META_NAMES = {name for name, _ in (*META, *META_BEHIND)} | {"_old"}
_INTEGERS = (pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float32(), pa.float64())


def widened(types: Sequence[pa.DataType]) -> pa.DataType | None:
    """Find the one type of several that holds all their values; None where only text does."""
    first, *others = dict.fromkeys(types)
    if not others:
        return first
    for ladder in (_INTEGERS, _FLOATS):
        if all(item in ladder for item in types):
            return max(types, key=ladder.index)
    if all(pa.types.is_decimal(item) for item in types):
        scale = max(item.scale for item in types)
        precision = scale + max(item.precision - item.scale for item in types)
        return pa.decimal128(precision, scale) if precision <= 38 else None
    return None


def versions_of(
    catalog: Iterable[RelationVersion], relation: str | int, *, everything: bool = False
) -> dict[int, RelationVersion]:
    """Find the versions of a table by their numbers in a catalog, those that count outside their own stream.

    With `everything`, and where there are no others, also those of transactions that did not commit, or not yet.
    """
    found = {number: item for number, item in enumerate(catalog) if relation in (item.qualified_name, item.relation_id)}
    seen = {number: item for number, item in found.items() if item.visible_from is not None}
    return found if everything or not seen else seen


@dataclass(frozen=True)
class TableColumn:
    """A column of a table over its versions."""

    name: str
    arrow: pa.DataType
    is_text: bool  # in PostgreSQL's text form, since its types have no other in common
    metadata: dict[str, str]


class Table:
    """What the versions of a table have in common.

    Columns go by name, in the order in which they were first sent. Where a column has had several types, it has the
    one that holds all (int2, int4, int8; float4, float8; numeric that grew), or else PostgreSQL's text form; the
    field's metadata then names the types, in `pg:types`.

    Raises
    ------
    ValueError
        If a column bears the name of one of those about the change, or a name twice.
    """

    def __init__(self, versions: Iterable[RelationVersion], reading: Reading) -> None:
        self.versions = list(versions)
        self.reading = reading
        fields: dict[str, list[pa.Field]] = {}
        for version in self.versions:
            for field in reading.fields(version):
                fields.setdefault(field.name, []).append(field)
        taken = _META_NAMES & set(fields)
        if taken:
            raise ValueError(f"the table has a column {min(taken)!r}, which is the name of one about the change")
        self.columns = [self._column(name, found) for name, found in fields.items()]
        self.schema = self._schema()

    def _column(self, name: str, fields: list[pa.Field]) -> TableColumn:
        arrow = widened([item.type for item in fields])
        metadata = {key.decode(): value.decode() for key, value in fields[-1].metadata.items()}
        described = list(dict.fromkeys(item.metadata[b"pg:type"].decode() for item in fields))
        if len(described) > 1 or arrow is None:
            metadata["pg:types"] = ", ".join(described)
        return TableColumn(name, pa.string() if arrow is None else arrow, arrow is None, metadata)

    def _schema(self) -> pa.Schema:
        old = pa.struct([pa.field(item.name, item.arrow) for item in self.columns])
        columns = [pa.field(item.name, item.arrow, metadata=item.metadata) for item in self.columns]
        return pa.schema([*META, ("_old", old), *META_BEHIND, *columns])

    def decodings(self, version: RelationVersion) -> list[Decoding]:
        """How the columns of a version are decoded for this table."""
        return self.reading.decodings(version, frozenset(item.name for item in self.columns if item.is_text))

    def fitted(self, version: RelationVersion, arrays: Sequence[pa.Array], n: int) -> list[pa.Array]:
        """Fit the columns of a version to those of the table."""
        by_name = {column.name: array for column, array in zip(version.columns, arrays, strict=True)}
        return [
            _as_type(by_name[item.name], item.arrow) if item.name in by_name else null_array(n, item.arrow)
            for item in self.columns
        ]


def _as_type(array: pa.Array, type: pa.DataType) -> pa.Array:
    # Even a cast that changes nothing takes its time.
    return array if array.type == type else array.cast(type)


class TableBuilder:
    """Builds record batches of one table's changes.

    Parameters
    ----------
    table : Table
    numbers : mapping
        The table's versions by their numbers in the catalog.
    options : Options
    """

    error = "_error"

    def __init__(self, table: Table, numbers: Mapping[int, RelationVersion], options: Options) -> None:
        self.table = table
        self.numbers = dict(numbers)
        self.options = options
        self._decodings: dict[int, list[Decoding]] = {}

    def batch(self, stretch: Stretch) -> pa.RecordBatch:
        """Build the table's changes in a stretch; bad payloads, which may be of any table, are among them."""
        told = stretch.unknown()
        places: list[pa.Array] = []
        pieces: list[list[pa.Array]] = []
        if told:
            bad = pa.array(told, pa.int64())
            places.append(bad)
            pieces.append(self._empty(len(bad), texts(dict(enumerate(told.values())), len(bad)), None))
        for number, of_version in stretch.by_version(max(self.numbers, default=-1) + 1):
            if number not in self.numbers:
                continue
            for chosen, is_row in self._by_kind(stretch, of_version):
                places.append(chosen)
                if is_row:
                    pieces.append(self._decoded(stretch, number, chosen))
                else:
                    pieces.append(self._empty(len(chosen), null_array(len(chosen), pa.string()), "truncate"))
        return self._joined(stretch, places, pieces)

    def _by_kind(self, stretch: Stretch, places: pa.Array) -> list[tuple[pa.Array, bool]]:
        """Places of rows, and those of truncates."""
        if not stretch.delivery.has_truncates:
            return [(places, True)]
        is_truncate = stretch.truncates if len(places) == stretch.n else stretch.truncates.take(places)
        parts = [(places.filter(pc.invert(is_truncate)), True), (places.filter(is_truncate), False)]
        return [part for part in parts if len(part[0])]

    def _empty(self, n: int, errors: pa.Array, op: str | None) -> list[pa.Array]:
        """_op, _old_type, _old, _unchanged, _error and the columns of rows without tuples."""
        unchanged = null_array(n, pa.list_(pa.string()))
        if op is not None:
            unchanged = pa.array([[]] * n, pa.list_(pa.string()))
        return [
            pa.array([op] * n, pa.string()),
            null_array(n, pa.string()),
            null_array(n, self.table.schema.field("_old").type),
            unchanged,
            errors,
            *(null_array(n, item.arrow) for item in self.table.columns),
        ]

    def _decoded(self, stretch: Stretch, number: int, places: pa.Array) -> list[pa.Array]:
        n = len(places)
        version = self.numbers[number]
        if number not in self._decodings:
            self._decodings[number] = self.table.decodings(version)
        whole = n == stretch.n
        rows = Rows(
            stretch.source,
            version.relation_id,
            [item.name for item in version.columns],
            self._decodings[number],
            self.options.limits,
            self.options.strict_flags,
            self.options.mode != "FAILFAST",
            self.table.reading.unrepresentable == "null",
            selection=values_of(stretch.rows if whole else stretch.rows.take(places)),
            streamed=values_of(stretch.streamed if whole else stretch.streamed.take(places)),
        )
        try:
            rows.run()
            (op, _, old_type, old, unchanged), columns = rows.results()
        except DecodeError as error:
            raise stretch.placed(error, places) from None
        olds = self.table.fitted(version, [old.field(i) for i in range(old.type.num_fields)], n)
        fields = list(self.table.schema.field("_old").type)
        old = pa.StructArray.from_arrays(olds, fields=fields, mask=old.is_null()) if fields else old
        return [op, old_type, old, unchanged, texts(rows.told, n), *self.table.fitted(version, columns, n)]

    def _joined(self, stretch: Stretch, places: list[pa.Array], pieces: list[list[pa.Array]]) -> pa.RecordBatch:
        schema = self.table.schema
        if not places:
            return pa.RecordBatch.from_arrays([pa.array([], item.type) for item in schema], schema=schema)
        if len(places) == 1:
            at, columns = places[0], pieces[0]
        else:
            joined = pa.concat_arrays(places)
            order = pc.sort_indices(joined)
            at = joined.take(order)
            columns = [pa.concat_arrays(parts).take(order) for parts in zip(*pieces, strict=True)]
        op, old_type, old, unchanged, errors, *values = columns
        about = [
            stretch.position,
            stretch.commit_position,
            stretch.xid,
            stretch.commit_lsn,
            stretch.commit_timestamp,
        ]
        if len(at) != stretch.n:
            about = [column.take(at) for column in about]
        return pa.RecordBatch.from_arrays([op, *about, old_type, old, unchanged, errors, *values], schema=schema)
