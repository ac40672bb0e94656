"""How a page looks, in a form that survives other fonts and other versions of Chromium.

Two things are compared with `looks/NAME.json`: the boxes of the layout, from the DOM, and a grid of
mean colours, from a screenshot. Texts that change from run to run are replaced first. To record,
run the test with `RECORD_LOOKS=FOLDER`, look at the screenshots in that folder, then commit the
files.
"""

from __future__ import annotations

import base64
import io
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page

FOLDER = Path(__file__).with_name("looks")
_CELL_PX = 26
_COLOUR_STEP = 4
"""Colours are stored in steps: the files stay small."""
_MAX_SHARES = {8: 0.2, 22: 0.045}
"""Which share of the cells may differ by more than so much of 255. Other fonts: 0.12 and 0.026."""
_MAX_SHIFT_PX = 14
_MAX_HEIGHT_CHANGE = 0.35

# Times, ids, sizes and counts differ from run to run; long lists have another length.
_SETTLE = r"""() => {
  for (const list of document.querySelectorAll("ul.feed, tbody, ul.alerts, ul.checks, ul.tree"))
    [...list.children].slice(4).forEach((row) => row.remove());
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const texts = [];
  while (walker.nextNode()) texts.push(walker.currentNode);
  for (const text of texts) text.data = text.data
    .replace(/\b(sbx|svc|evt|act|apr|alr|sil|usr|tok)_?[0-9a-z]{5,}/g, "$1_000000000")
    .replace(/\b[0-9a-f]{12,}\b/g, "000000000000")
    .replace(/≤?\s?\d[\d.,:\u202f-]*(\s?(ms|s|min|h|d|B|kB|MB|GB|TB|%))?/g, "0");
  for (const each of document.querySelectorAll("time, .feed .what a")) each.textContent = "00:00:00";
  for (const each of document.querySelectorAll(".feed .why, .checks .muted")) each.textContent = "a reason";
  for (const each of document.querySelectorAll("polyline, .bars rect")) each.remove();
  document.activeElement?.blur(); scrollTo(0, 0);
}"""
_BOXES = """() => {
  const wanted = ".side, .nav, main, .head, .columns, .columns > .stack, .tiles, .tile, .panel, "
    + ".panel > header, .panel table, .panel form, .narrow > *, .empty";
  return [...document.querySelectorAll(wanted)].slice(0, 60).map((each) => {
    const box = each.getBoundingClientRect();
    const name = each.tagName.toLowerCase() + (each.classList[0] ? "." + each.classList[0] : "");
    return [name, Math.round(box.x), Math.round(box.width), Math.round(box.height)];
  });
}"""


@dataclass(frozen=True)
class PageLook:
    """The boxes (name, x, width, height) and the mean colours, row by row."""

    boxes: list[list[Any]]
    colours: bytes

    def to_json(self) -> dict[str, Any]:
        steps = bytes(each // _COLOUR_STEP for each in self.colours)
        packed = base64.b64encode(zlib.compress(steps, 9)).decode("ascii")
        return {"boxes": self.boxes, "colours": packed}

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> PageLook:
        steps = zlib.decompress(base64.b64decode(found["colours"]))
        return cls(found["boxes"], bytes(each * _COLOUR_STEP + _COLOUR_STEP // 2 for each in steps))


def settle(page: Page) -> None:
    """Replace what differs from run to run."""
    page.evaluate(_SETTLE)


def look_at(page: Page, *, keep: Path | None = None) -> PageLook:
    """How a settled page looks now."""
    boxes = page.evaluate(_BOXES)
    png = page.screenshot(animations="disabled", caret="hide")
    if keep is not None:
        keep.write_bytes(png)
    with Image.open(io.BytesIO(png)) as image:
        size = (image.width // _CELL_PX, image.height // _CELL_PX)
        cells = image.convert("RGB").resize(size, Image.Resampling.BOX)
    return PageLook(boxes, cells.tobytes())


def differences(before: PageLook, now: PageLook) -> list[str]:
    """What differs more than other fonts explain."""
    found = []
    names = [[box[0] for box in each.boxes] for each in (before, now)]
    if names[0] != names[1]:
        found.append(f"other elements: {_first_difference(*names)}")
    else:
        for old, new in zip(before.boxes, now.boxes, strict=True):
            name, x, width, height = old
            is_moved = max(abs(new[1] - x), abs(new[2] - width)) > _MAX_SHIFT_PX
            has_height = abs(new[3] - height) <= _MAX_HEIGHT_CHANGE * height + _MAX_SHIFT_PX
            if is_moved or not has_height:
                found.append(f"{name}: x, width, height {old[1:]} -> {new[1:]}")
    if len(before.colours) != len(now.colours):
        return [*found, "another size of the picture"]
    distances = [
        max(abs(a - b) for a, b in zip(*pair, strict=True))
        for pair in zip(_cells(before), _cells(now), strict=True)
    ]
    for least, share in _MAX_SHARES.items():
        count = sum(each > least for each in distances)
        if count > share * len(distances):
            found.append(f"{count} of {len(distances)} cells differ by more than {least}")
    return found


def _cells(look: PageLook) -> list[bytes]:
    return [look.colours[at : at + 3] for at in range(0, len(look.colours), 3)]


def _first_difference(before: list[str], now: list[str]) -> str:
    for index, (old, new) in enumerate(zip(before, now, strict=False)):
        if old != new:
            return f"element {index}: {old} -> {new}"
    return f"{len(before)} -> {len(now)} elements"


def read_looks(name: str) -> dict[str, PageLook]:
    """The stored looks by page."""
    file = FOLDER / f"{name}.json"
    if not file.exists():
        return {}
    return {page: PageLook.of_json(each) for page, each in json.loads(file.read_text()).items()}


def write_looks(name: str, looks: dict[str, PageLook]) -> None:
    FOLDER.mkdir(exist_ok=True)
    lines = [f'"{page}": {json.dumps(each.to_json())}' for page, each in looks.items()]
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
