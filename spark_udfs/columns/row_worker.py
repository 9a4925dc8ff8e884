"""Decodes typed rows in Spark's Python workers. The options are small when pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import pgdecode
from pgdecode import Column, Delete, Insert, Relation, Type, Update
from pgdecode.payloads.payload_input import payload_parts
from pgdecode.payloads.unwrap import unwrap_in_place
from pgdecode.protocol.messages import MESSAGES
from pgdecode.protocol.options import MAX_VALUE_BYTES, Unwrap, limits_with
from pgdecode.rows.options import DEFAULTS
from spark_udfs.runtime.worker import enter_task
from spark_udfs.schema.spark_types import to_supported_type
from spark_udfs.schema.years import checked_years

_ROW_TAGS = tuple(message.tag for message in (Insert, Update, Delete))
_OTHER_TAGS = pa.array([message.tag.encode() for message in MESSAGES if message.tag not in _ROW_TAGS])

JsonRelation = tuple[int, str, str, str, tuple[tuple[int, str, int, int], ...]]


def relation_of(plain: JsonRelation) -> Relation:
    """Make the Relation message."""
    relation_id, namespace, name, replica_identity, columns = plain
    return Relation(relation_id, namespace, name, replica_identity, tuple(Column(*column) for column in columns))


def arguments_of(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `decode_rows`, of which `keywords` has those that are given, as plain data."""
    limits = limits_with(keywords.get("max_value_bytes", MAX_VALUE_BYTES))
    given = {name: value for name, value in keywords.items() if name != "max_value_bytes"}
    return given | {"limits": limits, "type_messages": [Type(*plain) for plain in keywords["type_messages"]]}


@dataclass(frozen=True)
class RowOptions:
    """The options of the function.

    Attributes
    ----------
    relation : tuple
        Its id, namespace, name and replica identity, and the flags, name, type and modifier of each column.
    keywords : mapping
        As for `arguments_of`.
    fields : tuple of str
        Columns of `decode_rows` to return.
    null_others : bool
        Whether messages that are not rows of the relation become nulls.
    any_year : bool
        Whether years that Python cannot represent are allowed.
    has_time : bool
        Whether times of day are Spark's TIME; otherwise they are strings.
    unwrap : str
        The form of the payloads.
    """

    relation: JsonRelation
    keywords: Mapping[str, Any]
    fields: tuple[str, ...]
    null_others: bool
    any_year: bool
    has_time: bool
    unwrap: Unwrap = "none"

    def decode(self, payloads: pa.Array) -> pa.RecordBatch:
        """Decode a batch to columns with types that Spark supports."""
        enter_task()
        payloads = unwrap_in_place(payloads, self.unwrap).payloads
        relation = relation_of(self.relation)
        errors = None
        if self.null_others:
            payloads, errors = self._own(payloads)
        rows = pgdecode.decode_rows(payloads, relation, **arguments_of(self.keywords))
        if not self.any_year:
            rows = checked_years(rows, payloads, relation, self._option("mode"), self._option("unrepresentable"))
        if errors is not None:
            rows = rows.set_column(rows.schema.get_field_index("_error"), "_error", pc.coalesce(errors, rows["_error"]))
        found = [to_supported_type(rows[name], has_time=self.has_time) for name in self.fields]
        return pa.RecordBatch.from_arrays(found, names=list(self.fields))

    def _option(self, name: str) -> Any:
        return self.keywords.get(name, DEFAULTS[name])

    def _own(self, payloads: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Replace payloads that are not rows of the relation by null. Return also the errors of malformed rows."""
        (payloads,) = payload_parts(payloads)
        nothing = pa.scalar(None, payloads.type)
        tags = pc.binary_slice(payloads, 0, 1)
        rows = pc.if_else(pc.is_in(tags, _OTHER_TAGS.cast(tags.type)), nothing, payloads)
        seen = pgdecode.decode_messages(
            rows,
            in_stream="auto",
            fields=("relation_id", "error"),
            mode=self._option("mode"),
            empty=self._option("empty"),
        )
        own = pc.equal(seen["relation_id"], self.relation[0]).fill_null(False)
        return pc.if_else(own, rows, nothing), seen["error"]
