"""Redirections: which files a command opens, and what it reads as its standard input."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cellwall.parsing.shell.command import File, Stdin
from cellwall.parsing.shell.dialects import check_target
from cellwall.parsing.shell.expand import Expander
from cellwall.parsing.shell.parser import Node, NotUnderstood
from cellwall.parsing.shell.words import Number, Word

_NOWHERE = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero"))
_is_twice_itself = re.compile(r"-|[0-9]+-?|[A-Za-z0-9_./][A-Za-z0-9_./-]*").fullmatch
is_descriptor = re.compile(r"/dev/fd/[0-9]{1,4}").fullmatch


@dataclass(frozen=True, slots=True)
class Redirected:
    """Of one statement. `stdin` is None where it stays as it is around it."""

    files: tuple[File, ...]
    stdin: Stdin | None
    text: Word | None
    """A here-document or a here-string."""


def read_redirections(nodes: Sequence[Node], expander: Expander, text: bytes) -> Redirected:
    """`text` is the whole text that the nodes stand in."""
    files: list[File] = []
    stdin: Stdin | None = None
    given: Word | None = None
    for node in nodes:
        number, operator = node.get("N", {}).get("Value", ""), node["Op"]
        if operator in {"<<", "<<-"}:
            word = _document(node, expander, text)
        else:
            is_text = operator == "<<<"
            word = expander.word(node["Word"]) if is_text else expander.target(node["Word"])
            check_target(operator, word.text)
            if operator in {">&", "<&"}:
                _check_duplicated(word)
            files.extend(() if is_text else _opened_files(operator, word))
        if operator.startswith("<") and number in {"", "0"}:
            if stdin is not None:
                raise NotUnderstood("standard input is given twice; zsh reads both")
            is_file = operator == "<" and not posixpath.normpath(word.text).lstrip("/").startswith(
                ("dev/", "proc/")
            )
            source: Stdin = "file" if is_file else "pipe"
            stdin, given = ("text", word) if operator.startswith("<<") else (source, None)
    return Redirected(tuple(files), stdin, given)


def _check_duplicated(word: Word) -> None:
    """bash expands the word behind `>&` a second time: `>& '$(id)'` runs id, and `>& '~/a'` is in
    the home folder. A dash ends it, so `>& -id` runs id, too."""
    is_plain = word.is_literal and _is_twice_itself(word.text)
    if not is_plain and word.number is Number.NONE:
        raise NotUnderstood("bash expands the word behind >& twice; write > FILE 2>&1")


def _document(node: Node, expander: Expander, text: bytes) -> Word:
    end = node["Word"]["Parts"]
    is_quoted = any(part["Type"] != "Lit" for part in end) or "\\" in end[0].get("Value", "")
    document = node.get("Hdoc", {})
    source = text[document["Pos"]["Offset"] : document["End"]["Offset"]] if document else b""
    if not is_quoted and b"\\\n" in source:
        # bash takes it away even between quotes, if they stand in such a document.
        raise NotUnderstood("a line of a here-document is continued")
    return expander.here_document(document, is_quoted=is_quoted)


def _opened_files(operator: str, word: Word) -> tuple[File, ...]:
    is_number = word.text.rstrip("-").isdigit() or word.text == "-"
    if operator in {">&", "<&"} and is_number:
        return ()
    if word.text in _NOWHERE or is_descriptor(word.text):
        return ()
    if posixpath.normpath(word.text).lstrip("/").startswith(("dev/tcp/", "dev/udp/")):
        raise NotUnderstood(f"bash would open a connection to {word.text[:60]}")
    why = f"redirection {operator}"
    is_read, is_write = operator in {"<", "<&", "<>"}, operator not in {"<", "<&"}
    reads = (File("read", word, why),) if is_read else ()
    return (*reads, File("write", word, why)) if is_write else reads
