"""Whether a wheel's `entry_points.txt` could make an installer write a script elsewhere. Pure.

pip makes a script for each name below `[console_scripts]` and joins the name to the folder of
scripts. Up to pip 26 a name such as `/home/ann/.bashrc` is written there, on the host. pip, its
backends and their versions read this file in different ways, so it is not parsed as one of them
does: a line counts unless all of them agree that it is of another section.
"""

from __future__ import annotations

import re

# At the first column: an indented one goes on with the line before, for some.
_OTHER_SECTION = re.compile(r"\[[A-Za-z0-9_.\- ]+\][ \t]*")
_SCRIPTS = "_scripts"
_LINE = re.compile(r"\r\n|\r|\n")


def may_name_a_path(text: str) -> bool:
    """True for a script whose name is a path, and for what not everybody reads alike."""
    lines = _LINE.split(text)
    if lines[-1:] == [""]:
        lines.pop()
    if lines != text.splitlines():  # a character that only some take for the end of a line
        return True
    counts = True
    for line in lines:
        if _SCRIPTS in line.lower():
            counts = True
        elif _OTHER_SECTION.fullmatch(line):
            counts = False
        # In the whole line: what is no name to one reader is a name to the maker of scripts.
        if counts and not line.startswith("#") and ("/" in line or "\\" in line):
            return True
    return False
