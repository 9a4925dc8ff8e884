"""The generated parts of README.md, SECURITY.md and docs/options.md.

`python -m tests.support.readme` writes them, and test_readme checks them.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

import pyarrow.parquet as pq

import pgdecode
from pgdecode.protocol.messages import ENVELOPE, MESSAGES
from pgdecode.protocol.wire import Form, wire_fields

from . import options

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
SECURITY = ROOT / "SECURITY.md"
OPTIONS = ROOT / "docs" / "options.md"
DATA = Path(__file__).parent.parent / "data"


def between(text: str, marker: str) -> str:
    """The text between a marker and the next end marker."""
    match = re.search(rf"<!-- {marker} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    if match is None:
        raise LookupError(f"there is no part {marker!r}")
    return match[1]


def replaced(text: str, marker: str, part: str) -> str:
    """Replace the text between a marker and the next end marker."""
    return text.replace(f"<!-- {marker} -->\n{between(text, marker)}", f"<!-- {marker} -->\n{part}")


def code_blocks(text: str, language: str) -> list[str]:
    """Code blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def message_table() -> str:
    """One line per message: tag, class, kind, and its fields in wire order."""
    lines = ["| tag | class | `kind` | fields, in wire order |", "|---|---|---|---|"]
    for message in MESSAGES:
        items = [item for item in wire_fields(message) if item.wire.form not in (Form.COUNT,)]
        names = ", ".join(f"`{item.name}`" + ("?" if item.wire.form is Form.XID_PREFIX else "") for item in items)
        lines.append(f"| `{message.tag}` | `{message.__name__}` | {message.kind} | {names} |")
    return "\n".join(lines) + "\n"


def fillers(column: str) -> str:
    """The messages that fill an envelope column, with the field's name if it differs from the column's."""
    found: dict[str, list[str]] = {}
    for message in MESSAGES:
        for item in wire_fields(message):
            if item.wire.column == column:
                tag = f"({message.tag})" if item.wire.form is Form.XID_PREFIX else message.tag
                found.setdefault(item.name, []).append(tag)
    return "; ".join(" ".join(tags) + (f" `{name}`" if name != column else "") for name, tags in found.items())


def envelope_table() -> str:
    """One line per envelope column."""
    own = {
        "kind": "all",
        "error": "PERMISSIVE mode: why the row is null",
        "xid_basis": "only on request: how the presence of an xid prefix was decided",
    }
    types = {"list<column>": "list&lt;struct&lt;flags, name, type_id, type_modifier&gt;&gt;"}
    lines = ["| column | type | filled by |", "|---|---|---|"]
    for column in ENVELOPE:
        shown = types.get(column.type, column.type.replace("<", "&lt;").replace(">", "&gt;"))
        lines.append(f"| `{column.name}` | {shown} | {own.get(column.name) or fillers(column.name)} |")
    return "\n".join(lines) + "\n"


def picture() -> str:
    """A few rows of a real capture, as stored and as decoded."""
    payloads = pq.read_table(DATA / "16.shop.v1.parquet")["data"]
    columns = ["kind", "xid", "lsn", "relation_id", "name", "old", "new", "new_formats"]
    rows = pgdecode.decode_messages(payloads, fields=columns).to_pylist()
    kinds = ("begin", "relation", "insert", "update", "delete", "commit")
    wanted = [next(i for i, row in enumerate(rows) if row["kind"] == kind) for kind in kinds]
    lines = ["| `data` (as stored) | " + " | ".join(f"`{name}`" for name in columns) + " |", "|---" * 9 + "|"]
    for i in wanted:
        stored = payloads[i].as_py()
        cells = [f"`{stored[:1].decode()} {stored[1:9].hex(' ', 4)} …` {len(stored)} bytes"]
        cells += [shown(rows[i][name]) for name in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def shown(value: object) -> str:
    """A cell of the picture."""
    if value is None:
        return ""
    if isinstance(value, list):
        cells = ["null" if cell is None else cell[:9].decode() + ("…" if len(cell) > 9 else "") for cell in value]
        return "[" + ", ".join(cells[:4]) + (", …" if len(cells) > 4 else "") + "]"
    return str(value)


def limits_table() -> str:
    """One line per limit: its default value, and the first sentence of its documentation."""
    lines = ["| limit | default | meaning |", "|---|---|---|"]
    documentation = inspect.cleandoc(pgdecode.Limits.__doc__ or "")
    for field in fields(pgdecode.Limits):
        match = re.search(rf"^{field.name} : int\n((?: +.*\n)+)", documentation, re.MULTILINE)
        assert match, field.name
        sentence = " ".join(match[1].split()).split(". ")[0].rstrip(".")
        lines.append(f"| `{field.name}` | {field.default:,} | {sentence} |")
    return "\n".join(lines) + "\n"


GENERATED = {
    README: {"picture": picture, "messages": message_table, "envelope": envelope_table},
    SECURITY: {"limits": limits_table},
    OPTIONS: {
        "values": options.values,
        "python defaults": options.python_defaults,
        "spark defaults": options.spark_defaults,
        "command defaults": options.command_defaults,
    },
}


def main() -> None:
    """Write the generated parts."""
    for path, parts in GENERATED.items():
        text = path.read_text()
        for marker, part in parts.items():
            text = replaced(text, marker, part())
        path.write_text(text)


if __name__ == "__main__":
    main()
