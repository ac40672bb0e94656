"""What inline code of an interpreter starts, reads and writes, as far as it is written out. Pure.

The sieve (inline.py) says whether code is harmless. This says what code does that is not: each
command that it starts is judged like one of the shell text, and built-in denials hold for it under
any rule. A command that is put together while the code runs is unknown, and no rule for everything
covers that; a rule that spells out the option (`Bash(python3 -c *)`) does.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.code.started_python import look_into_python
from cellwall.policy.code.started_scan import is_known, scan_code
from cellwall.policy.code.starts import Starts

MAX_CHARACTERS: Final = 65_536


def is_read(language: str) -> bool:
    """Whether code of this language is searched for what it starts."""
    return language == "python" or is_known(language)


@lru_cache(maxsize=64)
def starts_in(language: str, text: str) -> Starts:
    """What the code starts. The result is shared: nobody changes it."""
    found = Starts()
    if len(text) > MAX_CHARACTERS:
        found.doubt("the code is too long to be looked at")
        return found
    if UNKNOWN in text:  # what is known is judged all the same: a denial in it holds
        found.doubt("part of the code is not known")
    if language == "python":
        look_into_python(text, found)
    else:
        scan_code(language, text, found)
    if found.is_too_much:
        return Starts(unknown="it starts more than can be judged in time")
    return found
