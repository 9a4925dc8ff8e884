"""Links of the documents lead somewhere: to files of the repository, and to headings of pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.docs import markdown

ROOT = markdown.ROOT
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "tests").glob("*/README.md"),
        *(ROOT / "benchmarks").glob("*.md"),
    ]
)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
# README is also the description of the package, where relative links lead nowhere.
REPOSITORY = re.compile(r"^https://github.com/pgdecode/pgdecode/(?:blob|raw)/main/")
# Projects are linked where they live. Pages of package indexes come and go.
INDEXES = ("pypi.org", "npmjs.com", "crates.io")


def prose(path: Path) -> str:
    """The text of a document without its code, and without scripts, whose addresses are those of the site."""
    return re.sub(r"```.*?```|`[^`\n]*`|<script [^>]*>", "", path.read_text(), flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as Markdown makes them, and those in its HTML."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).strip() for heading in headings}
    return {re.sub(r"[-\s]+", "-", heading) for heading in made} | set(re.findall(r' id="([^"]+)"', text))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for link in map("".join, LINK.findall(prose(path))):
        assert not any(index in link for index in INDEXES), f"{link}: link the project's repository"
        target, _, anchor = REPOSITORY.sub(f"{ROOT}/", link).partition("#")
        if ":" in target:
            continue
        found = path if not target else path.parent / target
        assert found.exists(), link
        assert not anchor or found.suffix == ".svg" or anchor in anchors(found), link


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert set(re.findall(r"([\w-]+\.md)", navigation)) == pages
