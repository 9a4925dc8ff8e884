"""A slice of the committed changes of a batch as Arrow columns: the row of each change, and its commit."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from pgdecode._native.arrow.int64_kernels import dense, grouped
from pgdecode._native.arrow.payload_array import Source
from pgdecode.arrow.null_arrays import null_array
from pgdecode.changes.replication_state import CommittedChanges
from pgdecode.changes.transaction_assembler import TransactionAssembler
from pgdecode.protocol.errors import DecodeError
from pgdecode.relations.version_tracker import BAD_PAYLOAD, INVALID

TIMESTAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class ChangeSlice:
    """The changes `start` to `start + n` that a batch has committed. All columns have n rows."""

    assembler: TransactionAssembler
    changes: CommittedChanges
    source: Source
    start: int
    n: int

    def _part(self, name: str, type: pa.DataType) -> pa.Array:
        return pa.Array.from_buffers(type, self.n, [None, self.changes.found[name]], offset=self.start)

    def _of_commit(self, name: str, type: pa.DataType) -> pa.Array:
        values = self._part(name, type)
        if self.changes.is_certain:
            return values
        return _unless(_is_negative(self._part("commit_positions", pa.int64())), values)

    @cached_property
    def rows(self) -> pa.Array:
        """Row of each payload in `CommittedChanges.parts`."""
        return self._part("rows", pa.int64())

    @cached_property
    def versions(self) -> pa.Array:
        """Version of each change's relation, by its number in the catalog; negative without a version."""
        return self._part("versions", pa.int32())

    @cached_property
    def used_versions(self) -> frozenset[int]:
        """The numbers of the versions that the changes use."""
        return frozenset(pc.unique(self.versions).to_pylist())

    @property
    def streamed(self) -> pa.Array:
        """Whether each payload carries an xid, 1 or 0."""
        return self._part("streamed", pa.uint8())

    @property
    def _outcomes(self) -> pa.Array:
        return self._part("outcomes", pa.int32())

    @cached_property
    def position(self) -> pa.Array:
        """Position of each payload."""
        buffer = self.changes.positions.taken(values_of(self.rows))
        return pa.Array.from_buffers(pa.int64(), self.n, [None, buffer])

    @property
    def commit_position(self) -> pa.Array:
        """Position of the message that committed each change."""
        return self._of_commit("commit_positions", pa.int64())

    @property
    def xid(self) -> pa.Array:
        """Xid of the top-level transaction."""
        values = self._part("xids", pa.int64())
        return values if self.changes.is_certain else unless_negative(values)

    @property
    def subxid(self) -> pa.Array:
        """Xid of the sub-transaction; null for changes of the top-level transaction."""
        if not self.changes.has_subxids:
            return null_array(self.n, pa.int64())
        return _unless_zero(self._part("subxids", pa.int64()))

    @property
    def commit_lsn(self) -> pa.Array:
        """LSN of the commit."""
        return self._of_commit("lsns", pa.int64())

    @property
    def commit_timestamp(self) -> pa.Array:
        """Time of the commit."""
        return self._of_commit("timestamps", TIMESTAMP)

    @property
    def committed(self) -> pa.Array:
        """True if committed, false if rolled back, null if undecided."""
        if self.changes.is_certain:
            return pa.Array.from_buffers(pa.bool_(), self.n, [None, pa.py_buffer(b"\xff" * (self.n // 8 + 1))])
        buffer = self.changes.found["committed"]
        values = pa.Array.from_buffers(pa.int8(), buffer.size, [None, buffer])
        return unless_negative(values).cast(pa.bool_()).take(self._outcomes)

    @property
    def gid(self) -> pa.Array:
        """Global identifier (gid) of the prepared transaction."""
        gids = self.changes.gids
        if not gids:
            return null_array(self.n, pa.string())
        n = self.changes.found["committed"].size
        return pa.array([gids.get(i) for i in range(n)], pa.string()).take(self._outcomes)

    @cached_property
    def relation_id(self) -> pa.Array:
        """OID of the table."""
        values = self._part("relation_ids", pa.int64())
        return values if self.changes.is_known else unless_negative(values)

    @cached_property
    def truncates(self) -> pa.Array:
        """Whether each change is a truncate of a table."""
        return self._part("truncates", pa.uint8()).cast(pa.bool_())

    def by_version(self, groups: array[int]) -> Iterator[tuple[int, pa.Array]]:
        """Yield each group of versions that the changes use, with the indexes of its changes.

        `groups` has the group of each version, which is one of its versions, or -1 for none.
        """
        found, places = grouped(values_of(self.versions), groups)
        for version, start, end in found:
            yield version, pa.Array.from_buffers(pa.int64(), end - start, [None, places], offset=start)

    def dense_versions(self, n_versions: int) -> tuple[list[int], list[int], pa.Array]:
        """Find the versions below `n_versions` that the changes use.

        Returns
        -------
        versions, counts : list of int
            The versions, and the number of changes of each.
        places : pa.Array
            For each change, the index of its version in `versions`, or -1.
        """
        found, counts, places = dense(values_of(self.versions), n_versions)
        return found, counts, pa.Array.from_buffers(pa.int32(), self.n, [None, places])

    def unknown(self) -> dict[int, str]:
        """Errors of changes without a version: bad payloads, and rows of relations that no message has described."""
        errors: dict[int, str] = {}
        if self.changes.is_known:
            return errors
        for place in pc.indices_nonzero(_is_negative(self.versions)).to_pylist():
            row = self.rows[place].as_py()
            version = self.versions[place].as_py()
            if version == BAD_PAYLOAD:
                errors[place] = self.changes.row_errors[row]
                continue
            kind = self.assembler.batch.kind_of(row)
            # A truncate needs no columns. But if the relation is invalid, its table's name may be wrong.
            if kind != "truncate" or version == INVALID:
                errors[place] = self.assembler.unknown_relation(
                    self.relation_id[place].as_py(), kind, None, version
                ).cell
        return errors

    def placed(self, error: DecodeError, places: pa.Array | None = None) -> DecodeError:
        """Set the row of a change's error to that of its payload."""
        rows = self.rows if places is None else self.rows.take(places)
        return self.assembler.outcomes.placed(self.assembler.batch, error, rows)


def values_of(array: pa.Array) -> memoryview:
    """Return a memoryview of the values of an array without nulls, for native modules."""
    width = array.type.bit_width // 8
    first = array.offset * width
    buffer = array.buffers()[1] or b""
    view = memoryview(buffer).cast("B")[first : first + len(array) * width]
    return view if width == 1 else view.cast("i") if width == 4 else view.cast("q")


def _is_negative(values: pa.Array) -> pa.Array:
    # With a Python number, Arrow raises TypeError if there is no memory for a scalar.
    return pc.less(values, pa.scalar(0, values.type))


def _unless(condition: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(condition, pa.scalar(None, values.type), values)


def unless_negative(values: pa.Array) -> pa.Array:
    """Replace negative values by nulls."""
    return _unless(_is_negative(values), values)


def _unless_zero(values: pa.Array) -> pa.Array:
    return _unless(pc.equal(values, pa.scalar(0, values.type)), values)
