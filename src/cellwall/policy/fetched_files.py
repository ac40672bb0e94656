"""Files that an address names: `file:` URLs, forms of curl, and where a download is put. Pure.

curl takes `%2e` for a dot, makes several URLs of `{a,b}` and `[1-3]`, and puts parts of them into
the name of its output (`#1`). Without a name for the output, the last name of the address is taken.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from urllib.parse import unquote

from cellwall.parsing.shell.command import Command, File
from cellwall.parsing.shell.words import UNKNOWN, Word
from cellwall.policy.commands.opened import Opened
from cellwall.policy.filled_folders import flags_of

_find_file_url = re.compile(r"(?i)\b(?:file|man|info):(?://[\w.-]*)?(?P<path>/.*)").search
_find_braces = re.compile(r"\{([^{}]*)\}").search
_find_all_braces = re.compile(r"\{([^{}]*)\}").findall
_PART = re.compile(r"#[0-9]+")
_MAX_ALTERNATIVES = 64
_FORMS = frozenset(("-F", "--form"))
_NAMED_BY_ADDRESS = frozenset(("-O", "--remote-name", "--remote-name-all", "-J"))
_WGETS = frozenset(("wget", "wget2", "aria2c", "axel"))
_FOLDERS = frozenset(("--output-dir", "-P", "--directory-prefix", "-d", "--dir"))
_OUTPUTS = frozenset(("-O", "--output-document", "-o", "--out", "--output"))


def fetched_files(command: Command, opened: Opened) -> Iterator[File]:
    """What the models of the programs do not tell."""
    texts = [word.text for word in command.words[1:]]
    for text in texts:
        found = _find_file_url(text)
        if found is not None and UNKNOWN not in text:
            for path in {found["path"], *_spellings(found["path"])}:
                is_wild = "[" in path and path != found["path"]
                yield File("read", Word(path, has_glob=is_wild), "a file of this machine is read")
    name = command.words[0].text.rpartition("/")[2]
    if name == "curl":
        yield from _of_forms(texts)
        parts = [
            each for text in texts for found in _find_all_braces(text) for each in found.split(",")
        ]
        for file in opened.files:
            for path in _filled(file.path.text, parts) if file.access == "write" else ():
                yield File("write", Word(path), "a part of the address is put into the name")
    flags = {flag for text in texts for flag in flags_of(text)}
    is_named = name == "curl" and not flags.isdisjoint(_NAMED_BY_ADDRESS)
    if is_named or (name in _WGETS and flags.isdisjoint(_OUTPUTS)):
        yield from _named_by_address(texts)


def _spellings(path: str) -> list[str]:
    """What curl makes of the path of a `file:` URL; a range in brackets stays one."""
    found = [unquote(path)]
    while len(found) <= _MAX_ALTERNATIVES:
        braced = [(each, _find_braces(each)) for each in found]
        if not any(match for _, match in braced):
            return [re.sub(r"\[[^]]*\]", "[*]", each) for each in found]
        found = [
            each[: match.start()] + part + each[match.end() :] if match else each
            for each, match in braced
            for part in (match[1].split(",") if match else [""])
        ]
    return ["/"]


def _filled(path: str, parts: Sequence[str]) -> Iterator[str]:
    """The names that `#1` makes of the alternatives in an address."""
    pieces = _PART.split(path)
    count = len(pieces) - 1
    if count and len(parts) ** count > _MAX_ALTERNATIVES:
        yield "/"  # no name that could be judged
        return
    for chosen in product(parts, repeat=count) if count else ():
        yield pieces[0] + "".join(map("".join, zip(chosen, pieces[1:], strict=True)))


def _of_forms(texts: Sequence[str]) -> Iterator[File]:
    """`-F 'x=@a,b;headers=@c'` sends a, b and c."""
    for before, text in pairwise(["", *texts]):
        value = text if before in _FORMS else ""
        for option in _FORMS:
            value = value or text.removeprefix(option) if text.startswith(option) else value
        content = value.partition("=")[2]
        if content.startswith(("@", "<")):
            for part in re.split("[,;]", content):
                path = re.sub("^[^=@<]*=", "", part.strip()).lstrip("@<").strip("\"'")
                if path and UNKNOWN not in path:
                    yield File("read", Word(path), "it is sent")


def _named_by_address(texts: Sequence[str]) -> Iterator[File]:
    folder = next((after for before, after in pairwise(texts) if before in _FOLDERS), ".")
    for text in texts:
        option, equals, value = text.partition("=")
        if equals and option in _FOLDERS:
            folder = value
    for text in texts:
        if "://" in text:
            path = re.split("[?#]", text.partition("://")[2])[0].partition("/")[2]
            last = unquote(posixpath.basename(path))
            if last and UNKNOWN not in last and "/" not in last:
                where = Word(posixpath.join(folder, last))
                yield File("write", where, "it is named after the address")
