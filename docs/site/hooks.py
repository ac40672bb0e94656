"""What MkDocs does not know about this repository; see `hooks` in mkdocs.yml.

Documents keep their places and their links, which work in the repository. For the site, files
outside of docs/ become pages or plain files, links to them are changed, and lists and tables get
the blank lines that Python-Markdown needs.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "security.md",
    "docs/adr": "adr/index.md",
}
"""Pages that are made from something outside of docs/, or from a folder."""

_FENCE = re.compile(r"(^ *```.*?^ *```[ \t]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)((?:#[^)\s]*)?)(?=\))")
_NOTE = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"[-*] |\d+\. ")
_FIRST_ITEM = re.compile(r"[-*] |1\. ")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The records of decisions are listed by their folder."""
    for entry in config.nav or ():
        for title, target in dict(entry).items():
            if target == "adr/":
                entry[title] = ["adr/index.md", *(f"adr/{name}" for name in _records())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs/ and every file that a document links to."""
    for source, page in PAGES.items():
        text = _list_of_records() if source == "docs/adr" else (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, page, content=text))
    for page in list(files.documentation_pages()):
        source = _source_of(page.src_uri)
        for target, _ in _LINK.findall(_FENCE.sub("", page.content_string)):
            name = site_path(source, target)
            if name.startswith("files/") and files.get_file_from_path(name) is None:
                text = (ROOT / name.removeprefix("files/").removesuffix(".txt")).read_text("utf-8")
                files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Change links and lists; code stays as it is."""
    source = _source_of(page.file.src_uri)
    parts = _FENCE.split(markdown)
    parts[::2] = [_for_site(part, source, page.file.src_uri) for part in parts[::2]]
    return "".join(parts)


def site_path(source: str, target: str) -> str:
    """The path in the site of what a document links to; `source` is a path in the repository."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}.txt"


def spaced(text: str) -> str:
    """Markdown with blank lines and indents that Python-Markdown needs and CommonMark does not."""
    lines: list[str] = []
    in_list = False
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        is_item = _ITEM.match(line) is not None
        is_row = line.startswith("|")
        starts_list = not in_list and _FIRST_ITEM.match(line) is not None
        if before and ((starts_list and not is_row) or (is_row and not before.startswith("|"))):
            lines.append("")
        in_list = is_item or (in_list and bool(line))
        lines.append(re.sub(r"^ {2,3}(?=[-*] |\d+\. )", "    ", line))
    return "\n".join(lines)


def _for_site(text: str, source: str, page: str) -> str:
    def change(link: re.Match[str]) -> str:
        name = site_path(source, link[1])
        return posixpath.relpath(name, posixpath.dirname(page) or ".") + link[2]

    return spaced(_LINK.sub(change, _NOTE.sub("", text)))


def _source_of(page: str) -> str:
    return next((source for source, name in PAGES.items() if name == page), f"docs/{page}")


def _records() -> list[str]:
    return sorted(path.name for path in (ROOT / "docs/adr").glob("*.md"))


def _list_of_records() -> str:
    titles = {
        name: (ROOT / "docs/adr" / name).read_text("utf-8").partition("\n")[0].lstrip("# ")
        for name in _records()
    }
    rows = "\n".join(f"- [{title}](adr/{name})" for name, title in titles.items())
    about = "Each record says what was decided, why, and what else was considered."
    return f"# Decisions\n\n{about}\n\n{rows}\n"
