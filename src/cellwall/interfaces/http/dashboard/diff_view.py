"""A diff in the format of git as files with lines, for a page of bounded size.

Code chose the text: each line is cut, and the whole is cut by files, lines and characters. A line
of a file cannot be taken for a header, since git begins each with a sign.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cellwall.interfaces.http.dashboard.templating import shown

_MAX_FILES = 60
_MAX_LINES = 600
_MAX_CHARACTERS = 48_000
_MAX_LINE = 240
_KINDS = {"+": "add", "-": "del", "@": "hunk", "\\": "note"}


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line; `kind` is `add`, `del`, `hunk`, `note` or empty."""

    kind: str
    text: str


@dataclass(slots=True)
class DiffFile:
    """One file of the diff. Counts are of the lines shown."""

    name: str
    about: str = ""
    """`new file`, `deleted file`, `mode`, `binary`; empty for a change of content."""
    lines: list[DiffLine] = field(default_factory=list)
    left_out: int = 0
    """Lines that the page does not show."""

    @property
    def added(self) -> int:
        return sum(line.kind == "add" for line in self.lines)

    @property
    def removed(self) -> int:
        return sum(line.kind == "del" for line in self.lines)


def diff_files(text: str) -> list[DiffFile]:
    """The files in the order of the diff."""
    found: list[DiffFile] = []
    lines_left, characters_left = _MAX_LINES, _MAX_CHARACTERS
    in_hunk = False
    # Only \n ends a line: other breaks belong to the content, and `shown` spells them out.
    for line in text.split("\n"):
        if line.startswith("diff --git "):
            if len(found) >= _MAX_FILES:
                break
            found.append(DiffFile(_name(line)))
            in_hunk = False
        elif not found or not line:
            continue
        elif not in_hunk and not line.startswith("@@ "):
            found[-1].about = _about(line) or found[-1].about
        else:
            in_hunk = True
            kept = shown(line[1:] if line[0] in "+- " else line, _MAX_LINE)
            if lines_left <= 0 or characters_left < len(kept):
                found[-1].left_out += 1
                continue
            lines_left, characters_left = lines_left - 1, characters_left - len(kept)
            found[-1].lines.append(DiffLine(_KINDS.get(line[0], ""), kept))
    return found


def _name(header: str) -> str:
    """Of `diff --git a/NAME b/NAME`, where git quotes names with unusual characters."""
    rest = header.removeprefix("diff --git ")
    name = rest[len(rest) // 2 + 1 :]
    bare = name[1:-1] if name.startswith('"') else name
    return bare.removeprefix("b/")


def _about(line: str) -> str:
    for start, word in (
        ("new file", "new file"),
        ("deleted file", "deleted file"),
        ("new mode", "mode"),
        ("Binary files", "binary"),
        ("…", "the rest is left out"),
    ):
        if line.startswith(start):
            return word
    return ""
