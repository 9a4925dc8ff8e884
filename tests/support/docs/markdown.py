"""The Markdown files of the repository: their marked parts and code blocks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
SECURITY = ROOT / "SECURITY.md"
DOCS = ROOT / "docs"


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


def commands(block: str) -> list[str]:
    """The commands of a block of the shell that are pgdecode's own, each on one line and without its comment."""
    lines = re.sub(r" *\\\n *", " ", block).splitlines()
    return [line.partition("  #")[0] for line in lines if line.startswith("pgdecode ")]
