"""The payload inspector of the docs, in a real browser, decodes the messages of the conformance suite."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from support.docs import markdown

pytestmark = pytest.mark.full

CONFORMANCE = markdown.ROOT / "tests" / "conformance"
MESSAGES = ("framing", "lengths", "tags", "states", "strings")
PAGE = """<!doctype html><meta charset="utf-8"><pre id="answers"></pre><script src="/assets/inspector.js"></script>
<script>
(async () => {
    const table = await (await fetch("/assets/messages.json")).json();
    const cases = await (await fetch("/cases.json")).json();
    const answers = cases.map((item) => {
        const answer = inspector.decode(inspector.bytesFrom(item.payload), table, item.in_stream, item.strict_flags);
        return { fault: answer.fault, message: answer.message, fields: answer.fields };
    });
    const asNumbers = (key, value) => (typeof value === "bigint" ? { int: value.toString() } : value);
    const text = JSON.stringify(answers, asNumbers);
    document.getElementById("answers").textContent = text;
})();
</script>"""


def browser() -> str:
    found = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium")
    return found


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder with the assets of the docs, and its address."""
    shutil.copytree(markdown.DOCS / "assets", tmp_path / "assets")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield tmp_path, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def dumped(url: str, profile: Path) -> str:
    """The page as the browser has it when its scripts are done."""
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-dev-shm-usage",
    ]
    command = [browser(), *flags, f"--user-data-dir={profile}", "--virtual-time-budget=20000", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def number(item: dict[str, Any]) -> Any:
    return int(item["int"]) if set(item) == {"int"} else item


def test_the_inspector_decodes_the_conformance_suite(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    lines = [line for name in MESSAGES for line in (CONFORMANCE / f"{name}.jsonl").read_text().splitlines()]
    cases = [json.loads(line) for line in lines]
    repeated = re.compile(r"\(([0-9a-f]*)\*(\d+)\)")
    asked = [
        {
            "payload": repeated.sub(lambda found: found[1] * int(found[2]), case["payload"]),
            "in_stream": case["in_stream"],
            "strict_flags": case.get("strict_flags", True),
        }
        for case in cases
    ]
    (folder / "cases.json").write_text(json.dumps(asked))
    (folder / "page.html").write_text(PAGE)
    page = dumped(f"{address}/page.html", tmp_path / "profile")
    text = re.search(r'<pre id="answers">(.*?)</pre>', page, re.DOTALL)
    assert text
    answers = json.loads(unescape(text[1]), object_hook=number)
    assert len(answers) == len(cases) > 300
    for case, answer, question in zip(cases, answers, asked, strict=True):
        if "fault" in case:
            assert {name: answer["fault"][name] for name in ("code", "offset")} == case["fault"], case["id"]
            continue
        assert answer["fault"] is None, case["id"]
        assert answer["message"] == case["message"], case["id"]
        # The fields lie one behind the other, without a gap.
        places = [0, *(field["end"] for field in answer["fields"])]
        assert [field["start"] for field in answer["fields"]] == places[:-1], case["id"]
        assert places[-1] == len(question["payload"]) // 2, case["id"]


def test_the_page_shows_fields_offsets_and_faults(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    text = (markdown.DOCS / "inspector.md").read_text()
    body = text[text.index('<div class="inspector"') : text.index("</script>") + len("</script>")]
    (folder / "inspector").mkdir()
    (folder / "inspector" / "index.html").write_text(f"<!doctype html><meta charset='utf-8'>{body}")
    page = dumped(f"{address}/inspector/#payload=49000040014e0001740000000135", tmp_path / "profile")
    for shown in ("Insert (I)", "relation_id", "16385", "new[0]", "t: text, 1 bytes"):
        assert shown in page
    page = dumped(f"{address}/inspector/#payload=SQAAQAFOAAF0AAAADA%3D%3D", tmp_path / "profile")
    for shown in ("../errors/#truncated", "at offset 13: new[0] needs 12 bytes, 0 left"):
        assert shown in page
