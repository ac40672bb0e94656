"""What MkDocs does not know about this repository; see `hooks` in mkdocs.yml.

Documents keep their places and their links, which work in the repository. For the site, files
outside of docs/ become pages or plain files, and links to them are changed.
"""

from __future__ import annotations

from pathlib import Path

from docs.site.documents import PAGES, for_site, linked_files, source_of
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]


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
    documents = list(files.documentation_pages())
    linked = [linked_files(each.content_string, source_of(each.src_uri)) for each in documents]
    for name in sorted(set().union(*linked)):
        linked_path = ROOT / name.removeprefix("files/").removesuffix(".txt")
        files.append(File.generated(config, name, content=_text_of(linked_path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links, lists and tables."""
    return for_site(markdown, page.file.src_uri)


def _text_of(path: Path) -> str:
    """Of a folder, the names of its files."""
    if not path.is_dir():
        return path.read_text("utf-8")
    found = sorted(each for each in path.rglob("*") if each.is_file())
    return "".join(f"{each.relative_to(path.parent)}\n" for each in found)


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
