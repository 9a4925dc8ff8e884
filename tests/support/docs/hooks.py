"""Hooks of mkdocs: files of the repository in pages, generated parts, and links that leave docs/."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.docs import reference_pages  # noqa: E402

REPOSITORY = "https://github.com/pgdecode/pgdecode/blob/main/"
# Files of the repository that a page includes. Links to them become links to the page.
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "SECURITY.md": "security.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "performance.md",
    "tests/conformance/README.md": "conformance.md",
    "README.md": "index.md",
}
# A search for the name of a command or a function finds these pages first, and those of the project last.
SEARCH_BOOSTS = {
    **dict.fromkeys(("commands.md", "capture.md", "sync.md", "verify.md", "apply.md", "demo.md", "install.md"), 4),
    **dict.fromkeys(("architecture.md", "changelog.md", "contributing.md", "performance.md", "scoreboard.md"), 0.2),
}
# Parts that are made when the site is built.
MADE = {"commands": reference_pages.commands}

LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Insert what belongs to a page, and turn links to files outside docs/ into links to pages or the repository."""
    page.meta.setdefault("search", {"boost": SEARCH_BOOSTS.get(page.file.src_uri, 1)})
    markdown = re.sub(r"<!-- made: (.*?) -->", lambda found: MADE[found[1]](), markdown)
    markdown = with_site_links(markdown, "docs")
    return re.sub(r"<!-- include: (.*?) -->", lambda found: included(found[1]), markdown)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Mark the names of options in texts, so that no line ends after their hyphens."""
    return re.sub(r"(?<![\w-])--[a-z][\w-]*(?=[^<>]*<)", r'<span class="option">\g<0></span>', html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Keep the theme from asking GitHub for stars and forks: a page loads nothing from elsewhere."""
    return output.replace(' data-md-component="source"', "")


def included(path: str) -> str:
    """The text of a file of the repository without its heading."""
    text = (ROOT / path).read_text()
    return with_site_links(re.sub(r"\A# .*\n", "", text), posixpath.dirname(path))


def with_site_links(markdown: str, folder: str) -> str:
    """Replace the links of a text that lies in `folder` by those of the site."""
    return LINK.sub(lambda link: link[1] + target(link[2], folder) + link[3], markdown)


def target(link: str, folder: str) -> str:
    """The target of a link of a file in `folder`, relative to docs/."""
    if ":" in link:
        return link
    path = posixpath.normpath(posixpath.join(folder, link))
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else REPOSITORY + path
