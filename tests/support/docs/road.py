"""The diagram of the README: the road from PostgreSQL to tables, as SVG for light and dark pages."""

from __future__ import annotations

from typing import Literal

Theme = Literal["light", "dark"]

COLOURS: dict[Theme, dict[str, str]] = {
    "light": {"text": "#1f2328", "soft": "#59636e", "line": "#8c959f", "box": "#f6f8fa", "accent": "#0f766e"},
    "dark": {"text": "#e6edf3", "soft": "#9198a1", "line": "#6e7681", "box": "#161b22", "accent": "#2dd4bf"},
}
TOP, HEIGHT = 40, 138
# Left edge, width, heading, lines, and whether pgdecode makes it.
BOXES = (
    (8, 170, "PostgreSQL", ("INSERT …", "UPDATE …", "COMMIT"), False),
    (272, 190, "payload files", ("seq  lsn       data", "  1  0/20974B  B…", "  2  0/20974B  I…"), True),
    (556, 224, "changes", ("_op     id  total   state", "insert   1  639.51  new", "update   1  639.51  paid"), True),
    (874, 186, "tables of a lake", ("id  total   state", " 1  639.51  paid", " 2  204.35  new"), True),
)
ARROWS = ((178, 272, "capture"), (462, 556, "decode"), (780, 874, "apply"))
NOTES = (
    (272, "Parquet, in slot order"),
    (556, "Arrow, Spark, Parquet, JSON, CSV"),
    (874, "Delta, Iceberg, DuckDB …"),
)
# From the tables back to the server, below the notes.
PROOF, PROOF_AT, BOTTOM = "verify: every row and column", 46, 262


def svg(theme: Theme) -> str:
    """Draw the diagram."""
    colour = COLOURS[theme]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1068 {BOTTOM}" role="img" '
        'aria-label="PostgreSQL, payload files, changes, tables of a lake">',
        f"<style>text{{fill:{colour['text']};font:15px system-ui,sans-serif}}"
        f".code{{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre}}"
        f".head{{font-weight:600;font-size:17px}}.soft{{fill:{colour['soft']};font-size:13px}}"
        f".step{{fill:{colour['accent']};font-weight:600;font-size:14px}}</style>",
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{colour["line"]}"/></marker></defs>',
    ]
    for left, width, heading, lines, is_ours in BOXES:
        edge = colour["accent"] if is_ours else colour["line"]
        parts.append(
            f'<rect x="{left}" y="{TOP}" width="{width}" height="{HEIGHT}" rx="8" fill="{colour["box"]}" '
            f'stroke="{edge}" stroke-width="{2 if is_ours else 1}"/>'
        )
        parts.append(f'<text class="head" x="{left + 14}" y="{TOP + 32}">{heading}</text>')
        for number, line in enumerate(lines):
            parts.append(
                f'<text class="code" x="{left + 14}" y="{TOP + 64 + 25 * number}" xml:space="preserve">{line}</text>'
            )
    for start, end, step in ARROWS:
        middle = TOP + HEIGHT // 2
        parts.append(
            f'<path d="M{start + 4} {middle}H{end - 4}" stroke="{colour["line"]}" stroke-width="2" '
            'marker-end="url(#tip)"/>'
        )
        if step:
            parts.append(
                f'<text class="step" x="{(start + end) / 2}" y="{TOP - 14}" text-anchor="middle">{step}</text>'
            )
    for left, note in NOTES:
        parts.append(f'<text class="soft" x="{left + 4}" y="{TOP + HEIGHT + 24}">{note}</text>')
    first, last, level = BOXES[0], BOXES[-1], TOP + HEIGHT + PROOF_AT
    start, end = last[0] + last[1] // 2, first[0] + first[1] // 2
    parts.append(
        f'<path d="M{start} {TOP + HEIGHT + 34}V{level}H{end}V{TOP + HEIGHT + 4}" fill="none" '
        f'stroke="{colour["line"]}" stroke-width="2" stroke-dasharray="5 4" marker-end="url(#tip)"/>'
    )
    middle = (start + end) / 2
    parts.append(f'<text class="step" x="{middle}" y="{level + 20}" text-anchor="middle">{PROOF}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
