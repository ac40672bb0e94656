"""The site of the documentation: navigation, links, pictures, and no other host (`./dev docs`)."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from docs.site.build import foreign_addresses
from docs.site.documents import PAGES, for_site, site_path, spaced

import cellwall
from cellwall.runtime import pipeline
from conftest import need

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted((ROOT / "docs").rglob("*.md"))
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def test_navigation_has_every_document_once():
    listed = re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    here = {str(path.relative_to(ROOT / "docs")) for path in DOCUMENTS}
    of_folders = {name for name in here if name.startswith("adr/")}
    from_outside = set(PAGES.values()) - {"adr/index.md"}
    assert sorted(listed) == sorted((here - of_folders) | from_outside), (
        "put new documents into `nav` of mkdocs.yml"
    )


def anchors(document: Path) -> set[str]:
    text = _FENCE.sub("", document.read_text("utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_anchors_of_links_are_headings():
    missing = []
    for document in [*ROOT.glob("*.md"), *DOCUMENTS]:
        text = _FENCE.sub("", document.read_text("utf-8"))
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", text):
            if anchor not in anchors(document.parent / target if target else document):
                missing.append(f"{document.name}: {target}#{anchor}")
    assert missing == []


@pytest.mark.parametrize(
    ("source", "target", "path"),
    [
        ("README.md", "docs/guides/mcp.md", "guides/mcp.md"),
        ("README.md", "docs/adr/", "adr/index.md"),
        ("docs/guides/x.md", "../../CHANGELOG.md", "changes.md"),
        ("docs/guides/x.md", "../../deploy/nginx/a.conf", "files/deploy/nginx/a.conf.txt"),
        ("docs/x.md", "images/a.png", "images/a.png"),
    ],
)
def test_links_lead_into_the_site(source, target, path):
    assert site_path(source, target) == path


def test_lists_and_tables_after_a_paragraph_are_set_apart_and_code_is_not():
    assert spaced("Two:\n- a\n  - b\n- c\nmore\n\nA\n| x |\n|---|") == (
        "Two:\n\n- a\n    - b\n- c\nmore\n\nA\n\n| x |\n|---|"
    )
    code = "```md\nTwo:\n- [a](../../x)\n```"
    assert for_site(code, "guides/y.md") == code


def test_only_what_a_browser_loads_by_itself_counts_as_foreign(tmp_path):
    policy = "<meta content=\"default-src 'self'\">"
    (tmp_path / "good.html").write_text(f'{policy}<a href="https://a.example"><img src="x.png">')
    (tmp_path / "bad.html").write_text(
        '<script src="//b.example/x.js"></script><link href="https://c.example/f.css">'
        "<style>@import 'https://d.example';</style>"
    )
    (tmp_path / "x.css").write_text("a{background:url(http://e.example/i.png)}b{src:url(f.woff)}")
    assert foreign_addresses(tmp_path) == [
        "bad.html: no Content-Security-Policy",
        "bad.html: //b.example/x.js",
        "bad.html: https://c.example/f.css",
        "bad.html: https://d.example",
        "x.css: http://e.example/i.png",
    ]


def test_the_reference_has_every_public_name():
    text = (ROOT / "docs/api.md").read_text("utf-8")
    assert [name for name in cellwall.__all__ if f"`{name}`" not in text] == []


def test_the_picture_of_an_action_has_the_steps_of_the_code():
    steps = dict(re.findall(r"\((\d+)\) (.*?)(?= {2,}\(|\n)", pipeline.__doc__))
    picture = (ROOT / "docs/images/path-of-an-action.svg").read_text("utf-8")
    drawn = re.findall(r'font-weight="bold">(\d+)</text>\n<text [^>]*>([^<]+)<', picture)
    assert [number for number, _ in drawn] == list(map(str, range(1, 11)))
    assert [title for number, title in drawn if title not in steps[number]] == []


@pytest.mark.long
@pytest.mark.xdist_group("browser")
def test_the_site_is_built_and_a_browser_loads_nothing_from_elsewhere(tmp_path):
    need(importlib.util.find_spec("mkdocs"), "mkdocs, which ./dev docs installs")
    command = [sys.executable, "-m", "docs.site.build", "--out", tmp_path]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    need(shutil.which("chromium"), "chromium")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  # slow to import

    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    loaded: list[tuple[str, int]] = []
    with (
        serving(handler) as address,
        serving(handler) as elsewhere,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.on("response", lambda answer: loaded.append((answer.url, answer.status)))
        page.on("requestfailed", lambda request: loaded.append((request.url, 0)))
        for name in ("index", "how-it-works", "overview"):
            page.goto(f"{address}{name}.html", wait_until="networkidle")
        page.fill("input[name=query]", "witness")
        page.wait_for_selector(".md-search-result__item")
        loaded_by_pages = loaded.copy()
        # Whatever a script would do is refused by the policy of the pages; a file has none.
        load = f"() => fetch('{elsewhere}', {{mode: 'no-cors'}}).then(() => true, () => false)"
        from_page = page.evaluate(load)
        page.goto(f"{address}files/deploy/nginx/cellwall.conf.txt")
        from_file = page.evaluate(load)
        browser.close()
    assert (from_page, from_file) == (False, True)
    assert [found for found in loaded_by_pages if not found[0].startswith(address)] == []
    assert [found for found in loaded_by_pages if found[1] >= 400] == []


@contextmanager
def serving(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
