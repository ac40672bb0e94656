from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.config.settings_file import KeyPath, find_deep_line, index_lines, nearest_line

DOCUMENT = '''\
profile = "x"
# [not.a.table]
a.b."c d" = 1
[limits] # wall_s = 1
text = """
[fake]
wall_s = 1 \\"""
"""
list = [
  1,
  # "no, ]",
  {k = 2, "j\\u0041" = [1, [
    2]]},
  "x, ]",
]
wall_s = 1.5
[[runs]]
v = 1
[[runs]]
v = 1979-05-27 07:32:00
[runs.sub]
w = \'\'\'
[fake]\'\'\'\'
[ "x.y" . z ]
q = {}
'''


@pytest.mark.requirement("CFG-2")
def test_each_form_of_key_is_found_on_its_line() -> None:
    tomllib.loads(DOCUMENT)
    assert index_lines(DOCUMENT) == {
        ("profile",): 1,
        ("a",): 3,
        ("a", "b"): 3,
        ("a", "b", "c d"): 3,
        ("limits",): 4,
        ("limits", "text"): 5,
        ("limits", "list"): 9,
        ("limits", "list", 0): 10,
        ("limits", "list", 1): 12,
        ("limits", "list", 1, "k"): 12,
        ("limits", "list", 1, "jA"): 12,
        ("limits", "list", 1, "jA", 0): 12,
        ("limits", "list", 1, "jA", 1): 12,
        ("limits", "list", 1, "jA", 1, 0): 13,
        ("limits", "list", 2): 14,
        ("limits", "wall_s"): 16,
        ("runs",): 17,
        ("runs", 0): 17,
        ("runs", 0, "v"): 18,
        ("runs", 1): 19,
        ("runs", 1, "v"): 20,
        ("runs", 1, "sub"): 21,
        ("runs", 1, "sub", "w"): 22,
        ("x.y",): 24,
        ("x.y", "z"): 24,
        ("x.y", "z", "q"): 25,
    }


def test_a_key_that_is_not_there_is_placed_at_its_table_then_at_the_top() -> None:
    assert nearest_line(index_lines(DOCUMENT), ("runs", 1, "sub", "gone", 3)) == 21
    assert nearest_line(index_lines(DOCUMENT), ("limits", "gone")) == 4
    assert nearest_line(index_lines(DOCUMENT), ("gone",)) == 1
    assert nearest_line(index_lines(""), ()) == 1


def test_windows_line_ends_do_not_shift_lines() -> None:
    assert index_lines(DOCUMENT.replace("\n", "\r\n")) == index_lines(DOCUMENT)


@dataclass
class Writer:
    """Writes a random valid document and notes where it put each key."""

    draw: st.DrawFn
    text: str = ""
    placed: dict[KeyPath, int] = field(default_factory=dict)

    @property
    def line(self) -> int:
        return self.text.count("\n") + 1

    def pick(self, *options: str) -> str:
        return self.draw(st.sampled_from(options))

    def key(self, number: int) -> tuple[str, str]:
        """A key, unique by its number, as it is meant and as it is written."""
        kind = self.pick("bare", "basic", "literal", "escaped")
        if kind == "bare":
            return f"k-{number}", f"k-{number}"
        if kind == "literal":
            return f'k"= [{number}]', f"'k\"= [{number}]'"
        if kind == "escaped":
            return f"k.\n{number}", json.dumps(f"k.\n{number}")
        return f"k#{number}'", f'"k#{number}\'"'

    def gap(self) -> str:
        return self.pick("", " ", "\t")

    def noise(self) -> None:
        self.text += self.pick("", "\n", "# a = [\n", " # [t]\n\n", "\t# '''\n")

    def value(self, path: KeyPath, depth: int, *, one_line: bool) -> None:
        kind = self.pick("scalar", "scalar", "array", "table") if depth < 3 else "scalar"
        if kind == "scalar":
            lines = ['"""\n[x]\na = 1\n"""', "'''\n\"\"\"\n]'''"]
            single = [
                "1",
                '"""a""""',
                "'''a''''",
                "-1.5",
                "true",
                '"a = [\\" #"',
                "'\\'",
                "2020-01-01 10:00:00",
                "''",
            ]
            self.text += self.pick(*single, *([] if one_line else lines))
        elif kind == "array":
            self.array(path, depth, one_line=one_line)
        else:
            self.text += "{" + self.gap()
            for number in range(self.draw(st.integers(0, 2))):
                self.text += ", " if number else ""
                self.pair(path, number, depth, one_line=True)
            self.text += self.gap() + "}"

    def array(self, path: KeyPath, depth: int, *, one_line: bool) -> None:
        breaks = ("",) if one_line else ("", "\n", " # ]\n")
        self.text += "["
        for place in range(self.draw(st.integers(0, 3))):
            self.text += "," if place else ""
            self.text += self.pick(*breaks)
            self.placed[*path, place] = self.line
            self.value((*path, place), depth + 1, one_line=one_line)
        self.text += self.pick(*breaks) + "]"

    def dotted(self, base: KeyPath, numbers: list[int]) -> KeyPath:
        path = base
        written = []
        for number in numbers:
            meant, shown = self.key(number)
            path = (*path, meant)
            self.placed.setdefault(path, self.line)
            written.append(shown)
        self.text += f"{self.gap()}.{self.gap()}".join(written)
        return path

    def pair(self, base: KeyPath, number: int, depth: int, *, one_line: bool) -> None:
        parts = [number, *self.draw(st.lists(st.integers(0, 9), max_size=2))]
        path = self.dotted(base, parts)
        self.text += f"{self.gap()}={self.gap()}"
        self.value(path, depth + 1, one_line=one_line)

    def table(self, number: int) -> None:
        elements = self.draw(st.integers(0, 2))  # 0: a plain table
        meant, shown = self.key(number)
        for place in range(max(1, elements)):
            self.noise()
            self.placed.setdefault((meant,), self.line)
            path: KeyPath = (meant,)
            if elements:
                path = (meant, place)
                self.placed[path] = self.line
            self.text += f"[[{shown}]]" if elements else f"[{shown}]"
            self.text += self.pick("\n", " # x\n")
            self.pairs(path)

    def pairs(self, base: KeyPath) -> None:
        for number in range(self.draw(st.integers(0, 3))):
            self.noise()
            self.pair(base, number, 0, one_line=False)
            self.text += self.pick("\n", " # x = 1\n")


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, dict[KeyPath, int]]:
    writer = Writer(draw)
    writer.pairs(())
    for number in range(draw(st.integers(0, 3))):
        writer.table(100 + number)
    return writer.text, writer.placed


@pytest.mark.requirement("CFG-2")
@given(documents())
def test_in_any_valid_document_exactly_its_keys_are_found_on_their_lines(
    document: tuple[str, dict[KeyPath, int]],
) -> None:
    text, placed = document
    tomllib.loads(text)
    assert index_lines(text) == placed


@given(st.text(alphabet="[]{}=,.\"'#\\\r\n ab", max_size=60), st.lists(st.sampled_from("ab")))
def test_any_text_has_a_line_for_any_key(text: str, path: list[str]) -> None:
    assert 1 <= nearest_line(index_lines(text), tuple(path)) <= text.count("\n") + 1


@pytest.mark.parametrize(
    "piece", ['"""\\', '"\\', "'", "'''", "[", "a.", "a=[", '"', "\\", "{", "]"]
)
def test_a_long_text_of_the_same_piece_takes_no_quadratic_time(piece: str) -> None:
    find_deep_line(piece * (100_000 // len(piece)), most=32)


def test_depth_counts_brackets_and_parts_of_keys_but_not_text() -> None:
    assert find_deep_line("\na = [[[1]]]", most=2) == 2
    assert find_deep_line("a.b.c.d = 1", most=2) == 1
    assert find_deep_line("a = [[1], [2], [3]]\nb = '[[[...'\n# [[[\n[x]\n[y]\n[z]", most=2) is None
