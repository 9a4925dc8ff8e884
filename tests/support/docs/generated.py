"""The generated parts of SECURITY.md and of pages under docs/.

`python -m tests.support.docs.generated` writes them, and test_readme checks them.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

import pgdecode
from pgdecode.protocol.messages import ENVELOPE, MESSAGES
from pgdecode.protocol.wire import Form, wire_fields

from . import options, reference_pages, road
from .markdown import DOCS, SECURITY, replaced


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
    SECURITY: {"limits": limits_table},
    DOCS / "options.md": {
        "declared": options.declared,
        "values": options.values,
        "python defaults": options.python_defaults,
        "spark defaults": options.spark_defaults,
        "command defaults": options.command_defaults,
    },
    DOCS / "messages.md": {"messages": message_table, "envelope": envelope_table},
    DOCS / "types.md": {"types": reference_pages.type_table},
    DOCS / "targets.md": {"stored types": reference_pages.stored_type_table},
    DOCS / "errors.md": {"errors": reference_pages.error_table},
}
# Files that are generated as a whole.
FILES = {
    DOCS / "assets" / "messages.json": reference_pages.message_json,
    DOCS / "assets" / "road-light.svg": lambda: road.svg("light"),
    DOCS / "assets" / "road-dark.svg": lambda: road.svg("dark"),
}


def main() -> None:
    """Write the generated parts and files."""
    for path, parts in GENERATED.items():
        text = path.read_text()
        for marker, part in parts.items():
            text = replaced(text, marker, part())
        path.write_text(text)
    for path, make in FILES.items():
        path.write_text(make())


if __name__ == "__main__":
    main()
