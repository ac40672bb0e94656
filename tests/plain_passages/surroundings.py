"""What a whole text adds to each of its passages: its size and shape, how many passages it has, how
many of them are orders, and whether it is about attacks (GRD-2).

A whole text that asks is a prompt, one line that asks among data is not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from plain_passages.reading import TextPassage

_SHAPES = {
    "text of lines": re.compile(r"\S[ \t]*\n\s*\S"),
    "text of paragraphs": re.compile(r"\S[ \t]*\n\s*\n\s*\S"),
    "text of data": re.compile(r"\A\s*(?:[\[{]|- ?\w+: |\w+: )"),
    "text of markup": re.compile(r"</\w+>"),
    "text of headings": re.compile(r"^#{1,4} ", re.MULTILINE),
    "text of a mail": re.compile(r"^(?:From|To|Subject|Date): ", re.MULTILINE | re.IGNORECASE),
}
_SHAPE_CHARACTERS = 8_000
_SIZES = (
    (3000, "text over 3000"),
    (1200, "text over 1200"),
    (700, "text over 700"),
    (300, "text over 300"),
    (120, "text over 120"),
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the whole text adds to each of its passages."""

    traits: frozenset[str]
    script: str
    count: int


def shape_of(text: str) -> frozenset[str]:
    """Size and form of a whole text."""
    size = len(text)
    shape = {name for name, form in _SHAPES.items() if form.search(text, 0, _SHAPE_CHARACTERS)}
    shape.add(next((name for least, name in _SIZES if size >= least), "text under 120"))
    return frozenset(shape)


def read_surroundings(passages: Sequence[TextPassage], shape: frozenset[str]) -> Surroundings:
    """What the passages of a text have in common; `shape` is that of the whole text."""
    count = len(passages)
    orders = sum("order" in each.traits for each in passages)
    talks = sum(bool({"attack_talk", "about"} & each.traits) for each in passages)
    asks = sum(bool({"you", "modal"} & each.traits) for each in passages)
    code = sum("code" in each.traits for each in passages)
    letters = sum("letter" in each.traits for each in passages)
    traits = {_count_trait(count), _order_trait(orders, count), *shape}
    if talks >= 3 and talks > 0.06 * count:
        traits.add("text about attacks")
    if asks > 0.3 * count and count > 4:
        traits.add("text to a reader")
    if code > 0.3 * count:
        traits.add("text of code")
    if letters >= 2:
        traits.add("text of a letter")
    scripts: dict[str, int] = {}
    for each in passages:
        scripts[each.script] = scripts.get(each.script, 0) + 1
    main = max(scripts, key=lambda name: scripts[name]) if scripts else "latin"
    return Surroundings(frozenset(traits), main, count)


def _count_trait(count: int) -> str:
    if count <= 1:
        return "text of one"
    return "text of few" if count <= 4 else "text of some" if count <= 15 else "text of many"


def _order_trait(orders: int, count: int) -> str:
    if orders <= 1:
        return "no other order"
    share = orders / count
    return "few orders" if share <= 0.15 else "some orders" if share <= 0.4 else "all orders"
