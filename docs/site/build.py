"""Builds the site of the documentation: `./dev docs`.

Broken links, missing anchors and documents that the navigation lacks are errors, and so is a page
that would load something from another host.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build/docs"
ADDRESS = "127.0.0.1:8751"
_LOADING_ATTRIBUTES = {"src", "srcset", "data", "poster", "action", "formaction", "background"}
_FOREIGN = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_STYLE_URL = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")
_POLICY = "default-src 'self'"


class _Loads(HTMLParser):
    """Addresses that a browser loads by itself; a link that a person follows is none."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.has_policy = False
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_style = tag == "style"
        for name, value in attrs:
            loads = name in _LOADING_ATTRIBUTES or (
                name.endswith("href") and tag not in {"a", "area"}
            )
            if loads:
                self.addresses.append(value or "")
            elif name == "style":
                self.addresses += style_addresses(value or "")
            elif tag == "meta" and name == "content" and _POLICY in (value or ""):
                self.has_policy = True

    def handle_endtag(self, tag: str) -> None:
        self._in_style = self._in_style and tag != "style"

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.addresses += style_addresses(data)


def style_addresses(text: str) -> list[str]:
    """What a style sheet loads."""
    return [url or imported for url, imported in _STYLE_URL.findall(text)]


def foreign_addresses(site: Path) -> list[str]:
    """`page: address` for each address of another host that a page or style sheet loads."""
    found = []
    for path in sorted(site.rglob("*")):
        name = path.relative_to(site)
        if path.suffix in {".html", ".svg"}:
            page = _Loads()
            page.feed(path.read_text("utf-8"))
            addresses = page.addresses
            if path.suffix == ".html" and not page.has_policy:
                found.append(f"{name}: no Content-Security-Policy")
        elif path.suffix == ".css":
            addresses = style_addresses(path.read_text("utf-8"))
        else:
            continue
        found += [f"{name}: {address}" for address in addresses if _FOREIGN.match(address)]
    return found


def _build(out: Path) -> int:
    # Imported here: the check above runs in tests without the group `docs`.
    from mkdocs.commands.build import build  # noqa: PLC0415  # see above
    from mkdocs.config import load_config  # noqa: PLC0415  # see above
    from mkdocs.exceptions import Abort  # noqa: PLC0415  # see above

    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    try:
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out)))
    except Abort as abort:
        print(f"dev: the site was not built: {abort}", file=sys.stderr)
        return 1
    if foreign := foreign_addresses(out):
        print("dev: pages would load from other hosts:", *foreign, sep="\n  ", file=sys.stderr)
        return 1
    print(f"built {len(list(out.rglob('*.html')))} pages: {out / 'index.html'}")
    return 0


def _serve() -> int:
    from mkdocs.commands.serve import serve  # noqa: PLC0415  # see above

    print(f"http://{ADDRESS}/ follows changes of the documents; Ctrl-C ends it")
    serve(str(ROOT / "mkdocs.yml"), dev_addr=ADDRESS)
    return 0


def main() -> int:
    """Build or serve."""
    parser = argparse.ArgumentParser(prog="./dev docs", description=__doc__)
    parser.add_argument("--out", type=Path, default=SITE, help="folder of the site")
    parser.add_argument("--serve", action="store_true", help=f"serve the site on {ADDRESS} instead")
    chosen = parser.parse_args()
    return _serve() if chosen.serve else _build(chosen.out.resolve())


if __name__ == "__main__":
    sys.exit(main())
