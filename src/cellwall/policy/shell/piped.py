"""What a command hands to the next one in a pipe, where the text says so exactly. Pure.

`echo 'print(1)' | python3` is inline code by another door: it is read as such. What any shell would
print differently, by an escape or an option, is not known.
"""

from __future__ import annotations

import re

from cellwall.policy.shell.command import Command
from cellwall.policy.shell.words import UNKNOWN, Word

_is_plain_format = re.compile(r"(?:[^%\\]|\\[nt])*").fullmatch
_LINES = ("%s\\n", "%s\n")


def piped_text(command: Command) -> Word | None:
    """The whole output of `echo TEXT`, `printf TEXT`, `printf '%s\\n' TEXT…` and `cat <<EOF`."""
    words = command.words
    name = words[0].text if words else ""
    if command.is_function or any(file.access == "write" for file in command.files):
        return None
    if name == "cat" and len(words) == 1 and command.stdin == "text":
        text = command.stdin_text
        return text if text is not None and UNKNOWN not in text.text else None
    if not all(word.is_literal for word in words):
        return None
    texts = [word.text for word in words[1:]]
    found = {"echo": _echoed, "printf": _formatted}.get(name, _nothing)(texts)
    return None if found is None else Word(found)


def _nothing(_texts: list[str]) -> str | None:
    return None


def _echoed(texts: list[str]) -> str | None:
    end = "\n"
    if texts[:1] == ["-n"]:
        texts, end = texts[1:], ""
    is_plain = bool(texts) and not texts[0].startswith("-")
    # zsh and dash expand escapes without being told to.
    return " ".join(texts) + end if is_plain and not any("\\" in text for text in texts) else None


def _formatted(texts: list[str]) -> str | None:
    if len(texts) > 1 and texts[0] in _LINES:
        return "".join(f"{text}\n" for text in texts[1:])
    if len(texts) != 1 or texts[0].startswith("-") or not _is_plain_format(texts[0]):
        return None
    return texts[0].replace("\\n", "\n").replace("\\t", "\t")
