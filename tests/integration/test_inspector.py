"""The payload inspector of the docs, in a real browser, decodes the messages of the conformance suite."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pgdecode
from pgdecode.payloads.unwrap import looks_like
from support.captures import DATA
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


# Each paste is shown as the message kinds and the texts of one line that the page shows.
PASTES = """<!doctype html><meta charset="utf-8"><pre id="answers"></pre><script src="/assets/inspector.js"></script>
<script>
(async () => {
    const table = await (await fetch("/assets/messages.json")).json();
    const texts = await (await fetch("/cases.json")).json();
    const read = (text) => {
        try {
            const parts = inspector.decodeAll(inspector.payloadsFrom(text, table), table);
            return parts.map(({ error, answer, lsn, summary }) =>
                error ?? [answer.message.kind ?? null, answer.fault?.code ?? null, lsn ?? null, summary]);
        } catch (error) {
            return error.message;
        }
    };
    document.getElementById("answers").textContent = JSON.stringify(texts.map(read));
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


def answers_of(page: str) -> Any:
    text = re.search(r'<pre id="answers">(.*?)</pre>', page, re.DOTALL)
    assert text
    return json.loads(unescape(text[1]), object_hook=number)


def hexdumps(payload: bytes) -> dict[str, str]:
    """A payload as xxd, hexdump -C and od print it."""
    lines: dict[str, list[str]] = {"xxd": [], "hexdump": [], "od": []}
    for at in range(0, len(payload), 16):
        line = payload[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        lines["xxd"].append(f"{at:08x}: {line.hex(' ', -2):39}  {text}")
        lines["hexdump"].append(f"{at:08x}  {line[:8].hex(' '):23}  {line[8:].hex(' '):23}  |{text}|")
        lines["od"].append(f"{at:06x} {line.hex(' ')}")
    lines["hexdump"].append(f"{len(payload):08x}")
    lines["od"].append(f"{len(payload):06x}")
    return {name: "\n".join(item) for name, item in lines.items()}


def test_pastes_of_many_forms_are_read_as_the_payloads_that_they_hold(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, address = served
    capture = pq.read_table(DATA / "16.shop.v1.parquet").slice(0, 12)
    payloads = capture["data"].to_pylist()
    lsns = [pgdecode.lsn_to_text(lsn) for lsn in capture["lsn"].to_pylist()]
    frames = [b"w" + bytes(24) + payload for payload in payloads]
    wire = [b"d" + (len(frame) + 4).to_bytes(4, "big") + frame for frame in frames]
    keepalive = b"k" + bytes(7) + b"\x01" + bytes(8) + b"\x00"
    rows = list(zip(lsns, payloads, strict=True))
    records = [
        f"-[ RECORD {n} ]\nlsn  | {lsn}\nxid  | 7\ndata | \\x{data.hex()}" for n, (lsn, data) in enumerate(rows, 1)
    ]
    with_lsn = {
        "psql": "    lsn    | xid | data\n-----------+-----+------\n"
        + "".join(f" {lsn} | 745 | \\x{data.hex()}\n" for lsn, data in rows)
        + "(12 rows)\n",
        "psql --csv": "lsn,xid,data\n" + "".join(f"{lsn},745,\\x{data.hex()}\n" for lsn, data in rows),
        "psql expanded": "\n".join(records),
        "COPY": "".join(f"{lsn}\t745\t\\\\x{data.hex()}\n" for lsn, data in rows),
        "JSON lines": "\n".join(json.dumps({"lsn": lsn, "data": f"\\x{data.hex()}"}) for lsn, data in rows),
        "psql with borders": "┌─────┬──────┐\n│ lsn │ data │\n╞═════╪══════╡\n"
        + "".join(f"│ {lsn} │ \\x{data.hex()} │\n" for lsn, data in rows)
        + "└─────┴──────┘\n(12 rows)\n",
        "encode() with borders": "+-----+------+\n| lsn | data |\n+-----+------+\n"
        + "".join(f"| {lsn} | {data.hex()} |\n" for lsn, data in rows),
        "CSV with encode()": "".join(f"{lsn},745,{data.hex()}\n" for lsn, data in rows),
    }
    without = {
        "digits": "\n".join(data.hex() for data in payloads),
        "base64": "\n".join(b64encode(data).decode() for data in payloads),
        "literals": "\n".join(map(repr, payloads)),
        "a list of literals": repr(payloads),
        "bytes with colons": "\n".join(data.hex(":") for data in payloads),
        "bytes with 0x": "\n".join(", ".join(map(hex, data)) for data in payloads),
        "frames": "\n".join(frame.hex() for frame in frames),
        "CopyData": b"".join(wire).hex(),
        **{name: "\n".join(hexdumps(data)[name] for data in payloads) for name in ("xxd", "hexdump", "od")},
    }
    foreign = {
        text: looks_like(text)
        for text in (
            '{"change":[{"kind":"insert","schema":"public"}]}',
            '{"action":"I","schema":"public"}',
            '{"before":null,"after":{"id":1},"op":"c","ts_ms":1}',
            '{"schema":{},"payload":{"op":"c"}}',
            '{"id": 1}',
            "BEGIN 745\ntable public.orders: INSERT: id[integer]:1\nCOMMIT 745",
            "table public.orders: DELETE: id[integer]:1",
            "I\\000\\000@\\001N\\000\\001t",
        )
    }
    one = [
        "\n".join(payloads[1].hex()[at : at + 40] for at in range(0, 400, 40)).strip(),
        f"{keepalive.hex()}",
        "\\x42\n\\x4",
        f"{payloads[1].hex()}0",
        ", ".join(map(hex, payloads[1])),
    ]
    texts = [*with_lsn.values(), *without.values(), *foreign, *one]
    (folder / "cases.json").write_text(json.dumps(texts))
    (folder / "page.html").write_text(PASTES)
    answers = answers_of(dumped(f"{address}/page.html", tmp_path / "profile"))
    kinds = pgdecode.decode_messages(capture["data"], fields=["kind"])["kind"].to_pylist()
    table, first = named_row(payloads)
    for name, answer in zip([*with_lsn, *without], answers, strict=False):
        assert [row[:2] for row in answer] == [[kind, None] for kind in kinds], name
        assert [row[2] for row in answer] == (lsns if name in with_lsn else [None] * 12), name
        # The Relation before a row names its columns.
        assert any(row[3] == f"{table}: {first}" for row in answer), name
    answers = answers[len(with_lsn) + len(without) :]
    assert answers[: len(foreign)] == [f"This looks like {what}." for what in foreign.values()]
    joined, idle, damaged, odd, listed = answers[len(foreign) :]
    assert [row[0] for row in joined] == [kinds[1]]
    assert idle == [[None, None, None, "end of WAL 0/1, time 2000-01-01T00:00:00.000000Z"]]
    assert odd == "This is neither hexadecimal nor base64. Each byte has two hexadecimal digits."
    assert [row[0] for row in listed] == [kinds[1]]
    assert damaged == [["begin", "TRUNCATED", None, "TRUNCATED"], "Line 2 has no payload that can be read."]


def shortened(text: str) -> str:
    return f"{text[:40]}…" if len(text) > 40 else text


def named_row(payloads: list[bytes]) -> tuple[str, str]:
    """The table and the columns with values of the first insert, by the Relation before it."""
    relations: dict[int, pgdecode.Relation] = {}
    for message in map(pgdecode.decode, payloads):
        if isinstance(message, pgdecode.Relation):
            relations[message.relation_id] = message
        if isinstance(message, pgdecode.Insert):
            relation = relations[message.relation_id]
            values = [
                f"{column.name} {'null' if value is None else shortened(bytes(value).decode())}"
                for column, value in zip(relation.columns, message.new, strict=True)
            ]
            return f"{relation.namespace}.{relation.name}", ", ".join(values)
    raise AssertionError("the first payloads have no insert")


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
    answers = answers_of(dumped(f"{address}/page.html", tmp_path / "profile"))
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
    assert "`" not in page
