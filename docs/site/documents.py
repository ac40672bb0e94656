"""Links and Markdown of documents as the site needs them: pure functions of texts and paths."""

from __future__ import annotations

import posixpath
import re

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


def source_of(page: str) -> str:
    """The path in the repository of a page of the site."""
    return next((source for source, name in PAGES.items() if name == page), f"docs/{page}")


def linked_files(text: str, source: str) -> set[str]:
    """Paths in the site of the files that a document links to and that are no pages."""
    targets = {site_path(source, target) for target, _ in _LINK.findall(_FENCE.sub("", text))}
    return {path for path in targets if path.startswith("files/")}


def for_site(text: str, page: str) -> str:
    """A document with links of the site and with lists that Python-Markdown reads; code stays."""
    source = source_of(page)

    def change(link: re.Match[str]) -> str:
        name = site_path(source, link[1])
        return posixpath.relpath(name, posixpath.dirname(page) or ".") + link[2]

    parts = _FENCE.split(text)
    parts[::2] = [spaced(_LINK.sub(change, _NOTE.sub("", part))) for part in parts[::2]]
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
