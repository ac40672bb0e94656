"""What a command prints, as far as the text says so. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cellwall.parsing.shell.command import Command
from cellwall.parsing.shell.words import UNKNOWN

_ESCAPES = re.compile(r"\\(?![nt])")
_PLAIN_FORMATS = {"%s": "", "%s\\n": "\n"}


def printed_text(command: Command) -> str | None:
    """What a command prints, if the text says so: `echo TEXT`, `cat <<EOF`. What a format or an
    escape would change is not known."""
    name = command.words[0].text if command.words else ""
    operands = [word.text for word in command.words[1:]]
    is_handed_on = name == "tee" or operands in ([], ["-"])  # `cat FILE` prints the file
    if name in {"cat", "tee"} and command.stdin_text is not None and is_handed_on:
        text = command.stdin_text.text
        text = text if text.endswith("\n") else f"{text}\n"
    elif name in {"echo", "printf"} and all(word.is_literal for word in command.words):
        texts = [word.text for word in command.words[1:]]
        found = _echoed(texts) if name == "echo" else _formatted(texts)
        if found is None:
            return None
        text = found
    else:
        return None
    return None if UNKNOWN in text else text


def _echoed(texts: Sequence[str]) -> str | None:
    options = 0
    while options < len(texts) and re.fullmatch(r"-[neE]+", texts[options]):
        options += 1
    text = " ".join(texts[options:])
    # dash expands escapes without being told to.
    if _ESCAPES.search(text):
        return None
    end = "" if any("n" in each for each in texts[:options]) else "\n"
    return text.replace("\\n", "\n").replace("\\t", "\t") + end


def _formatted(texts: Sequence[str]) -> str | None:
    if len(texts) == 2 and texts[0] in _PLAIN_FORMATS:
        return texts[1] + _PLAIN_FORMATS[texts[0]]
    if len(texts) != 1 or "%" in texts[0] or _ESCAPES.search(texts[0]):
        return None
    return texts[0].replace("\\n", "\n").replace("\\t", "\t")


def piped_text(command: Command) -> str | None:
    """The same where an interpreter reads it as code: of two readings of a backslash, one would be
    code that nobody has judged."""
    is_echo = bool(command.words) and command.words[0].text == "echo"
    if is_echo and any("\\" in word.text for word in command.words):
        return None
    return printed_text(command)
